"""A new version behind an alias: verified before anybody sees it, one switch, and the way back."""

import json
import threading
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from qdrant_client import QdrantClient, models

from care_qdrant.cli.publish import command
from care_qdrant.contracts.metadata import COPY, LOAD, RUN, portable
from care_qdrant.errors import InputError, NotVerified, QdrantError
from care_qdrant.ingestion import rows as reading
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import open_client
from care_qdrant.qdrant.create import create_like
from care_qdrant.qdrant.retry import RetryPolicy
from care_qdrant.qdrant.schema import VersionRecord
from care_qdrant.types import Document
from care_qdrant.vectors.attach import attach_vector
from care_qdrant.versions.copy import copy_note
from care_qdrant.versions.promote import promote_collection
from care_qdrant.versions.publish import PublishSettings, publish_collection, roll_back
from tests.databases import REAL, behind, open_database, require_server
from tests.standin import StandIn
from tests.tiny import HashModel, point_alias
from tests.versions.conftest import SCHEMAS, assert_same, contents, dense, fill, point

IMPATIENT = RetryPolicy(attempts=4, base_seconds=0.001, cap_seconds=0.002)
PAIR = SCHEMAS["two-and-sparse"]


@pytest.fixture(params=["server", "embedded", *REAL])
def qdrant(request: pytest.FixtureRequest) -> Iterator[QdrantClient]:
    """All kinds: publishing is for each."""
    if request.param == "embedded":
        yield request.getfixturevalue("folder")
        return
    with open_database(request) as client:
        yield client


ENTRIES = st.dictionaries(
    st.sampled_from(["care_active", "care_inputs", "care_share:model", "of another"]),
    st.just({"a": 1}) | st.just({"b": 2}),
)


def versions(client: QdrantClient) -> list[str]:
    return sorted(each.name for each in client.get_collections().collections if each.name != "docs")


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_readers_of_the_alias_find_a_copy(qdrant: QdrantClient, schema: dict) -> None:
    fill(qdrant, "docs", schema, 60)
    report = publish_collection(qdrant, "docs", "live")
    assert (report.version, report.replaces, report.copied.points, report.copied.compared) == ("live_v1", None, 60, 60)
    assert behind(qdrant, "live") == "live_v1"
    assert_same(contents(qdrant, "live"), contents(qdrant, "docs"))
    assert Collection(qdrant, "live").schema.contracts == Collection(qdrant, "docs").schema.contracts


def test_the_next_version_replaces_the_first_and_leaves_it(qdrant: QdrantClient) -> None:
    fill(qdrant, "docs", PAIR, 20)
    publish_collection(qdrant, "docs", "live")
    qdrant.upsert("docs", [point(number, PAIR, seed=1) for number in range(10, 30)])
    report = publish_collection(qdrant, "docs", "live")
    assert (report.version, report.replaces, report.copied.points) == ("live_v2", "live_v1", 30)
    assert_same(contents(qdrant, "live"), contents(qdrant, "docs"))
    assert qdrant.count("live_v1").count == 20


def test_an_alias_can_be_published_anew(qdrant: QdrantClient) -> None:
    fill(qdrant, "docs", PAIR, 20)
    publish_collection(qdrant, "docs", "live")
    qdrant.upsert("live", [point(20, PAIR)])
    report = publish_collection(qdrant, "live")
    assert (report.source, report.version, report.replaces) == ("live_v1", "live_v2", "live_v1")
    assert roll_back(qdrant, "live").version == "live_v1"


def test_rollback_is_a_switch(qdrant: QdrantClient) -> None:
    fill(qdrant, "docs", PAIR, 20)
    publish_collection(qdrant, "docs", "live")
    first = contents(qdrant, "live")
    qdrant.delete("docs", models.PointIdsList(points=[1, 3, 5]))
    publish_collection(qdrant, "docs", "live")
    report = roll_back(qdrant, "live")
    assert (report.version, report.left) == ("live_v1", "live_v2")
    assert (report.points, report.left_points) == (20, 17)
    assert contents(qdrant, "live") == first
    with pytest.raises(InputError, match="no earlier version is recorded"):
        roll_back(qdrant, "live")


