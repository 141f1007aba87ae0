"""Which of a collection's vectors a store searches: chosen once, checked against the model, never guessed later."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from qdrant_client import QdrantClient, models

from care_qdrant.encoders import bm25
from care_qdrant.errors import InputError
from care_qdrant.store.contracts import (
    SparseContract,
    VectorContract,
    check_contract,
    check_sparse_contract,
    dense_vectors,
    read_contracts,
    sparse_vectors,
)
from care_qdrant.store.create import SPARSE_VECTOR_NAME
from care_qdrant.store.layout import Layout, Payload, guess_layout


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user asked the store for."""

    vector_name: str | None = None
    sparse_vector_name: str | None = None
    contract: VectorContract | None = None
    """Of the embedding that makes the query vectors."""
    fingerprint: str | None = None
    """Of that embedding, when this is all that is known of it."""
    text_field: str | None = None
    """Where the payloads hold the text, if the user knows."""
    hybrid: bool = False
    """There is to be a sparse vector, too."""
    bm25: bool = False
    """The sparse vector is BM25 by the analyser of this package, and not by functions of the user."""

    @property
    def is_bound(self) -> bool:
        """Whether it is known which model makes the query vectors."""
        return self.contract is not None or self.fingerprint is not None


@dataclass(frozen=True, slots=True)
class Pinned:
    """The vectors of an existing collection that a store reads and writes."""

    vector_name: str
    sparse_vector_name: str
    bm25: SparseContract | None
    has_other_vectors: bool
    """Whether points carry vectors that are not ours: an upsert would drop them."""
    is_empty: bool
    """Whether there were no points, whose payloads say who writes here."""
    layout: Layout | None
    """How to read the payloads; None in an empty collection, and where nodes have no text."""
    unchecked: VectorContract | None
    """What made the dense vector, where the collection says so and nobody said what makes the queries."""


def pin(info: models.CollectionInfo, sample: Sequence[models.Record], collection: str, wanted: Wanted) -> Pinned:
    """Choose the vectors of a collection, check that the model made them, and find out how to read its payloads.

    Raises:
        InputError: a vector is not there, the choice is not clear, or no payload has a text.
        ContractError: another model, or another analyser, made it.
    """
    client = cast(QdrantClient, _Answered(info))
    vector_name = _choose_dense(client, collection, wanted)
    _check(client, collection, vector_name, wanted)
    sparse_name = _choose_sparse(client, collection, wanted)
    contract = check_sparse_contract(client, collection, sparse_name, bm25.ANALYSER) if wanted.bm25 else None
    ours = {vector_name, sparse_name} if wanted.hybrid else {vector_name}
    others = {*dense_vectors(client, collection), *sparse_vectors(client, collection)} - ours
    layout = _layout([record.payload for record in sample if record.payload], wanted.text_field)
    made = None if wanted.is_bound else read_contracts(client, collection).get(vector_name)
    unchecked = made if isinstance(made, VectorContract) else None
    return Pinned(vector_name, sparse_name, contract, bool(others), not sample, layout, unchecked)


def _layout(payloads: Sequence[Payload], text_field: str | None) -> Layout | None:
    if not payloads:
        return None
    try:
        return guess_layout(payloads, text_field=text_field)
    except InputError:
        if any("_node_content" in payload for payload in payloads):
            return None
        raise


@dataclass(frozen=True, slots=True)
class _Answered:
    """Answers as a client that was asked for this collection: the checks are the same for sync and async."""

    info: models.CollectionInfo

    def get_collection(self, _: str) -> models.CollectionInfo:
        return self.info


def _choose_dense(client: QdrantClient, collection: str, wanted: Wanted) -> str:
    names = list(dense_vectors(client, collection))
    if wanted.vector_name is not None:
        return wanted.vector_name
    contracts = read_contracts(client, collection)
    fingerprint = wanted.contract.fingerprint if wanted.contract else wanted.fingerprint
    marked = [name for name in names if isinstance(contracts.get(name), VectorContract)]
    ours = [name for name in marked if fingerprint in (None, contracts[name].fingerprint)]
    for choice in (ours, marked, names):
        if len(choice) == 1:
            return choice[0]
    if wanted.contract is not None:
        return wanted.contract.model
    raise InputError(
        f"collection {collection!r} has the vectors {', '.join(map(repr, names)) or 'none'}; "
        "say which one to search: vector_name=..."
    )


def _choose_sparse(client: QdrantClient, collection: str, wanted: Wanted) -> str:
    names = list(sparse_vectors(client, collection))
    if wanted.sparse_vector_name is not None:
        return wanted.sparse_vector_name
    contracts = read_contracts(client, collection)
    marked = [name for name in names if isinstance(contracts.get(name), SparseContract)]
    for choice in (marked, names):
        if len(choice) == 1:
            return choice[0]
    return SPARSE_VECTOR_NAME


def _check(client: QdrantClient, collection: str, vector_name: str, wanted: Wanted) -> None:
    vectors = dense_vectors(client, collection)
    expected = wanted.contract
    if expected is None and wanted.fingerprint is not None:
        dim = vectors[vector_name].size if vector_name in vectors else 0
        expected = VectorContract(wanted.fingerprint, model=f"model {wanted.fingerprint[:12]}", dim=dim)
    if expected is not None:
        check_contract(client, collection, vector_name, expected)
    elif vector_name not in vectors:
        raise InputError(
            f"collection {collection!r} has no vector {vector_name!r} "
            f"(it has: {', '.join(map(repr, vectors)) or 'none'}); add it, with --model naming the one that you ask "
            f"with, and --path or --url this database: care attach {collection} --vector-name {vector_name}"
        )
