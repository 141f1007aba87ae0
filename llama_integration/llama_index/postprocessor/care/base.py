"""`CareRerank`: reorders the nodes of another retriever by their stored vectors."""

from collections.abc import Mapping
from typing import Any, Self

from llama_index.core.bridge.pydantic import ConfigDict, Field, SerializeAsAny, model_validator
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle
from llama_index.embeddings.care import CareEmbedding
from llama_index.vector_stores.care import CareVectorStore
from typing_extensions import override

from care_qdrant.errors import FingerprintMismatch, InputError


class CareRerank(BaseNodePostprocessor):
    """Scores nodes of any retriever by the cosine of the query and their stored vectors, found by id.

    It costs one request to Qdrant and one run of the small encoder for any number of nodes. Nodes that are not in the
    collection come last, in their old order and without a score.

    Example:
        >>> from llama_index.postprocessor.care import CareRerank
        >>> rerank = CareRerank(embedding=embedding, vector_store=store, top_n=5)  # doctest: +SKIP
        >>> index.as_query_engine(node_postprocessors=[rerank])  # doctest: +SKIP
    """

    model_config = ConfigDict(extra="forbid")

    embedding: SerializeAsAny[CareEmbedding] = Field(description="Embeds the query.")
    vector_store: SerializeAsAny[CareVectorStore] = Field(
        description="Holds the vectors of the nodes; opened with the same embedding."
    )
    top_n: int | None = Field(default=None, gt=0, description="Nodes to keep; None keeps all.")

    @model_validator(mode="after")
    def _check_that_they_belong_together(self) -> Self:
        if self.vector_store.contract != self.embedding.contract():
            raise FingerprintMismatch(
                f"the store of collection {self.vector_store.collection_name!r} is not opened for this embedding: "
                "CareVectorStore(..., embedding=embedding)"
            )
        return self

    @classmethod
    @override
    def class_name(cls) -> str:
        return "CareRerank"

    @override
    def __getstate__(self) -> dict[str, Any]:
        # LlamaIndex would leave out what cannot be pickled, and the copy fail at its first query.
        return self.vector_store.__getstate__()

    @override
    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        # Not query_bundle.embedding: the retriever before us may have put another model's vector there.
        text = _text(query_bundle)
        query = self.embedding.get_query_embedding(text)
        return self._ranked(nodes, self.vector_store.score(query, [node.node_id for node in nodes], text))

    @override
    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        text = _text(query_bundle)
        query = await self.embedding.aget_query_embedding(text)
        return self._ranked(nodes, await self.vector_store.ascore(query, [node.node_id for node in nodes], text))

    def _ranked(self, nodes: list[NodeWithScore], scores: Mapping[str, float]) -> list[NodeWithScore]:
        scored = [NodeWithScore(node=hit.node, score=scores.get(hit.node_id)) for hit in nodes]
        scored.sort(key=lambda hit: (hit.score is None, -(hit.score or 0.0)))
        return scored[: self.top_n]


def _text(query_bundle: QueryBundle | None) -> str:
    if query_bundle is None:
        raise InputError("CareRerank needs the query: postprocess_nodes(nodes, query_str=...)")
    return query_bundle.query_str