def test_a_version_that_was_left_is_not_published_again(qdrant: QdrantClient) -> None:
    fill(qdrant, "docs", PAIR, 20)
    for _ in range(2):
        publish_collection(qdrant, "docs", "live")
    roll_back(qdrant, "live")
    report = publish_collection(qdrant, "docs", "live")
    assert (report.version, report.replaces) == ("live_v3", "live_v1")
    assert roll_back(qdrant, "live").version == "live_v1"


def test_a_version_that_another_alias_leads_to_is_not_written_into(qdrant: QdrantClient) -> None:
    """An operator keeps one alias on the version, and has moved the other back by hand."""
    fill(qdrant, "docs", PAIR, 20)
    for _ in range(2):
        publish_collection(qdrant, "docs", "live")
    point_alias(qdrant, "canary", "live_v2")
    point_alias(qdrant, "live", "live_v1")
    qdrant.delete("docs", models.PointIdsList(points=[1, 3, 5]))
    report = publish_collection(qdrant, "docs", "live")
    assert (report.version, qdrant.count("live_v2").count) == ("live_v3", 20)


def test_a_version_that_was_live_is_not_written_into_when_its_alias_is_gone(qdrant: QdrantClient) -> None:
    """As after a restore: no snapshot holds an alias."""
    fill(qdrant, "docs", PAIR, 20)
    for _ in range(2):
        publish_collection(qdrant, "docs", "live")
    qdrant.update_collection_aliases([models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name="live"))])
    qdrant.delete("docs", models.PointIdsList(points=[1, 3, 5]))
    report = publish_collection(qdrant, "docs", "live")
    assert (report.version, report.replaces) == ("live_v3", None)
    assert qdrant.count("live_v2").count == 20


def test_the_collection_that_another_tool_put_behind_the_alias_can_be_gone_back_to(qdrant: QdrantClient) -> None:
    fill(qdrant, "docs", PAIR, 20)
    fill(qdrant, "docs_2023", PAIR, 5)
    point_alias(qdrant, "live", "docs_2023")
    assert publish_collection(qdrant, "docs", "live").replaces == "docs_2023"
    assert roll_back(qdrant, "live").version == "docs_2023"


def test_a_rollback_to_a_deleted_version_is_refused(qdrant: QdrantClient) -> None:
    fill(qdrant, "docs", PAIR, 20)
    for _ in range(2):
        publish_collection(qdrant, "docs", "live")
    qdrant.delete_collection("live_v1")
    with pytest.raises(InputError, match=r"'live_v1'.* was deleted .*there: live_v2"):
        roll_back(qdrant, "live")
    assert behind(qdrant, "live") == "live_v2"


def test_a_rollback_without_an_alias_says_how_to_make_one(qdrant: QdrantClient) -> None:
    with pytest.raises(InputError, match="care publish COLLECTION --as live"):
        roll_back(qdrant, "live")


def test_keep_deletes_the_oldest_after_the_switch(qdrant: QdrantClient) -> None:
    fill(qdrant, "docs", PAIR, 10)
    fill(qdrant, "live_v7x", PAIR, 1)
    for _ in range(4):
        publish_collection(qdrant, "docs", "live")
    report = publish_collection(qdrant, "docs", "live", PublishSettings(keep=2))
    assert sorted(report.deleted_versions) == ["live_v1", "live_v2"]
    assert versions(qdrant) == ["live_v3", "live_v4", "live_v5", "live_v7x"]


def test_keep_spares_what_another_alias_uses_and_what_was_replaced(qdrant: QdrantClient) -> None:
    fill(qdrant, "docs", PAIR, 10)
    for _ in range(3):
        publish_collection(qdrant, "docs", "live")
    roll_back(qdrant, "live")
    point_alias(qdrant, "other", "live_v1")
    report = publish_collection(qdrant, "docs", "live", PublishSettings(keep=1))
    assert (report.replaces, report.deleted_versions) == ("live_v2", ["live_v3"])
    assert versions(qdrant) == ["live_v1", "live_v2", "live_v4"]


def test_nothing_is_deleted_when_the_copy_fails(client: QdrantClient, server: StandIn) -> None:
    fill(client, "docs", PAIR, 10)
    for _ in range(2):
        publish_collection(client, "docs", "live")
    server.faults.add("500", times=100, method="PUT", path="/points$")
    with pytest.raises(QdrantError):
        publish_collection(Collection(client, "docs", IMPATIENT), "live", PublishSettings(keep=0))
    assert behind(client, "live") == "live_v2"
    assert versions(client) == ["live_v1", "live_v2", "live_v3"]


