"""A server that cannot add a vector to a collection: a copy that has both, and an alias that leads to it."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from qdrant_client import QdrantClient, models

from care_qdrant.cli import attach as attach_cli
from care_qdrant.errors import InputError, NotVerified, ServerTooOld
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import open_client
from care_qdrant.search.retriever import Retriever
from care_qdrant.vectors.attach import AttachSettings, attach_vector
from care_qdrant.vectors.attach_plan import plan_attach
from care_qdrant.vectors.copy_plan import CopyPlan
from care_qdrant.vectors.detach import detach_vector
from care_qdrant.vectors.verify import verify_collection
from care_qdrant.versions.attach_by_copy import MOST_PASSES, attach_by_copy
from care_qdrant.versions.publish import roll_back
from tests.databases import WIRES, behind, open_wire
from tests.reliability.trials import FORKSERVER
from tests.standin import StandIn
from tests.tiny import BusyEncoder, HashModel, Killed, MortalModel, medical_texts, point_alias
from tests.vectors.collections import NAME, SCHEMAS, TOOLS, contents, fill, old_answers, point

LIVE, COPY = "articles-live", "articles-live_v1"
SMALL_BATCHES = AttachSettings(batch_tokens=200)


@pytest.fixture(params=WIRES)
def server(request: pytest.FixtureRequest) -> Iterator[StandIn]:
    """A stand-in that cannot add a vector, and a real server, of any version."""
    with open_wire(request, version="1.17.1") as server:
        yield server


@pytest.fixture
def old() -> Iterator[QdrantClient]:
    """A client of a server that can neither add nor remove a vector."""
    with StandIn(version="1.17.1") as server, open_client(url=server.url) as client:
        yield client


def all_answers(client: QdrantClient, schema: str, name: str = NAME) -> list[dict[Any, Any]]:
    """Score every point: which of two with one score comes first is the order in which they were written."""
    answers = old_answers(client, schema, name, limit=100)
    return [{point_id: round(score, 6) for point_id, score in hits} for hits in answers]


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("schema", SCHEMAS)
def test_copy_kill_resume_roll_back(client: QdrantClient, schema: str, tool: str) -> None:
    fill(client, schema, tool)
    before, answers = contents(client), all_answers(client, schema)

    with pytest.raises(Killed):
        attach_by_copy(client, NAME, MortalModel(batches=3), LIVE, settings=SMALL_BATCHES)
    assert behind(client, LIVE) is None
    stored = sum("_care" in payload for payload, _ in contents(client, name=COPY).values())

    model = HashModel(name="care")
    report = attach_by_copy(client, NAME, model, LIVE, settings=SMALL_BATCHES)
    assert (report.plan.version, report.copied, report.encoded, report.attached.covered) == (COPY, 0, 40 - stored, 40)
    assert behind(client, LIVE) == COPY
    assert contents(client, without="care", name=LIVE) == before
    assert all_answers(client, schema, LIVE) == answers
    assert Collection(client, LIVE).schema.contracts["care"].fingerprint == model.fingerprint

    text = medical_texts(40)[17]
    assert Retriever(client, LIVE, model).search([text], top_k=1)[0][0].text == text
    assert verify_collection(client, LIVE, model).problems == []

    assert roll_back(client, LIVE).version == NAME
    assert contents(client, name=LIVE) == contents(client) == before
    assert all_answers(client, schema, LIVE) == all_answers(client, schema) == answers


def test_all_is_said_before_anything_is_written(server: StandIn, client: QdrantClient, model: HashModel) -> None:
    fill(client, "two", "plain")
    before, plans = len(server.requests), []

    def note(plan: CopyPlan) -> None:
        plans.append(plan)
        assert not [each for each in server.requests[before:] if each.method in ("PUT", "PATCH", "DELETE")]

    attach_by_copy(client, NAME, model, LIVE, on_plan=note)
    [plan] = plans
    assert (plan.source, plan.alias, plan.version, plan.replaces, plan.is_new_alias) == (NAME, LIVE, COPY, NAME, True)
    assert (plan.points, plan.copied_bytes, plan.new_bytes) == (40, 40 * 2 * 8 * 4, 40 * 32 * 4)
    said = " ".join(plan.lines())
    for word in ("own name cannot become an alias", "let writers rest", "--rollback", f"care detach {COPY}"):
        assert word in said


def test_what_others_write_meanwhile_comes_along(client: QdrantClient, server: StandIn, model: HashModel) -> None:
    fill(client, "named", "plain")

    def write(batch: int) -> None:
        if batch != 2:
            return
        with open_client(url=server.url) as theirs:
            theirs.upsert(NAME, [point("named", "plain", 101, "新的段落")], wait=True)
            theirs.upsert(NAME, [point("named", "plain", 3, "替换的段落")], wait=True)
            theirs.set_payload(NAME, {"text": "编辑的段落"}, points=[5], wait=True)
            theirs.delete(NAME, [7], wait=True)

    model._encoder = BusyEncoder(write)
    report = attach_by_copy(client, NAME, model, LIVE, settings=SMALL_BATCHES)
    assert (report.passes, report.copied, report.deleted) == (3, 43, 1)
    assert (report.attached.points, report.attached.covered) == (40, 40)
    assert contents(client, without="care", name=LIVE) == contents(client)
    again = HashModel(name="care")
    for text in ("新的段落", "替换的段落", "编辑的段落"):
        assert Retriever(client, LIVE, again).search([text], top_k=1)[0][0].text == text
    assert verify_collection(client, LIVE, again).problems == []


def test_a_collection_that_never_rests_is_not_switched(client: QdrantClient, server: StandIn, model: HashModel) -> None:
    fill(client, "named", "plain")

    def write(batch: int) -> None:
        with open_client(url=server.url) as theirs:
            theirs.upsert(NAME, [point("named", "plain", 1_001 + 2 * batch, f"第{batch}次")], wait=True)

    model._encoder = BusyEncoder(write)
    with pytest.raises(NotVerified, match=f"different at each of {MOST_PASSES} readings"):
        attach_by_copy(client, NAME, model, LIVE)
    assert behind(client, LIVE) is None
    report = attach_by_copy(client, NAME, HashModel(name="care"), LIVE)
    assert (report.plan.version, behind(client, LIVE)) == (COPY, COPY)


def kill_after(server: StandIn, requests: int, run: Callable[[str], None]) -> None:
    """Start a run, and kill it after it has sent that many requests, unless it is done before."""
    until = len(server.requests) + requests
    process = FORKSERVER.Process(target=run, args=(server.url,))
    process.start()
    while len(server.requests) < until and process.is_alive():
        process.join(0.001)
    process.kill()
    process.join()


def run_copy(url: str) -> None:
    with open_client(url=url) as client:
        attach_by_copy(client, NAME, HashModel(name="care"), LIVE, settings=SMALL_BATCHES)


@pytest.mark.parametrize("requests", [12, 18, 25, 40, 60])
def test_a_killed_run_is_finished_by_the_next(client: QdrantClient, server: StandIn, requests: int) -> None:
    fill(client, "unnamed", "langchain")
    before = contents(client)
    kill_after(server, requests, run_copy)
    assert contents(client) == before
    if behind(client, LIVE) is None:
        run_copy(server.url)
    assert contents(client, without="care", name=LIVE) == before
    assert {each.name for each in client.get_collections().collections} == {NAME, COPY}
    assert verify_collection(client, LIVE, HashModel(name="care")).problems == []


def test_an_alias_that_is_searched_is_switched_and_goes_back(client: QdrantClient, model: HashModel) -> None:
    fill(client, "named", "plain")
    point_alias(client, "live", NAME)
    report = attach_by_copy(client, "live", model)
    assert (report.plan.alias, report.plan.version, report.plan.replaces) == ("live", "live_v1", NAME)
    assert roll_back(client, "live").version == NAME
    assert attach_by_copy(client, "live", model).plan.version == "live_v2"


def test_the_copy_is_kept_up_in_place(client: QdrantClient, model: HashModel) -> None:
    fill(client, "named", "plain")
    attach_by_copy(client, NAME, model, LIVE)
    client.upsert(LIVE, [point("named", "plain", 41, "新的")], wait=True)
    report = attach_vector(client, LIVE, model)
    assert (report.collection, report.encoded, report.covered) == (COPY, 1, 41)
    with pytest.raises(InputError, match=f"care attach {LIVE}"):
        attach_by_copy(client, NAME, model, LIVE)


def test_a_second_pair_joins_by_another_copy(client: QdrantClient) -> None:
    fill(client, "named", "plain")
    first, second = HashModel(name="a", salt="a"), HashModel(name="b", salt="b", dim=48)
    attach_by_copy(client, NAME, first, LIVE)
    report = attach_by_copy(client, LIVE, second)
    assert (report.plan.source, report.plan.version) == (COPY, "articles-live_v2")
    text = medical_texts(40)[11]
    for model in (first, second):
        assert Retriever(client, LIVE, model).search([text], top_k=1)[0][0].text == text
        assert attach_vector(client, LIVE, model).encoded == 0


def test_settings_of_the_collection_and_of_the_vector(client: QdrantClient, model: HashModel) -> None:
    fill(client, "named", "plain")
    client.create_payload_index(NAME, "dept", models.PayloadSchemaType.KEYWORD)
    client.update_collection(NAME, hnsw_config=models.HnswConfigDiff(m=24))
    attach_by_copy(client, NAME, model, LIVE, settings=AttachSettings(quantization="int8", on_disk=True))
    config = client.get_collection(LIVE).config
    vectors = config.params.vectors
    assert isinstance(vectors, dict)
    assert vectors["care"].memory is models.Memory.COLD or vectors["care"].on_disk
    assert vectors["care"].quantization_config is not None
    assert (vectors["old"].on_disk, vectors["old"].quantization_config) == (None, None)
    assert (config.hnsw_config.m, "dept" in client.get_collection(LIVE).payload_schema) == (24, True)
    assert {key: config.metadata[key] for key in ("owner",)} == {"owner": "team"}  # type: ignore[index]


def test_an_unfinished_copy_is_taken_away(old: QdrantClient) -> None:
    fill(old, "named", "plain")
    with pytest.raises(Killed):
        attach_by_copy(old, NAME, MortalModel(batches=1), LIVE, settings=SMALL_BATCHES)
    assert detach_vector(old, COPY).deleted_copy
    assert [each.name for each in old.get_collections().collections] == [NAME]


def test_a_copy_that_is_searched_is_not_taken_away(old: QdrantClient, model: HashModel) -> None:
    fill(old, "named", "plain")
    attach_by_copy(old, NAME, model, LIVE)
    for name in (LIVE, COPY):
        with pytest.raises(ServerTooOld, match=r"a copy of 'articles'.*care publish ALIAS --rollback"):
            detach_vector(old, name)
    assert behind(old, LIVE) == COPY


def test_names_that_cannot_be_switched_are_refused(client: QdrantClient, model: HashModel) -> None:
    fill(client, "named", "plain")
    for alias in (None, NAME):
        with pytest.raises(InputError, match="care attach articles --via copy --as articles-live"):
            attach_by_copy(client, NAME, model, alias)
    point_alias(client, "theirs", NAME)
    with pytest.raises(InputError, match=r"alias 'theirs' leads to collection 'articles', too"):
        attach_by_copy(client, NAME, model, LIVE)
    assert [each.name for each in client.get_collections().collections] == [NAME]


def test_a_vector_that_is_there_needs_no_copy(qdrant: QdrantClient, model: HashModel) -> None:
    fill(qdrant, "named", "plain")
    attach_by_copy(qdrant, NAME, model, LIVE)
    roll_back(qdrant, LIVE)
    with pytest.raises(InputError, match="needs no copy"):
        attach_by_copy(qdrant, COPY, model, "other")


def test_it_works_where_a_vector_could_be_added_too(qdrant: QdrantClient, model: HashModel) -> None:
    fill(qdrant, "sparse", "llama-index")
    before = contents(qdrant)
    attach_by_copy(qdrant, NAME, model, LIVE)
    assert contents(qdrant, without="care", name=LIVE) == contents(qdrant) == before


def test_the_plan_says_what_would_be_done(old: QdrantClient, model: HashModel) -> None:
    fill(old, "named", "plain")
    found = plan_attach(old, NAME, model)
    assert f"care attach {NAME} --via copy --as {LIVE}" in found.refusals[0]
    assert f"collection '{COPY}' gets the 40 points" in found.copy_plan[0]


def test_as_a_command(client: QdrantClient, server: StandIn, pair_folder: str) -> None:
    fill(client, "named", "plain", count=8)
    run = [NAME, "--url", server.url, "--model", str(pair_folder), "--via", "copy"]
    done = CliRunner().invoke(attach_cli.command, [*run, "--as", LIVE], catch_exceptions=False)
    assert re.search("version +articles-live_v1", done.stdout)
    assert "plan: a collection's own name cannot become an alias" in done.stderr
    for wrong in (["--watch", "1"], ["--bm25"], ["--via", "in-place", "--as", "x"]):
        assert CliRunner().invoke(attach_cli.command, [*run, *wrong]).exit_code == 2
