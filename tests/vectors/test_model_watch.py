"""`care verify --every`: another model's vectors are noticed in a collection that this package did not write."""

import json
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import cast
from urllib.request import urlopen
from uuid import UUID

import numpy as np
import pytest
from click.testing import CliRunner
from qdrant_client import QdrantClient, models

from care_qdrant.cli import care
from care_qdrant.encoders.terms.bm25 import term_counts
from care_qdrant.errors import InputError, NotVerified, TooFewDocuments
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import open_client
from care_qdrant.types import Vectors
from care_qdrant.vectors.watch import Watch, _read_ids
from tests.forks import FORKS
from tests.reliability.processes import free_port
from tests.standin import StandIn
from tests.tiny import point_alias
from tests.vectors.collections import NAME, contents

SAMPLE = Path(__file__).parents[2] / "examples" / "sample" / "corpus.jsonl"
TEXTS = [json.loads(line)["text"] for line in SAMPLE.read_text("utf-8").splitlines()]
DIM = 64
BEGINNING = 300


def _encode(texts: Sequence[str], seed: int) -> Vectors:
    """Return the vectors of texts by a table of random token vectors, a model of its own for each seed."""
    counts = [term_counts(text) for text in texts]
    tokens = {term: np.random.default_rng((seed, term)).normal(size=DIM) for text in counts for term in text}
    return np.array([sum(tokens[term] * count for term, count in text.items()) for text in counts])


OLD, NEW = _encode(TEXTS, 0), _encode(TEXTS, 1)


def _write(client: QdrantClient, rows: Sequence[int], vectors: Vectors, vector_name: str = "") -> None:
    """Upsert as any client does."""
    points = [
        models.PointStruct(
            id=row,
            vector={vector_name: vectors[row].tolist()} if vector_name else vectors[row].tolist(),
            payload={"body": TEXTS[row], "page": row},
        )
        for row in rows
    ]
    client.upsert(NAME, points, wait=True)


def _fill(client: QdrantClient, vector_name: str = "", count: int = BEGINNING) -> None:
    params = models.VectorParams(size=DIM, distance=models.Distance.COSINE)
    client.create_collection(NAME, {vector_name: params} if vector_name else params)
    _write(client, range(count), OLD, vector_name)


@pytest.mark.parametrize("vector_name", ["", "dense"])
def test_another_model_is_noticed_within_eight_writes_until_its_vectors_are_gone(
    qdrant: QdrantClient, vector_name: str
) -> None:
    _fill(qdrant, vector_name)
    watch = Watch(None)
    first = watch.check(Collection(qdrant, NAME))
    assert (first.alarm, first.new, first.points, first.judged) == (False, 0, BEGINNING, 0)
    _write(qdrant, range(300, 320), OLD, vector_name)
    right = watch.check(Collection(qdrant, NAME))
    assert (right.alarm, right.new) == (False, 20)
    reports = []
    for row in range(320, 328):
        _write(qdrant, [row], NEW, vector_name)
        reports.append(watch.check(Collection(qdrant, NAME)))
    assert not reports[0].alarm and reports[-1].alarm
    assert len({*reports[-1].suspects} & {*range(320, 328)}) >= 6
    _write(qdrant, range(330, 350), OLD, vector_name)
    assert watch.check(Collection(qdrant, NAME)).alarm
    before = contents(qdrant)
    _write(qdrant, range(320, 328), OLD, vector_name)
    assert not watch.check(Collection(qdrant, NAME)).alarm
    assert contents(qdrant).keys() == before.keys()


def test_one_text_is_one_piece_of_evidence(qdrant: QdrantClient) -> None:
    """A text that is unlike the others may agree little: many points of it are no model."""
    _fill(qdrant)
    watch = Watch(None)
    watch.check(Collection(qdrant, NAME))
    for n in range(12):
        point = models.PointStruct(id=1_000 + n, vector=NEW[310].tolist(), payload={"body": TEXTS[310]})
        qdrant.upsert(NAME, [point], wait=True)
    report = watch.check(Collection(qdrant, NAME))
    assert (report.new, report.judged, report.alarm) == (12, 1, False)


