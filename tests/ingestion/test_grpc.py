"""Writing over gRPC, against a real gRPC server that only takes points."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from qdrant_client import QdrantClient, models
from qdrant_client.grpc import PointsOperationResponse, UpdateResult, UpdateStatus
from qdrant_client.grpc.points_service_pb2_grpc import PointsServicer, add_PointsServicer_to_server

from care_qdrant.errors import Rejected, Unreachable
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.sender import Write, send_all
from tests.ingestion.conftest import IMPATIENT


class Points(PointsServicer):  # type: ignore[misc]
    """Takes at most ``most`` points a request, after the faults that are due."""

    def __init__(self) -> None:
        self.faults: list[tuple[grpc.StatusCode, str]] = []
        self.most = 1_000
        self.stored: list[str] = []
        self.requests = 0

    def Upsert(self, request: Any, context: Any) -> PointsOperationResponse:  # noqa: N802
        self.requests += 1
        if self.faults:
            context.abort(*self.faults.pop(0))
        if len(request.points) > self.most:
            context.abort(grpc.StatusCode.OUT_OF_RANGE, "decoded message length too large: larger than max")
        self.stored += [point.id.uuid for point in request.points]
        return PointsOperationResponse(result=UpdateResult(operation_id=1, status=UpdateStatus.Completed))


@pytest.fixture
def points() -> Points:
    return Points()


@pytest.fixture
def collection(points: Points) -> Iterator[Collection]:
    server = grpc.server(ThreadPoolExecutor(2))
    add_PointsServicer_to_server(points, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    client = QdrantClient(host="127.0.0.1", grpc_port=port, prefer_grpc=True, check_compatibility=False)
    yield Collection(client, "c", IMPATIENT)
    client.close()
    server.stop(None)


def insert(count: int) -> Write:
    ids = [f"00000000-0000-0000-0000-{number:012}" for number in range(count)]
    return Write([models.PointStruct(id=point, vector={"v": [1.0, 2.0]}, payload={"doc_id": point}) for point in ids])


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED])
def test_passing_errors_are_outlasted(collection: Collection, points: Points, code: grpc.StatusCode) -> None:
    points.faults = [(code, "later")] * 3
    acknowledged: list[int] = []
    send_all(collection, insert(5), acknowledged.append)
    assert (acknowledged, len(points.stored), points.requests) == ([5], 5, 4)


def test_attempts_are_bounded(collection: Collection, points: Points) -> None:
    points.faults = [(grpc.StatusCode.UNAVAILABLE, "away")] * 100
    with pytest.raises(Unreachable, match=r"gave up after 6 attempts .*UNAVAILABLE away"):
        send_all(collection, insert(5), lambda _: None)
    assert points.requests == 6


def test_a_wrong_request_is_not_repeated(collection: Collection, points: Points) -> None:
    points.faults = [(grpc.StatusCode.INVALID_ARGUMENT, "wrong dimension")]
    with pytest.raises(Rejected, match="wrong dimension"):
        send_all(collection, insert(5), lambda _: None)
    assert points.requests == 1


def test_messages_that_are_too_large_are_halved(collection: Collection, points: Points) -> None:
    points.most = 3
    send_all(collection, insert(10), lambda _: None)
    assert sorted(points.stored) == [str(point.id) for point in insert(10).points]


def test_a_method_that_the_server_lacks_is_refused(collection: Collection) -> None:
    with pytest.raises(Rejected, match="UNIMPLEMENTED"):
        send_all(collection, Write(insert(2).points, "update"), lambda _: None)
