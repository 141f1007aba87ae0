"""Filters of the caller's own, which qdrant-client would send without the bounds that JSON does not have."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from qdrant_client import QdrantClient, models

from care_qdrant.errors import InputError
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.filters import require_finite

numbers = st.floats(allow_nan=True, allow_infinity=True)
WRAPPERS: list[Callable[[Any], models.Filter]] = [
    lambda inner: models.Filter(must=inner),
    lambda inner: models.Filter(must_not=[inner]),
    lambda inner: models.Filter(should=[models.HasIdCondition(has_id=[1]), inner]),
    lambda inner: models.Filter(min_should=models.MinShould(conditions=[inner], min_count=1)),
    lambda inner: models.Filter(
        must=[models.NestedCondition(nested=models.Nested(key="a", filter=models.Filter(must=[inner])))]
    ),
]


def area(number: float) -> models.FieldCondition:
    return models.FieldCondition(
        key="k", geo_radius=models.GeoRadius(center=models.GeoPoint(lon=number, lat=0), radius=1)
    )


def bound(number: float) -> models.FieldCondition:
    return models.FieldCondition(key="k", range=models.Range(gte=number))


@given(numbers, st.sampled_from([area, bound]), st.lists(st.sampled_from(WRAPPERS), min_size=1, max_size=4))
def test_a_number_that_json_does_not_hold_is_refused_at_any_depth(
    number: float, leaf: Callable[[float], Any], wrappers: list[Callable[[Any], models.Filter]]
) -> None:
    where = leaf(number)
    for wrap in wrappers:
        where = wrap(where)
    if math.isfinite(number):
        require_finite(where)
        return
    with pytest.raises(InputError, match="k' holds NaN or an infinite number"):
        require_finite(where)


def test_no_call_lifts_a_condition(client: QdrantClient) -> None:
    """A server would count, find and delete all points that have the key."""
    collection = Collection(client, "c")
    collection.create(vectors_config={"v": models.VectorParams(size=1, distance=models.Distance.DOT)})
    client.upsert("c", [models.PointStruct(id=1, vector={"v": [1.0]}, payload={"k": 1})], wait=True)
    where = models.Filter(must=[bound(math.inf)])
    leaf = models.Prefetch(query=[1.0], using="v", filter=where, limit=1)
    fused = models.QueryRequest(prefetch=[leaf], query=models.FusionQuery(fusion=models.Fusion.RRF), limit=1)
    for call in (
        lambda: list(collection.scroll(where=where)),
        lambda: collection.count(where),
        lambda: collection.search("searching", [models.QueryRequest(query=[1.0], using="v", filter=where)]),
        lambda: collection.search("searching", [fused]),
        lambda: collection.delete_where(where),
    ):
        with pytest.raises(InputError, match="infinite"):
            call()
    assert collection.count() == 1
