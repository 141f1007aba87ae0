"""Repairs stored hashes: a payload may still name a vector that somebody has deleted since."""

from collections.abc import Mapping

from qdrant_client import models

from care_qdrant.qdrant.collection import Collection
from care_qdrant.types import CARE_KEY


def remove_orphaned_hashes(collection: Collection, vector_name: str) -> int:
    """Remove the hash of a vector from each point that does not have the vector.

    Deleting a named vector leaves the payloads as they are, and ingestion trusts their hashes: without this, a corpus
    would be reported as unchanged while none of its points could be found.

    Returns:
        The number of points that had such a hash.
    """
    without = models.Filter(must_not=[models.HasVectorCondition(has_vector=vector_name)])
    removed = 0
    for part in collection.parts():
        for page in part.scroll("looking for points without a vector", where=without, payload=[CARE_KEY]):
            ids = [record.id for record in page if vector_name in _hashes(record)]
            part.delete_payload_key(ids, f'{CARE_KEY}.vectors."{vector_name}"')
            removed += len(ids)
    return removed


def _hashes(record: models.Record) -> Mapping[str, str]:
    care = (record.payload or {}).get(CARE_KEY)
    hashes = care.get("vectors") if isinstance(care, Mapping) else None
    return hashes if isinstance(hashes, Mapping) else {}
