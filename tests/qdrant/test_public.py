"""Functions on a collection take it as an object, or as a client and a name: the same work, for the same requests."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from qdrant_client import QdrantClient

from care_qdrant import (
    Collection,
    Document,
    attach_vector,
    detach_vector,
    ingest,
    plan_attach,
    publish_collection,
    roll_back,
    verify_collection,
)
from care_qdrant.errors import InputError, Unreachable
from care_qdrant.qdrant.connection import open_client
from care_qdrant.qdrant.retry import RetryPolicy
from tests.standin import StandIn
from tests.tiny import HashModel

IMPATIENT = RetryPolicy(attempts=2, base_seconds=0.001, cap_seconds=0.001)
DOCUMENTS = [Document(str(number), f"第{number}个病例：发热、咳嗽。") for number in range(30)]
OTHER = HashModel(name="other")


@pytest.fixture
def client(server: StandIn) -> Iterator[QdrantClient]:
    with open_client(url=server.url) as client:
        yield client


def _work(*place: Any) -> list[Any]:
    """Do what there is to do with one collection; return what it says, but for times."""
    ingested = ingest(DOCUMENTS, HashModel(), *place)
    attached = attach_vector(*place, OTHER)
    planned, verified = plan_attach(*place, OTHER), verify_collection(*place, OTHER)
    published = publish_collection(*place, "live")
    detached = detach_vector(*place)
    return [ingested.points, attached.encoded, planned.points_to_encode, verified, published.copied.points, detached]


def test_both_forms_do_the_same_with_the_same_requests(client: QdrantClient, server: StandIn) -> None:
    done, requests = [], []
    for place in ((client, "corpus"), (Collection(client, "corpus"),)):
        before = len(server.requests)
        done.append(_work(*place))
        requests.append(len(server.requests) - before)
        for name in ("corpus", "live_v1"):
            client.delete_collection(name)
    assert done[0] == done[1] and done[0][0] == len(DOCUMENTS)
    assert requests[0] == requests[1]


def test_a_collection_that_was_changed_by_others_is_read_anew(client: QdrantClient) -> None:
    held = Collection(client, "corpus")
    ingest(DOCUMENTS, HashModel(), held)
    assert held.schema.points == 30
    client.delete_collection("corpus")
    ingest(DOCUMENTS[:3], OTHER, client, "corpus")
    assert verify_collection(held, OTHER).points == 3


def test_a_run_that_failed_leaves_the_object_as_it_was(client: QdrantClient, server: StandIn) -> None:
    """The threads of a run stop their retries when it fails; the next run has them again."""
    held = Collection(client, "corpus", IMPATIENT)
    server.faults.add("500", times=1_000, method="PUT", path="/points$")
    with pytest.raises(Unreachable):
        ingest(DOCUMENTS, HashModel(), held)
    server.faults.clear()
    server.faults.add("500", times=1, method="PUT", path="/points$")
    assert ingest(DOCUMENTS, HashModel(), held).points == 30


@pytest.mark.parametrize(
    "work",
    [
        lambda place: attach_vector(place, OTHER),
        lambda place: detach_vector(place, "other"),
        lambda place: plan_attach(place, OTHER),
        lambda place: verify_collection(place, OTHER),
        lambda place: publish_collection(place, "live"),
    ],
    ids=["attach", "detach", "plan", "verify", "publish"],
)
def test_work_on_all_points_is_refused_on_the_shards_of_a_key(
    client: QdrantClient, server: StandIn, work: Callable[[Collection], object]
) -> None:
    """It would mark the whole collection as done."""
    ingest(DOCUMENTS, HashModel(), client, "corpus")
    before = len(server.requests)
    with pytest.raises(InputError, match="given with shard key 'north', and this works on the points of all shards"):
        work(Collection(client, "corpus", shard_key="north"))
    assert len(server.requests) == before


def test_a_client_without_a_name_is_told_what_is_missing(client: QdrantClient) -> None:
    with pytest.raises(TypeError, match=r"roll_back\(\): expected the name of a collection after the client"):
        roll_back(client)  # type: ignore[call-overload]
