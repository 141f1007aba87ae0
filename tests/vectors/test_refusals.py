"""Every reason to refuse, before anything is written."""

import pytest
from qdrant_client import QdrantClient, models

from care_qdrant.contracts.contract import VectorContract
from care_qdrant.errors import FingerprintMismatch, InputError, Rejected, SchemaMismatch
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import open_client
from care_qdrant.vectors.attach import AttachSettings, attach_vector
from care_qdrant.vectors.attach_plan import plan_attach
from care_qdrant.vectors.verify import verify_collection
from care_qdrant.versions.publish import publish_collection
from tests.standin import StandIn
from tests.tiny import HashModel
from tests.vectors.collections import DIM, NAME, contents, fill


def test_another_model_under_this_name(attached: QdrantClient) -> None:
    before = contents(attached)
    other = HashModel(name="care", salt="other")
    with pytest.raises(FingerprintMismatch, match="was made by care"):
        attach_vector(attached, NAME, other)
    assert contents(attached) == before
    assert other.document_encoder_reads == 0


def test_what_others_made(qdrant: QdrantClient, model: HashModel) -> None:
    with pytest.raises(InputError, match="no collection 'articles'"):
        attach_vector(qdrant, NAME, model)
    fill(qdrant, "sparse", "plain")
    with pytest.raises(FingerprintMismatch, match="carries no fingerprint"):
        attach_vector(qdrant, NAME, HashModel(name="old", dim=DIM))
    with pytest.raises(SchemaMismatch, match="8-dimensional"):
        attach_vector(qdrant, NAME, HashModel(name="old"))
    with pytest.raises(SchemaMismatch, match="is a sparse vector"):
        attach_vector(qdrant, NAME, model, vector_name="terms")
    qdrant.set_payload(NAME, {"_care": "intensive"}, points=[1], wait=True)
    with pytest.raises(InputError, match="a key '_care' of their own"):
        attach_vector(qdrant, NAME, model)
    qdrant.set_payload(NAME, {"_care": {}}, points=[1], wait=True)  # a detach would remove it with the hashes
    with pytest.raises(InputError, match="a key '_care' of their own"):
        attach_vector(qdrant, NAME, model)


def test_an_attach_of_another_model_that_was_begun(qdrant: QdrantClient, model: HashModel) -> None:
    fill(qdrant, "named", "plain")
    Collection(qdrant, NAME).write_contract("care", VectorContract("f" * 64, "another", 32))
    with pytest.raises(FingerprintMismatch, match="care detach"):
        attach_vector(qdrant, NAME, model)


def test_payloads_without_text(qdrant: QdrantClient, model: HashModel) -> None:
    fill(qdrant, "named", "plain", count=0)
    with pytest.raises(InputError, match="has no points yet"):
        attach_vector(qdrant, NAME, model)
    rows = [models.PointStruct(id=1, vector={"old": [1.0] * DIM}, payload={"url": "x", "size": 3})]
    qdrant.upsert(NAME, rows, wait=True)
    with pytest.raises(InputError, match=r"their keys: size, url.*--text-field"):
        attach_vector(qdrant, NAME, model)
    with pytest.raises(InputError, match=r"'body\.zh'"):
        attach_vector(qdrant, NAME, model, settings=AttachSettings(text_field="body.zh"))


@pytest.mark.filterwarnings("ignore:Api key is used with an insecure connection")
def test_a_key_that_may_only_read(server: StandIn, model: HashModel) -> None:
    server.api_key, server.read_only_key = "all", "read"
    with open_client(url=server.url, api_key="all") as owner, open_client(url=server.url, api_key="read") as reader:
        fill(owner, "named", "plain")
        before = contents(owner)
        with pytest.raises(Rejected, match=r"writing its model record.*403.*manage access.* Give a key that may write"):
            attach_vector(reader, NAME, model)
        assert contents(owner) == before
        assert owner.get_collection(NAME).config.metadata == {"owner": "team"}


@pytest.mark.parametrize(
    ("limits", "advice"),
    [
        ({"max_points_count": 40}, "raise max_points_count"),
        ({"max_collection_vector_size_bytes": 40 * 8 * 4 + 40 * 32 * 4 - 1}, "raise max_collection_vector_size_bytes"),
    ],
)
def test_limits_that_the_server_would_reach_in_the_middle(
    client: QdrantClient, model: HashModel, limits: dict[str, int], advice: str
) -> None:
    fill(client, "named", "plain")
    before = contents(client)
    client.update_collection(NAME, strict_mode_config=models.StrictModeConfig(enabled=True, **limits))
    with pytest.raises(InputError, match=advice):
        attach_vector(client, NAME, model)
    assert contents(client) == before
    assert client.get_collection(NAME).config.metadata == {"owner": "team"}
    roomy = {name: limit + 1 for name, limit in limits.items()}
    client.update_collection(NAME, strict_mode_config=models.StrictModeConfig(enabled=True, **roomy))
    assert attach_vector(client, NAME, model).covered == 40


def test_a_published_version_says_that_the_next_one_replaces_it(qdrant: QdrantClient, model: HashModel) -> None:
    fill(qdrant, "named", "plain")
    publish_collection(qdrant, NAME, "live")
    told: list[str] = []
    attach_vector(qdrant, "live", model, on_preflight=lambda preflight: told.extend(preflight.notices))
    assert "attach to 'articles', and publish it" in told[0]


@pytest.mark.parametrize("name", ["BAAI/bge-m3", 'a"b', "a:b", "x" * 201, "字" * 67, "a\x1fb"])
def test_a_name_that_no_server_takes_is_refused_before_anything_is_written(
    qdrant: QdrantClient, model: HashModel, name: str
) -> None:
    fill(qdrant, "named", "plain")
    before = qdrant.get_collection(NAME)
    assert "vector name" in plan_attach(qdrant, NAME, model, vector_name=name).refusals[0]
    with pytest.raises(InputError, match="vector name"):
        attach_vector(qdrant, NAME, model, vector_name=name)
    assert qdrant.get_collection(NAME) == before


def test_hashes_of_a_vector_that_somebody_deleted_are_no_vectors(attached: QdrantClient, model: HashModel) -> None:
    points = attached.count(NAME).count
    attached.delete_vector_name(NAME, model.name)
    report = attach_vector(attached, NAME, model)
    assert (report.encoded, report.unchanged) == (report.covered, 0)
    assert report.covered + report.without_text == points
    assert verify_collection(attached, NAME, model).problems == []
