"""Sparse encoders that are not ours: Qdrant's own BM25 on the server, and the models of FastEmbed.

Their scores have no scale that this package knows, so hybrid searches with them are fused by rank. Nothing in a
collection says which of them wrote a sparse vector: the caller has to know.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from qdrant_client import models

SparseQuery = models.SparseVector | models.Document
SparseQueryEncoder = Callable[[str], SparseQuery]
"""Returns a query as Qdrant takes it: its terms, or the text where the server makes the terms."""
Terms = Callable[[list[str]], tuple[list[list[int]], list[list[float]]]]
"""Returns indices and values of some texts."""

NATIVE_BM25 = "qdrant/bm25"
"""Name of the server's own BM25 among its models."""


def native_bm25(text: str, *, tokenizer: models.TokenizerType | None = None) -> models.Document:
    """Return a document or query whose terms the server makes; needs a server since Qdrant 1.15.3.

    Example::

        native = partial(native_bm25, tokenizer=models.TokenizerType.MULTILINGUAL)
        CareVectorStore("corpus", client, sparse_encoder=native, sparse_vector_name="terms")

    Args:
        text: Text of the document or query.
        tokenizer: The same for both; None is the server's own ``word``, which takes a Chinese sentence as one term.
    """
    options = None if tokenizer is None else {"tokenizer": tokenizer.value}
    return models.Document(text=text, model=NATIVE_BM25, options=options)


class SparseEmbedding(Protocol):
    """Sparse vector that FastEmbed returns for one text."""

    indices: npt.NDArray[np.integer]
    values: npt.NDArray[np.floating]


class SparseTextModel(Protocol):
    """The part of FastEmbed's ``SparseTextEmbedding`` that is used."""

    def embed(self, documents: Iterable[str]) -> Iterable[SparseEmbedding]:
        """Encode documents."""

    def query_embed(self, query: Iterable[str]) -> Iterable[SparseEmbedding]:
        """Encode queries."""


@dataclass(frozen=True)
class TwoSidedSparse:
    """A sparse encoder of two functions; each returns indices and values of some texts, as LlamaIndex's stores do."""

    documents: Terms
    queries: Terms

    def __call__(self, text: str) -> models.SparseVector:
        """Return one query as `Retriever` takes it."""
        (indices,), (values,) = self.queries([text])
        return models.SparseVector(indices=indices, values=values)


class FastEmbedSparse(TwoSidedSparse):
    """A sparse model of FastEmbed (``pip install fastembed``) for `Retriever` and ``CareVectorStore``.

    The stock LlamaIndex store encodes queries with the model's document side, which is wrong for BM25.

    Example::

        encoder = FastEmbedSparse(SparseTextEmbedding("Qdrant/bm25"))
        Retriever(client, "corpus", model, mode="hybrid", sparse_vector_name="terms", sparse_encoder=encoder)
        CareVectorStore("corpus", client, sparse_encoder=encoder, sparse_vector_name="terms")
    """

    def __init__(self, model: SparseTextModel) -> None:
        super().__init__(lambda texts: _as_lists(model.embed(texts)), lambda texts: _as_lists(model.query_embed(texts)))


def document_terms(encoder: SparseQueryEncoder, texts: Sequence[str]) -> list[SparseQuery]:
    """Return the vector to store for each document, so that the queries of an encoder find it."""
    if (documents := getattr(encoder, "documents", None)) is not None:
        rows = zip(*documents(list(texts)), strict=True)
        return [models.SparseVector(indices=indices, values=values) for indices, values in rows]
    return [encoder(text) for text in texts]


def _as_lists(embeddings: Iterable[SparseEmbedding]) -> tuple[list[list[int]], list[list[float]]]:
    vectors = [(vector.indices.tolist(), vector.values.tolist()) for vector in embeddings]
    return [indices for indices, _ in vectors], [values for _, values in vectors]
