"""Leaves out rows whose text is too similar to earlier ones, by an index in Qdrant (arXiv 2604.10937, C.1).

The rule is the trainer's, of `[data.….diversify]`; memory holds one batch and a number for each text.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from care_trainer.config import Diversify, Side
from care_trainer.data.diversity import BATCH_ROWS, Counts, Neighbourhood
from care_trainer.data.read import file_hash, read_rows, text_key
from qdrant_client import models

from care_data.files import line, write_json
from care_qdrant import Collection
from care_qdrant.errors import InputError
from care_qdrant.types import Vectors

if TYPE_CHECKING:
    from care_qdrant import CareModel

GRAPH_ROWS = 5_000  # rows of a segment from which a server builds a graph; fewer are scanned
SEGMENT_ROWS = 100_000  # most rows of a segment: a server rebuilds the graphs of merged segments
WAIT_ROWS = 20_000  # between two waits for the graphs: a server's searches starve their building, which they wait for
WAIT_SECONDS = 3_600.0
GRAPH_EF = 64  # of building and of searching: a text that is similar is near
TEXT_KEYS = {"query": ("query", "text", "sentence1"), "document": ("positive", "text")}
THRESHOLDS = {"query": Diversify.query_threshold, "document": Diversify.document_threshold}


class QdrantIndex:
    """The vectors of kept texts as the points 0, 1, … of a collection; counts at most ``k`` similar ones."""

    def __init__(self, collection: Collection, k: int, kept: int = 0) -> None:
        self._collection, self._k, self.kept = collection, k, kept

    @staticmethod
    def create(collection: Collection, dim: int) -> None:
        """Create the collection, whose graphs are built while it grows, in a time that grows as its rows do."""
        kilobytes = 4 * dim / 1024
        collection.create(
            vectors_config=models.VectorParams(size=dim, distance=models.Distance.COSINE),
            hnsw_config=models.HnswConfigDiff(ef_construct=GRAPH_EF),
            optimizers_config=models.OptimizersConfigDiff(
                indexing_threshold=max(1, int(GRAPH_ROWS * kilobytes)),
                max_segment_size=max(1, int(SEGMENT_ROWS * kilobytes)),
            ),
        )

    def similar(self, vectors: Vectors, threshold: float) -> Counts:
        """Count at most ``k`` similar vectors."""
        # The embedded database warns of settings that it does not need.
        is_embedded = self._collection.is_embedded
        params = None if is_embedded else models.SearchParams(hnsw_ef=GRAPH_EF)
        requests = [
            models.QueryRequest(query=row.tolist(), limit=self._k, score_threshold=threshold, params=params)
            for row in vectors
        ]
        results = self._collection.search("looking for similar texts", requests)
        return np.array([sum(hit.score > threshold for hit in hits) for hits in results], dtype=np.int64)

    def insert(self, vectors: Vectors) -> None:
        """Keep more vectors."""
        if len(vectors):
            rows = enumerate(vectors, start=self.kept)
            self._collection.upsert([models.PointStruct(id=at, vector=row.tolist(), payload=None) for at, row in rows])
            before, self.kept = self.kept, self.kept + len(vectors)
            if before // WAIT_ROWS < self.kept // WAIT_ROWS:
                self._collection.wait_for_optimizer(WAIT_SECONDS)

    def forget(self, rows: int) -> None:
        """Delete the points that a killed run wrote after its last finished batch."""
        self._collection.delete(range(self.kept, self.kept + rows))


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Decides which texts are left out as near-copies."""

    side: Side  # text of a row that is compared, and its encoder
    threshold: float  # cosine above which two texts are similar
    k: int = 5  # nearest kept texts to compare with
    neighbours: int = 1  # similar texts that may have been kept before a new one is left out; fewer than k
    seed_rows: int = 0  # the first so many distinct texts are kept unseen; the paper's index starts with 5,000


def diversify_file(
    source: Path, output: Path, settings: Filter, model: "CareModel", collection: Collection
) -> dict[str, Any]:
    """Write the rows of a JSON Lines file whose text is not similar to earlier ones, and return their number.

    ``collection`` does not exist yet, or was left by a killed run; it is deleted at the end.
    """
    if settings.k <= settings.neighbours:
        raise InputError(
            f"k = {settings.k} neighbours cannot hold more than {settings.neighbours} similar ones; raise k"
        )
    state_file, partial = (output.with_name(f"{output.name}.{end}") for end in ("state", "partial"))
    state: dict[str, Any] = json.loads(state_file.read_text("utf-8")) if state_file.is_file() else {}
    made_of = hashlib.sha256(f"{settings} {model.fingerprint} {file_hash(source)}".encode()).hexdigest()
    if state.get("of") != made_of:
        if collection.exists():
            raise InputError(f"collection {collection.name!r} already exists; delete it, or choose another --output")
        partial.unlink(missing_ok=True)
        state = {"of": made_of, "rows": 0, "distinct": 0, "kept": 0, "bytes": 0, "finished": False}
        write_json(state_file, state)
    if not state["finished"]:
        if not collection.exists():
            QdrantIndex.create(collection, model.dim)
        for reached in _keep(source, partial, settings, model, collection, state):
            state |= reached
            write_json(state_file, state)
        write_json(state_file, state | {"finished": True})
    if partial.is_file():
        partial.replace(output)
    if collection.exists():
        collection.drop()
    state_file.unlink()
    return {"file": str(output), "side": settings.side} | {name: state[name] for name in ("rows", "distinct", "kept")}


def _keep(
    source: Path, partial: Path, settings: Filter, model: "CareModel", collection: Collection, state: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Write the rows that are kept, and yield the progress after each batch."""
    index = QdrantIndex(collection, settings.k, state["kept"])
    index.forget(BATCH_ROWS)
    encode = model.encode_query if settings.side == "query" else model.encode_document
    rule, rows = Neighbourhood(settings.threshold, settings.neighbours, index), _read(source, settings)
    seen = {text_key(text) for text, _ in islice(rows, state["rows"])}
    read, distinct = state["rows"], state["distinct"]
    partial.parent.mkdir(parents=True, exist_ok=True)
    with partial.open("ab") as file:
        file.truncate(state["bytes"])
        while batch := list(islice(rows, BATCH_ROWS)):
            first = {text: row for text, row in reversed(batch) if text_key(text) not in seen}
            new = [(text, row) for text, row in batch if first.get(text) is row]
            seen.update(map(text_key, first))
            vectors = encode([text for text, _ in new]) if new else np.zeros((0, model.dim), np.float32)
            sure = min(max(0, settings.seed_rows - distinct), len(new))
            index.insert(vectors[:sure])
            verdicts = [True] * sure + rule.decide(vectors[sure:])
            kept = (row for (_, row), is_kept in zip(new, verdicts, strict=True) if is_kept)
            file.write("".join(map(line, kept)).encode())
            file.flush()
            os.fsync(file.fileno())
            read, distinct = read + len(batch), distinct + len(new)
            yield {"rows": read, "distinct": distinct, "kept": index.kept, "bytes": file.tell()}


def _read(source: Path, settings: Filter) -> Iterator[tuple[str, dict[str, Any]]]:
    keys = TEXT_KEYS[settings.side]
    for row, where in read_rows(source):
        text = next((row[key] for key in keys if row.get(key)), None)
        if not isinstance(text, str):
            raise InputError(f"{where}: has no text under {', '.join(keys)} (keys: {', '.join(row)})")
        yield text, row
