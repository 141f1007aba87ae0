"""The TOML file of a benchmark: strict tables, all problems in one error. Keys: docs/reference/benchmark-keys.md."""

import json
import os
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from care_trainer.config.load import problems_of, read_toml, refusal
from care_trainer.config.stages import STRICT, Count, CountOrZero, Name, Positive, PositiveOrZero, Share
from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from care_qdrant.errors import InputError, remember_secret

Language = Literal["zh", "en"]
Rule = Literal["unanimous", "majority", "weighted"]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Retriever:
    """One system whose best documents enter the pool. BM25 is always one of them, under the name ``bm25``."""

    name: Name
    kind: Literal["dense", "hybrid", "vector", "run"] = "dense"
    """``dense`` and ``hybrid`` search as `care search` does; ``vector`` searches a named vector that another program
    wrote; ``run`` reads the rankings of a file."""
    model: Name = "built-in"  # encodes the queries; the model on the server where url is set
    vector_name: str | None = None  # None takes the one that model made
    url: str | None = None  # OpenAI-compatible embeddings endpoint of a vector; None encodes here
    key_env: str | None = None
    path: str | None = None  # TREC run file: query, Q0, document, rank, score, name in each line
    family: str | None = None  # models of one family find the same documents; None takes model


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Judge:
    """One language model behind an OpenAI-compatible endpoint, and what it costs to ask it."""

    name: Name
    url: Name  # as https://host/v1
    model: Name
    family: Name  # who made the model; judges of one family err together
    key_env: str | None = None  # environment variable that holds the API key; None sends no key
    tier: Annotated[int, Field(ge=1, le=2)] = 1  # 1 rates everything; 2 rates what tier 1 disputes
    input_price: PositiveOrZero | None = None  # of a million tokens, in any one currency; None counts as 0, and is said
    output_price: PositiveOrZero | None = None
    requests_per_minute: Positive = 600.0
    concurrency: Count = 4
    timeout_seconds: Positive = 60.0
    max_tokens: Count = 512  # of one answer
    retries: CountOrZero = 5  # after the first try, where the endpoint is busy or fails
    max_wait_seconds: Positive = 60.0  # between two tries


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Source:
    """Source of the documents: a collection that LlamaIndex, another program or `care ingest` wrote."""

    collection: Name
    path: str | None = None  # folder of the embedded database; exactly one of path and url
    url: str | None = None  # of a Qdrant server; its key is read from QDRANT_API_KEY
    queries: Name  # JSON Lines: id, text; license and source where a row has its own
    license: str = ""
    origin: str = ""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Pool:
    """Settings of the pool: the documents that are judged."""

    depth: Count = 50  # of each retriever; the paper takes 500 for the benchmark and 50 for training [B, C.1]
    limit: Count | None = None  # most documents of a query after fusion
    near_duplicate: Share = 0.9  # Jaccard overlap of character 4-grams from which texts are judged once
    tested_family: str | None = None  # of the system under test; a pool of that family alone is warned about


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Judging:
    """Settings of the requests to judges."""

    language: Language = "zh"
    batch: Count = 10  # documents of one call
    stop_after: Count | None = None  # ask no deeper after so many batches in a row without a relevant document
    anchors: CountOrZero = 20  # queries whose first call has planted documents: irrelevant, long, stuffed
    attempts: Count = 3  # calls for documents that an answer left out or did not rate
    max_cost: Positive | None = None  # in the currency of the prices, unanswered calls included
    allow_missing: bool = False  # go on without a judge that cannot be reached
    seed: int = 0


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Imported:
    """Judgements from elsewhere, as one more judge: TREC qrels, or umbrela's JSON Lines."""

    name: Name
    path: Name
    relevant_from: Count = 1  # lowest relevant grade; umbrela's scale from 0 to 3 takes 2
    family: str = "imported"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Vote:
    """Settings of the vote that makes labels of judgements."""

    rule: Rule = "unanimous"  # the paper's [B]; weighted weighs a judge by its agreement with the experts
    exclude: tuple[Name, ...] = ()
    max_missing: Share = 0.2  # refuse to label when more of the votes are missing
    max_failed_anchors: Share = 0.5  # refuse a judge that rates more of the planted documents relevant
    sheets: tuple[Name, ...] = ()  # that experts filled in
    imported: tuple[Imported, ...] = ()
    group_by: str | None = "department"  # metadata key by which agreement is reported


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Sts:
    """Sentence pairs of synonyms [3.1, table 22]."""

    dictionary: Name  # JSON Lines: origin, replace; license where a row has its own
    writer: Judge  # rewrites the questions
    length_tolerance: Share = 0.3  # by which a positive may be longer or shorter than its question


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Build:
    """Settings of the benchmark that is written."""

    corpus: Literal["whole", "pooled"] = "whole"  # pooled leaves out documents that no retriever found
    rerank_negatives: Count = 20  # most judged negatives of a reranking query
    train: tuple[Name, ...] = ()  # training sets that the benchmark must share no question with
    near_duplicate: Share = 0.8  # overlap from which two questions are one
    drop: bool = False  # leave out repeated questions instead of refusing them
    allow_same_judges: bool = False  # accept judges that also labelled a training set
    min_answered: Share = 0.5  # refuse a benchmark of a smaller share of the questions


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """A whole configuration."""

    name: Name
    folder: Name  # of everything that is written, relative to the file
    source: Source
    pool: Pool = Field(default_factory=Pool)
    retriever: tuple[Retriever, ...] = ()
    judging: Judging = Field(default_factory=Judging)
    judge: tuple[Judge, ...] = ()
    vote: Vote = Field(default_factory=Vote)
    build: Build = Field(default_factory=Build)
    sts: Sts | None = None


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings, and the folder that their paths are relative to."""

    settings: Settings
    root: Path
    file: str = "CONFIG"
    """Path of the configuration as it was given, for the commands that messages name."""
    again: tuple[str, ...] = ()
    """Judges that are asked again for what could not be read of their stored answers."""

    @property
    def folder(self) -> Path:
        """Return the folder that receives everything."""
        return self.root / self.settings.folder

    @property
    def families(self) -> list[str]:
        """Return the families of all that labels; rows of training data carry them."""
        labels = {each.family for each in self.settings.judge} | {each.family for each in self.settings.vote.imported}
        return sorted(labels | ({self.settings.sts.writer.family} if self.settings.sts else set()))

    def command(self, step: str) -> str:
        """Return the command that does a step of this configuration."""
        return f"care data {step} {shlex.quote(self.file)}"

    def at(self, path: str) -> Path:
        """Return a path of the file as one that can be opened."""
        return self.root / path


def load_config(path: Path) -> Config:
    """Read and check a configuration; `InputError` names all its problems."""
    if not path.is_file():
        raise InputError(f"{path}: no such file; docs/how-to/make-a-benchmark.md has a configuration to start from")
    try:
        settings = TypeAdapter(Settings).validate_json(json.dumps(read_toml(path), default=str))
    except ValidationError as error:
        raise refusal(str(path), problems_of(error, Settings)) from None
    if problems := list(_contradictions(settings)):
        raise refusal(str(path), problems)
    return Config(settings=settings, root=path.resolve().parent, file=str(path))


def secret(variable: str | None, what: str) -> str | None:
    """Return the key that an environment variable holds; it is hidden in all that is printed from now on."""
    if variable is None:
        return None
    if not (value := os.environ.get(variable)):
        raise InputError(f"{what}: the environment variable {variable} is not set; it must hold the API key")
    remember_secret(value)
    return value


def ask_again(config: Config, names: tuple[str, ...]) -> Config:
    """Return the configuration with judges, or the writer, that are asked again."""
    known = [
        *(each.name for each in config.settings.judge),
        *([config.settings.sts.writer.name] if config.settings.sts else []),
    ]
    if unknown := [name for name in names if name not in known]:
        raise InputError(f"--again {unknown[0]}: unknown judge; expected one of {', '.join(known)}")
    return replace(config, again=names)


def _contradictions(settings: Settings) -> Iterator[str]:
    if (settings.source.path is None) == (settings.source.url is None):
        yield "source: exactly one of path and url must be set"
    for kind, names in (
        ("retriever", ["bm25", *(each.name for each in settings.retriever)]),
        ("judge", [*(each.name for each in settings.judge), *(each.name for each in settings.vote.imported)]),
    ):
        yield from (f"{kind}: {name!r} is used {n} times" for name, n in Counter(names).items() if n > 1)
    if settings.judge and not any(judge.tier == 1 for judge in settings.judge):
        yield "judge: no judge has tier 1"
    for retriever in settings.retriever:
        if (retriever.kind == "run") != (retriever.path is not None):
            yield f"retriever {retriever.name}: path is set for kind = 'run', and for no other"
        if retriever.kind == "vector" and retriever.vector_name is None:
            yield f"retriever {retriever.name}: kind = 'vector' needs a vector_name"
