"""Query modes of LlamaIndex: the supported ones, and what each of them searches. No other module compares modes."""

import shlex
from dataclasses import dataclass

from llama_index.core.vector_stores.types import VectorStoreQuery, VectorStoreQueryMode
from qdrant_client import QdrantClient

from care_qdrant.errors import InputError, redact
from care_qdrant.search.resolved import ResolvedCollection, find_bm25

_LEXICAL = (VectorStoreQueryMode.SPARSE, VectorStoreQueryMode.HYBRID)
"""Modes that search by terms."""
_MODES = (VectorStoreQueryMode.DEFAULT, *_LEXICAL, VectorStoreQueryMode.MMR)
"""Modes that are answered; the stock store answers all others, and MMR, as if they were the first."""


@dataclass(frozen=True, slots=True)
class Searched:
    """The parts of a query that are searched, and how."""

    vector: list[float] | None
    text: str | None
    """Text whose terms are searched; None if no sparse vector is searched."""
    top_k: int
    has_weights: bool
    """Whether the terms get the weights that the model has learned: in hybrid searches, not in sparse ones."""
    is_diverse: bool
    """Whether the hits are chosen to differ from each other, for which their vectors are read."""


def searched_by(
    query: VectorStoreQuery, resolved: ResolvedCollection, *, is_hybrid: bool, finds_bm25: bool
) -> Searched:
    """Return how a query is searched; a query of the default mode is hybrid if the collection has BM25.

    Args:
        query: The query of LlamaIndex.
        resolved: The collection that it searches.
        is_hybrid: Whether the store searches a sparse vector.
        finds_bm25: Whether the store uses BM25 by itself once the collection has it.

    Raises:
        ValueError: The mode is not answered, or needs a sparse vector where none is searched.
        InputError: The query has a text, and no vector where the mode needs one.
    """
    mode, text, vector = VectorStoreQueryMode(query.mode), query.query_str, query.query_embedding
    if mode not in _MODES:
        answered = ", ".join(known.value for known in _MODES)
        raise ValueError(f"CareVectorStore answers queries of mode {answered}, none of mode {mode.value}")
    if mode is VectorStoreQueryMode.DEFAULT and text and resolved.bm25 is not None:
        mode = VectorStoreQueryMode.HYBRID
    if mode in _LEXICAL and not is_hybrid:
        raise ValueError(f"a {mode.value} query needs {_missing_sparse(resolved, finds_bm25)}")
    has_terms = mode in _LEXICAL and bool(text)
    if vector is None and text and not has_terms:  # Qdrant would return any points
        raise InputError(
            f"a query of mode {mode.value} has a text and no vector: give query_embedding=, or ask through an index or "
            "a retriever, which embeds the text"
        )
    own_top_k = query.hybrid_top_k if mode is VectorStoreQueryMode.HYBRID else None
    if is_lexical(query):
        vector, own_top_k = None, query.sparse_top_k
    return Searched(
        vector,
        text if has_terms else None,
        own_top_k or query.similarity_top_k,
        has_weights=mode is VectorStoreQueryMode.HYBRID,
        is_diverse=mode is VectorStoreQueryMode.MMR and vector is not None,
    )


def is_lexical(query: VectorStoreQuery) -> bool:
    """Return whether a query is searched by its terms alone."""
    return query.mode == VectorStoreQueryMode.SPARSE and query.query_str is not None


def _missing_sparse(resolved: ResolvedCollection, finds_bm25: bool) -> str:
    """Return what a collection or a store lacks for a search by terms."""
    needs = "CareVectorStore(..., enable_hybrid=True)"
    if find_bm25(resolved.schema) is not None:
        return needs
    then = "" if finds_bm25 else f", and {needs}"
    where = _database_options(resolved.collection.client)
    return f"BM25 in the collection: care attach {shlex.quote(resolved.schema.name)} --bm25{where}{then}"


def _database_options(client: QdrantClient) -> str:
    """Return the options by which a command reaches the database of a client; none for one in memory."""
    given = getattr(client, "init_options", {})
    if url := given.get("url"):
        return f" --url {shlex.quote(redact(url))}"
    return f" --path {shlex.quote(str(given['path']))}" if given.get("path") else ""
