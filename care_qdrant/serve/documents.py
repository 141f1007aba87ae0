"""One document of a collection, by the id that the hits of a search have."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any
from uuid import UUID

from qdrant_client import models

from care_qdrant.contracts.layouts import DOCUMENT_PATHS, guess_layout, read_hit
from care_qdrant.contracts.paths import readings
from care_qdrant.errors import InputError
from care_qdrant.qdrant.collection import Collection
from care_qdrant.serve.refusal import Refusal
from care_qdrant.serve.schemas import WholeDocument
from care_qdrant.types import Hit

MOST_CHUNKS = 1_000
"""Largest number of chunks of a document that is returned whole."""
_LAYOUT_POINTS = 32
"""Points that show where a collection keeps the ids of its documents."""
_WHOLE_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,39})")
_INTEGERS, _POINT_NUMBERS = 2**63, 2**64
"""From the first on, Qdrant compares a number as a float; below the second, it may be the id of a point."""


def read_document(collection: Collection, document_id: str) -> WholeDocument:
    """Return all chunks of a document."""
    chunks = list(islice(find_chunks(collection, document_id), MOST_CHUNKS + 1))
    if len(chunks) > MOST_CHUNKS:  # an id such as a kind of text is that of half a collection
        raise Refusal(
            413,
            "document_too_large",
            f"document {document_id!r} of collection {collection.name!r} has more than {MOST_CHUNKS:,} chunks; search "
            "for the part that you need",
        )
    chunks.sort(key=lambda hit: hit.chunk)
    return WholeDocument(
        collection=collection.name,
        document_id=document_id,
        title=chunks[0].title,
        chunks=[hit.text for hit in chunks],
        metadata=dict(chunks[0].metadata),
    )


def find_chunks(collection: Collection, document_id: str) -> Iterator[Hit]:
    """Yield the chunks of a document, at least one.

    Look first under the paths that a sample of the points uses, since a condition on a key without a payload index
    reads every payload; then under the paths that other tools use.
    """
    sample = collection.sample(_LAYOUT_POINTS)
    likely = {path for record in sample for path in _document_paths(record.payload or {})}
    others = {path for known in DOCUMENT_PATHS for path in readings(known)} - likely if sample else set()
    for paths in (likely, others):
        chunks = _chunks(collection, document_id, paths)
        if (first := next(chunks, None)) is not None:
            yield first
            yield from chunks
            return
    raise Refusal(404, "unknown_document", f"collection {collection.name!r} has no document {document_id!r}")


def _chunks(collection: Collection, document_id: str, paths: Iterable[str]) -> Iterator[Hit]:
    """Yield the chunks of a document by its id under one of these paths or as the id of a point."""
    strict = collection.schema.strict_mode
    if strict is not None and strict.unindexed_filtering_retrieve is False:
        paths = collection.schema.payload_schema.keys() & set(paths)
    number = int(document_id) if _WHOLE_NUMBER.fullmatch(document_id) else None
    may_be: list[models.Condition] = [
        condition for path in sorted(paths) for condition in _equal(path, document_id, number)
    ]
    # A point whose payload holds no document id is a document under its own id.
    may_be += [models.HasIdCondition(has_id=[point_id]) for point_id in _point_ids(document_id, number)]
    if not may_be:  # every point passes a filter without conditions
        return
    pages = collection.scroll("reading a document", where=models.Filter(should=may_be), as_seen=True)
    hits = (read_hit(record) for page in pages for record in page)
    yield from (hit for hit in hits if hit.document_id == document_id)


def _document_paths(payload: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the paths at which a payload may hold the id of its document."""
    try:
        return guess_layout([payload]).document_paths
    except InputError:
        return ()


def _equal(path: str, document_id: str, number: int | None) -> list[models.Condition]:
    """Match points whose value under a path reads as the id: a text, a whole number or a boolean."""
    values: list[str | int] = [document_id]
    if document_id in ("True", "False"):
        values.append(document_id == "True")
    if number is not None and -_INTEGERS <= number < _INTEGERS:
        values.append(number)
    conditions: list[models.Condition] = [
        models.FieldCondition(key=path, match=models.MatchValue(value=value)) for value in values
    ]
    if number is not None and len(values) == 1:  # its neighbours pass as well, and are left out by their own ids
        near = models.Range(gte=math.nextafter(number, -math.inf), lte=math.nextafter(number, math.inf))
        conditions.append(models.FieldCondition(key=path, range=near))
    return conditions


def _point_ids(document_id: str, number: int | None) -> list[int | str]:
    """Return the point id, a number or a UUID, that a document id can stand for; empty if it is neither."""
    if number is not None:
        return [number] if 0 <= number < _POINT_NUMBERS else []
    try:
        return [str(UUID(document_id))]
    except ValueError:
        return []
