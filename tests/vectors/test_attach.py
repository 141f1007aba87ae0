"""A run of attach: the points that it encodes, those that it leaves alone, and its report."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from qdrant_client import QdrantClient, models

from care_qdrant.cli.attach import command
from care_qdrant.errors import EncodingError, Unreachable
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import open_client
from care_qdrant.qdrant.retry import RetryPolicy
from care_qdrant.search.retriever import Retriever
from care_qdrant.types import Vectors
from care_qdrant.vectors.attach import AttachSettings, attach_vector
from tests.standin import StandIn
from tests.tiny import BusyEncoder, HashEncoder, HashModel, medical_texts
from tests.vectors.collections import DIM, NAME, contents, fill, point

IMPATIENT = RetryPolicy(attempts=4, base_seconds=0.01, cap_seconds=0.05)


def test_second_run_encodes_nothing_and_reads_no_model(attached: QdrantClient) -> None:
    before, again = contents(attached), HashModel(name="care")
    report = attach_vector(attached, NAME, again)
    assert (report.encoded, report.unchanged, report.covered) == (0, 40, 40)
    assert again.document_encoder_reads == 0
    assert contents(attached) == before


def test_edited_new_and_deleted_points_and_lost_vectors_are_followed(attached: QdrantClient, model: HashModel) -> None:
    attached.set_payload(NAME, {"text": "改过的段落"}, points=[1], wait=True)
    attached.upsert(NAME, [point("named", "plain", 41, "新的段落")], wait=True)
    attached.upsert(NAME, [point("named", "plain", 3, "替换的段落")], wait=True)
    attached.delete(NAME, [5], wait=True)
    attached.delete_vectors(NAME, ["care"], [7], wait=True)
    attached.set_payload(NAME, {"dept": "外科"}, points=[9], wait=True)
    again = HashModel(name="care")
    report = attach_vector(attached, NAME, again)
    assert sorted(again.document_encoder.encoded) == sorted(
        ["改过的段落", "新的段落", "替换的段落", medical_texts(40)[7]]
    )
    assert (report.points, report.covered, report.unchanged) == (40, 40, 36)
    assert Retriever(attached, NAME, model).search(["改过的段落"], top_k=1)[0][0].point_id == "1"


def test_points_without_text_are_counted_and_left_alone(qdrant: QdrantClient, model: HashModel) -> None:
    fill(qdrant, "named", "plain")
    empty = [models.PointStruct(id=100 + n, vector={"old": [1.0] * DIM}, payload={"text": " " * n}) for n in range(3)]
    qdrant.upsert(NAME, empty, wait=True)
    before = contents(qdrant)
    report = attach_vector(qdrant, NAME, model)
    assert (report.without_text, report.points, report.covered) == (3, 43, 40)
    after = contents(qdrant)
    assert all(after[each.id] == before[each.id] for each in empty)


def test_texts_longer_than_the_encoder_reads_are_counted(qdrant: QdrantClient, model: HashModel) -> None:
    fill(qdrant, "named", "plain", count=2)
    qdrant.upsert(NAME, [point("named", "plain", 7, "长" * 500)], wait=True)
    longer = sum(len(text) + 2 > 64 for text in medical_texts(2))
    assert attach_vector(qdrant, NAME, model).truncated == 1 + longer


def test_the_command_says_what_cut_texts_mean_and_what_to_do(tmp_path: Path, pair_folder: Path) -> None:
    with open_client(path=tmp_path) as client:
        fill(client, "named", "plain", count=2)
        client.upsert(NAME, [point("named", "plain", 7, "长" * 5_000)], wait=True)
    done = CliRunner().invoke(command, [NAME, "--path", str(tmp_path), "--model", str(pair_folder), "--any-language"])
    assert done.exit_code == 0, done.output
    assert re.search(r"1 of 3 texts are longer than the \d+ tokens that the encoder reads;.*--bm25", done.stderr)


def test_the_field_that_the_user_named_is_remembered(qdrant: QdrantClient, model: HashModel) -> None:
    fill(qdrant, "named", "plain", count=0)
    rows = [
        models.PointStruct(id=n, vector={"old": [1.0] * DIM}, payload={"text": f"摘要{n}", "full": {"zh": f"全文{n}"}})
        for n in range(4)
    ]
    qdrant.upsert(NAME, rows, wait=True)
    report = attach_vector(qdrant, NAME, model, settings=AttachSettings(text_field="full.zh"))
    assert report.text_field == "full.zh"
    assert sorted(model.document_encoder.encoded) == [f"全文{n}" for n in range(4)]
    report = attach_vector(qdrant, NAME, model)
    assert (report.text_field, report.unchanged) == ("full.zh", 4)
    [hit] = Retriever(qdrant, NAME, model).search(["全文2"], top_k=1)[0]
    assert hit.text == "全文2"


def test_a_vector_that_was_created_and_not_configured_is_configured(
    server: StandIn, client: QdrantClient, model: HashModel
) -> None:
    fill(client, "named", "plain")
    settings = AttachSettings(quantization="int8", on_disk=True)
    server.faults.add("500", times=100, skip=1, method="PATCH")
    with pytest.raises(Unreachable, match="configuring the vector"):
        attach_vector(Collection(client, NAME, IMPATIENT), model, settings=settings)
    server.faults.clear()
    attach_vector(client, NAME, model, settings=settings)
    config = client.get_collection(NAME).config
    vectors = config.params.vectors
    assert isinstance(vectors, dict)
    assert vectors["care"].memory is models.Memory.COLD or vectors["care"].on_disk
    assert vectors["care"].quantization_config is not None
    assert vectors["old"].on_disk is vectors["old"].memory is vectors["old"].quantization_config is None
    assert config.quantization_config is None
    before = server.count("PATCH", f"/collections/{NAME}")
    attach_vector(client, NAME, model, settings=settings)
    assert server.count("PATCH", f"/collections/{NAME}") == before + 1


def test_limits_of_the_operator_are_kept(client: QdrantClient, model: HashModel) -> None:
    fill(client, "named", "plain")
    strict = models.StrictModeConfig(
        enabled=True,
        max_query_limit=15,
        upsert_max_batchsize=7,
        unindexed_filtering_retrieve=False,
        unindexed_filtering_update=False,
    )
    client.update_collection(NAME, strict_mode_config=strict)
    report = attach_vector(client, NAME, model)
    assert (report.encoded, report.covered) == (40, 40)


@pytest.mark.parametrize("kind", ["500", "429", "drop", "reset", "wait_timeout"])
def test_faults_are_outlived(server: StandIn, client: QdrantClient, model: HashModel, kind: str) -> None:
    fill(client, "named", "plain")
    before = contents(client)
    for path in ("/points/batch$", "/points/scroll$", "/vectors/"):
        server.faults.add(kind, times=2, path=path, seconds=0)
    report = attach_vector(Collection(client, NAME, IMPATIENT), model, settings=AttachSettings(batch_tokens=300))
    assert report.covered == 40
    assert contents(client, without="care") == before


def test_a_server_that_stays_away_is_told_and_the_next_run_goes_on(
    server: StandIn, client: QdrantClient, model: HashModel
) -> None:
    fill(client, "named", "plain")
    server.faults.add("500", times=100, path="/vectors/care$")
    with pytest.raises(Unreachable, match="adding the vector"):
        attach_vector(Collection(client, NAME, IMPATIENT), model)
    server.faults.clear()
    server.faults.add("500", times=100, skip=2, path="/points/batch$")
    with pytest.raises(Unreachable, match="run the same command again"):
        attach_vector(Collection(client, NAME, IMPATIENT), model, settings=AttachSettings(batch_tokens=200))
    server.faults.clear()
    report = attach_vector(client, NAME, model)
    assert report.covered == 40


class _BrokenEncoder(HashEncoder):
    def encode(self, texts: Sequence[str], *, prompt: str | None = None) -> Vectors:
        vectors = super().encode(texts, prompt=prompt)
        vectors[-1] = np.nan
        return vectors


def test_a_vector_that_is_no_number_is_never_written(qdrant: QdrantClient, model: HashModel) -> None:
    fill(qdrant, "named", "plain")
    model._encoder = _BrokenEncoder()
    before = contents(qdrant)
    with pytest.raises(EncodingError, match="point"):
        attach_vector(qdrant, NAME, model)
    assert contents(qdrant) == before


def test_others_write_at_the_same_time(server: StandIn, client: QdrantClient) -> None:
    theirs = QdrantClient(url=server.url, check_compatibility=False)
    fill(client, "two", "plain", count=200)
    model = HashModel(name="care")

    def write(first: int) -> None:
        theirs.delete(NAME, [first], wait=True)
        theirs.upsert(NAME, [point("two", "plain", first + 2, f"替换 {first}")], wait=True)
        theirs.upsert(NAME, [point("two", "plain", 1_001 + first, f"新增 {first}")], wait=True)
        if theirs.retrieve(NAME, [first + 4], with_payload=False):
            theirs.set_payload(NAME, {"text": f"编辑 {first}"}, points=[first + 4], wait=True)

    model._encoder = crowd = BusyEncoder(lambda batch: write(batch * 8 + 1))
    attach_vector(client, NAME, model, settings=AttachSettings(batch_tokens=600))
    assert crowd.batches > 10
    # The users' points are what the users made them, whatever order things came in.
    deleted = [n * 8 + 1 for n in range(1, crowd.batches + 1)]
    now = contents(client, without="care")
    assert not [n for n in deleted if n in now]
    report = attach_vector(client, NAME, HashModel(name="care"))
    assert report.covered == report.points == len(now)
    assert contents(client, without="care") == now
    for text in ("替换 9", "新增 17", "编辑 25"):
        hits = Retriever(client, NAME, HashModel(name="care")).search([text], top_k=1)[0]
        assert hits[0].text == text
    theirs.close()
