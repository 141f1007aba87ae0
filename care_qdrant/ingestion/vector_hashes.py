"""Makes the stored hashes true: a point may say that it has a vector that somebody has deleted since."""

from functools import partial
from typing import Any

from qdrant_client import models

from care_qdrant.store.limits import read_limits
from care_qdrant.store.payload import CARE_KEY
from care_qdrant.store.retry import Collection


def drop_false_claims(link: Collection, vector_name: str) -> int:
    """Remove the hash of a vector from each point that does not have the vector; give how many there were.

    Deleting a named vector leaves the payloads as they are, and ingestion trusts their hashes: without this, a corpus
    would be called unchanged while none of its points could be found.
    """
    without = models.Filter(must_not=[models.HasVectorCondition(has_vector=vector_name)])
    dropped, offset, page_size = 0, None, read_limits(link).page
    while True:
        scroll = partial(_scroll, link, without, offset, page_size)
        records, offset = link.call("looking for points without a vector", scroll)
        ids = [record.id for record in records if vector_name in _hashes(record)]
        if ids:
            link.write("removing wrong hashes", partial(_delete_hash, link, vector_name, ids))
        dropped += len(ids)
        if offset is None:
            return dropped


def _hashes(record: models.Record) -> dict[str, str]:
    return ((record.payload or {}).get(CARE_KEY) or {}).get("vectors") or {}


def _delete_hash(link: Collection, vector_name: str, ids: list[models.ExtendedPointId]) -> models.UpdateResult:
    keys = [f'{CARE_KEY}.vectors."{vector_name}"']
    # By condition and not by list of ids: an id that somebody deletes meanwhile would fail the request.
    there = models.Filter(must=[models.HasIdCondition(has_id=ids)])
    return link.client.delete_payload(link.collection, keys, there, wait=True)


def _scroll(link: Collection, condition: models.Filter, offset: Any, page_size: int) -> tuple[list[models.Record], Any]:
    return link.client.scroll(
        link.collection, scroll_filter=condition, limit=page_size, offset=offset, with_payload=[CARE_KEY]
    )
