"""The stand-in answers what a real server answered, and a real server still does."""

import json

import httpx
import pytest
from qdrant_client import QdrantClient, models

from care_qdrant.qdrant.collection import Collection
from tests.standin import StandIn
from tests.standin.recorded import EXCHANGES, RECORDED, C, ask

ROUNDS = 25
SAME = ("1.18.3", "1.19.0")
"""Servers that gave the recorded answers."""
ANSWERS = json.loads(RECORDED.read_text(encoding="utf-8"))


def differences(url: str) -> list[str]:
    asked = zip(EXCHANGES, ask(url), ANSWERS["answers"], strict=True)
    return [f"{method} {path}: {found}, recorded {real}" for (method, path, _), found, real in asked if found != real]


def test_the_stand_in_answers_as_recorded() -> None:
    with StandIn(version=ANSWERS["server"]) as server:
        assert differences(server.url) == []
        with StandIn(upstream=server.url) as in_front:
            assert differences(in_front.url) == []


@pytest.mark.server
def test_a_real_server_answers_as_recorded(real_url: str) -> None:
    version = httpx.get(real_url).json()["version"]
    if version not in SAME:
        pytest.skip(f"the answers are of {' and '.join(SAME)}, and the server is {version}")
    assert differences(real_url) == []


@pytest.mark.server
def test_a_deleted_point_stays_away_when_a_vector_is_added(real_url: str) -> None:
    """Qdrant 1.18.3 brought it back in one of four such rounds, if its optimizer ended at that moment."""
    new = next(
        number for number, (_, path, _) in enumerate(EXCHANGES) if path.startswith(f"/collections/{C}/vectors/new")
    )
    dense = models.DenseVectorNameConfig(dense=models.DenseVectorConfig(size=2, distance=models.Distance.DOT))
    client = QdrantClient(url=real_url, check_compatibility=False)
    for _ in range(ROUNDS):
        client.delete_collection(C)
        with httpx.Client(base_url=real_url, timeout=60) as plain:
            for method, path, body in EXCHANGES[:new]:
                plain.request(method, path, json=body)
        left = client.count(C).count
        Collection(client, C).add_vector("new", dense)
        assert client.count(C).count == left == 3
    client.delete_collection(C)
    client.close()
