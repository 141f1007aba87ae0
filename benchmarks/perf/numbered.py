"""A generated retrieval task of any size, and a pair that computes its vectors from numbers.

Document N begins with ``第N条：``; its vector is a cluster centre plus noise, both drawn from the number. The query
of document N is ``第N条``, and has the same vector with a little more noise, so that exact search finds document N
first, and a write that is lost or swapped costs score.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from care_qdrant.model.care_model import CareModel
from care_qdrant.model.sides import GivenEncoder
from care_qdrant.types import Vectors
from tests.reliability.ready_model import write_corpus

CLUSTERS = 1_000
QUERY_NOISE = 0.3
"""Length of the noise that is added to a unit vector; the cosine to its document is then about 0.96."""
_NUMBER = re.compile(r"第(\d+)条")


class NumberedEncoder:
    """Encoder that returns the vector of the number that a text begins with."""

    def __init__(self, dim: int, noise: float = 0.0) -> None:
        """Draw the cluster centres."""
        self.dim, self.max_tokens, self.prompt = dim, 1_024, ""
        self._noise = noise
        self._centres = _unit_rows(np.random.default_rng(0), CLUSTERS, dim)

    def encode(self, texts: Sequence[str], *, prompt: str | None = None) -> Vectors:
        """Return one unit vector per text: (len(texts), dim)."""
        del prompt
        rows = np.stack([self._row(int(_NUMBER.match(text)[1])) for text in texts])  # type: ignore[index]
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=np.float32)

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return the length of each text in characters."""
        return [len(text) for text in texts]

    def _row(self, number: int) -> Vectors:
        rng = np.random.default_rng(number)
        own, noise = _unit_rows(rng, 1, self.dim)[0], 0.0
        row = self._centres[number % CLUSTERS] + own
        if self._noise:
            noise = self._noise * np.linalg.norm(row) * _unit_rows(rng, 1, self.dim)[0]
        return np.asarray(row + noise, dtype=np.float32)


def numbered_pair(dim: int) -> CareModel:
    """Return a pair whose query encoder adds `QUERY_NOISE` to the vectors of its document encoder."""
    query, document = NumberedEncoder(dim, QUERY_NOISE), NumberedEncoder(dim)
    return CareModel(
        name="numbered-vectors",
        dim=dim,
        fingerprint=hashlib.sha256(f"numbered/{dim}".encode()).hexdigest(),
        temperature=1.0,
        query=GivenEncoder(query),
        document=GivenEncoder(document),
    )


def write_task(directory: Path, documents: int, queries: int) -> Path:
    """Write a task directory whose queries ask for documents at equal distances."""
    directory.mkdir(parents=True)
    write_corpus(directory / "corpus.jsonl", documents, sentences=1)
    asked = range(0, documents, max(1, documents // queries))[:queries]
    _write(directory / "queries.jsonl", [{"id": f"q{number}", "text": f"第{number}条"} for number in asked])
    qrels = [{"query_id": f"q{number}", "document_id": f"doc-{number}", "score": 1} for number in asked]
    _write(directory / "qrels.jsonl", qrels)
    return directory


def _write(path: Path, rows: Sequence[dict[str, object]]) -> None:
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text("".join(lines), encoding="utf-8")


def _unit_rows(rng: np.random.Generator, count: int, dim: int) -> Vectors:
    rows = rng.standard_normal((count, dim), dtype=np.float32)
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=np.float32)
