"""A snapshot of a collection: texts and vectors in a folder of a training run, from which every stage learns.

A run that is resumed after days still learns from what was read, even if the collection has changed.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from os import environ
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
from sentence_transformers import SentenceTransformer

from care_qdrant import Collection
from care_qdrant.console.options import Target, retries, server_key
from care_qdrant.contracts.layouts import Layout
from care_qdrant.errors import InputError
from care_qdrant.types import Vectors
from care_trainer.config import StoredDocuments
from care_trainer.config.run import COLLECTION_TEXTS
from care_trainer.data.read import read_rows, write_rows
from care_trainer.learn.checks import require_belonging, require_learnable
from care_trainer.learn.reading import Pairs, Sample, dense_vector, read_pairs
from care_trainer.learn.settings import LearnSettings
from care_trainer.learn.split import HeldOut, Split, candidate_rows
from care_trainer.learn.weak import rare_share
from care_trainer.models.tokens import tokenize, train_collection_tokenizer

_HELD_OUT = "held-out.jsonl"
_COUNTS = ("points", "without_text", "without_vector", "repeated", "stand_ins")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Texts and vectors of a collection, the trained ones first."""

    vector_name: str
    split: Split
    rare: npt.NDArray[np.float64]
    """Share of each held-out question's tokens that are rare or unknown in the trained texts."""

    @property
    def vectors(self) -> npt.NDArray[np.float16]:
        """The stored vectors of the trained texts in the order of their file, (texts, dim), read when they are used."""
        return cast(npt.NDArray[np.float16], self.split.pairs.vectors[: len(self.split.train)])

    def questions(self, model: SentenceTransformer) -> Vectors:
        """Return a model's vectors of the held-out documents' questions, of unit length."""
        vectors: Vectors = model.encode_query(self.split.questions, show_progress_bar=False, convert_to_numpy=True)
        return vectors

    def score(self, model: SentenceTransformer) -> HeldOut:
        """Measure a model on the held-out documents."""
        return self.split.score(self.questions(model))


@contextmanager
def opened(stored: StoredDocuments) -> Iterator[Collection]:
    """Open the collection, by the variables of the commands where the settings name no database."""
    url = stored.url if stored.url or stored.path else environ.get("QDRANT_URL")
    target = Target(None, url, server_key(url)) if url else Target(Path(stored.path or "qdrant"), None)
    with target.open() as client:
        yield Collection(client, stored.name, retries()).resolve()


def take_snapshot(
    stored: StoredDocuments, folder: Path, *, dim: int, seed: int, on_progress: Callable[[int, int], None]
) -> None:
    """Read a sample of a collection into a folder, and refuse vectors that no query encoder can learn."""
    settings = LearnSettings(sample=stored.sample, width=dim, seed=seed)
    with opened(stored) as collection:
        vector_name, params = dense_vector(collection.schema, stored.vector)
        where = f"vector {vector_name!r} of collection {collection.name!r}"
        if params.size != dim:
            raise InputError(
                f"{where} has {params.size} dimensions, and the run has dim = {dim}; set dim = {params.size}"
            )
        pairs = read_pairs(collection, vector_name, settings, text_field=stored.text_field, on_progress=on_progress)
    split = Split.of(pairs, settings, None)
    trained = [split.texts[row] for row in split.train]
    tokenizer = train_collection_tokenizer(trained, settings.vocabulary, settings.max_tokens)
    tokens, vectors = tokenize(tokenizer, trained), pairs.vectors[split.train]
    require_learnable(vectors, tokens, tokenizer.get_vocab_size(), where)
    require_belonging(vectors, tokens, tokenizer.get_vocab_size(), where)
    rare = rare_share(tokens, tokenize(tokenizer, split.questions), tokenizer.get_vocab_size())
    # A data set has each text once, in this order, so a row of its table is a row of the vectors.
    first: dict[str, int] = {}
    for row, text in zip(split.train.tolist(), trained, strict=True):
        first.setdefault(text, row)
    _write(folder, vector_name, replace(split, train=np.array(list(first.values()))), rare)


def _write(folder: Path, vector_name: str, split: Split, rare: npt.NDArray[np.float64]) -> None:
    pairs, order = split.pairs, np.concatenate([split.train, split.held, split.copies])
    folder.mkdir(parents=True)
    np.save(folder / "vectors.npy", pairs.vectors[order].astype(np.float16))
    rows = [
        {"text": split.texts[row], "id": pairs.ids[row], "title": pairs.titles[row], "body": pairs.texts[row]}
        for row in order
    ]
    trained = len(split.train)
    write_rows(folder / COLLECTION_TEXTS, rows[:trained])
    write_rows(folder / _HELD_OUT, rows[trained:])
    record = {
        "vector_name": vector_name,
        "held": len(split.held),
        "has_copies_in_training": split.has_copies_in_training,
        "questions": split.questions,
        "rare": rare.tolist(),
        "layout": asdict(pairs.layout),
        "pairs": {key: getattr(pairs.sample, key) for key in _COUNTS},
    }
    (folder / "read.json").write_text(json.dumps(record, ensure_ascii=False) + "\n", encoding="utf-8")


def load_snapshot(folder: Path) -> Snapshot:
    """Return what a run has read; the vectors stay on disk."""
    record = json.loads((folder / "read.json").read_text(encoding="utf-8"))
    vectors = np.load(folder / "vectors.npy", mmap_mode="r")
    trained, others = ([row for row, _ in read_rows(folder / name)] for name in (COLLECTION_TEXTS, _HELD_OUT))
    rows = [*trained, *others]
    train, rest = np.arange(len(trained)), np.arange(len(trained), len(rows))
    held, copies = rest[: record["held"]], rest[record["held"] :]
    layout = Layout(**record["layout"])
    pairs = Pairs(
        ids=[row["id"] for row in rows],
        titles=[row["title"] for row in rows],
        texts=[row["body"] for row in rows],
        vectors=vectors,
        basis=None,
        layout=layout,
        sample=Sample(texts=len(rows), text_field=layout.text_field, **record["pairs"]),
        read=[],
    )
    split = Split(
        pairs,
        [row["text"] for row in rows],
        train,
        held,
        copies,
        record["has_copies_in_training"],
        record["questions"],
        np.asarray(vectors[candidate_rows(held, train)], dtype=np.float32),
    )
    return Snapshot(record["vector_name"], split, np.asarray(record["rare"]))