def test_an_alias_that_moves_to_a_version_of_another_model_is_an_alarm_under_its_own_name(qdrant: QdrantClient) -> None:
    params = models.VectorParams(size=DIM, distance=models.Distance.COSINE)
    for version, vectors in (("first", OLD), ("same", OLD), ("other", NEW)):
        qdrant.create_collection(version, params)
        points = [
            models.PointStruct(id=row, vector=vectors[row].tolist(), payload={"body": TEXTS[row]}) for row in range(300)
        ]
        qdrant.upsert(version, points, wait=True)
    watch, reports = Watch(None), []
    for version in ("first", "same", "other", "first"):
        point_alias(qdrant, NAME, version)
        reports.append(watch.check(Collection(qdrant, NAME)))
    assert [report.alarm for report in reports] == [False, False, True, False]
    assert {report.collection for report in reports} == {NAME}


@pytest.mark.parametrize("page", [1, 7, 1_000])
def test_new_points_are_those_whose_ids_were_not_there(page: int) -> None:
    """By sets, whatever the kinds of ids and however they are cut into pages."""

    class Ids:
        def __init__(self, *ids: int | str) -> None:
            self._ids = ids

        def ids(self) -> Iterator[list[int | str]]:
            return (list(self._ids[start : start + page]) for start in range(0, len(self._ids), page))

    random = np.random.default_rng(page)
    known, before = None, set[int | str]()
    for _ in range(20):
        some = random.permutation(30)[: random.integers(31)].tolist()
        now = {number if number % 2 else str(UUID(int=number)) for number in some}
        expected = set() if known is None else now - before
        known, new = _read_ids(cast("Collection", Ids(*now)), known)
        assert (len(known), len(new), {*new}) == (len(now), len(expected), expected)
        before = now


def test_what_cannot_be_watched_is_said(qdrant: QdrantClient, tmp_path: Path) -> None:
    params = models.VectorParams(size=DIM, distance=models.Distance.COSINE)
    several = models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM)
    qdrant.create_collection("empty", params)
    qdrant.create_collection("multi", params.model_copy(update={"multivector_config": several}))
    with pytest.raises(TooFewDocuments, match="200 are needed"):
        Watch(None).check(Collection(qdrant, "empty"))
    with pytest.raises(InputError, match="beside multivectors: none"):
        Watch(None).check(Collection(qdrant, "multi"))
    _fill(qdrant)
    Watch(None, file=tmp_path / "new" / "state.npz").check(Collection(qdrant, NAME))
    with pytest.raises(InputError, match=r"'body'.*, not of .*'page'"):
        Watch(None, "page", tmp_path / "new" / "state.npz").check(Collection(qdrant, NAME))


def test_vectors_that_are_deleted_end_the_alarm(qdrant: QdrantClient) -> None:
    _fill(qdrant)
    watch = Watch(None)
    watch.check(Collection(qdrant, NAME))
    _write(qdrant, range(300, 310), NEW)
    assert watch.check(Collection(qdrant, NAME)).alarm
    qdrant.delete(NAME, list(range(300, 310)), wait=True)
    assert not watch.check(Collection(qdrant, NAME)).alarm


def test_a_model_that_writes_all_points_again_is_noticed(qdrant: QdrantClient) -> None:
    _fill(qdrant)
    watch = Watch(None)
    watch.check(Collection(qdrant, NAME))
    _write(qdrant, range(BEGINNING), OLD.astype(np.float16))
    same = watch.check(Collection(qdrant, NAME))
    assert (same.alarm, same.rewritten) == (False, 0)
    _write(qdrant, range(BEGINNING), NEW)
    other = watch.check(Collection(qdrant, NAME))
    assert other.alarm and other.rewritten == BEGINNING
    assert watch.check(Collection(qdrant, NAME)).alarm
    _write(qdrant, range(BEGINNING), OLD)
    assert not watch.check(Collection(qdrant, NAME)).alarm


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_however_writes_are_cut_into_checks_eight_of_another_model_alarm_and_no_others(seed: int) -> None:
    """Other models are another table, a rotation, and the vectors of other texts.

    The seeds are fixed: a statistic is not right for every draw (`benchmarks/experiments/model_watch.py`).
    """
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 9, size=6).tolist()
    others = [NEW, OLD @ np.linalg.qr(random.normal(size=(DIM, DIM)))[0], np.roll(OLD, seed % 300 + 9, axis=0)]
    rows = random.permutation(len(TEXTS))
    first, rows = rows[:BEGINNING], rows[BEGINNING:].tolist()
    with closing(QdrantClient(":memory:")) as client:
        client.create_collection(NAME, models.VectorParams(size=DIM, distance=models.Distance.COSINE))
        _write(client, first.tolist(), OLD)
        watch = Watch(None)
        watch.check(Collection(client, NAME))
        for size in sizes:
            written, rows = rows[:size], rows[size:]
            _write(client, written, OLD)
            assert not watch.check(Collection(client, NAME)).alarm
        judged, other = 0, others[seed % 3]
        while judged < 8 and len(rows) > 0:
            written, rows = rows[:2], rows[2:]
            _write(client, written, other)
            report = watch.check(Collection(client, NAME))
            judged += report.judged
        assert report.alarm and judged >= 8


