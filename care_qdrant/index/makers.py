"""What attach can make of a text: the vector of a model, or BM25."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from care_qdrant.encoders import TokenCounter, bm25
from care_qdrant.encoders.ahead import calls_of
from care_qdrant.encoders.usable import require_usable
from care_qdrant.index.settings import DocumentModel
from care_qdrant.index.work import Rows
from care_qdrant.qdrant.contracts import SparseContract, VectorContract


class VectorMaker(Protocol):
    """Makes the vectors of a run from texts."""

    @property
    def hashed(self) -> str:
        """All that decides a vector but its text: a part of the hash of each text."""

    @property
    def counter(self) -> TokenCounter:
        """Tells how long a text is."""

    @property
    def numbers(self) -> int:
        """Numbers of a vector, at least about: requests are cut by size."""

    def calls(self) -> int:
        """Return how many calls of `make` are of use at a time."""

    def make(self, texts: Sequence[str], ids: Sequence[object]) -> Rows:
        """Return the vector of each text, as Qdrant takes it; the ids of the points are for messages."""


@dataclass(frozen=True, slots=True)
class DenseVectors:
    """Vectors of a model's document encoder."""

    model: DocumentModel
    contract: VectorContract

    @property
    def hashed(self) -> str:
        """Fingerprint of the model."""
        return self.contract.fingerprint

    @property
    def counter(self) -> TokenCounter:
        """Tokenizer of the document encoder."""
        return self.model.document_tokenizer

    @property
    def numbers(self) -> int:
        """Dimension of the vectors."""
        return self.contract.dim

    def calls(self) -> int:
        """Return how many the document encoder can use."""
        return calls_of(self.model.document_encoder)

    def make(self, texts: Sequence[str], ids: Sequence[object]) -> Rows:
        """Encode texts, and refuse vectors that are not finite or have no length."""
        vectors = self.model.document_encoder.encode(texts)
        require_usable(vectors, (len(texts), self.contract.dim), lambda row: f"point {ids[row]!r}")
        return vectors


@dataclass(frozen=True, slots=True)
class Bm25Vectors:
    """BM25 vectors by the analyser of this package, with the constants of a contract."""

    contract: SparseContract
    max_tokens: int = sys.maxsize
    numbers: int = 512

    @property
    def hashed(self) -> str:
        """Analyser and constants, as ingestion hashes them."""
        return self.contract.constants

    @property
    def counter(self) -> TokenCounter:
        """The maker itself: a text is as long as its characters."""
        return self

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return the length of each text in characters; no text is too long."""
        return [len(text) for text in texts]

    def calls(self) -> int:
        """Return 1: it holds the interpreter's lock."""
        return 1

    def make(self, texts: Sequence[str], ids: Sequence[object]) -> Rows:
        """Return the weighted terms of texts; ``ids`` is not used."""
        del ids
        constants = self.contract
        return [
            bm25.document_vector(text, average_length=constants.average_length, k1=constants.k1, b=constants.b)
            for text in texts
        ]
