"""What a store writes to Qdrant, each operation once, as `llama_index.vector_stores.care.reading`."""

import logging
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, cast

from llama_index.core.schema import BaseNode, MetadataMode
from llama_index.core.utils import iter_batch
from llama_index.core.vector_stores.types import MetadataFilters
from llama_index.embeddings.care.nodes import embeds_other_metadata
from llama_index.vector_stores.care.points import changed_texts, check_ids, merge_operations
from llama_index.vector_stores.care.reading import Reading, as_lists
from llama_index.vector_stores.care.steps import Steps, call
from llama_index.vector_stores.qdrant.base import DOCUMENT_ID_KEY
from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import UnexpectedResponse
from typing_extensions import override

from care_qdrant.encoders import bm25
from care_qdrant.errors import SchemaMismatch
from care_qdrant.store.connection import is_embedded
from care_qdrant.store.contracts import METADATA_KEY, SparseContract

logger = logging.getLogger(__name__)


class Writing(Reading):
    """The stock store with what it writes replaced by ours, where it would harm what is there."""

    def _merge(self, nodes: Sequence[BaseNode], shard_identifier: Any | None) -> Steps[bool]:
        """Write nodes beside the vectors of other models. False: there are none, so that upserting them is as good."""
        if not nodes:
            return False
        check_ids(nodes)
        self._warn_of_metadata(nodes)
        if not (yield call("collection_exists", self.collection_name)):
            yield from self._create(nodes)
        pinned = yield from self._pin()
        if not pinned.has_other_vectors:
            return False
        shard = self._shard(shard_identifier)
        points, _ = self._build_points(list(nodes), self.sparse_vector_name)
        outdated = 0
        for batch in iter_batch(points, self.batch_size):
            ids = [point.id for point in batch]
            stored = yield call("retrieve", self.collection_name, ids, True, shard_key_selector=shard)
            outdated += len(changed_texts(batch, stored, pinned.layout))
            yield call("batch_update_points", self.collection_name, merge_operations(batch, stored, shard), wait=True)
        if outdated:
            logger.warning(
                "%d points of collection %r have a new text; their vectors of other models were made of the old one: "
                "let the pipelines that made them run again (`care attach` for those that it made)",
                outdated,
                self.collection_name,
            )
        return True

    @override
    def _build_points(
        self, nodes: list[BaseNode], sparse_vector_name: str
    ) -> tuple[list[models.PointStruct], list[str]]:
        """Let points be found by the filters of the tool that made the collection, and be read by it."""
        points, ids = super()._build_points(nodes, sparse_vector_name)
        layout = self._pinned.layout if self._pinned is not None else None
        if layout is not None:
            for node, point in zip(nodes, points, strict=True):
                foreign = layout.written(node.get_content(MetadataMode.NONE), node.metadata, node.ref_doc_id)
                point.payload = {**foreign, **(point.payload or {})}
        return points, ids

    def _create(self, nodes: Sequence[BaseNode]) -> Steps[None]:
        """Create the collection with named vectors and, when the model is known, its contract."""
        contract, dim = self._wanted.contract, len(nodes[0].get_embedding())
        if contract is not None and contract.dim != dim:
            raise SchemaMismatch(
                f"the nodes for collection {self.collection_name!r} have vectors of {dim} dimensions, but model "
                f"{contract.model!r} gives {contract.dim}: another model embedded them"
            )
        if self._wanted.bm25:
            average = bm25.average_length(node.get_content(MetadataMode.EMBED) for node in nodes)
            self._bm25 = SparseContract(bm25.ANALYSER, bm25.DEFAULT_K1, bm25.DEFAULT_B, average)
        try:
            yield call("create_collection", self.collection_name, **self._configuration(dim))
        except (ValueError, UnexpectedResponse) as error:
            if "already exists" not in str(error):
                raise
        for shard_key in self._shard_keys or ():
            yield call("create_shard_key", self.collection_name, shard_key)
        for index in self._payload_index_list():
            yield call("create_payload_index", self.collection_name, **index)

    def _configuration(self, dim: int) -> dict[str, Any]:
        dense = self._dense_config or models.VectorParams(size=dim, distance=models.Distance.COSINE)
        modifier = models.Modifier.IDF if self._wanted.bm25 else None
        sparse = self._sparse_config or models.SparseVectorParams(modifier=modifier)
        contracts = {
            name: asdict(contract)
            for name, contract in (
                (self.dense_vector_name, self._wanted.contract),
                (self.sparse_vector_name, self._bm25),
            )
            if contract is not None
        }
        return {
            "vectors_config": {self.dense_vector_name: dense},
            "sparse_vectors_config": {self.sparse_vector_name: sparse} if self.enable_hybrid else None,
            "quantization_config": self._quantization_config,
            "shard_number": self._shard_number,
            "replication_factor": self._replication_factor,
            "sharding_method": self._sharding_method,
            "write_consistency_factor": self._write_consistency_factor,
            "metadata": {METADATA_KEY: contracts} if contracts else None,
        }

    def _payload_index_list(self) -> list[dict[str, Any]]:
        """Give the payload indexes to create; the embedded database has none."""
        if is_embedded(cast(QdrantClient, self._client or self._aclient)):
            return []
        keyword = models.PayloadSchemaType.KEYWORD
        document_id = [{"field_name": DOCUMENT_ID_KEY, "field_schema": keyword}] if self.index_doc_id else []
        return [*document_id, *(self._payload_indexes or ())]

    def _delete_document(self, document_id: str, shard_identifier: Any | None) -> Steps[None]:
        yield from self._pin()
        selection = self._of_documents([document_id])
        yield call("delete", self.collection_name, selection, shard_key_selector=self._shard(shard_identifier))

    def _delete_nodes(
        self, node_ids: list[str] | None, filters: MetadataFilters | None, shard_identifier: Any | None
    ) -> Steps[None]:
        yield from self._pin()
        selection = self._selection(node_ids, filters)
        yield call("delete", self.collection_name, selection, shard_key_selector=self._shard(shard_identifier))

    def _bm25_of_documents(self, texts: list[str]) -> tuple[list[list[int]], list[list[float]]]:
        assert self._bm25 is not None, "set when the collection is pinned or created"
        k1, b, average = self._bm25.k1, self._bm25.b, self._bm25.average_length
        return as_lists(bm25.document_vector(text, average_length=average, k1=k1, b=b) for text in texts)

    def _warn_of_metadata(self, nodes: Sequence[BaseNode]) -> None:
        leaking = next((node for node in nodes if embeds_other_metadata(node)), None)
        if leaking is not None:
            logger.warning(
                "node %s of collection %r was embedded with its metadata in front of the text, unlike what care-ingest "
                "writes: put CareNodeText() behind the splitter in transformations= (keys: %s)",
                leaking.node_id,
                self.collection_name,
                ", ".join(sorted(leaking.metadata)),
            )
