"""A write that ends between two of its operations never leaves a hash beside the vector of another text."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from qdrant_client import QdrantClient, models

from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.settings import IngestSettings
from care_qdrant.qdrant.collection import Collection
from care_qdrant.types import Document
from care_qdrant.vectors.attach import attach_vector
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
