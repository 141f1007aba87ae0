"""Checks that vectors come from the model of a store: their texts are encoded again, and the vectors compared.

The fingerprint of a collection says which model made the stored vectors, and nothing about the vectors that a caller
passes. LlamaIndex takes these from ``Settings.embed_model`` or ``embed_model=``: any model of the same dimension fits.
"""

import random
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from llama_index.core.schema import BaseNode, MetadataMode
from llama_index.embeddings.care.base import TITLE_KEY

from care_qdrant.contracts.contract import VectorContract
from care_qdrant.encoders.agreement import LEAST_MADE_AGAIN, cosines
from care_qdrant.errors import FingerprintMismatch, IncompleteModel, MissingExtra, SchemaMismatch
from care_qdrant.types import Vectors, embedded_text


@runtime_checkable
class TextEncoder(Protocol):
    """The part of a `CareEmbedding` and of a `CareModel` that encodes texts again."""

    def encode_query(self, texts: Sequence[str]) -> Vectors:
        """Encode queries into unit vectors: ``(len(texts), dim)`` float32."""

    def encode_document(self, texts: Sequence[str]) -> Vectors:
        """Encode documents into unit vectors: ``(len(texts), dim)`` float32."""


def check_query(collection: str, contract: VectorContract, embedding: object, text: str, vector: list[float]) -> None:
    """Refuse a query vector that the model of the store did not make of the query's text."""
    _check_dim(f"the query vector for collection {collection!r}", contract, vector)
    if not text or not isinstance(embedding, TextEncoder):
        return
    cosine = _cosine(vector, embedding.encode_query([text])[0])
    if not cosine >= LEAST_MADE_AGAIN:
        raise FingerprintMismatch(
            f"the query vector for collection {collection!r} was not made of query {text[:40]!r} by model "
            f"{contract.model!r} ({contract.fingerprint[:12]}): its cosine to the one that this model makes is "
            f"{cosine:.3f}, expected at least {LEAST_MADE_AGAIN}. Give the index the embedding of the store "
            "(embed_model=embedding, or Settings.embed_model = embedding); where the vector is of another text on "
            "purpose, as with HyDE, open the store with check_vectors=False"
        )


def check_nodes(collection: str, contract: VectorContract, embedding: object, nodes: Sequence[BaseNode]) -> None:
    """Refuse nodes whose vectors the model of the store did not make.

    All vectors are checked for their dimension. The first node and a random one are encoded again, where the embedding
    encodes documents in this process.
    """
    for node in nodes:
        _check_dim(f"the vector of node {node.node_id} for collection {collection!r}", contract, node.get_embedding())
    if not isinstance(embedding, TextEncoder) or not getattr(embedding, "documents", True):
        return
    for node in {nodes[0].node_id: nodes[0], (other := random.choice(nodes)).node_id: other}.values():
        texts = _embedded_texts(node)
        try:
            made = embedding.encode_document(texts)
        except (MissingExtra, IncompleteModel):
            return
        cosine = max((_cosine(node.get_embedding(), row) for row in made), default=1.0)
        if not cosine >= LEAST_MADE_AGAIN:
            raise FingerprintMismatch(
                f"the vector of node {node.node_id} for collection {collection!r} was not made by the document encoder "
                f"of model {contract.model!r} ({contract.fingerprint[:12]}): its cosine to the one that this model "
                f"makes of the node's text is {cosine:.3f}, expected at least {LEAST_MADE_AGAIN}. Nothing was written. "
                "Embed the nodes with the embedding of the store (embed_model=embedding); where another text was "
                "embedded on purpose, open the store with check_vectors=False"
            )


def embedded_text_is_known(node: BaseNode) -> bool:
    """Return whether a vector of a node can only have been made of its title and text, as ingestion embeds them."""
    return node.get_content(MetadataMode.EMBED).strip() == title_and_text(node)


def _embedded_texts(node: BaseNode) -> list[str]:
    """Return the texts that a node's vector may have been made of: the one that LlamaIndex embeds first."""
    texts = (node.get_content(MetadataMode.EMBED).strip(), title_and_text(node), node.get_content().strip())
    return list(dict.fromkeys(text for text in texts if text))


def title_and_text(node: BaseNode) -> str:
    """Return the title and text of a node, as ingestion embeds them."""
    title = node.metadata.get(TITLE_KEY)
    return embedded_text(title if isinstance(title, str) else "", node.get_content())


def _check_dim(what: str, contract: VectorContract, vector: Sequence[float]) -> None:
    if len(vector) != contract.dim:
        raise SchemaMismatch(
            f"{what} has {len(vector)} dimensions, but model {contract.model!r} ({contract.fingerprint[:12]}) makes "
            f"{contract.dim}: another model made it. Embed with the embedding of the store (embed_model=embedding)"
        )


def _cosine(vector: Sequence[float], expected: Any) -> float:
    """Return the cosine of two vectors; 0 if one of them is zero."""
    rows = np.asarray(vector, dtype=np.float32)[None], np.asarray(expected, dtype=np.float32)[None]
    return float(cosines(*rows)[0])
