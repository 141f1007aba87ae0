"""Scored points to hits, whichever tool wrote them."""

from collections.abc import Iterable, Mapping
from typing import Any

from qdrant_client import models

from care_qdrant.errors import InputError
from care_qdrant.qdrant.layout import guess_layout
from care_qdrant.qdrant.payload import hit_from_payload
from care_qdrant.types import CARE_KEY, Hit


def read_hit(point: models.ScoredPoint, text_field: str | None = None) -> Hit:
    """Return the hit that a point is; one without a text is a hit with an empty text, not the end of the search."""
    payload = point.payload or {}
    care = payload.get(CARE_KEY)
    if isinstance(care, Mapping) and "chunk" in care:
        return hit_from_payload(str(point.id), point.score, payload)
    return _foreign_hit(str(point.id), point.score, payload, text_field)


def best_of_each_document(hits: Iterable[Hit]) -> list[Hit]:
    """Keep the first hit of each document, in order."""
    best: dict[str, Hit] = {}
    for hit in hits:
        best.setdefault(hit.document_id, hit)
    return list(best.values())


def _foreign_hit(point_id: str, score: float, payload: Mapping[str, Any], text_field: str | None) -> Hit:
    try:
        layout = guess_layout([payload], text_field=text_field)
    except InputError:
        return Hit(document_id=point_id, point_id=point_id, score=score, text="", metadata=payload)
    return Hit(
        document_id=layout.ref_doc_id(payload) or point_id,
        point_id=point_id,
        score=score,
        text=layout.find_text(payload) or "",
        title=layout.title(payload),
        metadata=layout.metadata(payload),
    )
