"""Query modes of LlamaIndex: those that are answered, and what each searches by. No other module compares modes."""

import shlex
from dataclasses import replace

from llama_index.core.vector_stores.types import VectorStoreQuery, VectorStoreQueryMode
from qdrant_client import QdrantClient

from care_qdrant.errors import redact
from care_qdrant.search.choice import find_bm25
from care_qdrant.search.resolved import ResolvedCollection

MODES = (
    VectorStoreQueryMode.DEFAULT,
    VectorStoreQueryMode.SPARSE,
    VectorStoreQueryMode.HYBRID,
    VectorStoreQueryMode.MMR,
)
"""Modes that are answered; the stock store answers all others, and MMR, as if they were the first."""
LEXICAL = (VectorStoreQueryMode.SPARSE, VectorStoreQueryMode.HYBRID)
"""Modes that search by terms."""


def require_mode(query: VectorStoreQuery, resolved: ResolvedCollection, *, is_hybrid: bool, finds_bm25: bool) -> None:
    """Refuse a mode that is not answered, or that needs a sparse vector where none is searched.

    Args:
        query: The query of LlamaIndex.
        resolved: The collection that it searches.
        is_hybrid: Whether the store searches a sparse vector.
        finds_bm25: Whether the store takes up BM25 by itself once the collection has it.
    """
    if query.mode not in MODES:
        answered = ", ".join(mode.value for mode in MODES)
        raise ValueError(f"CareVectorStore answers queries of mode {answered}, none of mode {query.mode.value}")
    if query.mode not in LEXICAL or is_hybrid:
        return
    needs = "CareVectorStore(..., enable_hybrid=True)"
    if find_bm25(resolved.schema) is None:
        then = "" if finds_bm25 else f", and {needs}"
        where = _database_options(resolved.collection.client)
        needs = f"BM25 in the collection: care attach {shlex.quote(resolved.schema.name)} --bm25{where}{then}"
    raise ValueError(f"a {query.mode.value} query needs {needs}")


def _database_options(client: QdrantClient) -> str:
    """Return the options by which a command reaches the database of a client; none for one in memory."""
    given = getattr(client, "init_options", {})
    if url := given.get("url"):
        return f" --url {shlex.quote(redact(url))}"
    return f" --path {shlex.quote(str(given['path']))}" if given.get("path") else ""


def made_hybrid(query: VectorStoreQuery) -> VectorStoreQuery:
    """Return the query as a hybrid one where it has a text and leaves the mode open, else as it is."""
    if query.mode != VectorStoreQueryMode.DEFAULT or not query.query_str:
        return query
    return replace(query, mode=VectorStoreQueryMode.HYBRID)


def is_hybrid(query: VectorStoreQuery) -> bool:
    """Return whether a query is searched by its vector and its terms."""
    return query.mode == VectorStoreQueryMode.HYBRID


def is_lexical(query: VectorStoreQuery) -> bool:
    """Return whether a query is searched by its terms alone."""
    return query.mode == VectorStoreQueryMode.SPARSE and query.query_str is not None


def has_terms(query: VectorStoreQuery) -> bool:
    """Return whether a query is searched by its terms, with its vector or without."""
    return query.mode in LEXICAL and bool(query.query_str)


def is_blank(query: VectorStoreQuery) -> bool:
    """Return whether a query has a text without a character to search by, and no vector; nothing answers it."""
    return query.query_embedding is None and query.query_str is not None and not query.query_str.strip()


def is_diverse(query: VectorStoreQuery) -> bool:
    """Return whether the hits of a query are chosen to differ from each other, for which their vectors are read."""
    return query.mode == VectorStoreQueryMode.MMR and query.query_embedding is not None
