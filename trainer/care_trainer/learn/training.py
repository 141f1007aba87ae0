"""One training run: split, tokenizer, start, the table without the held-out texts and then with them."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from care_qdrant import CareModel
from care_qdrant.model.hub import BUILT_IN
from care_qdrant.search.judged import Questions
from care_qdrant.types import Vectors
from care_trainer.learn import table as tables
from care_trainer.learn.checks import require_belonging, require_learnable
from care_trainer.learn.earlier import Earlier
from care_trainer.learn.outcome import Student, Training
from care_trainer.learn.settings import LearnSettings
from care_trainer.learn.split import Split
from care_trainer.learn.start import built_in_reads, built_in_tokenizer, mapped_start, token_vectors
from care_trainer.learn.token_table import TokenTable
from care_trainer.learn.weak import rare_share
from care_trainer.models.tokens import Parts, TokenLists, tokenize, train_collection_tokenizer

_CLEARLY = 0.02
"""Difference of two mean reciprocal ranks on held-out documents that is more than noise."""
_NEGLIGIBLE = 0.02
"""Fraction of documents not trained on up to which the encoder is not trained once more with them."""


@dataclass(frozen=True, slots=True)
class Trained:
    """A query encoder that was trained."""

    table: TokenTable
    built_in_start: bool
    """Whether it began with what the built-in model knows of its tokens."""
    student: Student


def train(
    split: Split,
    log: Questions | None,
    settings: LearnSettings,
    where: str,
    earlier: Earlier | None,
    state: Path,
    on_step: Callable[[int, int], None],
) -> Trained:
    """Train a table of token vectors, measure it on the held-out documents, and train it again with all of them.

    Where the built-in model reads the texts, a table of its tokens is trained as well. It is kept unless the
    collection's own tokens are clearly better on the held-out documents: the built-in model has read questions, so it
    has whole tokens for words that only they have.
    """
    state.mkdir(parents=True, exist_ok=True)
    settings = replace(settings, temperature=settings.temperature * tables.spread(split.candidates))
    is_known = earlier is None and built_in_reads(split.texts)
    again = len(split.texts) - len(split.train) > _NEGLIGIBLE * len(split.texts)
    run = Trainings(split, log, settings, where, earlier, is_known, state, on_step, fits_left=1 + is_known + again)
    best = run.fit(_own_tokens(split, settings, earlier, state))
    if is_known:
        tokenizer = built_in_tokenizer(settings.max_tokens)
        built_in = run.fit(Tokens(BUILT_IN, tokenizer, Parts.of(tokenizer, compose=False)))
        best = best if best.fit.score > built_in.fit.score + _CLEARLY else built_in
    table, texts = run.fit_with_held_out(best) if again else (best.fit.table, best.texts)
    if not is_known:  # the vector of a token that no text has is the random start, or of texts that are gone
        table = np.where(texts.tokens.counts(len(table))[:, None] > 0, table, np.float32(0))
    folded = tables.folded(table, best.tokens.parts, texts.targets.mean(axis=0))
    asked = tokenize(best.tokens.tokenizer, split.questions)
    student = Student(
        training=Training(
            vocabulary=len(folded),
            tokens=best.tokens.name,
            layers=0,
            steps=best.fit.steps,
            best_step=best.fit.best_step,
        ),
        trained_again=again,
        sentences=[text for text, tokens in zip(split.questions, asked.lengths, strict=True) if tokens],
        questions=run.questions(best.tokens, best.fit.table),
        rare=rare_share(best.texts.whole, asked, len(folded)),
        history=best.fit.history,
    )
    return Trained(TokenTable(best.tokens.tokenizer, folded, split.pairs.basis), is_known, student)


@dataclass(frozen=True, slots=True)
class Tokens:
    """A tokenizer whose tokens get vectors."""

    name: str
    tokenizer: Tokenizer
    parts: Parts


@dataclass(frozen=True, slots=True)
class TrainingTexts:
    """Texts as the tokens that a table is trained on, with the vectors that it has to reach."""

    whole: TokenLists
    tokens: TokenLists
    """The parts of the whole tokens."""
    targets: Vectors


@dataclass(frozen=True, slots=True)
class FittedTable:
    """A table of some tokens that was trained without the held-out documents."""

    tokens: Tokens
    texts: TrainingTexts
    start: Vectors
    fit: tables.Fit


@dataclass(slots=True)
class Trainings:
    """The trainings of one run, which share the split, the settings and the progress."""

    split: Split
    log: Questions | None
    settings: LearnSettings
    where: str
    earlier: Earlier | None
    starts_mapped: bool
    """Whether tables begin with what the built-in model knows of their tokens."""
    state: Path
    on_step: Callable[[int, int], None]
    fits_left: int
    steps_before: int = 0

    def fit(self, tokens: Tokens) -> FittedTable:
        """Train a table of some tokens until the held-out documents no longer gain."""
        texts = self._read(tokens, self.split.train)
        start = self._start(tokens, texts)

        def score(table: Vectors) -> float:
            return self.split.score(self.questions(tokens, table)).mrr

        fit = self._fit_table(tokens.name, start, texts, self.settings, score)
        return FittedTable(tokens, texts, start, fit)

    def fit_with_held_out(self, fitted: FittedTable) -> tuple[Vectors, TrainingTexts]:
        """Train a table once more on all documents, for as many passes over them."""
        split = self.split
        texts = self._read(fitted.tokens, np.concatenate([split.train, split.held, split.copies]))
        steps = max(1, round(fitted.fit.best_step * len(split.texts) / len(split.train)))
        fit = self._fit_table("final", fitted.start, texts, replace(self.settings, max_steps=steps), None)
        return fit.table, texts

    def questions(self, tokens: Tokens, table: Vectors) -> Vectors:
        """Return a table's vectors of the held-out documents' questions."""
        return tables.encode(table, tokens.parts.of_texts(tokenize(tokens.tokenizer, self.split.questions)))

    def _fit_table(
        self,
        name: str,
        start: Vectors,
        texts: TrainingTexts,
        settings: LearnSettings,
        score: Callable[[Vectors], float] | None,
    ) -> tables.Fit:
        fit = tables.fit_table(
            start,
            texts.tokens,
            texts.targets,
            settings,
            score,
            lambda done, total: self.on_step(self.steps_before + done, self.steps_before + total * self.fits_left),
            tables.Resume(self.state / f"{name}.npz", self._digest(texts)),
        )
        self.steps_before += fit.steps
        self.fits_left -= 1
        return fit

    def _digest(self, texts: TrainingTexts) -> str:
        """Return what an interrupted run must have in common with this one to be continued."""
        digest = hashlib.sha256(json.dumps(asdict(self.settings)).encode())
        earlier = [] if self.earlier is None else [self.earlier.table.vectors]
        for part in (texts.tokens.flat, texts.tokens.starts, texts.targets, *earlier):
            digest.update(np.ascontiguousarray(part).data)
        return digest.hexdigest()

    def _read(self, tokens: Tokens, rows: npt.NDArray[np.int64]) -> TrainingTexts:
        texts, targets = [self.split.texts[row] for row in rows], self.split.pairs.vectors[rows]
        whole = tokenize(tokens.tokenizer, texts)
        require_learnable(targets, whole, tokens.tokenizer.get_vocab_size(), self.where)
        if tokens.name != BUILT_IN:  # which may cut a collection's words into characters
            require_belonging(targets, whole, tokens.tokenizer.get_vocab_size(), self.where)
        if self.log is not None:
            half = len(self.log.texts) // 2
            whole = whole.joined(tokenize(tokens.tokenizer, self.log.texts[:half]))
            vectors, basis = self.log.vectors[:half], self.split.pairs.basis
            targets = np.concatenate([targets, vectors if basis is None else vectors @ basis.T], dtype=np.float32)
        return TrainingTexts(whole, tokens.parts.of_texts(whole), targets)

    def _start(self, tokens: Tokens, texts: TrainingTexts) -> Vectors:
        if self.earlier is not None:
            whole = self.earlier.table.vectors
        elif self.starts_mapped:
            known = token_vectors(tokens.tokenizer, CareModel.load().query_encoder)
            whole = mapped_start(known, texts.whole, texts.targets)
        else:
            size, width = tokens.tokenizer.get_vocab_size(), texts.targets.shape[1]
            return tables.start_table(texts.tokens, size, width, self.settings.seed)
        return tokens.parts.unfold(whole)


def _own_tokens(split: Split, settings: LearnSettings, earlier: Earlier | None, state: Path) -> Tokens:
    """Return the tokenizer of an interrupted or earlier run, or a new one; two trainings need not give the same."""
    if earlier is not None:
        return Tokens("earlier", earlier.table.tokenizer, Parts.of(earlier.table.tokenizer))
    texts = [split.texts[row] for row in split.train]
    asked = json.dumps([settings.vocabulary, settings.max_tokens, texts])  # a state may be of another collection
    path = state / f"tokenizer-{hashlib.sha256(asked.encode()).hexdigest()[:16]}.json"
    if not path.is_file():
        partial = path.with_suffix(".partial")  # a killed run leaves no half tokenizer
        train_collection_tokenizer(texts, settings.vocabulary, settings.max_tokens).save(str(partial))
        partial.replace(path)
    tokenizer = Tokenizer.from_file(str(path))
    return Tokens("collection", tokenizer, Parts.of(tokenizer))
