"""Before an alias is switched: the index is there, and points are found by their own vectors."""

import pytest
from qdrant_client import QdrantClient, models

from care_qdrant.errors import NotVerified
from care_qdrant.qdrant.collection import Collection
from care_qdrant.versions.copy import KnownItems, check_known_items, wait_until_indexed
from tests.standin import StandIn
from tests.versions.conftest import SCHEMAS, dense, fill

IDS = [*range(1, 40, 2)]
AWAY = [1.0] + 7 * [0.0]


def check(client: QdrantClient) -> KnownItems:
    return check_known_items(
        Collection(client, "docs"), Collection(client, "copy"), Collection(client, "docs").schema.dense, IDS
    )


@pytest.mark.parametrize("name", ["unnamed", "named", "unnamed-and-named", "two-and-sparse", "multivector"])
def test_points_are_found_by_their_own_vectors(client: QdrantClient, name: str) -> None:
    for collection in ("docs", "copy"):
        fill(client, collection, SCHEMAS[name], 40)
    known = check(client)
    assert known.asked == known.found >= 17


def test_vectors_that_do_not_find_their_points_are_noticed(client: QdrantClient) -> None:
    for collection in ("docs", "copy"):
        fill(client, collection, SCHEMAS["two-and-sparse"], 40)
    client.update_vectors("copy", [models.PointVectors(id=each, vector={"pair": AWAY}) for each in IDS])
    with pytest.raises(NotVerified, match=r"only \d+ of \d+ points of collection 'copy' .* own vector 'pair'"):
        check(client)


def test_points_with_equal_vectors_stand_for_each_other(client: QdrantClient) -> None:
    for collection in ("docs", "copy"):
        fill(client, collection, SCHEMAS["named"], 40)
        client.update_vectors(collection, [models.PointVectors(id=each, vector={"pair": AWAY}) for each in IDS])
    assert check(client) == KnownItems(asked=len(IDS), found=len(IDS))


def test_dot_products_are_not_asked(client: QdrantClient) -> None:
    for collection in ("docs", "copy"):
        fill(client, collection, {"vectors_config": dense(models.Distance.DOT)}, 40)
    assert check(client).asked == 0


def test_the_index_is_waited_for(client: QdrantClient, server: StandIn) -> None:
    fill(client, "docs", SCHEMAS["named"], 1)
    server.faults.add("yellow", times=3, path="/docs$")
    waits: list[float] = []
    wait_until_indexed(Collection(client, "docs"), 60, sleep=waits.append)
    assert len(waits) == 3


def test_an_index_that_is_not_built_in_time_is_said(client: QdrantClient, server: StandIn) -> None:
    fill(client, "docs", SCHEMAS["named"], 1)
    server.faults.add("yellow", times=3, path="/docs$")
    with pytest.raises(NotVerified, match="run the same command again"):
        wait_until_indexed(Collection(client, "docs"), 0)
