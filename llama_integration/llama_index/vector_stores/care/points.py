"""Points as nodes and nodes as points, whoever wrote them."""

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, cast
from uuid import UUID

from llama_index.core.schema import BaseNode, NodeRelationship, ObjectType, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.types import VectorStoreQueryResult
from llama_index.core.vector_stores.utils import metadata_dict_to_node
from llama_index.vector_stores.care.origin import embedded_text_is_known, title_and_text
from qdrant_client import models

from care_qdrant.errors import InputError
from care_qdrant.qdrant.layout import Layout
from care_qdrant.qdrant.payload import content_hash
from care_qdrant.qdrant.sender import hash_removal
from care_qdrant.types import CARE_KEY

Point = models.ScoredPoint | models.Record | models.PointStruct

_NUMBERS = 2**64
"""Qdrant's ids are UUIDs, or numbers below this one."""


def read_result(
    points: Sequence[Point], layout: Layout | None, vector_name: str, *, or_unnamed: bool
) -> VectorStoreQueryResult:
    """Return points as LlamaIndex takes the answer to a query: nodes, scores and ids, in their order."""
    nodes = [read_node(point, layout) for point in points]
    for node, point in zip(nodes, points, strict=True):
        if node.embedding is None:
            node.embedding = vector_of(point, vector_name, or_unnamed=or_unnamed)
    scores = [getattr(point, "score", 1.0) for point in points]
    return VectorStoreQueryResult(nodes=nodes, similarities=scores, ids=[str(point.id) for point in points])


def read_node(point: Point, layout: Layout | None) -> BaseNode:
    """Return the node of a point; its text is empty where the point has none."""
    payload = point.payload or {}
    if "_node_content" in payload:
        return metadata_dict_to_node(dict(payload))
    if layout is None:
        return TextNode(id_=str(point.id), text="", metadata=dict(payload))
    node = TextNode(id_=str(point.id), text=layout.find_text(payload) or "", metadata=layout.metadata(payload))
    document_id = layout.ref_doc_id(payload)
    if document_id is not None:
        source = RelatedNodeInfo(node_id=document_id, node_type=ObjectType.DOCUMENT)
        node.relationships[NodeRelationship.SOURCE] = source
    return node


def vector_of(point: Point, vector_name: str, *, or_unnamed: bool = False) -> list[float] | None:
    """Return the stored vector of that name, ``(dim,)``; None where the answer has none."""
    vector: Any = getattr(point, "vector", None)
    if isinstance(vector, list):
        vector = {"": vector}
    if not isinstance(vector, Mapping):
        return None
    if or_unnamed and list(vector) == [""]:
        vector_name = ""
    values = vector.get(vector_name)
    return list(values) if values else None


def check_ids(nodes: Iterable[BaseNode]) -> None:
    """Refuse ids that Qdrant does not take, before anything is written."""
    for node in nodes:
        if not isinstance(as_point_id(node.node_id), str):
            raise InputError(
                f"node id {node.node_id!r} is no UUID, and Qdrant takes no other strings as point ids: "
                "use care_qdrant.types.point_id(document_id), and keep your own id as ref_doc_id"
            )


def having_ids(node_ids: Iterable[str]) -> models.HasIdCondition:
    """Match the points of these nodes; no point where no point can have any of the ids."""
    ids: list[int | str | UUID] = [point_id for node_id in node_ids if (point_id := as_point_id(node_id)) is not None]
    return models.HasIdCondition(has_id=ids)


def as_point_id(node_id: str) -> str | int | None:
    """Return the id as Qdrant has it, a number or a UUID, or None where no point can have it."""
    if node_id.isascii() and node_id.isdecimal() and int(node_id) < _NUMBERS:
        return int(node_id)
    try:
        return str(UUID(node_id))
    except ValueError:
        return None


def add_hash(point: models.PointStruct, node: BaseNode, vector_name: str, fingerprint: str) -> None:
    """Let a point say what its vector was made of, as the points of ingestion do.

    Only where that is certain: a node whose metadata go into the embedded text may have been embedded with them or
    without. ``care verify`` encodes a sample of the points that say nothing.
    """
    payload = point.payload or {}
    if embedded_text_is_known(node) and CARE_KEY not in payload:
        digest = content_hash(fingerprint, "", title_and_text(node))
        point.payload = {**payload, CARE_KEY: {"vectors": {vector_name: digest}}}


def merge_operations(
    points: Sequence[models.PointStruct], stored: Iterable[models.Record]
) -> list[models.UpdateOperation]:
    """Return the operations that write points without touching the vectors that other models have on them.

    An upsert replaces a whole point. So points that are there get their vectors updated and their payload overwritten,
    but for our own bookkeeping of the other vectors; only the rest is upserted. What the bookkeeping says of the
    written vectors and of the payload goes: whoever made them sees that they are others now, and makes them again.
    """
    written = {name for point in points for name in cast(Mapping[str, Any], point.vector)}
    there = {str(UUID(str(record.id))): _bookkeeping(record.payload or {}, written) for record in stored}
    old = [point for point in points if _uuid(point) in there]
    new = [point for point in points if _uuid(point) not in there]
    operations: list[models.UpdateOperation] = []
    if new:
        operations.append(models.UpsertOperation(upsert=models.PointsList(points=new)))
    if old:
        vectors = [models.PointVectors(id=point.id, vector=point.vector) for point in old]
        update = models.UpdateVectors(points=vectors)
        operations.append(hash_removal(vectors))
        operations.append(models.UpdateVectorsOperation(update_vectors=update))
    for point in old:
        payload = _merged(there[_uuid(point)], point.payload or {})
        overwrite = models.SetPayload(payload=payload, points=[point.id])
        operations.append(models.OverwritePayloadOperation(overwrite_payload=overwrite))
    return operations


def changed_texts(
    points: Iterable[models.PointStruct], stored: Iterable[models.Record], layout: Layout | None
) -> list[models.PointStruct]:
    """Return the points that are stored with another text."""
    texts = {str(UUID(str(record.id))): read_node(record, layout).get_content() for record in stored}
    return [
        point for point in points if texts.get(_uuid(point)) not in (None, "", read_node(point, None).get_content())
    ]


def as_lists(vectors: Iterable[models.SparseVector]) -> tuple[list[list[int]], list[list[float]]]:
    """Return sparse vectors as the stock store's functions return them: their indices, and their values."""
    listed = list(vectors)
    return [vector.indices for vector in listed], [vector.values for vector in listed]


def _bookkeeping(payload: Mapping[str, Any], written: Container[str]) -> dict[str, Any]:
    """Return what of a stored payload is ours and stays true when these vectors and the payload are written anew."""
    ours = payload.get(CARE_KEY)
    if not isinstance(ours, Mapping):
        return {}
    place = {key: ours[key] for key in ("chunk", "chunks") if key in ours}
    vectors = {name: made_of for name, made_of in (ours.get("vectors") or {}).items() if name not in written}
    return {CARE_KEY: {**place, "vectors": vectors}}


def _merged(kept: Mapping[str, Any], payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return a payload with the bookkeeping that is kept of the stored one."""
    ours, own = kept.get(CARE_KEY), payload.get(CARE_KEY)
    if not isinstance(ours, Mapping) or not isinstance(own, Mapping):
        return {**kept, **payload}
    return {**payload, CARE_KEY: {**ours, "vectors": {**ours["vectors"], **own["vectors"]}}}


def _uuid(point: models.PointStruct) -> str:
    return str(UUID(str(point.id)))
