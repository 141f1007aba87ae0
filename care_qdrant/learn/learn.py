"""Learns a query encoder from a collection: read, train, measure, write the folder, register it."""

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from qdrant_client import QdrantClient
from tokenizers import Tokenizer

from care_qdrant.checkpoint.card import Card
from care_qdrant.errors import needs_extra
from care_qdrant.learn import held_out, quality
from care_qdrant.learn.checks import require_learnable
from care_qdrant.learn.compose import Composer
from care_qdrant.learn.held_out import HeldOut
from care_qdrant.learn.queries import Questions
from care_qdrant.learn.reading import Pairs, dense_vector, read_pairs, restored
from care_qdrant.learn.settings import LearnSettings
from care_qdrant.learn.tokens import tokenize, train_tokenizer
from care_qdrant.store.collection import Collection
from care_qdrant.store.learned import PROBES, LearnedContract, probe_vectors, signs
from care_qdrant.store.retry import RetryPolicy
from care_qdrant.types import Vectors, embedded_text

if TYPE_CHECKING:
    from care_qdrant.learn.earlier import Earlier

Progress = Callable[[str, int, int], None]
"""Told the name of a part of the work, what is done of it and how much there is."""

MAX_HELD_OUT = 1_000
_CANDIDATES = 20_000
"""Documents among which a question has to find its own."""


@dataclass(frozen=True, slots=True)
class LearnReport:
    """What a training run read, how good its query encoder is, and whether it may be used."""

    collection: str
    vector_name: str
    folder: str
    model: str
    fingerprint: str
    dim: int
    points: int
    texts: int
    without_text: int
    without_vector: int
    repeated: int
    text_field: str
    vocabulary: int
    steps: int
    best_step: int
    seconds: float
    held_out: HeldOut
    agreement: quality.Agreement | None
    """With the old model on questions that were not trained on; None without a query log."""
    new_documents: HeldOut | None
    """Quality of the encoder that is updated on documents that it has not seen, before the update; None otherwise."""
    alpha: float | None
    """Share of the dense score that suits a linear fusion with BM25."""
    query_microseconds: float
    """CPU time of one query, in batches of 32."""
    onnx_bytes: int
    refused: str | None
    """Why the encoder is not good enough to be registered; None where it is."""
    registered: bool
    history: list[dict[str, float]]


@dataclass(frozen=True, slots=True)
class _Data:
    """Everything that training and measuring read."""

    pairs: Pairs
    texts: list[str]
    train: npt.NDArray[np.int64]
    held: npt.NDArray[np.int64]
    questions: list[str]
    """One for each held-out document."""
    candidates: Vectors
    """Stored vectors of the held-out documents, then of others."""

    def score(self, encode: Callable[[list[str]], Vectors]) -> HeldOut:
        """Measure an encoder into the learned space."""
        ranks = held_out.ranks(encode(self.questions), self.candidates, np.arange(len(self.held)))
        return held_out.measure(ranks, len(self.candidates))


@dataclass(frozen=True, slots=True)
class Trained:
    """A query encoder in the learned space."""

    tokenizer: Tokenizer
    table: Vectors
    steps: int
    best_step: int
    history: list[dict[str, float]]


