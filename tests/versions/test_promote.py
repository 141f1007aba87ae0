"""From a folder to a server: everything comes over, nothing else is touched, any moment can be resumed."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from qdrant_client import QdrantClient, models

from care_qdrant.contracts.metadata import portable
from care_qdrant.errors import FingerprintMismatch, InputError, NotVerified, SchemaMismatch
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import open_client
from care_qdrant.qdrant.retry import RetryPolicy
from care_qdrant.versions.copy import CopySettings
from care_qdrant.versions.promote import promote_collection
from tests.standin import StandIn
from tests.tiny import point_alias
from tests.versions.conftest import CONTRACT, SCHEMAS, assert_same, contents, fill, point

IMPATIENT = RetryPolicy(attempts=4, base_seconds=0.001, cap_seconds=0.002)
PAIR = SCHEMAS["two-and-sparse"]


def links(folder: QdrantClient, client: QdrantClient, target: str = "docs") -> tuple[Collection, Collection]:
    return Collection(folder, "docs"), Collection(client, target, IMPATIENT)


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_everything_comes_over(folder: QdrantClient, client: QdrantClient, schema: dict) -> None:
    fill(folder, "docs", schema, 60)
    copied = promote_collection(*links(folder, client)).copied
    assert (copied.points, copied.added, copied.changed, copied.unchanged, copied.compared) == (60, 60, 0, 0, 60)
    assert_same(contents(client, "docs"), contents(folder, "docs"))
    here, there = (each.get_collection("docs").config for each in (folder, client))
    assert there.params.vectors == here.params.vectors
    assert there.params.sparse_vectors == here.params.sparse_vectors
    assert portable(Collection(client, "docs").schema.metadata) == here.metadata
    if Collection(folder, "docs").schema.contracts:
        assert client.get_collection("docs").payload_schema["doc_id"].data_type is models.PayloadSchemaType.KEYWORD


@pytest.mark.parametrize("value", [float("nan"), {"a": [1.5, float("inf")]}, 2**64 + 1, [-(2**63) - 1]])
def test_a_number_that_a_server_would_replace_is_refused(
    folder: QdrantClient, client: QdrantClient, value: object
) -> None:
    fill(folder, "docs", SCHEMAS["named"], 40)
    folder.set_payload("docs", {"odd": value}, points=[7])
    for settings in (CopySettings(dry_run=True), CopySettings()):
        with pytest.raises(InputError, match="holds a number that the copy would not have"):
            promote_collection(*links(folder, client), settings)
    folder.set_payload("docs", {"odd": [1e308, 5e-324, -(2**63), 2**63 - 1, True, None]}, points=[7])
    promote_collection(*links(folder, client))
    assert_same(contents(client, "docs"), contents(folder, "docs"))


def test_an_empty_collection_comes_over(folder: QdrantClient, client: QdrantClient) -> None:
    fill(folder, "docs", SCHEMAS["named"], 1)
    folder.delete("docs", models.PointIdsList(points=[point(0, SCHEMAS["named"]).id]))
    assert promote_collection(*links(folder, client)).copied.points == 0
    assert Collection(client, "docs").schema.contracts == {"pair": CONTRACT}


def test_a_second_run_compares_everything_and_writes_nothing(
    folder: QdrantClient, client: QdrantClient, server: StandIn
) -> None:
    fill(folder, "docs", PAIR, 60)
    promote_collection(*links(folder, client))
    before = server.count("PUT", "/points")
    report = promote_collection(*links(folder, client))
    assert (report.copied.added, report.copied.unchanged) == (0, 60)
    assert server.count("PUT", "/points") == before


def test_a_request_that_is_too_large_is_halved(folder: QdrantClient, client: QdrantClient, server: StandIn) -> None:
    fill(folder, "docs", PAIR, 60)
    server.max_bytes = 4_000
    promote_collection(*links(folder, client))
    assert_same(contents(client, "docs"), contents(folder, "docs"))


def test_a_dry_run_writes_nothing(folder: QdrantClient, client: QdrantClient) -> None:
    fill(folder, "docs", PAIR, 20)
    assert promote_collection(*links(folder, client), CopySettings(dry_run=True)).copied.added == 20
    assert not client.collection_exists("docs")
    promote_collection(*links(folder, client))
    folder.set_payload("docs", {"score": 99}, points=[1])
    folder.upsert("docs", [point(21, PAIR)])
    copied = promote_collection(*links(folder, client), CopySettings(dry_run=True)).copied
    assert (copied.added, copied.changed, copied.unchanged, copied.compared) == (1, 1, 19, 0)
    assert client.count("docs").count == 20


@pytest.mark.parametrize("edit", ["payload", "vector", "missing vector", "sparse"])
def test_a_point_with_other_content_is_not_overwritten_unasked(
    folder: QdrantClient, client: QdrantClient, edit: str
) -> None:
    fill(folder, "docs", PAIR, 20)
    promote_collection(*links(folder, client))
    if edit == "payload":
        client.set_payload("docs", {"score": 1.0000001}, points=[5])
    elif edit == "vector":
        client.update_vectors("docs", [models.PointVectors(id=5, vector={"old": [0.5] * 8})])
    elif edit == "sparse":
        sparse = models.SparseVector(indices=[3, 65], values=[5.0, 1.5])
        client.update_vectors("docs", [models.PointVectors(id=5, vector={"bm25": sparse})])
    else:
        client.delete_vectors("docs", ["pair"], [5])
    edited = contents(client, "docs")
    with pytest.raises(InputError, match=r"point 5 .*--overwrite"):
        promote_collection(*links(folder, client))
    assert contents(client, "docs") == edited
    assert promote_collection(*links(folder, client), CopySettings(overwrite=True)).copied.changed == 1
    assert_same(contents(client, "docs"), contents(folder, "docs"))


def test_points_that_the_source_has_not_are_refused(folder: QdrantClient, client: QdrantClient) -> None:
    fill(folder, "docs", PAIR, 20)
    fill(client, "docs", PAIR, 21)
    before = contents(client, "docs")
    with pytest.raises(InputError, match="holds points that the source does not have"):
        promote_collection(*links(folder, client))
    assert contents(client, "docs") == before


def test_another_schema_is_refused(folder: QdrantClient, client: QdrantClient) -> None:
    fill(folder, "docs", SCHEMAS["named"], 2)
    fill(client, "docs", SCHEMAS["two-and-sparse"], 0 + 2)
    with pytest.raises(SchemaMismatch, match=r"bm25 .*old"):
        promote_collection(*links(folder, client))


@pytest.mark.parametrize("held", [0, 2], ids=["empty", "with points"])
def test_another_model_is_refused(folder: QdrantClient, client: QdrantClient, held: int) -> None:
    fill(folder, "docs", SCHEMAS["named"], 2)
    other = {"fingerprint": "b" * 64, "model": "other", "dim": 8}
    client.create_collection("docs", **SCHEMAS["named"], metadata={"care:pair": {**other, "kind": "dense"}})
    for number in range(held):
        client.upsert("docs", [point(number, SCHEMAS["named"])])
    with pytest.raises(FingerprintMismatch, match="bbbb"):
        promote_collection(*links(folder, client))


def test_a_prepared_empty_collection_gets_the_contract(folder: QdrantClient, client: QdrantClient) -> None:
    fill(folder, "docs", SCHEMAS["named"], 2)
    Collection(folder, "docs").write_contract("pair", replace(CONTRACT, text_field="body"))
    client.create_collection("docs", **SCHEMAS["named"], on_disk_payload=True)
    promote_collection(*links(folder, client))
    assert Collection(client, "docs").schema.contracts == {"pair": replace(CONTRACT, text_field="body")}
    assert Collection(client, "docs").schema.text_field("pair") == "body"
    assert client.get_collection("docs").config.params.on_disk_payload


def test_points_without_a_contract_are_not_joined(folder: QdrantClient, client: QdrantClient) -> None:
    fill(folder, "docs", SCHEMAS["named"], 2)
    fill(client, "docs", SCHEMAS["named"], 1, contracts=False)
    with pytest.raises(FingerprintMismatch, match="pair is missing"):
        promote_collection(*links(folder, client))


def test_an_alias_is_no_target(folder: QdrantClient, client: QdrantClient) -> None:
    fill(folder, "docs", SCHEMAS["named"], 2)
    fill(client, "docs_v1", SCHEMAS["named"], 2)
    point_alias(client, "docs", "docs_v1")
    with pytest.raises(InputError, match=r"alias of collection 'docs_v1'.*care publish NEW_NAME --as docs"):
        promote_collection(*links(folder, client))


def test_strict_mode_limits_are_kept(folder: QdrantClient, client: QdrantClient) -> None:
    fill(folder, "docs", SCHEMAS["named"], 40)
    strict = models.StrictModeConfig(enabled=True, upsert_max_batchsize=7, max_query_limit=9)
    client.create_collection("docs", **SCHEMAS["named"], strict_mode_config=strict)
    for _ in range(2):
        assert promote_collection(*links(folder, client)).copied.points == 40


def test_a_folder_that_is_opened_again_gives_other_lengths_and_nothing_is_written(
    tmp_path: Path, client: QdrantClient
) -> None:
    with open_client(path=tmp_path) as folder:
        fill(folder, "docs", PAIR, 20)
        promote_collection(*links(folder, client))
    with open_client(path=tmp_path) as folder:
        assert promote_collection(*links(folder, client)).copied.unchanged == 20


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda client: client.delete("docs", [1]), "holds 39 points, 'docs' 40"),
        (lambda client: client.set_payload("docs", {"text": "…"}, points=[1]), "point 1 "),
    ],
    ids=["lost", "altered"],
)
def test_a_copy_that_was_harmed_is_noticed(
    folder: QdrantClient, client: QdrantClient, harm: Callable[[QdrantClient], object], message: str
) -> None:
    fill(folder, "docs", SCHEMAS["named"], 40)
    with pytest.raises(NotVerified, match=message):
        promote_collection(*links(folder, client), on_progress=lambda done, _: harm(client) if done == 40 else None)


def test_a_collection_is_not_copied_onto_itself(qdrant: QdrantClient) -> None:
    """Its note of a copy that has begun would never go."""
    qdrant.create_collection("docs", **SCHEMAS["named"], metadata={"owner": "team"})
    point_alias(qdrant, "live", "docs")
    for source in ("docs", "live"):
        with pytest.raises(InputError, match="copied onto itself"):
            promote_collection(Collection(qdrant, source), Collection(qdrant, "docs"))
    assert Collection(qdrant, "docs").schema.metadata == {"owner": "team"}
    assert promote_collection(Collection(qdrant, "docs"), Collection(qdrant, "other")).copied.points == 0
