"""Checks that vectors come from the model of a store: their texts are encoded again, and the vectors compared.

The fingerprint of a collection says which model made the stored vectors, and nothing about the vectors that a caller
passes. LlamaIndex takes these from ``Settings.embed_model`` or ``embed_model=``: any model of the same dimension fits.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from llama_index.core.schema import BaseNode, MetadataMode
from llama_index.embeddings.care.base import title_of
from llama_index.vector_stores.care.settings import HasContract

from care_qdrant.contracts.contract import VectorContract
from care_qdrant.encoders.agreement import LEAST_MADE_AGAIN, cosines
from care_qdrant.errors import FingerprintMismatch, IncompleteModel, InputError, MissingExtra, SchemaMismatch
from care_qdrant.search.resolved import StoreConfig
from care_qdrant.types import Vectors, embedded_text


@runtime_checkable
class TextEncoder(Protocol):
    """The part of a `CareEmbedding` and of a `CareModel` that encodes texts again."""

    def encode_query(self, texts: Sequence[str]) -> Vectors:
        """Encode queries into unit vectors: ``(len(texts), dim)`` float32."""

    def encode_document(self, texts: Sequence[str]) -> Vectors:
        """Encode documents into unit vectors: ``(len(texts), dim)`` float32."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Checks the vectors of queries and nodes for a store; those of its other models are made again by the active one.

    LlamaIndex embeds a query before the store is asked, perhaps by a model that the collection was switched from since.
    """

    collection: str
    models: Mapping[str, tuple[VectorContract, Any]]
    """The models of the store by their fingerprints; empty where vectors are not checked."""

    @classmethod
    def of(cls, collection: str, models: Sequence[HasContract], *, is_checked: bool) -> Self:
        """Return the checks of a store of these models.

        Raises:
            InputError: There are several models, and vectors are not to be checked, or a model encodes no texts.
        """
        if len(models) > 1 and not (is_checked and all(isinstance(model, TextEncoder) for model in models)):
            raise InputError(
                "other_models= encodes queries again by the active model: it needs models that encode texts, and "
                "excludes check_vectors=False"
            )
        known = [(model.contract(), model) for model in models] if is_checked else []
        return cls(collection, {contract.fingerprint: (contract, model) for contract, model in known})

    def query_vector(self, config: StoreConfig, text: str, vector: list[float]) -> list[float]:
        """Return the vector of a query by the model of a search, if one of the store's models made the given one.

        Raises:
            FingerprintMismatch: No model of the store made the vector of this text.
            SchemaMismatch: The vector has another dimension.
            InputError: There is no text, and any of several models may have made the vector.
        """
        if not self.models:
            return vector
        (contract, model), *others = self._searched_first(config)
        if others and not text:
            raise InputError(
                f"a query of collection {self.collection!r} has a vector without its text, and several models may have "
                "made that: give query_str="
            )
        if others and not _is_by(contract, model, text, vector) and any(_is_by(*it, text, vector) for it in others):
            own: list[float] = model.encode_query([text])[0].tolist()
            return own
        _check_query(self.collection, contract, model, text, vector)
        return vector

    def nodes(self, config: StoreConfig, nodes: Sequence[BaseNode]) -> Sequence[BaseNode]:
        """Return nodes with vectors by the model of a search, if the store's models made the given ones.

        One model is checked by two nodes; of several, each node is checked: one batch may have vectors of all.

        Raises:
            FingerprintMismatch: No model of the store made the vectors.
            SchemaMismatch: A vector has another dimension.
            InputError: Of several models, one that is asked encodes no documents here; or a node has no text.
        """
        if not self.models:
            return nodes
        (contract, model), *others = self._searched_first(config)
        if others and (blank := [node.node_id for node in nodes if not _embedded_texts(node)]):
            raise InputError(
                f"node {blank[0]} for collection {self.collection!r} has a vector without a text, and several models "
                "may have made that. Nothing was written"
            )
        if not others:
            _check_nodes(self.collection, contract, model, nodes, is_certain=False)
            return nodes
        own = _texts_made_by(contract, model, nodes)
        answer, left = list(nodes), [place for place in range(len(nodes)) if place not in own]
        for other in others:
            texts = _texts_made_by(*other, [nodes[place] for place in left])
            again = {left[place]: text for place, text in texts.items()}
            rows = model.encode_document([*again.values()]).tolist() if again else []
            for place, row in zip(again, rows, strict=True):
                answer[place] = nodes[place].model_copy(update={"embedding": row})
            left = [place for place in left if place not in again]
        if left:
            _check_nodes(self.collection, contract, model, [nodes[left[0]]], is_certain=True)
        return answer

    def _searched_first(self, config: StoreConfig) -> list[tuple[VectorContract, Any]]:
        return sorted(self.models.values(), key=lambda known: known[0].fingerprint != config.expected)


def _check_query(collection: str, contract: VectorContract, embedding: object, text: str, vector: list[float]) -> None:
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


def _check_nodes(
    collection: str, contract: VectorContract, embedding: object, nodes: Sequence[BaseNode], *, is_certain: bool
) -> None:
    """Refuse nodes whose vectors the model of the store did not make.

    All vectors are checked for their dimension. The first node and a random one are encoded again, where the embedding
    encodes documents in this process; where it does not, it is an error if the check has to be certain.
    """
    for node in nodes:
        _check_dim(f"the vector of node {node.node_id} for collection {collection!r}", contract, node.get_embedding())
    if not isinstance(embedding, TextEncoder) or not (is_certain or getattr(embedding, "documents", True)):
        return
    for node in {nodes[0].node_id: nodes[0], (other := random.choice(nodes)).node_id: other}.values():
        texts = _embedded_texts(node)
        try:
            made = embedding.encode_document(texts)
        except (MissingExtra, IncompleteModel):
            if is_certain:
                raise
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


def _texts_made_by(contract: VectorContract, model: TextEncoder, nodes: Sequence[BaseNode]) -> dict[int, str]:
    """Return the texts that a model made vectors of, by the places of their nodes; without those of other models."""
    made: dict[int, str] = {}
    choices = [_embedded_texts(node) if len(node.get_embedding()) == contract.dim else [] for node in nodes]
    for number in range(max(map(len, choices), default=0)):  # mostly, the first text is the one
        texts = {place: own[number] for place, own in enumerate(choices) if place not in made and number < len(own)}
        rows = dict(zip(texts, model.encode_document([*texts.values()]), strict=True)) if texts else {}
        for place, row in rows.items():
            if _cosine(nodes[place].get_embedding(), row) >= LEAST_MADE_AGAIN:
                made[place] = texts[place]
    return made


def title_and_text(node: BaseNode) -> str:
    """Return the title and text of a node, as ingestion embeds them."""
    return embedded_text(title_of(node), node.get_content())


def _check_dim(what: str, contract: VectorContract, vector: Sequence[float]) -> None:
    if len(vector) != contract.dim:
        raise SchemaMismatch(
            f"{what} has {len(vector)} dimensions, but model {contract.model!r} ({contract.fingerprint[:12]}) makes "
            f"{contract.dim}: another model made it. Embed with the embedding of the store (embed_model=embedding)"
        )


def _is_by(contract: VectorContract, model: TextEncoder, text: str, vector: Sequence[float]) -> bool:
    """Return whether a model makes this vector of a query."""
    return len(vector) == contract.dim and _cosine(vector, model.encode_query([text])[0]) >= LEAST_MADE_AGAIN


def _cosine(vector: Sequence[float], expected: Any) -> float:
    """Return the cosine of two vectors; 0 if one of them is zero."""
    rows = np.asarray(vector, dtype=np.float32)[None], np.asarray(expected, dtype=np.float32)[None]
    return float(cosines(*rows)[0])
