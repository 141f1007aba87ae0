"""Which answers are tried again, where only a cluster gives them."""

import grpc  # type: ignore[import-untyped]
import httpx
import pytest
from pydantic import TypeAdapter, ValidationError
from qdrant_client import models
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

from care_qdrant.errors import QdrantError, Rejected
from care_qdrant.qdrant.retry import least_delay

# As Qdrant 1.18.3 answered a write to three nodes one of which had just been started again.
OTHER_NODE = (
    "Not found: 2 out of 3 shards failed to apply operation. First error captured: code: 'Some requested entity was "
    "not found', message: \"Not found: Collection `docs_v2` doesn't exist!\" not found"
)
# As one of three nodes of 1.19.0 answered an update of a point on another one that had just been deleted.
NO_POINT = (
    "Not found: 1 out of 3 shards failed to apply operation. First error captured: code: 'Some requested entity was "
    'not found\', message: "Not found: No point with id c0203319-5ef0-5c04-bdbf-be9de6d3bc2f found" not found'
)
THIS_NODE = "Not found: Collection `docs_v2` doesn't exist!"


class _GrpcError(grpc.RpcError):  # type: ignore[misc]
    def __init__(self, details: str) -> None:
        self._details = details

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.NOT_FOUND

    def details(self) -> str:
        return self._details


def _over_http(text: str) -> Exception:
    return UnexpectedResponse(404, "Not Found", text.encode(), httpx.Headers())


@pytest.mark.parametrize("answer", [_over_http, _GrpcError], ids=["http", "grpc"])
def test_a_node_that_does_not_know_the_collection_yet_is_waited_for(answer: type[Exception]) -> None:
    assert least_delay(answer(OTHER_NODE), "writing") == 0.0
    with pytest.raises(Rejected, match="writing: there is no such collection any more"):
        least_delay(answer(THIS_NODE), "writing")


@pytest.mark.parametrize("answer", [_over_http, _GrpcError], ids=["http", "grpc"])
def test_a_point_that_is_gone_is_not_waited_for(answer: type[Exception]) -> None:
    with pytest.raises(Rejected, match="No point with id"):
        least_delay(answer(NO_POINT), "writing")


@pytest.mark.parametrize(
    ("answer", "is_tried_again"),
    [
        ('[{"id": 1, "version": 0, "score": null}]', False),
        ('[{"id": 1, "score": 0.5}]', True),
        ("<html>", True),
    ],
)
def test_an_answer_that_would_be_the_same_again_is_not_waited_for(answer: str, is_tried_again: bool) -> None:
    """A server writes the score of a vector with NaN as null; a proxy may answer with a page of its own."""
    with pytest.raises(ValidationError) as unread:
        TypeAdapter(list[models.ScoredPoint]).validate_json(answer)
    error = ResponseHandlingException(unread.value)
    if is_tried_again:
        assert least_delay(error, "searching") == 0.0
        return
    with pytest.raises(QdrantError, match="has a score that is no number"):
        least_delay(error, "searching")
