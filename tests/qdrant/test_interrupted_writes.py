"""A write that ends between two of its operations never leaves a hash beside the vector of another text."""

from collections.abc import Callable, Sequence
from typing import Any

import httpx
import numpy as np
import pytest
from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import UnexpectedResponse

from care_qdrant.errors import Rejected
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.settings import IngestSettings
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.retry import RetryPolicy
from care_qdrant.types import Document
from care_qdrant.vectors.attach import attach_vector
from tests.standin import StandIn
from tests.tiny import HashModel, Killed

NAME, FORMER, LATER = "corpus", "原来的文字", "后来的文字"


def _ingest(client: QdrantClient, text: str) -> None:
    settings = IngestSettings(sparse=False)
    ingest([Document(f"d{n}", f"{text}{n}") for n in range(3)], HashModel(), client, NAME, settings=settings)


def _attach(client: QdrantClient, text: str) -> None:
    if not client.collection_exists(NAME):
        params = models.VectorParams(size=4, distance=models.Distance.COSINE)
        client.create_collection(NAME, vectors_config={"old": params})
        points = [models.PointStruct(id=n, vector={"old": [1.0] * 4}, payload={}) for n in range(3)]
        client.upsert(NAME, points)
    for n in range(3):
        client.set_payload(NAME, {"text": f"{text}{n}"}, [n])
    attach_vector(client, NAME, HashModel())


@pytest.mark.parametrize("completed", range(5))
@pytest.mark.parametrize("write", [_ingest, _attach])
def test_the_former_text_gets_its_vector_back(
    client: QdrantClient, write: Callable[[QdrantClient, str], None], completed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(client, FORMER)
    apply = Collection.apply

    def apply_a_part(self: Collection, what: str, operations: Sequence[Any]) -> None:
        if completed:
            apply(self, what, operations[:completed])
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Collection, "apply", apply_a_part)
        with pytest.raises(Killed):
            write(client, LATER)
    write(client, FORMER)
    records, _ = client.scroll(NAME, with_vectors=True)
    assert len(records) == 3
    for record in records:
        expected = HashModel().encode_document([record.payload["text"]])[0]  # type: ignore[index]
        assert record.payload["text"].startswith(FORMER)  # type: ignore[index]
        np.testing.assert_allclose(record.vector["hash-model"], expected, atol=1e-5)  # type: ignore[index,call-overload]


@pytest.mark.parametrize(("refusals", "is_written"), [(2, True), (1_000, False)])
def test_a_point_that_a_replica_lacks_is_tried_again_for_a_while(
    server: StandIn, refusals: int, is_written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All points are there, so nobody has deleted one: another replica is about to get it."""
    apply, left = Collection.apply, refusals

    def apply_later(self: Collection, what: str, operations: Sequence[Any]) -> None:
        nonlocal left
        if not what.startswith("writing") or left == 0:
            apply(self, what, operations)
            return
        left -= 1
        raise Rejected("No point with id 1") from UnexpectedResponse(404, "Not Found", b"No point", httpx.Headers())

    monkeypatch.setattr(Collection, "apply", apply_later)
    monkeypatch.setattr(RetryPolicy, "delay", lambda *_: 0.0)
    client = QdrantClient(url=server.url, check_compatibility=False)
    if is_written:
        _attach(client, FORMER)
        assert Collection(client, NAME).count_with_vector("hash-model") == 3
    else:
        with pytest.raises(Rejected, match="No point with id 1"):
            _attach(client, FORMER)
        assert refusals - left == 6, "the first attempt and five more"
    client.close()