def learn(
    client: QdrantClient,
    collection_name: str,
    output: Path,
    *,
    vector_name: str | None = None,
    settings: LearnSettings | None = None,
    text_field: str | None = None,
    name: str | None = None,
    document: Path | None = None,
    questions: Callable[[int], Questions] | None = None,
    start: Path | None = None,
    force: bool = False,
    policy: RetryPolicy | None = None,
    on_progress: Progress = lambda _part, _done, _total: None,
) -> LearnReport:
    """Learn a query encoder from one vector of a collection, write it to a CARE folder and register it.

    Nothing of the collection but its metadata is changed. An interrupted training run is continued by the same call.

    Args:
        client: An open Qdrant.
        collection_name: Collection or alias.
        output: Destination of the CARE folder; the report and the plot lie in it.
        vector_name: Dense vector to learn from; empty for the unnamed one, None for the only one.
        settings: Of the training run.
        text_field: Path of the text in the payload; None guesses it.
        name: Of the pair; None takes the name of the folder.
        document: Folder of the sentence-transformers model that made the vectors, to become the document side.
        questions: Returns a query log with the old model's vectors of so many dimensions; half of it is trained on.
        start: CARE folder that an earlier call wrote for this collection, to continue from.
        force: Register the encoder whatever its quality.
        policy: How often to try a call to Qdrant again.
        on_progress: See `Progress`.

    Raises:
        InputError: The collection has nothing to learn from; the message says what was found.
        ContractError: Its vector is of a kind that no query encoder can follow.
        QdrantError: Qdrant refused, or cannot be reached.
        MissingExtra: Torch or onnx are not installed.
    """
    began = time.monotonic()
    with needs_extra("learn", "learning a query encoder"):
        import onnxscript  # noqa: F401  # the export at the end needs it
        import torch

    settings = settings or LearnSettings()
    torch.manual_seed(settings.seed)
    collection = Collection(client, collection_name, policy).resolve()
    vector_name, params = dense_vector(collection.schema, vector_name)
    log = None if questions is None else questions(params.size)
    earlier = None if start is None else _load(start)
    pairs = read_pairs(
        collection,
        vector_name,
        settings,
        text_field=text_field,
        basis=None if earlier is None else earlier.basis,
        on_progress=lambda done, total: on_progress("reading", done, total),
    )
    data = _split(pairs, settings)
    where = f"vector {vector_name!r} of collection {collection.name!r}"
    new_documents = None if earlier is None else _drift(earlier, data, settings)
    state = output.with_name(f".{output.name}.learning")
    trained = _train(data, log, settings, where, earlier, state, on_progress)
    encoder_score = data.score(lambda texts: _encode(trained, texts))
    refused = quality.verdict(encoder_score)
    stage = {
        "name": "learn",
        "texts": len(data.train),
        "settings": asdict(settings),
        "best_step": trained.best_step,
        "held_out": asdict(encoder_score),
    }
    from care_qdrant.learn.earlier import save_seen

    alpha = quality.fusion_alpha(
        data.questions,
        _encode(trained, data.questions),
        [data.texts[row] for row in data.train],
        pairs.vectors[data.train],
    )
    on_progress("export", 0, 1)
    card = _write(output, trained, data, name or output.name, document, settings, stage, where)
    on_progress("export", 1, 1)
    report = LearnReport(
        collection=collection.name,
        vector_name=vector_name,
        folder=str(output),
        model=card.name,
        fingerprint=card.fingerprint,
        dim=card.dim,
        points=pairs.points,
        texts=len(pairs.texts),
        without_text=pairs.without_text,
        without_vector=pairs.without_vector,
        repeated=pairs.repeated,
        text_field=pairs.layout.text_field,
        vocabulary=trained.tokenizer.get_vocab_size(),
        steps=trained.steps,
        best_step=trained.best_step,
        seconds=round(time.monotonic() - began, 1),
        held_out=encoder_score,
        agreement=_agreement(output, log, data),
        new_documents=new_documents,
        alpha=alpha,
        query_microseconds=_query_microseconds(output, data.questions),
        onnx_bytes=card.files["query/onnx/model_int8.onnx"].bytes,
        refused=refused,
        registered=refused is None or force,
        history=trained.history,
    )
    save_seen(output, pairs.ids)
    if report.registered:
        contract = _contract(collection, vector_name, pairs, card, alpha)
        collection.write_learned(vector_name, contract)
    shutil.rmtree(state, ignore_errors=True)
    return report


def _split(pairs: Pairs, settings: LearnSettings) -> _Data:
    generator = np.random.default_rng([settings.seed, 3])
    train, held = held_out.split(len(pairs.texts), settings.held_out, MAX_HELD_OUT, generator)
    texts = [embedded_text(title, text) for title, text in zip(pairs.titles, pairs.texts, strict=True)]
    questions = [held_out.question_of(pairs.texts[row], pairs.titles[row], generator) for row in held]
    rows = np.concatenate([held, train[: max(0, _CANDIDATES - len(held))]])
    return _Data(pairs, texts, train, held, questions, pairs.vectors[rows])


def _train(
    data: _Data,
    log: Questions | None,
    settings: LearnSettings,
    where: str,
    earlier: "Earlier | None",
    state: Path,
    on_progress: Progress,
) -> Trained:
    from care_qdrant.learn import table as tables

    texts = [data.texts[row] for row in data.train]
    vectors = data.pairs.vectors[data.train]
    state.mkdir(parents=True, exist_ok=True)
    tokenizer = earlier.tokenizer if earlier else _tokenizer(state, texts, settings)
    size = tokenizer.get_vocab_size()
    documents = tokenize(tokenizer, texts)
    require_learnable(vectors, documents, size, where)
    composer = Composer(tokenizer)
    tokens = composer.expand(documents)
    if log is not None:
        half = len(log.texts) // 2
        tokens = tokens.joined(composer.expand(tokenize(tokenizer, log.texts[:half])))
        vectors = np.concatenate([vectors, _reduced(log.vectors[:half], data.pairs.basis)])
    width = vectors.shape[1]
    table = composer.unfold(earlier.table) if earlier else tables.start_table(tokens, size, width, settings.seed)
    asked = composer.expand(tokenize(tokenizer, data.questions))
    rows = np.arange(len(data.held))

    def score(found: Vectors) -> float:
        ranks = held_out.ranks(tables.encode(found, asked), data.candidates, rows)
        return held_out.measure(ranks, len(data.candidates)).mrr

    fit = tables.fit_table(
        table,
        tokens,
        vectors,
        settings,
        score,
        lambda done, total: on_progress("training", done, total),
        tables.Resume(state / "state.pt", _digest(data, settings)),
    )
    finished = composer.fold(fit.table, documents, vectors.mean(axis=0))
    return Trained(tokenizer, finished, fit.steps, fit.best_step, fit.history)