def test_a_new_topic_or_language_is_no_alarm(qdrant: QdrantClient) -> None:
    _fill(qdrant)
    watch = Watch(None)
    watch.check(Collection(qdrant, NAME))
    topic = [f"Unrelated sentence {row} about sailing boats, harbours and weather at sea." for row in range(20)]
    vectors = _encode(topic, 0)
    points = [models.PointStruct(id=900 + n, vector=vectors[n].tolist(), payload={"body": topic[n]}) for n in range(20)]
    qdrant.upsert(NAME, points, wait=True)
    report = watch.check(Collection(qdrant, NAME))
    assert (report.alarm, report.new) == (False, 20)


def test_a_collection_whose_vectors_do_not_follow_its_texts_is_refused(qdrant: QdrantClient) -> None:
    _fill(qdrant, count=30)
    with pytest.raises(TooFewDocuments, match="200 are needed"):
        Watch(None).check(Collection(qdrant, NAME))
    _write(qdrant, range(BEGINNING), np.random.default_rng(0).normal(size=OLD.shape))
    with pytest.raises(InputError, match="do not follow the words"):
        Watch(None).check(Collection(qdrant, NAME))


def test_one_check_goes_on_where_the_last_program_ended(tmp_path: Path) -> None:
    qdrant_folder, state = tmp_path / "qdrant", tmp_path / "state.npz"
    command = ["verify", NAME, "--path", str(qdrant_folder), "--state", str(state)]
    with open_client(path=qdrant_folder) as client:
        _fill(client, "dense")
    assert CliRunner().invoke(care, command).exit_code == 0
    with open_client(path=qdrant_folder) as client:
        _write(client, range(300, 304), NEW, "dense")
    assert CliRunner().invoke(care, command).exit_code == 0
    with open_client(path=qdrant_folder) as client:
        _write(client, range(304, 308), NEW, "dense")
    for _ in range(2):
        result = CliRunner().invoke(care, [*command, "--json"])
        assert isinstance(result.exception, NotVerified) and json.loads(result.stdout)["alarm"]
    assert "another model has made them" in str(result.exception)
    with pytest.raises(InputError, match=rf"'{NAME}'.*, not of .*'other'"):
        client = QdrantClient(":memory:")
        client.create_collection("other", {"dense": models.VectorParams(size=DIM, distance=models.Distance.COSINE)})
        Watch(None, file=state).check(Collection(client, "other"))
    whole = state.read_bytes()
    for damaged in (b"", b"PK", whole[: len(whole) // 2], whole[:-10], whole[:200] + b"\0" * 40 + whole[240:]):
        state.write_bytes(damaged)
        assert isinstance(CliRunner().invoke(care, command).exception, InputError)
    assert CliRunner().invoke(care, [*command, "--model", "built-in"]).exit_code == 2


def test_a_watch_reads_alone_and_prints_a_line_for_each_check_until_a_signal(server: StandIn) -> None:
    port = free_port()
    with open_client(url=server.url) as client:
        _fill(client)
        writes = len([request for request in server.requests if request.method == "PUT"])
        options = ["--every", "0.05", "--json", "--metrics-port", str(port)]
        command = [str(FORKS.commands / "care"), "verify", NAME, "--url", server.url, *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            reports = map(json.loads, process.stdout)
            assert not next(reports)["alarm"]
            assert len([request for request in server.requests if request.method == "PUT"]) == writes
            _write(client, range(300, 308), NEW)
            alarm = next(report for report in reports if report["alarm"])
            assert alarm["recall_at_10"] == 1.0
            next(reports)
            page = urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=60)
    assert f'care_watch_alarm{{collection="{NAME}",vector=""}} 1.0' in page
    assert process.returncode == 0 and "alarm: vector ''" in errors
