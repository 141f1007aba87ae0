"""Two writers of the same points: whatever the order of their operations, no hash says more than the vector."""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from qdrant_client import QdrantClient, models

from care_qdrant.contracts.payload import content_hash
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.sender import Kind, Write
from care_qdrant.types import CARE_KEY, Vectors
from care_qdrant.vectors.attach import attach_vector
from tests.databases import REAL, open_database
from tests.tiny import HashEncoder, HashModel

NAME, FORMER, LATER = "corpus", "原来的文字", "后来的文字"
MODEL = HashModel()


@pytest.fixture(params=["server", *REAL])
def served(request: pytest.FixtureRequest) -> Iterator[QdrantClient]:
    """A server: the operations of a request to the embedded database are one call, which others wait for."""
    with open_database(request) as client:
        yield client


def _create(client: QdrantClient, text: str) -> None:
    params = models.VectorParams(size=MODEL.dim, distance=models.Distance.COSINE)
    client.create_collection(NAME, vectors_config={MODEL.name: params})
    client.upsert(NAME, [_point(text, "insert")])


def _hash(text: str) -> str:
    return content_hash(MODEL.contract().constants, "", text)


def _point(text: str, kind: Kind, *, vector: bool = True) -> models.PointStruct:
    hashes = {MODEL.name: _hash(text)}
    payload = hashes if kind == "attach" else {"text": text, CARE_KEY: {"vectors": hashes}}
    row: Any = {MODEL.name: MODEL.encode_document([text])[0].tolist()} if vector else {}
    return models.PointStruct.model_construct(id=1, vector=row, payload=payload)


def _operations(collection: Collection, write: Write, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the operations that a write sends, without sending them."""
    sent: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(Collection, "apply", lambda _self, _what, operations: sent.extend(operations))
        write.send(collection)
    return sent


def _is_of(client: QdrantClient) -> tuple[str | None, str | None, str]:
    """Return the text that the vector was made of, the text that its hash says, and the stored text."""
    [record] = client.retrieve(NAME, [1], with_vectors=True)
    assert record.payload is not None and isinstance(record.vector, dict)
    texts = (FORMER, LATER, "第三段文字")
    near = [np.dot(MODEL.encode_document([text])[0], np.array(record.vector[MODEL.name])) > 0.999 for text in texts]
    stored = record.payload.get(CARE_KEY, {}).get("vectors", {}).get(MODEL.name)
    said = [_hash(text) == stored for text in texts]
    return _only(texts, near), _only(texts, said), record.payload["text"]


def _only(texts: Sequence[str], flags: Sequence[Any]) -> str | None:
    return next((text for text, flag in zip(texts, flags, strict=True) if flag), None)


@pytest.mark.parametrize(
    ("first", "second", "whole"), [("update", "update", True), ("update", "update", False), ("attach", "update", True)]
)
def test_no_order_of_operations_leaves_a_hash_of_another_text(
    served: QdrantClient, first: Kind, second: Kind, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One writer knows the former text, the other one a later one; ``whole`` says whether the first has a vector."""
    _create(served, FORMER)
    collection = Collection(served, NAME)
    is_former = models.FieldCondition(key="text", match=models.MatchValue(value=FORMER))
    ones = Write(
        [_point(FORMER, first, vector=whole)], first, (MODEL.name,), {1: [is_former]} if first == "attach" else {}
    )
    others = Write([_point(LATER, second)], second, (MODEL.name,))
    mine, theirs = (_operations(collection, write, monkeypatch) for write in (ones, others))
    for places in combinations(range(len(mine) + len(theirs)), len(mine)):
        served.upsert(NAME, [_point(FORMER, "insert")])
        queues = iter(mine), iter(theirs)
        for place in range(len(mine) + len(theirs)):
            collection.apply("one operation", [next(queues[place not in places])])
        vector, said, text = _is_of(served)
        assert said in (None, vector), f"operations of the first at {places}"
        assert said in (None, text) or first == "attach", f"operations of the first at {places}"
        if places[-1] < len(mine):
            assert vector == said == text == LATER
        if places[0] == len(theirs):  # the former text comes back only with its vector
            assert vector == said == text == (FORMER if whole and first == "update" else LATER)


class _Between(HashEncoder):
    """An encoder during whose first call others write."""

    def __init__(self, write: Callable[[], object]) -> None:
        super().__init__(MODEL.dim, 64, "")
        self._write: Callable[[], object] = write

    def encode(self, texts: Sequence[str], **options: Any) -> Vectors:
        write, self._write = self._write, lambda: None
        write()
        return super().encode(texts, **options)


def _attach(client: QdrantClient, write_between: Callable[[], object]) -> None:
    model = HashModel()
    model._encoder = _Between(write_between)
    attach_vector(client, NAME, model)


def test_attach_writes_over_nothing_that_has_changed_since_it_was_read(qdrant: QdrantClient) -> None:
    params = models.VectorParams(size=4, distance=models.Distance.COSINE)
    qdrant.create_collection(NAME, vectors_config={"old": params})
    points = [models.PointStruct(id=n, vector={"old": [1.0] * 4}, payload={"text": f"{FORMER}{n}"}) for n in range(4)]
    qdrant.upsert(NAME, points)

    def write_between() -> None:
        """One text is edited, one point is replaced, and another attach gives the third its vector."""
        qdrant.set_payload(NAME, {"text": f"{LATER}1"}, [1])
        again = models.PointStruct(id=2, vector={"old": [2.0] * 4}, payload={"text": f"{LATER}2"})
        qdrant.upsert(NAME, [again])
        qdrant.set_payload(NAME, {"text": f"{LATER}3"}, [3])
        attach_vector(qdrant, NAME, MODEL)

    _attach(qdrant, write_between)
    _each_vector_is_of_its_text(qdrant)
    report = attach_vector(qdrant, NAME, MODEL)
    assert report.encoded == 0
    qdrant.set_payload(NAME, {"text": f"{FORMER}!"}, [0])
    _attach(qdrant, lambda: qdrant.set_payload(NAME, {"text": f"{LATER}0"}, [0]))
    [record] = qdrant.retrieve(NAME, [0], with_payload=True)
    assert record.payload is not None
    assert record.payload[CARE_KEY]["vectors"][MODEL.name] not in (_hash(f"{FORMER}!"), _hash(f"{LATER}0"))
    assert attach_vector(qdrant, NAME, MODEL).encoded == 1
    _each_vector_is_of_its_text(qdrant)


def _each_vector_is_of_its_text(client: QdrantClient) -> None:
    for record in client.scroll(NAME, with_vectors=True)[0]:
        assert record.payload is not None and isinstance(record.vector, dict)
        text = record.payload["text"]
        np.testing.assert_allclose(record.vector[MODEL.name], MODEL.encode_document([text])[0], atol=1e-5)
        assert record.payload[CARE_KEY]["vectors"][MODEL.name] == _hash(text)