def test_a_collections_own_name_is_no_alias(qdrant: QdrantClient) -> None:
    fill(qdrant, "docs", PAIR, 2)
    for alias in (None, "docs"):
        with pytest.raises(InputError, match="care publish docs --as docs-live"):
            publish_collection(qdrant, "docs", alias)
    assert versions(qdrant) == []


def test_a_source_that_is_not_there_is_said(qdrant: QdrantClient) -> None:
    fill(qdrant, "docs", PAIR, 2)
    with pytest.raises(InputError, match=r"no collection 'dosc' .*docs"):
        publish_collection(qdrant, "dosc", "live")


def test_an_ingestion_that_was_interrupted_is_not_published(client: QdrantClient) -> None:
    fill(client, "docs", PAIR, 2)
    client.update_collection("docs", metadata={LOAD.name: {"vector": "pair", "done": False}})
    with pytest.raises(InputError, match="care ingest again"):
        publish_collection(client, "docs", "live")


def test_an_ingestion_that_has_not_ended_is_not_published(
    qdrant: QdrantClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "WINDOW_TEXTS", 20)

    def documents(failing_at: int | None = None) -> Iterator[Document]:
        for number in range(100):
            if number == failing_at:
                raise ZeroDivisionError
            yield Document(f"d{number}", f"第{number}篇")

    model = HashModel()
    with pytest.raises(ZeroDivisionError):
        ingest(documents(failing_at=90), model, qdrant, "docs")
    qdrant.update_collection("docs", metadata={LOAD.name: None})
    for dry_run in (False, True):
        with pytest.raises(InputError, match=r"began at 20.* run the same care ingest again"):
            publish_collection(qdrant, "docs", "live", PublishSettings(dry_run=dry_run))
    assert versions(qdrant) == []
    ingest(documents(), model, qdrant, "docs")
    assert publish_collection(qdrant, "docs", "live").copied.points == 100


def test_an_ingestion_that_begins_during_the_copy_stops_the_switch(qdrant: QdrantClient) -> None:
    """It has only edited points so far, so that both sides count the same."""
    fill(qdrant, "docs", PAIR, 20)

    def begin(done: int, _total: int) -> None:
        if done == 20:
            qdrant.update_collection("docs", metadata={RUN.of("other"): {"started": "2026", "shard": "1/1"}})

    with pytest.raises(InputError, match="has not ended"):
        publish_collection(qdrant, "docs", "live", on_progress=begin)
    assert behind(qdrant, "live") is None


def test_settings_and_indexes_of_a_server_come_along(client: QdrantClient) -> None:
    fill(client, "docs", PAIR, 10)
    int8 = models.ScalarQuantizationConfig(type=models.ScalarType.INT8, always_ram=True)
    client.update_collection(
        "docs",
        hnsw_config=models.HnswConfigDiff(m=24, ef_construct=200),
        quantization_config=models.ScalarQuantization(scalar=int8),
        strict_mode_config=models.StrictModeConfig(enabled=True, upsert_max_batchsize=4, max_query_limit=20),
    )
    client.create_payload_index("docs", "score", models.PayloadSchemaType.FLOAT)
    publish_collection(client, "docs", "live")
    here, there = client.get_collection("docs"), client.get_collection("live")
    assert there.config.hnsw_config == here.config.hnsw_config
    assert there.config.quantization_config == here.config.quantization_config
    assert there.config.strict_mode_config == here.config.strict_mode_config
    assert there.payload_schema.keys() == {"score"}


def test_where_a_server_holds_what_in_memory_comes_along(client: QdrantClient) -> None:
    require_server(client, (1, 19, 0))
    graph = models.HnswConfigDiff(memory=models.Memory.PINNED, m=8)
    int8 = models.ScalarQuantizationConfig(type=models.ScalarType.INT8, memory=models.Memory.CACHED)
    quantized = models.ScalarQuantization(scalar=int8)
    vector = dense(memory=models.Memory.COLD, hnsw_config=graph, quantization_config=quantized)
    schema: dict[str, Any] = {"vectors_config": {"pair": vector}}
    kept = models.PayloadStorageParams(memory=models.Memory.CACHED)
    fill(client, "docs", {**schema, "payload": kept}, 10)
    keyword = models.KeywordIndexParams(type=models.KeywordIndexType.KEYWORD, memory=models.Memory.COLD)
    client.create_payload_index("docs", "doc_id", keyword, wait=True)
    publish_collection(client, "docs", "live")
    here, there = client.get_collection("docs"), client.get_collection("live")
    assert here.config.params.vectors == {"pair": vector}
    assert (here.config.params.payload, here.payload_schema["doc_id"].params) == (kept, keyword)
    assert there.config.params == here.config.params
    assert there.payload_schema["doc_id"].params == keyword


