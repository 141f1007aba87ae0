"""The sparse encoders that a caller may put in the place of BM25 by this package."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from care_qdrant.encoders.terms.sparse import FastEmbedSparse, SparseQueryEncoder, Terms, TwoSidedSparse
from care_qdrant.errors import InputError


def two_sided(documents: Terms | None, queries: Terms | None) -> TwoSidedSparse | None:
    """Return the sparse encoder of two functions, None for none."""
    if (documents is None) != (queries is None):
        raise InputError(
            "a sparse encoder has two sides, or queries would be cut into other terms than nodes: give sparse_doc_fn= "
            "and sparse_query_fn="
        )
    return None if documents is None or queries is None else TwoSidedSparse(documents, queries)


def chosen_encoder(
    encoder: SparseQueryEncoder | None, vector_name: str | None, settings: Mapping[str, Any]
) -> SparseQueryEncoder | None:
    """Return the sparse encoder that takes the place of BM25 by this package, None for none."""
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
