"""Strict mode: whatever its limits, a vector is attached, verified, searched, published and detached."""

from typing import Any

import pytest
from qdrant_client import QdrantClient, models

from care_qdrant.errors import InputError
from care_qdrant.qdrant.collection import Collection
from care_qdrant.search.retriever import Retriever
from care_qdrant.vectors.attach import attach_vector
from care_qdrant.vectors.detach import detach_vector
from care_qdrant.vectors.verify import verify_collection
from care_qdrant.vectors.verify_report import VerifySettings
from care_qdrant.versions.publish import publish_collection
from tests.tiny import HashModel, medical_texts
from tests.vectors.collections import DIM, NAME, point

LIMITS: list[dict[str, Any]] = [
    {"search_max_batchsize": 2},
    {"max_query_limit": 3},
    {"filter_max_conditions": 1},
    {"filter_max_conditions": 2},
    {"search_allow_exact": False},
    {"upsert_max_batchsize": 3},
    {"condition_max_size": 3},
    {"unindexed_filtering_retrieve": False, "unindexed_filtering_update": False},
]
ALL: dict[str, Any] = {name: value for limit in reversed(LIMITS) for name, value in limit.items()}


@pytest.mark.parametrize("limits", [*LIMITS, ALL], ids=lambda limits: "+".join(limits) if len(limits) < 3 else "all")
def test_a_vector_comes_and_goes_within_the_limits(
    client: QdrantClient, model: HashModel, limits: dict[str, Any]
) -> None:
    strict = models.StrictModeConfig(enabled=True, **limits)
    params = models.VectorParams(size=DIM, distance=models.Distance.COSINE)
    client.create_collection(NAME, {"old": params}, strict_mode_config=strict, metadata={"owner": "team"})
    texts = medical_texts(40)
    for start in range(0, 40, 3):
        rows = [point("named", "plain", number, texts[number]) for number in range(start, min(start + 3, 40))]
        client.upsert(NAME, rows, wait=True)
    read = Collection(client, NAME)
    before = {record.id: record for page in read.scroll(vectors=True) for record in page}
    assert attach_vector(client, NAME, model).covered == 40
    assert attach_vector(client, NAME, None).covered == 40
    assert verify_collection(client, NAME, model, settings=VerifySettings(least_known=0)).problems == []
    [hits] = Retriever(client, NAME, model, mode="dense").search([texts[7]], 3)  # type: ignore[arg-type]
    assert texts[7] in {hit.text for hit in hits}
    assert publish_collection(client, NAME, f"{NAME}-live").copied.added == 40
    for name in (model.name, "bm25"):
        assert detach_vector(client, NAME, name).payloads_cleaned == 40
    assert {record.id: record for page in read.scroll(vectors=True) for record in page} == before
    assert read.refresh().metadata == {"owner": "team"}


def test_a_point_that_would_be_left_without_a_vector_is_counted_within_the_limits(
    client: QdrantClient, model: HashModel
) -> None:
    strict = models.StrictModeConfig(enabled=True, filter_max_conditions=1)
    client.create_collection(
        NAME, {"old": models.VectorParams(size=4, distance=models.Distance.COSINE)}, strict_mode_config=strict
    )
    rows = [models.PointStruct(id=n, vector={"old": [1, 0, 0, n]}, payload={"text": f"第{n}段"}) for n in range(9)]
    client.upsert(NAME, rows, wait=True)
    attach_vector(client, NAME, model)
    row = model.encode_document(["头痛"])[0].tolist()
    late = [models.PointStruct(id=n, vector={model.name: row}, payload={"text": "头痛"}) for n in (13, 15)]
    client.upsert(NAME, late, wait=True)
    with pytest.raises(InputError, match=r"2 points of collection .* have no vector but"):
        detach_vector(client, NAME)