def test_shards_by_key_are_refused(client: QdrantClient) -> None:
    client.create_collection("docs", **SCHEMAS["named"], sharding_method=models.ShardingMethod.CUSTOM)
    with pytest.raises(InputError, match="shards by key"):
        publish_collection(client, "docs", "live")
    assert versions(client) == []


def test_a_dry_run_writes_nothing(qdrant: QdrantClient) -> None:
    fill(qdrant, "docs", PAIR, 20)
    report = publish_collection(qdrant, "docs", "live", PublishSettings(dry_run=True))
    assert (report.version, report.copied.added, report.copied.compared) == ("live_v1", 20, 0)
    assert (versions(qdrant), behind(qdrant, "live")) == ([], None)
    for _ in range(2):
        publish_collection(qdrant, "docs", "live")
    assert roll_back(qdrant, "live", dry_run=True).version == "live_v1"
    assert behind(qdrant, "live") == "live_v2"


@pytest.mark.parametrize("kind", ["500", "429", "drop", "reset", "wait_timeout"])
def test_faults_on_the_way_lose_nothing(client: QdrantClient, server: StandIn, kind: str) -> None:
    fill(client, "docs", PAIR, 60)
    for _ in range(2):
        for method, path in (("PUT", "/points$"), ("PUT", "/live_v.$"), ("PATCH", "/live_v.$"), ("POST", "/aliases$")):
            server.faults.add(kind, times=2, method=method, path=path, seconds=0)  # type: ignore[arg-type]
        publish_collection(Collection(client, "docs", IMPATIENT), "live", PublishSettings(keep=0))
    assert (behind(client, "live"), versions(client)) == ("live_v2", ["live_v2"])
    assert_same(contents(client, "live"), contents(client, "docs"))


def test_a_run_that_failed_is_finished_although_the_source_went_on(client: QdrantClient, server: StandIn) -> None:
    fill(client, "docs", PAIR, 600)
    server.faults.add("500", times=100, method="PUT", path="/points$", skip=1)
    with pytest.raises(QdrantError):
        publish_collection(Collection(client, "docs", IMPATIENT), "live")
    server.faults.clear()
    copied = [*contents(client, "live_v1")]
    assert 0 < len(copied) < 600
    client.delete("docs", models.PointIdsList(points=copied[:5]))
    client.set_payload("docs", {"score": -1}, points=copied[5:8])
    report = publish_collection(client, "docs", "live")
    did = report.copied
    assert (report.version, did.points, did.deleted, did.changed) == ("live_v1", 595, 5, 3)
    assert_same(contents(client, "live"), contents(client, "docs"))


def test_a_run_that_failed_is_not_continued_once_the_source_has_other_vectors(qdrant: QdrantClient) -> None:
    fill(qdrant, "docs", SCHEMAS["named"], 20)

    def fail(_done: int, _total: int) -> None:
        raise QdrantError("the server is away")

    with pytest.raises(QdrantError):
        publish_collection(qdrant, "docs", "live", on_progress=fail)
    attach_vector(qdrant, "docs", HashModel(name="other"))
    for dry_run in (True, False):
        assert publish_collection(qdrant, "docs", "live", PublishSettings(dry_run=dry_run)).version == "live_v2"
    assert publish_collection(qdrant, "docs", "live", PublishSettings(keep=1)).deleted_versions == ["live_v1"]
    assert_same(contents(qdrant, "live"), contents(qdrant, "docs"))


