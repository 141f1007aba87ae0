"""Hits as nodes and nodes as points, whichever tool wrote them."""

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, cast
from uuid import UUID

import numpy as np
from llama_index.core.schema import (
    BaseNode,
    ImageNode,
    IndexNode,
    MetadataMode,
    NodeRelationship,
    ObjectType,
    RelatedNodeInfo,
    TextNode,
)
from llama_index.core.vector_stores.types import VectorStoreQueryResult
from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict
from llama_index.vector_stores.care.origin import embedded_text_is_known, title_and_text
from qdrant_client import models

from care_qdrant import Hit
from care_qdrant.contracts.layouts import Layout, read_hit
from care_qdrant.contracts.payload import content_hash
from care_qdrant.encoders.terms.sparse import SparseQuery
from care_qdrant.encoders.usable import LEAST_LENGTH
from care_qdrant.errors import EncodingError, InputError
from care_qdrant.qdrant.sender import Write
from care_qdrant.types import CARE_KEY

_NUMBERS = 2**64
"""Qdrant's ids are UUIDs, or numbers below this one."""


def as_result(hits: Sequence[Hit]) -> VectorStoreQueryResult:
    """Return hits as LlamaIndex takes the answer to a query: nodes, scores and ids, in their order."""
    return VectorStoreQueryResult(
        nodes=[as_node(hit) for hit in hits],
        similarities=[hit.score for hit in hits],
        ids=[hit.point_id for hit in hits],
    )


def as_node(hit: Hit) -> BaseNode:
    """Return the node of a hit, with its vector where that was asked for; its text is empty where it has none."""
    node = _stored_node(hit)
    if node is None:
        node = TextNode(id_=hit.point_id, text=hit.text, metadata=dict(hit.metadata))
        if hit.document_id != hit.point_id:
            source = RelatedNodeInfo(node_id=hit.document_id, node_type=ObjectType.DOCUMENT)
            node.relationships[NodeRelationship.SOURCE] = source
    if node.embedding is None and hit.vector is not None:
        node.embedding = list(hit.vector)
    return node


def _stored_node(hit: Hit) -> BaseNode | None:
    """Return the node that a payload holds in LlamaIndex's form; None where it holds none that can be read."""
    if "_node_content" not in hit.payload:
        return None
    try:
        node = metadata_dict_to_node(dict(hit.payload))
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
        return None  # cut JSON, or the form of another tool, such as LlamaIndex.TS
    # LlamaIndex makes an empty node of any JSON object.
    return node if not hit.text or node.get_content(MetadataMode.NONE) else None


def build_points(
    nodes: Sequence[BaseNode],
    vector_name: str,
    terms: Mapping[str, Sequence[SparseQuery]],
    layout: Layout | None,
    fingerprint: str | None,
) -> list[models.PointStruct]:
    """Return the points of nodes, which the tool that made the collection can also find and read.

    A point says by ``fingerprint`` what its vector was made of, where that is certain: metadata may be in the embedded
    text or not. ``care verify`` encodes a sample of the points that say nothing.
    """
    points = []
    for number, node in enumerate(nodes):
        payload = node_to_metadata_dict(node, remove_text=False, flat_metadata=False)
        if layout is not None:
            text = node.get_content(MetadataMode.NONE)
            payload |= layout.written(text, node.metadata, node.ref_doc_id)  # metadata may have a key of that name
        if fingerprint is not None and embedded_text_is_known(node) and CARE_KEY not in payload:
            digest = content_hash(fingerprint, "", title_and_text(node))
            payload[CARE_KEY] = {"vectors": {vector_name: digest}}
        vectors: dict[str, Any] = {vector_name: node.get_embedding()}
        vectors |= {name: rows[number] for name, rows in terms.items()}
        points.append(models.PointStruct(id=node.node_id, payload=payload, vector=vectors))
    return points


def check_points(nodes: Iterable[BaseNode]) -> None:
    """Refuse nodes that Qdrant would reject, never find or overwrite, before anything is written.

    Node ids must be UUIDs, vectors must not be zero, and different nodes must have different ids.
    """
    there: dict[str, BaseNode] = {}
    for node in nodes:
        length = float(np.linalg.norm(node.get_embedding()))
        if not math.isfinite(length) or length < LEAST_LENGTH:
            raise EncodingError(
                f"the vector of node {node.node_id} has length {length:g}: no search would find it; nothing was written"
            )
        point_id = as_point_id(node.node_id)
        if not isinstance(point_id, str):
            raise InputError(
                f"node id {node.node_id!r} is not a UUID, and Qdrant takes no other strings as point ids: "
                "use care_qdrant.types.point_id(document_id), and keep your own id as ref_doc_id"
            )
        other = there.setdefault(point_id, node)  # one UUID may be written in several ways
        if other is not node and other.hash != node.hash:
            raise InputError(
                f"two different nodes have the id {node.node_id} (document {node.ref_doc_id!r}), and only one would be "
                "kept; nothing was written. Give the documents ids of their own, or parse those that share one in a "
                "single call"
            )


