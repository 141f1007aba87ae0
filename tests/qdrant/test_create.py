"""Collections and vectors are created with what the version of their server knows."""

from typing import Any, get_args

import pytest
from qdrant_client import models

from care_qdrant.ingestion.ingest import ingest
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import open_client
from care_qdrant.qdrant.create import Storage
from care_qdrant.qdrant.quantization import Quantization
from care_qdrant.types import Document
from care_qdrant.vectors.attach import AttachSettings, attach_vector
from tests.standin import StandIn
from tests.tiny import HashModel

OLD = {"vector": {"on_disk": True}, "copy": {"always_ram": True}}
TIERS = {"vector": {"memory": "cold"}, "copy": {"memory": "pinned"}}


def placement(params: models.VectorParams, quantization: models.QuantizationConfig | None) -> dict[str, Any]:
    """Return the fields that say where a vector and its quantised copy are held."""
    assert quantization is not None
    [copy] = quantization.model_dump(mode="json", exclude_none=True).values()
    fields = ("memory", "on_disk", "always_ram")
    vector = params.model_dump(mode="json", exclude_none=True)
    return {
        what: {name: values[name] for name in fields if name in values}
        for what, values in (("vector", vector), ("copy", copy))
    }


@pytest.mark.parametrize("kind", get_args(Quantization))
@pytest.mark.parametrize(("version", "expected"), [("1.18.3", OLD), ("1.19.0", TIERS), ("1.20.1", TIERS)])
def test_vectors_are_placed_in_memory_as_the_server_knows_it(
    version: str, expected: dict[str, Any], kind: Quantization
) -> None:
    model = HashModel()
    settings = AttachSettings(quantization=kind, on_disk=True)
    with StandIn(version=version) as server, open_client(url=server.url) as client:
        storage = Storage(quantization=kind, on_disk=True)
        ingest([Document("a", "发热三天")], model, client, "made", storage=storage)
        ingest([Document("a", "发热三天")], model, client, "plain")
        attach_vector(client, "plain", HashModel(name="second"), settings=settings)
        made, plain = (Collection(client, name).schema for name in ("made", "plain"))
    assert placement(made.dense[model.name], made.config.quantization_config) == expected
    assert placement(plain.dense["second"], plain.dense["second"].quantization_config) == expected
    untouched = plain.dense[model.name]
    assert untouched.memory is untouched.on_disk is untouched.quantization_config is None


@pytest.mark.parametrize("datatype", list(models.Datatype))
def test_a_collection_of_any_datatype_gets_a_vector(datatype: models.Datatype) -> None:
    """Strict mode makes the preflight add up what its vectors take."""
    with StandIn() as server, open_client(url=server.url) as client:
        params = models.VectorParams(size=4, distance=models.Distance.COSINE, datatype=datatype)
        strict = models.StrictModeConfig(enabled=True, max_collection_vector_size_bytes=10_000)
        client.create_collection("docs", {"old": params}, strict_mode_config=strict)
        points = [models.PointStruct(id=1, vector={"old": [1.0, 0, 0, 0]}, payload={"body": "发热三天"})]
        client.upsert("docs", points)
        assert attach_vector(client, "docs", HashModel()).covered == 1