@pytest.mark.parametrize("copy", ["publish", "promote"])
@settings(max_examples=20)
@given(before=ENTRIES, after=ENTRIES)
def test_a_run_that_is_continued_takes_over_what_the_source_says_by_now(
    copy: str, before: dict[str, Any], after: dict[str, Any]
) -> None:
    """Otherwise a version goes back to the model that readers of the source have left by a rollback."""
    with closing(QdrantClient(":memory:")) as client:
        fill(client, "docs", PAIR, 5)
        docs = Collection(client, "docs")
        docs.update("test", metadata=before)
        create_like(Collection(client, "live_v1"), docs.schema, {**portable(docs.schema.metadata), **copy_note(docs)})
        if copy == "publish":
            Collection(client, "live_v1").update("test", metadata=VersionRecord("docs").metadata())
        docs.update("test", metadata={**dict.fromkeys(before), **after})
        if copy == "publish":
            publish_collection(client, "docs", "live")
        else:
            promote_collection(docs, Collection(client, "live_v1"))
        made = Collection(client, "live_v1").schema.metadata
        assert portable(made) == portable(docs.refresh().metadata)
        assert COPY.find(made) is None


def test_a_source_that_changes_under_the_copy_is_noticed(qdrant: QdrantClient) -> None:
    fill(qdrant, "docs", PAIR, 60)

    def lose(done: int, _total: int) -> None:
        if done == 60:
            qdrant.delete("docs", models.PointIdsList(points=[1]))

    with pytest.raises(NotVerified, match="holds 60 points, 'docs' 59"):
        publish_collection(qdrant, "docs", "live", on_progress=lose)
    assert behind(qdrant, "live") is None
    assert publish_collection(qdrant, "docs", "live").copied.deleted == 1


def test_a_rollback_during_the_copy_counts_in_the_version(qdrant: QdrantClient) -> None:
    fill(qdrant, "docs", PAIR, 60)

    def switch(done: int, _total: int) -> None:
        Collection(qdrant, "docs").update("test", metadata={"care_active": {"points": done}})

    publish_collection(qdrant, "docs", "live", on_progress=switch)
    assert Collection(qdrant, "live").schema.metadata["care_active"] == {"points": 60}


def test_readers_never_miss_the_alias(client: QdrantClient, server: StandIn) -> None:
    fill(client, "docs", SCHEMAS["named"], 40)
    publish_collection(client, "docs", "live")
    done, failures, answers = threading.Event(), [], []
    query = np.ones(8).tolist()

    def read() -> None:
        with open_client(url=server.url) as reader:
            while not done.is_set():
                try:
                    hits = reader.query_points("live", query=query, using="pair", limit=5).points
                    answers.append(len(hits))
                except Exception as error:
                    failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        publish_collection(client, "docs", "live", PublishSettings(keep=1))
    roll_back(client, "live")
    done.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert set(answers) == {5}


def test_the_command_says_in_a_sentence_what_the_alias_points_at_now(tmp_path: Path) -> None:
    with open_client(path=tmp_path) as client:
        fill(client, "docs", PAIR, 20)

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(command, [*arguments, "--path", str(tmp_path)])
        assert done.exit_code == 0, done.output
        return done.stdout.strip()

    dry = run("docs", "--as", "live", "--dry-run")
    assert dry == "dry run, nothing was written: live → live_v1 (20 points of docs)"
    assert run("docs", "--as", "live") == "live → live_v1 (20 points of docs)"
    assert run("docs", "--as", "live") == "live → live_v2 (20 points of docs); live_v1 is kept"
    assert run("live", "--rollback").startswith("live → live_v1 (20 points); live_v2 is kept (20 points)")
    assert json.loads(run("docs", "--as", "live", "--keep", "0", "--json"))["alias"] == "live"


@pytest.mark.parametrize("value", [2**53 + 1, 2**63, 2**64 - 1])
def test_a_version_has_each_integer_of_its_source(qdrant: QdrantClient, value: int) -> None:
    """gRPC turns integers from 2^63 on into floats."""
    over_grpc = getattr(qdrant._client, "_prefer_grpc", False)
    with closing(QdrantClient(url=qdrant.init_options["url"])) if over_grpc else nullcontext(qdrant) as plain:
        fill(plain, "docs", SCHEMAS["named"], 5)
        plain.set_payload("docs", {"hash": value}, points=[1])
        if over_grpc and value >= 2**63:
            with pytest.raises(InputError, match="over gRPC"):
                publish_collection(Collection(qdrant, "docs"), "live")
            return
        publish_collection(Collection(qdrant, "docs"), "live")
        [record] = plain.retrieve("live", [1])
        assert (record.payload["hash"], type(record.payload["hash"])) == (value, int)
