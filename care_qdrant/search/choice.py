"""Chooses the vectors that a search reads: those that the caller names, or that its model made."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from qdrant_client import models

from care_qdrant.contracts.contract import SparseContract, VectorContract
from care_qdrant.encoders.terms import bm25
from care_qdrant.encoders.terms.analyser import Analyser, find_analyser
from care_qdrant.errors import InputError
from care_qdrant.qdrant.schema import CollectionSchema
from care_qdrant.search.fusion import DEFAULT_ALPHA
from care_qdrant.types import TermVector, Vectors

TermsOfQuery = Callable[[str, Analyser], TermVector]


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Vectors that the caller wants to search, and the model of its queries."""

    dense: bool = True
    sparse: bool | None = False
    """Whether a sparse vector is searched; None where there is one that is BM25 by the analyser of this package."""
    bm25: bool = False
    """Whether the sparse vector must be BM25 by the analyser of this package, not one by functions of the user."""
    vector_name: str | None = None
    sparse_vector_name: str | None = None
    contract: VectorContract | None = None
    """Contract of the model that makes the query vectors."""
    fingerprint: str | None = None
    """Fingerprint of that model, when this is all that is known of it."""
    only_vector: bool = False
    """Whether the only vector is taken where the model made none; the check then names its model."""
    text_field: str | None = None
    """Payload field of the text; None finds out."""
    encode: Callable[[Sequence[str]], Vectors] | None = None
    """Encoder of queries, which compares vectors that were written anew under a learned encoder with their texts."""
    alpha: float | None = DEFAULT_ALPHA
    """Share of the dense score that the model's card gives; None measures it, where there are `encode` and `terms`."""
    terms: TermsOfQuery | None = None
    """Maker of the terms of queries by an analyser, by which that share is measured."""
    sample_points: int = 0
    """Number of points whose payloads show the layout; 0 reads none."""

    @property
    def expected(self) -> str | None:
        """Fingerprint that the dense vector must have; None where nobody says what makes the queries."""
        return self.contract.fingerprint if self.contract is not None else self.fingerprint


def choose_dense(schema: CollectionSchema, config: StoreConfig, before: str | None = None) -> str:
    """Return the name of the dense vector to search; it may not be there.

    Nothing is guessed: with another vector beside it, a collection would answer from another space, without an error.
    """
    if config.vector_name is not None:
        return config.vector_name
    ours = schema.all_made_by(config.expected) if config.expected is not None else []
    fitting = ours or list(schema.dense)
    if before in fitting:
        return before
    if ours:
        return _first(schema, ours)
    if config.only_vector and len(schema.dense) == 1:
        return fitting[0]
    if config.contract is not None:
        return config.contract.model
    raise _unclear(schema, fitting)


def choose_sparse(schema: CollectionSchema, config: StoreConfig, before: str | None = None) -> str:
    """Return the name of the sparse vector to search; it may not be there."""
    if config.sparse_vector_name is not None:
        return config.sparse_vector_name
    ours = [name for name in schema.sparse if isinstance(schema.contracts.get(name), SparseContract)]
    # An encoder of the user's own cuts texts into other terms than BM25 by this package.
    fitting = ours if config.bm25 else [name for name in schema.sparse if name not in ours]
    if before in fitting:
        return before
    if fitting and config.bm25:
        return _first(schema, fitting)
    fitting = fitting or list(schema.sparse)
    if len(fitting) > 1 and not config.bm25:
        raise _unclear(schema, fitting)
    return fitting[0] if len(fitting) == 1 else bm25.VECTOR_NAME


def find_bm25(schema: CollectionSchema, vector_name: str | None = None) -> str | None:
    """Return the name of a sparse vector that is BM25 by the analyser of this package; None where there is none.

    One that is being added for the first time is not there yet: most points lack it.
    """
    found = []
    for name, params in schema.sparse.items():
        contract = schema.contracts.get(name)
        is_ours = isinstance(contract, SparseContract) and find_analyser(contract.fingerprint) is not None
        is_wanted = vector_name == name or (vector_name is None and not schema.is_being_added(name))
        if is_ours and is_wanted and params.modifier == models.Modifier.IDF:
            found.append(name)
    return _first(schema, found) if found else None


def _first(schema: CollectionSchema, names: Sequence[str]) -> str:
    """Return the vector that was there before others of the same maker were attached beside it."""
    firsts = [name for name in names if not schema.is_beside(name)]
    if len(names) == 1 or len(firsts) == 1:
        return (firsts or list(names))[0]
    raise _unclear(schema, names)


def _unclear(schema: CollectionSchema, names: Sequence[str]) -> InputError:
    there = ", ".join(f"{name!r} ({_made_by(schema, name)})" for name in sorted(names))
    return InputError(
        f"collection {schema.name!r} has the vectors {there or 'none'}; choose one with --vector-name (in Python "
        "vector_name= or sparse_vector_name=; '' is the unnamed one), or give the model that made it"
    )


def _made_by(schema: CollectionSchema, name: str) -> str:
    contract = schema.contracts.get(name)
    if contract is None:
        return "by another tool"
    return f"by {contract.model if isinstance(contract, VectorContract) else contract.fingerprint}"