def is_listed(node: BaseNode) -> bool:
    """Return whether LlamaIndex's `VectorStoreIndex` lists a node that it adds to a store that keeps texts."""
    return isinstance(node, ImageNode | IndexNode)


IS_LISTED = models.FieldCondition(
    key="_node_type", match=models.MatchAny(any=[ImageNode.class_name(), IndexNode.class_name()])
)
"""Condition that index and image nodes pass."""


def is_listed_point(record: models.Record) -> bool:
    """Return whether a point is an index or image node (`is_listed`)."""
    return (record.payload or {}).get("_node_type") in (ImageNode.class_name(), IndexNode.class_name())


def having_ids(node_ids: Iterable[str]) -> models.HasIdCondition:
    """Match the points of these nodes; no point if none of the ids can be a point's."""
    require_list("node ids", node_ids)
    ids: list[int | str | UUID] = [point_id for node_id in node_ids if (point_id := as_point_id(node_id)) is not None]
    return models.HasIdCondition(has_id=ids)


def require_list(what: str, ids: Iterable[str]) -> None:
    """Refuse all but a list of texts: the characters of one id would be taken for ids, and nothing found."""
    if isinstance(ids, str):
        raise InputError(f"one text ({ids!r}) is given where a list of {what} is expected; write [{ids!r}]")
    if other := [given for given in ids if not isinstance(given, str)]:
        raise InputError(f"{other[0]!r} ({type(other[0]).__name__}) is among the {what}; expected texts")


def as_point_id(node_id: str) -> str | int | None:
    """Return the id as Qdrant has it, a number or a UUID, or None where no point can have it."""
    if (number := written_number(node_id)) is not None and number < _NUMBERS:
        return number
    try:
        return str(UUID(node_id))
    except ValueError:
        return None


def written_number(text: str) -> int | None:
    """Return the number of an id that a store gives back as this text; None for any other, such as ``007``."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(_NUMBERS))
    return int(text) if is_number and (text == "0" or text[0] != "0") else None


def writes(points: Sequence[models.PointStruct], stored: Iterable[models.Record]) -> list[Write]:
    """Return writes of points that keep the vectors of other models on the same points.

    An upsert replaces a whole point. So existing points get their vectors updated and their payload overwritten,
    but for our own bookkeeping of the other vectors; only the rest is upserted. What the bookkeeping says of the
    written vectors and of the payload goes: the tool that made them sees the change and makes them again.
    """
    written = {name for point in points for name in cast(Mapping[str, Any], point.vector)}
    there = {_uuid(record): record.payload or {} for record in stored}
    new = [point for point in points if _uuid(point) not in there]
    old = [
        point.model_copy(update={"payload": _overwritten(there[_uuid(point)], point.payload or {}, written)})
        for point in points
        if _uuid(point) in there
    ]
    return [write for write in (Write(new, "insert"), Write(old, "update")) if write.points]


def changed_texts(
    points: Iterable[models.PointStruct], stored: Iterable[models.Record], layout: Layout | None
) -> list[models.PointStruct]:
    """Return the points that are stored with another text."""
    texts = {_uuid(record): as_node(read_hit(record, layout)).get_content() for record in stored}
    return [
        point
        for point in points
        if texts.get(_uuid(point)) not in (None, "", as_node(read_hit(point, layout)).get_content())
    ]


def _overwritten(stored: Mapping[str, Any], payload: Mapping[str, Any], written: Container[str]) -> dict[str, Any]:
    """Return a payload with the stored bookkeeping that stays true when these vectors are replaced."""
    ours, own = stored.get(CARE_KEY), payload.get(CARE_KEY)
    if not isinstance(ours, Mapping) or not isinstance(own, Mapping | None):
        return dict(payload)
    place = {key: ours[key] for key in ("chunk", "chunks") if key in ours}
    kept = {name: made_of for name, made_of in (ours.get("vectors") or {}).items() if name not in written}
    return {**payload, CARE_KEY: {**place, "vectors": kept | ((own or {}).get("vectors") or {})}}


def _uuid(point: models.PointStruct | models.Record) -> str:
    return str(UUID(str(point.id)))
