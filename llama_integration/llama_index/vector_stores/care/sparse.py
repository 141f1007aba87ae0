"""Terms of queries and nodes: BM25 by this package, or another sparse encoder."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from llama_index.core.schema import BaseNode, MetadataMode

from care_qdrant.encoders.terms import bm25
from care_qdrant.encoders.terms.sparse import (
    FastEmbedSparse,
    SparseQuery,
    SparseQueryEncoder,
    Terms,
    TwoSidedSparse,
    document_terms,
)
from care_qdrant.errors import InputError
from care_qdrant.search.resolved import ResolvedCollection
from care_qdrant.types import TermVector


class StoreTerms:
    """Makes the terms of the queries and nodes of one store."""

    def __init__(self, encoder: SparseQueryEncoder | None) -> None:
        """Set up with the sparse encoder in place of BM25 by this package; None for BM25."""
        self.encoder = encoder

    def of_query(self, resolved: ResolvedCollection, text: str, *, has_weights: bool) -> TermVector | SparseQuery:
        """Return the terms of a query; of BM25, with the learned weights of the model if `has_weights`."""
        if self.encoder is not None:
            return self.encoder(text)
        assert resolved.bm25 is not None, "without another encoder, the sparse vector is BM25 of this package"
        weighted = resolved.config.terms if has_weights else None
        return (weighted or bm25.query_vector)(text, resolved.bm25.analyser)

    def of_nodes(self, resolved: ResolvedCollection, nodes: Sequence[BaseNode]) -> list[SparseQuery]:
        """Return the terms of nodes, as a collection stores them."""
        texts = [node.get_content(MetadataMode.EMBED) for node in nodes]
        if self.encoder is not None:
            return document_terms(self.encoder, texts)
        assert resolved.bm25 is not None, "without another encoder, the sparse vector is BM25 of this package"
        return list(map(resolved.bm25.vector, texts))


def two_sided(documents: Terms | None, queries: Terms | None) -> TwoSidedSparse | None:
    """Return the sparse encoder of two functions, or None."""
    if (documents is None) != (queries is None):
        raise InputError(
            "a sparse encoder has two sides, or queries would be cut into other terms than nodes: give sparse_doc_fn= "
            "and sparse_query_fn="
        )
    return None if documents is None or queries is None else TwoSidedSparse(documents, queries)


def chosen_encoder(
    encoder: SparseQueryEncoder | None, vector_name: str | None, settings: Mapping[str, Any]
) -> SparseQueryEncoder | None:
    """Return the sparse encoder that replaces BM25 by this package, or None."""
    model = settings.get("fastembed_sparse_model")
    others = [name for name in ("sparse_doc_fn", "sparse_query_fn", "fastembed_sparse_model") if settings.get(name)]
    if encoder is not None and (others or not vector_name or settings.get("enable_hybrid") is False):
        raise InputError(
            "sparse_encoder= needs sparse_vector_name=, and excludes enable_hybrid=False and other sparse encoders"
        )
    functions = two_sided(settings.get("sparse_doc_fn"), settings.get("sparse_query_fn"))
    if functions is None and model is not None:
        try:
            fastembed = import_module("fastembed")
        except ImportError as error:
            raise InputError(f"fastembed_sparse_model={model!r} needs FastEmbed: pip install fastembed") from error
        return FastEmbedSparse(fastembed.SparseTextEmbedding(model))
    return encoder or functions
