"""The collection contract: which model made the vectors under which name.

Qdrant checks the dimension of a vector and nothing else; two models of equal dimension give confident nonsense. So
every collection that we write keeps, in its metadata under ``care:<vector name>``, the fingerprint of the model that
made the vectors, and every writer and every reader checks it first. There is one top-level key per vector, because
Qdrant merges metadata at the top level: two writers of different vectors cannot lose each other's entries.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import chain, islice
from typing import Any

from pydantic import TypeAdapter, ValidationError
from qdrant_client import models

from care_qdrant.contracts.metadata import CONTRACT
from care_qdrant.encoders.terms import bm25
from care_qdrant.encoders.terms.analyser import Analyser, analyser_for, find_analyser
from care_qdrant.encoders.terms.languages import SAMPLED_TEXTS, language_of
from care_qdrant.errors import FingerprintMismatch
from care_qdrant.types import TermCounts, TermVector
from care_qdrant.version import __version__


@dataclass(frozen=True, slots=True)
class VectorContract:
    """Record of a dense named vector: the model that made it, and its geometry."""

    fingerprint: str
    """SHA-256 over everything in the CARE folder that changes a vector."""
    model: str
    dim: int
    text_field: str | None = None
    """Payload field whose text was encoded, where ``care attach`` added the vector; None for any other vector."""
    beside: str | None = None
    """Earlier vector of the same maker, which readers that name no vector keep reading; None for the first."""
    tool_version: str = __version__
    distance: str = "Cosine"
    """Distance that the model was trained for, as Qdrant names it: ``Cosine`` or ``Dot``."""
    kind: str = "dense"

    @property
    def constants(self) -> str:
        """Model's part of a document's content hash, which the text completes."""
        return self.fingerprint

    @property
    def qdrant_distance(self) -> models.Distance:
        """The distance that the named vector has to have."""
        return models.Distance(self.distance)

    @property
    def params(self) -> models.VectorParams:
        """Parameters with which a collection creates the named vector; the server chooses all others."""
        return models.VectorParams(size=self.dim, distance=self.qdrant_distance)


@dataclass(frozen=True, slots=True)
class SparseContract:
    """Record of a sparse named vector: the analyser and the constants of its BM25."""

    fingerprint: str
    """Name and version of the analyser; both sides must use the same."""
    k1: float
    b: float
    average_length: float
    """Mean document length in terms, fixed when the vector is created."""
    lead: float | None = None
    """Position at which a term counts half as much as at the beginning; None where all terms count alike, as in
    collections older than this constant."""
    text_field: str | None = None
    """Payload field of the terms, where ``care attach`` added the vector; None for any other vector."""
    beside: str | None = None
    """Earlier vector of the same maker, which readers that name no vector keep reading; None for the first."""
    tool_version: str = __version__
    kind: str = "sparse"

    @classmethod
    def of_texts(cls, texts: Iterable[str], language: str | None = None) -> "SparseContract":
        """Return the contract of a new vector for texts like these; without a language, it is detected in them."""
        texts = iter(texts)
        first = list(islice(texts, SAMPLED_TEXTS))
        analyser = analyser_for(language or language_of(first))
        average = bm25.average_length(chain(first, texts), lead=bm25.DEFAULT_LEAD, analyser=analyser)
        return cls(analyser.name, bm25.DEFAULT_K1, bm25.DEFAULT_B, average, bm25.DEFAULT_LEAD)

    @property
    def analyser(self) -> Analyser:
        """The analyser of documents and queries.

        Raises:
            FingerprintMismatch: This version does not have it.
        """
        analyser = find_analyser(self.fingerprint)
        if analyser is None:
            raise FingerprintMismatch(f"analyser {self.fingerprint} made the terms, and this version does not have it")
        return analyser

    @property
    def constants(self) -> str:
        """Analyser and constants as part of a document's content hash, which the text completes."""
        lead = "" if self.lead is None else f"/{self.lead}"  # without it, the hash that older versions stored
        return f"{self.fingerprint}/{self.k1}/{self.b}/{self.average_length}{lead}"

    def vector(self, text: str, terms: TermCounts | None = None) -> models.SparseVector:
        """Return the vector of a document, whose terms may be counted already."""
        if terms is not None and (terms.lead, terms.analyser) == (self.lead, self.fingerprint):
            counts = terms.counts
        else:
            counts = bm25.term_counts(text, lead=self.lead, analyser=self.analyser)
        return sparse_vector(bm25.weighted(counts, average_length=self.average_length, k1=self.k1, b=self.b))

    def has_terms(self, text: str) -> bool:
        """Return whether a text has terms; one of punctuation alone needs no vector."""
        return bool(self.vector(text).indices)


@dataclass(frozen=True, slots=True)
class UnreadableContract:
    """An entry under our key that this version cannot read: a newer version or another program wrote it."""

    fingerprint: str = "unreadable"
    kind: str = "unreadable"


Contract = VectorContract | SparseContract | UnreadableContract

_KINDS: Mapping[str, TypeAdapter[Any]] = {"dense": TypeAdapter(VectorContract), "sparse": TypeAdapter(SparseContract)}
_FLOATS = ("k1", "b", "average_length", "lead")


def sparse_vector(terms: TermVector) -> models.SparseVector:
    """Convert weighted terms to the sparse vector that Qdrant stores and searches with."""
    return models.SparseVector(indices=terms.indices, values=terms.values)


def contract_metadata(vector_name: str, contract: Contract | None) -> dict[str, Any]:
    """Return the metadata update that writes a contract, or removes it when it is None.

    Floats are stored as text: a server may return a number of its metadata with another last bit.
    """
    if contract is None:
        return CONTRACT.change(None, vector_name)
    entry = {key: value for key, value in asdict(contract).items() if value is not None}
    return CONTRACT.change(entry | {key: repr(entry[key]) for key in _FLOATS if key in entry}, vector_name)


def parse_contracts(metadata: Mapping[str, Any]) -> dict[str, Contract]:
    """Return the contract of each vector that carries one; empty for a collection that another tool made."""
    return {name: _parse(entry) for name, entry in CONTRACT.all(metadata).items()}


def _parse(entry: Any) -> Contract:
    kind = _KINDS.get(str(entry.get("kind"))) if isinstance(entry, Mapping) else None
    with suppress(ValidationError):
        if kind is not None:
            contract: VectorContract | SparseContract = kind.validate_python(entry)
            return contract
    return UnreadableContract()