def _tokenizer(state: Path, texts: list[str], settings: LearnSettings) -> Tokenizer:
    """Return the tokenizer of an interrupted run, or a new one: training one twice need not give the same."""
    path = state / f"tokenizer-{settings.vocabulary}-{settings.max_tokens}-{settings.seed}.json"
    if not path.is_file():
        train_tokenizer(texts, settings.vocabulary, settings.max_tokens).save(str(path))
    return Tokenizer.from_file(str(path))


def _load(folder: Path) -> "Earlier":
    from care_qdrant.learn.earlier import load_earlier

    return load_earlier(folder)


def _drift(earlier: "Earlier", data: _Data, settings: LearnSettings) -> HeldOut | None:
    """Return the quality of an earlier encoder on documents that it has not seen, None where there are none."""
    from care_qdrant.learn import table as tables

    new = np.flatnonzero(earlier.is_new(data.pairs.ids))[:MAX_HELD_OUT]
    if not len(new):
        return None
    generator = np.random.default_rng([settings.seed, 4])
    questions = [held_out.question_of(data.pairs.texts[row], data.pairs.titles[row], generator) for row in new]
    candidates = np.concatenate([data.pairs.vectors[new], data.candidates])
    encoded = tables.encode(earlier.table, tokenize(earlier.tokenizer, questions))
    return held_out.measure(held_out.ranks(encoded, candidates, np.arange(len(new))), len(candidates))


def _encode(trained: Trained, texts: list[str]) -> Vectors:
    from care_qdrant.learn import table as tables

    return tables.encode(trained.table, tokenize(trained.tokenizer, texts))


def _digest(data: _Data, settings: LearnSettings) -> str:
    """Return what an interrupted run must have in common with this one to be continued."""
    content = [asdict(settings), list(map(str, data.pairs.ids)), len(data.train)]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _reduced(vectors: Vectors, basis: Vectors | None) -> Vectors:
    return vectors if basis is None else np.asarray(vectors @ basis.T, dtype=np.float32)


def _write(
    output: Path,
    trained: Trained,
    data: _Data,
    name: str,
    document: Path | None,
    settings: LearnSettings,
    stage: Mapping[str, Any],
    where: str,
) -> Card:
    from care_qdrant.learn.folder import write_folder

    output.parent.mkdir(parents=True, exist_ok=True)
    return write_folder(
        output,
        trained.tokenizer,
        trained.table,
        data.pairs.basis,
        name=name,
        document=document,
        probe_texts=[text for text in data.questions if trained.tokenizer.encode(text, add_special_tokens=False).ids],
        document_vectors=restored(data.candidates[:MAX_HELD_OUT], data.pairs.basis),
        temperature=settings.temperature,
        stage=stage,
        origin={"side": "document", "name": where},
    )


def _agreement(folder: Path, log: Questions | None, data: _Data) -> quality.Agreement | None:
    from care_qdrant.model import CareModel

    if log is None:
        return None
    half = len(log.texts) // 2
    rest = Questions(log.texts[half:], log.vectors[half:])
    return quality.agreement(
        CareModel.load(folder).encode_query(rest.texts), rest, restored(data.candidates, data.pairs.basis)
    )


def _query_microseconds(folder: Path, questions: list[str]) -> float:
    from care_qdrant.model import CareModel

    encoder = CareModel.load(folder).query_encoder
    asked = [text for text in questions if text.strip()][:256]
    encoder.encode(asked[:32])
    began = time.process_time()
    for start in range(0, len(asked), 32):
        encoder.encode(asked[start : start + 32])
    return round((time.process_time() - began) / len(asked) * 1e6, 1)


def _contract(
    collection: Collection, vector_name: str, pairs: Pairs, card: Card, alpha: float | None
) -> LearnedContract:
    params = collection.schema.dense[vector_name]
    records = collection.retrieve(pairs.ids[:PROBES], payload=False, vectors=[vector_name])
    documents = collection.schema.contracts.get(vector_name)
    return LearnedContract(
        fingerprint=card.fingerprint,
        model=card.name,
        dim=card.dim,
        distance=params.distance.value,
        probes={key: signs(vector) for key, vector in probe_vectors(records.values(), vector_name).items()},
        documents=None if documents is None else documents.fingerprint,
        alpha=alpha,
    )
