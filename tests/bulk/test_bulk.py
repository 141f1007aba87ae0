"""A corpus as units of work ends in the collection that direct ingestion writes, whatever happens on the way."""

import csv
import errno
import gzip
import itertools
import json
import math
import os
import random
import resource
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]
from fsspec.spec import AbstractFileSystem  # type: ignore[import-untyped]
from hypothesis import example, given, settings
from hypothesis import strategies as st
from qdrant_client import QdrantClient

from care_qdrant.bulk.encode import encode_unit
from care_qdrant.bulk.job import FORMAT, Job, Manifest, Receipt
from care_qdrant.bulk.load import load, verify
from care_qdrant.bulk.units import plan, read_unit
from care_qdrant.bulk.workers import run_units
from care_qdrant.cli import care
from care_qdrant.contracts.metadata import INPUTS, LOAD, RUN
from care_qdrant.encoders.terms import bm25
from care_qdrant.errors import EncodingError, FingerprintMismatch, InputError, ModelError, NewerFormat, NotVerified
from care_qdrant.ingestion import rows as reading
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.settings import IngestSettings
from care_qdrant.progress import Progress
from care_qdrant.qdrant.collection import Collection
from care_qdrant.types import Document, Vectors, point_id
from tests.reliability.bulk import care_bulk, part_hashes, report_of
from tests.reliability.object_storage import BUCKET, faulty_storage
from tests.standin import StandIn
from tests.tiny import TEXTS, HashModel, Killed

MODEL = HashModel(max_tokens=40)


def rows(count: int, start: int = 0) -> list[dict[str, Any]]:
    """Rows of which some are longer than the encoder reads."""
    draw = random.Random(start)
    return [
        {"id": f"d{n}", "title": f"题{n % 5}", "text": "".join(draw.choices(TEXTS, k=draw.randint(1, 4))), "n": n}
        for n in range(start, start + count)
    ]


def write_lines(path: Path, values: list[dict[str, Any]], *, mode: str = "w") -> Path:
    with path.open(mode, encoding="utf-8") as file:
        file.writelines(json.dumps(value, ensure_ascii=False) + "\n" for value in values)
    return path


def draft(model: HashModel = MODEL, **changes: Any) -> Manifest:
    made = Manifest("hash", model.name, model.fingerprint, model.dim, "Cosine", model.name, unit_rows=10)
    return replace(made, **changes)


def make_plan(corpus: Path | str | list[Path], job: Path | str, *, sparse: bool = True, **changes: Any) -> Manifest:
    paths = [str(path) for path in (corpus if isinstance(corpus, list) else [corpus])]
    return plan(paths, Job(str(job)), draft(**changes), MODEL.document_tokenizer, sparse=sparse)


def encode_all(job: Path | str, model: HashModel = MODEL) -> None:
    opened = Job(str(job))
    manifest = opened.manifest()
    for unit in manifest.units:
        encode_unit(opened, manifest, unit, model, 1_000)


@pytest.fixture
def encoded(corpus: Path, tmp_path: Path) -> Job:
    """A job over the corpus, all of whose units are encoded."""
    make_plan(corpus, tmp_path / "job")
    encode_all(tmp_path / "job")
    return Job(str(tmp_path / "job"))


def points(client: QdrantClient, collection: str) -> dict[str, Any]:
    records, _ = client.scroll(collection, limit=10_000, with_vectors=True)
    return {str(record.id): (record.payload, record.vector) for record in records}


def assert_same_points(client: QdrantClient, name: str, other: str) -> dict[str, Any]:
    """Compare two collections point for point; return the points."""
    found, expected = points(client, name), points(client, other)
    assert found.keys() == expected.keys()
    for point, (payload, vectors) in expected.items():
        assert found[point][0] == payload
        assert found[point][1][MODEL.name] == pytest.approx(vectors[MODEL.name], abs=1e-6)
        assert found[point][1]["bm25"] == vectors["bm25"]
    return expected


@pytest.fixture(scope="module", autouse=True)
def _rejects_in_a_folder_of_their_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("rejects"))
        yield


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A folder with a file of each kind, a row that is no JSON, and rows that repeat earlier ones."""
    return write_corpus(tmp_path / "corpus")


@pytest.fixture(scope="module")
def corpus_job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Job]:
    """Such a folder, and a job over it all of whose units are encoded."""
    folder = tmp_path_factory.mktemp("kills")
    corpus = write_corpus(folder / "corpus")
    make_plan(corpus, folder / "job")
    encode_all(folder / "job")
    return corpus, Job(str(folder / "job"))


def write_corpus(folder: Path) -> Path:
    """Write a file of each kind, a row that is no JSON, and rows that repeat earlier ones."""
    folder.mkdir()
    lines = write_lines(folder / "a.jsonl", rows(35))
    with lines.open("a", encoding="utf-8") as file:
        file.write("{no json\n\n")
    write_lines(lines, [rows(1)[0], {"id": "d3", "text": "与前面不同"}, *rows(5, 100)], mode="a")
    with (folder / "b.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, ["id", "title", "text", "n"])
        table.writeheader()
        table.writerows(rows(23, 200))
    pq.write_table(pa.Table.from_pylist(rows(17, 300)), folder / "c.parquet")
    (folder / "d.md").write_text("# 标题\n\n二甲双胍的用法。", encoding="utf-8")
    return folder


def test_parts_make_the_collection_that_ingestion_makes(
    client: QdrantClient, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoded: Job
) -> None:
    ingest(str(corpus), MODEL, client, "direct", settings=IngestSettings(sparse=True))
    report = load(encoded, Collection(client, "bulk"))
    direct = assert_same_points(client, "bulk", "direct")
    assert report.points == len(direct) > 81
    assert Collection(client, "bulk").schema.contracts == Collection(client, "direct").schema.contracts
    # The other way round: the collection has its own mean length, and the terms of the parts are weighed by that.
    write_lines(tmp_path / "long.jsonl", [{"id": "long", "text": "".join(TEXTS) * 3}])
    for name in ("first", "counted"):
        ingest(
            str(tmp_path / "long.jsonl"), MODEL, client, name, settings=IngestSettings(sparse=True, overflow="truncate")
        )
    ingest(str(corpus), MODEL, client, "first", settings=IngestSettings(sparse=True))
    monkeypatch.setattr(bm25, "term_counts", None)  # a loader counts nothing
    load(encoded, Collection(client, "counted"))
    monkeypatch.undo()
    counted = points(client, "counted")
    for point, (_, vectors) in points(client, "first").items():
        assert counted[point][1]["bm25"] == vectors["bm25"]
        assert point not in direct or vectors["bm25"] != direct[point][1]["bm25"]
    checked = verify(encoded, Collection(client, "direct"))
    assert (checked.right, checked.missing, checked.outdated, checked.problems) == (len(direct), 0, 0, [])


def test_both_ways_mix_and_loading_twice_writes_once(client: QdrantClient, corpus: Path, encoded: Job) -> None:
    first = load(encoded, Collection(client, "bulk"))
    again = load(encoded, Collection(client, "bulk"))
    direct = ingest(str(corpus), MODEL, client, "bulk", settings=IngestSettings(sparse=True))
    assert first.encoded == first.chunks
    assert (again.encoded, again.updated, again.unchanged) == (0, 0, first.chunks)
    assert (direct.encoded, direct.updated, direct.unchanged) == (0, 0, first.chunks)


def test_a_load_of_five_thousand_windows_stores_every_point(
    client: QdrantClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts are read by one thread and written by others: neither may look at what the other changes."""
    texts = [{"id": f"d{n}", "text": f"{TEXTS[n % len(TEXTS)]}{n}"} for n in range(10_000)]
    make_plan(write_lines(tmp_path / "a.jsonl", texts), tmp_path / "job", sparse=False, unit_rows=5_000)
    encode_all(tmp_path / "job")
    monkeypatch.setattr(reading, "WINDOW_TEXTS", 2)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        report = load(Job(str(tmp_path / "job")), Collection(client, "bulk"))
    finally:
        sys.setswitchinterval(interval)
    assert (report.documents, report.encoded, report.points) == (10_000, 10_000, 10_000)
    assert verify(Job(str(tmp_path / "job")), Collection(client, "bulk")).least_cosine == pytest.approx(1, abs=1e-5)


@given(kills=st.lists(st.integers(1, 40), min_size=1, max_size=3))
@settings(max_examples=6)
def test_a_load_that_is_killed_at_any_window_and_run_again_is_direct_ingestion(
    corpus_job: tuple[Path, Job], kills: list[int]
) -> None:
    corpus, job = corpus_job
    with closing(QdrantClient(":memory:")) as client, pytest.MonkeyPatch.context() as patch:
        ingest(str(corpus), MODEL, client, "direct", settings=IngestSettings(sparse=True))
        patch.setattr(reading, "WINDOW_TEXTS", 3)
        for windows in kills:
            calls = itertools.count(1)

            def killed(_: Progress, calls: Iterator[int] = calls, windows: int = windows) -> None:
                if next(calls) == windows:
                    raise Killed

            with suppress(Killed):
                load(job, Collection(client, "bulk"), on_progress=killed)
        load(job, Collection(client, "bulk"))
        again = load(job, Collection(client, "bulk"))
        assert (again.encoded, again.updated, again.unchanged) == (0, 0, again.points)
        assert_same_points(client, "bulk", "direct")


def test_verification_names_the_units_with_wrong_points(client: QdrantClient, encoded: Job) -> None:
    load(encoded, Collection(client, "bulk"))
    gone, other = sorted(points(client, "bulk"))[:2]
    client.delete("bulk", [gone])
    client.set_payload("bulk", {"vectors": {MODEL.name: "of another text"}}, [other], key="_care")
    report = verify(encoded, Collection(client, "bulk"))
    assert (report.missing, report.outdated) == (1, 1)
    assert 1 <= len(report.wrong_units) <= 2
    assert "care bulk load" in report.problems[0]
    load(encoded, Collection(client, "bulk"))
    assert verify(encoded, Collection(client, "bulk")).problems == []


def test_verification_compares_the_parts_with_the_plan(client: QdrantClient, tmp_path: Path, encoded: Job) -> None:
    """A part that lacks documents is a whole file with a right digest: its receipt alone would not tell."""
    receipt = next(iter((tmp_path / "job/receipts").iterdir()))
    values = json.loads(receipt.read_text(encoding="utf-8"))
    receipt.write_text(json.dumps({**values, "documents": values["documents"] - 1}), encoding="utf-8")
    load(encoded, Collection(client, "bulk"))
    report = verify(encoded, Collection(client, "bulk"))
    assert report.wrong_units == [values["unit"]]
    assert "do not account for each row of the plan" in report.problems[0]


def test_the_names_of_units_do_not_depend_on_the_folder(corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(corpus, tmp_path / "elsewhere")
    one, other = make_plan(corpus, tmp_path / "one"), make_plan(tmp_path / "elsewhere", tmp_path / "other")
    assert [unit.name for unit in one.units] == [unit.name for unit in other.units]


def test_a_grown_corpus_adds_units_and_changes_none(corpus: Path, tmp_path: Path) -> None:
    before = make_plan(corpus, tmp_path / "job").units
    encode_all(tmp_path / "job")
    bytes_before = part_hashes(tmp_path / "job")
    write_lines(corpus / "a.jsonl", rows(12, 500), mode="a")
    write_lines(corpus / "0.jsonl", [*rows(1), *rows(3, 600)])
    after = make_plan(corpus, tmp_path / "job").units
    assert {unit.name for unit in before} < {unit.name for unit in after}
    assert sum(unit.documents for unit in after) == sum(unit.documents for unit in before) + 15
    encode_all(tmp_path / "job")
    assert bytes_before.items() <= part_hashes(tmp_path / "job").items()


def test_a_job_keeps_the_types_of_a_table_that_grows(tmp_path: Path) -> None:
    """A cell that is no number would make texts of numbers and ids that are planned, and perhaps encoded."""
    table = tmp_path / "a.csv"
    table.write_text("id,text,n\n" + "".join(f"{n}.0,第{n}条。,{n}\n" for n in range(25)), encoding="utf-8")
    first = make_plan(table, tmp_path / "job")
    with table.open("a", encoding="utf-8") as file:
        file.write("d25,第25条。,n/a\nd26,第26条。,26\n")
    grown = make_plan(table, tmp_path / "job")
    assert [unit.hash for unit in grown.units[:3]] == [unit.hash for unit in first.units]
    assert (grown.rejected, sum(unit.documents for unit in grown.units)) == (1, 26)


@pytest.mark.parametrize("given", ["rows.log", "-"])
def test_a_plan_reads_rows_whose_name_says_no_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    """The message for such a file names ``--format``, of which a plan had none."""
    monkeypatch.chdir(tmp_path)
    table = "id,text,n\n" + "".join(f"{n},第{n}条。,{n}\n" for n in range(5))
    Path("rows.log").write_text(table, encoding="utf-8")
    arguments = ["bulk", "plan", given, "job", "--format", "csv", "--any-language"]
    result = CliRunner().invoke(care, arguments, input=table)
    assert not result.exit_code, result.output
    job = Job("job")
    [unit] = job.manifest().units
    assert [(row.id, getattr(row, "text", "")) for row in read_unit(job, unit)] == [
        (str(n), f"第{n}条。") for n in range(5)
    ]


@pytest.mark.parametrize("name", ["a.jsonl", "b.csv"])
def test_another_plan_refuses_a_corpus_that_was_changed(corpus: Path, tmp_path: Path, name: str) -> None:
    make_plan(corpus, tmp_path / "job")
    text = (corpus / name).read_text(encoding="utf-8")
    (corpus / name).write_text(text.replace("题1", "题9", 1), encoding="utf-8")
    with pytest.raises(InputError, match="were changed since they were planned"):
        make_plan(corpus, tmp_path / "job")


@pytest.mark.parametrize("form", ["jsonl", "jsonl.gz", "csv", "parquet"])
def test_workers_encode_what_was_planned_without_the_corpus(tmp_path: Path, form: str) -> None:
    corpus, values = tmp_path / f"corpus.{form}", [*rows(45), rows(1)[0], {"id": "d3", "text": "与前面不同"}]
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist(values), corpus)
    elif form == "csv":
        with corpus.open("w", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, ["id", "title", "text", "n"])
            table.writeheader()
            table.writerows(values)
    else:
        content = write_lines(tmp_path / "corpus.jsonl", values).read_bytes() + b"{no json\n"
        corpus.write_bytes(gzip.compress(content) if form == "jsonl.gz" else content)
    manifest, job = make_plan(corpus, tmp_path / "job"), Job(str(tmp_path / "job"))
    kept = corpus.read_bytes()
    corpus.unlink()
    encode_all(tmp_path / "job")
    receipts = job.receipts().values()
    assert len(manifest.units) == 5
    assert sum(receipt.documents for receipt in receipts) == 45
    assert manifest.rejected == (2 if form.startswith("jsonl") else 1)
    assert sum(receipt.rejected for receipt in receipts) == manifest.rejected
    corpus.write_bytes(kept)
    assert make_plan(corpus, tmp_path / "job").units == manifest.units


def test_a_job_of_other_settings_or_another_model_is_refused(corpus: Path, tmp_path: Path) -> None:
    make_plan(corpus, tmp_path / "job")
    with pytest.raises(InputError, match="another overflow and sparse"):
        make_plan(corpus, tmp_path / "job", overflow="truncate", sparse=False)
    with pytest.raises(FingerprintMismatch, match="plan into another folder"):
        make_plan(corpus, tmp_path / "job", fingerprint="f" * 64)
    with pytest.raises(FingerprintMismatch, match="this worker has"):
        encode_all(tmp_path / "job", HashModel(salt="other"))


def test_a_plan_that_was_killed_beside_its_corpus_leaves_no_rows_in_it(corpus: Path, tmp_path: Path) -> None:
    calls = itertools.count()

    def killed(_rows: int) -> None:
        if next(calls) == 3:
            raise Killed

    inside = Job(str(corpus / "job"))
    with pytest.raises(Killed):
        plan(
            [str(corpus)], inside, draft(), MODEL.document_tokenizer, sparse=True, any_language=True, on_progress=killed
        )
    assert len(list(corpus.rglob("*.parquet"))) > 2
    finished, whole = make_plan(corpus, inside.url), make_plan(corpus, tmp_path / "job")
    assert finished.units == whole.units


def test_a_manifest_of_another_version_is_refused(corpus: Path, tmp_path: Path) -> None:
    make_plan(corpus, tmp_path / "job")
    manifest = tmp_path / "job" / "manifest.json"
    for form, kind, advice in ((FORMAT + 1, NewerFormat, "update"), (FORMAT - 1, InputError, "plan the corpus again")):
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": form}))
        with pytest.raises(kind, match=f"format {form}, .*{advice}"):
            Job(str(tmp_path / "job")).manifest()


def test_parts_that_are_not_those_of_their_receipts_are_refused(
    client: QdrantClient, tmp_path: Path, encoded: Job
) -> None:
    part = sorted((tmp_path / "job" / "parts").iterdir())[1]
    whole = part.read_bytes()
    part.write_bytes(whole[:-100])  # a half upload: its unit is not done
    with pytest.raises(InputError, match=r"1 of \d+ units has no part yet"):
        load(encoded, Collection(client, "bulk"))
    part.write_bytes(whole[:-100] + bytes(100))
    with pytest.raises(NotVerified, match="not the file of its receipt"):
        load(encoded, Collection(client, "bulk"))
    part.unlink()
    with pytest.raises(InputError, match=r"1 of \d+ units has no part yet"):
        load(encoded, Collection(client, "bulk"))


def test_what_goes_between_list_and_read_is_not_there(tmp_path: Path, encoded: Job) -> None:
    """A link to nothing is listed and cannot be read, as a file that another process removes or moves meanwhile."""
    before = encoded.receipts()
    (tmp_path / "job" / "receipts" / "gone.json").symlink_to(tmp_path / "nowhere")
    (tmp_path / "job" / "parts" / ".gone.parquet.0123").symlink_to(tmp_path / "nowhere")
    assert encoded.receipts() == before


def test_the_format_is_raised_with_what_a_job_holds(encoded: Job, tmp_path: Path) -> None:
    """A job of an earlier version is refused by its number; else it would end in the middle, or be read wrongly."""
    [rows, part] = [next((tmp_path / "job" / name).iterdir()) for name in ("care-rows", "parts")]
    assert FORMAT == 4, "raise it where the next lines change, and change them with it"
    folders = sorted(entry.name for entry in (tmp_path / "job").iterdir())
    assert folders == ["care-rows", "manifest.json", "parts", "receipts", "rejects"]
    assert pq.read_schema(rows).names == ["id", "text", "title", "metadata", "line", "reason"]
    vectors = ["vector", "terms", "counts"]
    assert pq.read_schema(part).names == [
        "id",
        "title",
        "text",
        "metadata",
        "chunk",
        "chunks",
        "line",
        "tokens",
        *vectors,
    ]


def test_a_part_of_another_model_is_refused(client: QdrantClient, tmp_path: Path, encoded: Job) -> None:
    manifest = tmp_path / "job" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "fingerprint": "f" * 64}))
    with pytest.raises(FingerprintMismatch, match="was made by a model with fingerprint"):
        load(encoded, Collection(client, "bulk"))


def test_a_text_without_a_vector_goes_to_the_rejects_of_its_unit(corpus: Path, tmp_path: Path) -> None:
    class Model(HashModel):
        """Gives one text no length."""

        @property
        def document_encoder(self) -> Any:
            encoder = super().document_encoder
            encode = encoder.encode
            encoder.encode = lambda texts, **_: encode(texts) * [[0.0 if "EGFR" in text else 1.0] for text in texts]
            return encoder

    manifest = make_plan(corpus, tmp_path / "job")
    job = Job(str(tmp_path / "job"))
    receipts = [encode_unit(job, manifest, unit, Model(max_tokens=40), 1_000) for unit in manifest.units]
    rejects = [
        json.loads(line)
        for file in (tmp_path / "job" / "rejects").iterdir()
        for line in file.read_text(encoding="utf-8").splitlines()
    ]
    assert sum(receipt.rejected for receipt in receipts) == len(rejects) > 3
    kept = [text for file in (tmp_path / "job" / "parts").iterdir() for text in pq.read_table(file)["text"].to_pylist()]
    assert kept and not [text for text in kept if "EGFR" in text]
    encode_all(tmp_path / "job")  # once the encoder is mended
    listed = [file.read_text(encoding="utf-8") for file in (tmp_path / "job" / "rejects").iterdir()]
    assert listed and not [text for text in listed if "vector" in text]


class Interrupted(HashModel):
    """From the third call on its encoder fails: so many times, or until it is made anew."""

    def __init__(self, failures: float) -> None:
        super().__init__(max_tokens=40)
        whole, calls = self._encoder.encode, itertools.count()

        def encode(texts: Sequence[str], **_: Any) -> Vectors:
            if 2 <= next(calls) < 2 + failures:
                raise EncodingError("the process of the encoder died")
            return whole(texts)

        self._encoder.encode = encode  # type: ignore[method-assign]


@pytest.mark.parametrize("failures", [3, math.inf])
def test_an_encoder_that_fails_rejects_no_document(corpus: Path, tmp_path: Path, failures: float) -> None:
    """Where it goes on failing, the unit fails, and another worker gets it."""
    manifest = make_plan(corpus, tmp_path / "job")
    job, unit = Job(str(tmp_path / "job")), manifest.units[1]
    if failures == math.inf:
        with pytest.raises(EncodingError, match="died"):
            encode_unit(job, manifest, unit, Interrupted(failures), 100)
        assert job.receipts() == {}
        return
    receipt = encode_unit(job, manifest, unit, Interrupted(failures), 100)
    assert (receipt.documents, receipt.rejected) == (10, 0)
    assert receipt == replace(encode_unit(job, manifest, unit, MODEL, 100), seconds=receipt.seconds)


def test_several_loaders_leave_the_index_to_the_last(server: StandIn, encoded: Job) -> None:
    client = QdrantClient(server.url)

    def is_done() -> bool:
        return bool((client.get_collection("bulk").config.metadata or {})[LOAD.name]["done"])

    load(encoded, Collection(client, "bulk"), part=(2, 3))
    load(encoded, Collection(client, "bulk"), part=(1, 3))
    assert not is_done()
    load(encoded, Collection(client, "bulk"), part=(1, 3))  # one that died and was run again
    assert not is_done()
    load(encoded, Collection(client, "bulk"), part=(3, 3))
    assert is_done()
    checked = verify(encoded, Collection(client, "bulk"))
    assert checked.problems == []
    assert checked.recall is not None
    assert checked.recall > 0.9


def test_payload_indexes_are_there_before_the_points(server: StandIn, encoded: Job) -> None:
    client = QdrantClient(server.url)
    load(encoded, Collection(client, "bulk"), indexes={"n": "integer"})
    assert client.get_collection("bulk").payload_schema["n"].data_type == "integer"
    order = [(request.method, request.path.rsplit("/", 1)[-1]) for request in server.requests]
    assert order.index(("PUT", "index")) < order.index(("PUT", "points"))


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A job of the built-in pair, and the parts that one process makes of it."""
    folder = tmp_path_factory.mktemp("planned")
    write_lines(folder / "corpus.jsonl", rows(120))
    assert (
        not CliRunner()
        .invoke(care, ["bulk", "plan", f"{folder}/corpus.jsonl", f"{folder}/job", "--unit-rows", "10"])
        .exit_code
    )
    shutil.copytree(folder / "job", folder / "whole")
    assert not CliRunner().invoke(care, ["bulk", "encode", f"{folder}/whole"]).exit_code
    return folder / "job", part_hashes(folder / "whole")


def test_rejected_rows_are_said_beside_the_report(tmp_path: Path) -> None:
    write_lines(tmp_path / "corpus.jsonl", [*rows(1), {"id": "no text"}])
    for command in (["plan", f"{tmp_path}/corpus.jsonl", f"{tmp_path}/job"], ["encode", f"{tmp_path}/job"]):
        said = CliRunner().invoke(care, ["bulk", *command])
        assert said.exit_code == 0
    assert f"rejected rows: 1, listed in {tmp_path}/job/rejects" in said.stderr


def test_runs_that_are_killed_leave_the_parts_of_one_run(planned: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    job, whole = planned
    shutil.copytree(job, tmp_path / "job")
    draw = random.Random(0)
    for _ in range(4):
        process = care_bulk("encode", f"{tmp_path}/job")
        time.sleep(draw.uniform(1.0, 5.0))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert report_of(care_bulk("encode", f"{tmp_path}/job"))["failed"] == {}
    assert part_hashes(tmp_path / "job") == whole


def test_two_jobs_of_an_array_share_the_units(planned: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    job, whole = planned
    shutil.copytree(job, tmp_path / "job")
    both = [care_bulk("encode", f"{tmp_path}/job", "--shard", f"{number}/2") for number in (1, 2)]
    reports = [report_of(process) for process in both]
    assert [report["encoded"] for report in reports] == [6, 6]
    assert part_hashes(tmp_path / "job") == whole


def test_a_model_that_is_not_there_is_said_before_any_unit(
    planned: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    job, _ = planned
    result = CliRunner().invoke(care, ["bulk", "encode", str(job), "--model", str(tmp_path / "nowhere")])
    assert isinstance(result.exception, ModelError)
    assert not list(job.glob("parts/*"))


def test_a_unit_that_fails_holds_up_no_other_and_is_named(corpus: Path, tmp_path: Path) -> None:
    assert not CliRunner().invoke(care, ["bulk", "plan", str(corpus), f"{tmp_path}/job", "--unit-rows", "10"]).exit_code
    gone, damaged = next((tmp_path / "job/care-rows").glob("a.j*")), next((tmp_path / "job/care-rows").glob("d.m*"))
    gone.unlink()
    damaged.write_bytes(b"PAR1")
    result = CliRunner().invoke(care, ["bulk", "encode", f"{tmp_path}/job", "--json"])
    report = json.loads(result.stdout)
    assert result.exit_code == 8
    assert report["failed"].keys() == {gone.stem, damaged.stem}
    assert "no longer exists" in report["failed"][gone.stem]
    assert report["encoded"] == report["units"] - 2


def test_a_unit_that_fails_on_ray_is_named_by_its_reason(encoded: Job) -> None:
    exceptions = pytest.importorskip("ray.exceptions")
    reason = InputError("rows/a.parquet: no longer exists")
    future: Future[Receipt] = Future()
    future.set_exception(exceptions.RayTaskError("run", "Traceback", reason).as_instanceof_cause())
    unit = encoded.manifest().units[0]
    assert run_units([unit], [lambda _: future], lambda _: None).failed == {unit.name: str(reason)}


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """A bucket of an S3 server on this machine, to which the environment points."""
    with faulty_storage(seed=0) as (_, settings), pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        yield f"s3://{BUCKET}"


def test_corpus_and_job_may_be_in_object_storage(
    planned: tuple[Path, dict[str, str]], bucket: str, client: QdrantClient, tmp_path: Path
) -> None:
    import fsspec

    job, whole = planned
    files = fsspec.filesystem("s3")
    files.put_file(str(job.parent / "corpus.jsonl"), f"{bucket}/texts/corpus.jsonl")
    missing = CliRunner().invoke(care, ["bulk", "plan", "s3://no-such-bucket/texts", f"{bucket}/job"])
    assert "s3://no-such-bucket/texts: cannot be opened" in str(missing.exception)
    arguments = ["bulk", "plan", f"{bucket}/texts", f"{bucket}/job", "--unit-rows", "10"]
    planning = CliRunner().invoke(care, arguments)
    assert planning.exit_code == 0, planning.output
    assert CliRunner().invoke(care, ["bulk", "encode", f"{bucket}/job"]).exit_code == 0
    files.invalidate_cache()
    files.get(f"{bucket}/job/parts", str(tmp_path / "copy" / "parts"), recursive=True)
    assert part_hashes(tmp_path / "copy") == whole
    report = load(Job(f"{bucket}/job"), Collection(client, "bulk"))
    assert report.documents == 120
    assert verify(Job(f"{bucket}/job"), Collection(client, "bulk")).problems == []


def test_a_full_disk_fails_the_units_and_leaves_no_half_part(
    planned: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    """A limit on the size of files stands for the disk: the system refuses the write in the middle likewise."""
    job, whole = planned
    shutil.copytree(job, tmp_path / "job")

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, 2_000))

    process = care_bulk("encode", f"{tmp_path}/job", "--shard", "1/6", preexec_fn=limit)
    report = report_of(process)
    assert (process.returncode, report["encoded"], len(report["failed"])) == (8, 0, 2)
    assert all("File too large" in reason for reason in report["failed"].values())
    assert list((tmp_path / "job").glob("[pr]*[!w]s/*")) == list((tmp_path / "job").glob("[pr]*[!w]s/.*")) == []
    assert report_of(care_bulk("encode", f"{tmp_path}/job"))["failed"] == {}
    assert part_hashes(tmp_path / "job") == whole


@pytest.mark.parametrize("killed", ["1/2", "2/2", "1/2 of other parts"])
def test_a_loader_ends_no_run_of_documents_that_it_does_not_load(tmp_path: Path, killed: str) -> None:
    """A shard of the corpus, and a share of other parts, have other documents than the same share of these parts."""
    long = write_lines(tmp_path / "a.jsonl", [{"id": f"d{n}", "text": "".join(TEXTS[n % 4 :])} for n in range(20)])
    with closing(QdrantClient(":memory:")) as client:
        collection = Collection(client, "bulk")
        ingest(str(long), MODEL, collection, settings=IngestSettings(sparse=True))
        collection.delete([point_id(f"d{n}") for n in range(20)])
        killed_run = {"shard": killed, INPUTS.name: [str(long)]}
        collection.update("as a killed run leaves it", metadata=RUN.change(killed_run, "run"))
        short = write_lines(tmp_path / "a.jsonl", rows(20))
        make_plan(short, tmp_path / "job")
        encode_all(tmp_path / "job")
        for part in (1, 2):
            load(Job(str(tmp_path / "job")), collection, part=(part, 2))
            assert RUN.find(collection.refresh().metadata, "run") is not None
        ingest(str(short), MODEL, client, "direct", settings=IngestSettings(sparse=True))
        ids = [{str(record.id) for record in client.scroll(name, limit=999)[0]} for name in ("bulk", "direct")]
        assert ids[0] == ids[1]
        load(Job(str(tmp_path / "job")), collection)
        assert not RUN.all(collection.refresh().metadata)


def test_two_owners_at_once_write_what_one_writes(server: StandIn, encoded: Job) -> None:
    with ThreadPoolExecutor(2) as pool:
        reports = list(pool.map(lambda _: load(encoded, Collection(QdrantClient(server.url), "bulk")), range(2)))
    assert {report.points for report in reports} == {reports[0].points}
    client = QdrantClient(server.url)
    again = load(encoded, Collection(client, "bulk"))
    assert (again.encoded, again.updated, again.unchanged) == (0, 0, again.points)
    assert verify(encoded, Collection(client, "bulk")).problems == []


NAMES = st.sampled_from(["a.jsonl", "x/a.jsonl", "y/a.jsonl", "x/y/b.jsonl", "\u00e9.jsonl", "e\u0301.jsonl"])
ROWS = st.lists(st.tuples(st.sampled_from("123"), st.sampled_from(TEXTS[:2])), max_size=3)


def in_memory(path: Path) -> str:
    """Return the URL of a copy in a storage whose files are listed by fsspec."""
    fsspec.filesystem("memory").put(str(path), str(path), recursive=True)
    return f"memory://{path}"


@given(st.dictionaries(NAMES, ROWS, min_size=1), st.booleans())
@example({name: [("1", TEXTS[0]), ("1", TEXTS[1])] for name in ("\u00e9.jsonl", "e\u0301.jsonl")}, False)
@settings(max_examples=25)
def test_a_folder_of_any_files_ends_as_direct_ingestion_ends_it(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, list[tuple[str, str]]], is_url: bool
) -> None:
    """Equal files of two folders or one name, rows that repeat others, ids with other content; by path and by URL."""
    folder = tmp_path_factory.mktemp("corpus")
    for name, lines in {**files, "z.jsonl": [("9", TEXTS[2])]}.items():
        (folder / "c" / name).parent.mkdir(parents=True, exist_ok=True)
        write_lines(folder / "c" / name, [{"id": id_, "text": text} for id_, text in lines])
    make_plan(in_memory(folder / "c") if is_url else folder / "c", folder / "job")
    encode_all(folder / "job")
    job = Job(str(folder / "job"))
    with closing(QdrantClient(":memory:")) as client:
        direct = ingest(
            folder / "c",
            MODEL,
            client,
            "direct",
            settings=IngestSettings(sparse=True),
            reading=reading.Reading(rejects=folder / "rejects.jsonl"),
        )
        load(job, Collection(client, "bulk"))
        stored = [{r.id: r.payload for r in client.scroll(name, limit=99)[0]} for name in ("direct", "bulk")]
        assert verify(job, Collection(client, "bulk")).right == direct.points
    assert stored[0] == stored[1]
    receipts = job.receipts().values()
    assert sum(receipt.rejected for receipt in receipts) == direct.rejected == job.manifest().rejected


def test_texts_of_two_folders_keep_their_places_whatever_door_they_come_through(tmp_path: Path) -> None:
    for name in "xy":
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.md").write_text(f"{name} {TEXTS[0]}", encoding="utf-8")
    x, y = tmp_path / "x", tmp_path / "y"
    doors = itertools.product((str(x), f"file://{x}"), (str(y), f"local://{y}"))
    for number, (first, second) in enumerate(doors):
        job = tmp_path / f"job-{number}"
        for _ in range(2):
            manifest = make_plan([first, second], job)  # type: ignore[list-item]  # a URL
            assert [unit.label for unit in manifest.units] == ["x/a.md", "y/a.md"]
            assert manifest.rejected == 0
    assert len(make_plan([x / "a.md", tmp_path / "y/../x/a.md"], tmp_path / "twice").units) == 1


def test_a_sync_knows_what_a_bulk_job_has_loaded(tmp_path: Path) -> None:
    one, other = write_lines(tmp_path / "a.jsonl", rows(5)), write_lines(tmp_path / "b.jsonl", rows(5, 5))
    make_plan([one, other], tmp_path / "job")
    encode_all(tmp_path / "job")
    sync = IngestSettings(sync=True, max_delete_fraction=1)
    read = reading.Reading(rejects=tmp_path / "rejects.jsonl")
    with closing(QdrantClient(":memory:")) as client:
        loaded = load(Job(str(tmp_path / "job")), Collection(client, "c")).points
        with pytest.raises(InputError, match=r"also has documents of \S+b\.jsonl, which this run does not read"):
            ingest(one, MODEL, client, "c", settings=sync, reading=read)
        assert client.count("c").count == loaded
        assert ingest([one, other], MODEL, client, "c", settings=sync, reading=read).deleted == 0


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_job_inside_a_corpus_is_no_part_of_it_from_its_plan_on(tmp_path: Path, scheme: str) -> None:
    write_lines(tmp_path / "a.jsonl", rows(3))
    plans = []
    for _ in range(2):
        plans.append(make_plan(f"{scheme}{tmp_path}", tmp_path / "job"))
        encode_all(tmp_path / "job")
    assert plans[0].units == plans[1].units
    assert plans[1].rejected == 0


@pytest.mark.parametrize("name", [".hidden.jsonl", "a.rejects.jsonl"])
def test_a_url_that_names_a_file_is_read(tmp_path: Path, name: str) -> None:
    url = in_memory(write_lines(tmp_path / name, rows(3)))
    assert make_plan(url, tmp_path / "job").units[0].documents == 3


def test_a_file_that_its_storage_does_not_list_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SFTP and SMB list folders only; of a file that is named, fsspec then returns neither type nor size."""
    url, listed = in_memory(write_lines(tmp_path / "a.jsonl", rows(3))), MemoryFileSystem.ls

    def ls(self: MemoryFileSystem, path: str, detail: bool = True, **options: Any) -> Any:
        if self.isfile(path):
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
        return listed(self, path, detail, **options)

    monkeypatch.setattr(MemoryFileSystem, "ls", ls)
    monkeypatch.setattr(MemoryFileSystem, "find", AbstractFileSystem.find)
    assert make_plan(url, tmp_path / "job").units[0].documents == 3


@pytest.mark.parametrize("name", ["x//a.jsonl", "x/./a.jsonl"])
def test_an_object_that_a_path_cannot_name_is_refused(tmp_path: Path, name: str) -> None:
    """In object storage it is another one than that without the empty folder, and both would count as one."""
    (tmp_path / "x").mkdir()
    url, storage = in_memory(write_lines(tmp_path / "x/a.jsonl", rows(3)).parent.parent), fsspec.filesystem("memory")
    storage.pipe_file(f"{tmp_path}/{name}", b'{"id": "other", "text": "other"}')
    with pytest.raises(InputError, match=f"{name} has a folder without a name; rename it"):
        make_plan(url, tmp_path / "job")


@pytest.mark.parametrize("scheme", ["", "file://", "local://"])
def test_a_folder_that_may_not_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    (tmp_path / "c/shut").mkdir(parents=True)
    write_lines(tmp_path / "c/a.jsonl", rows(3))
    listed = os.scandir

    def scandir(path: Any) -> Any:  # a mode would not stop root
        if str(path).endswith("shut"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(InputError, match=r"shut: cannot be read .*; its documents would be missing"):
        make_plan(f"{scheme}{tmp_path}/c", tmp_path / "job")


@pytest.mark.parametrize("url", ["foo://bucket/x", "gs://bucket/x.jsonl"])
def test_a_storage_that_cannot_be_opened_is_named(tmp_path: Path, url: str) -> None:
    for plan_it in (lambda: make_plan(url, tmp_path / "job"), lambda: Job(url)):
        with pytest.raises(InputError, match=f"{url}: cannot be opened"):
            plan_it()


@given(files=st.lists(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("甲乙"))), min_size=3, max_size=3))
def test_files_that_are_planned_one_by_one_are_those_of_one_plan(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[tuple[int, str]]]
) -> None:
    """A document whose id an earlier file has is rejected or left out, although this plan does not read that file."""
    folder = tmp_path_factory.mktemp("files")
    paths = [folder / f"{number}.jsonl" for number in range(3)]
    for path, values in zip(paths, files, strict=True):
        write_lines(path, [{"id": "d0", "text": "甲"}, *({"id": f"d{n}", "text": text} for n, text in values)])
    make_plan(paths, folder / "whole")  # type: ignore[arg-type]
    for path in paths:
        make_plan(path, folder / "one by one")
    planned = []
    for job in (Job(str(folder / "whole")), Job(str(folder / "one by one"))):
        planned.append([(unit.name, list(read_unit(job, unit))) for unit in job.manifest().units])
    assert planned[0] == planned[1]


@given(
    files=st.lists(st.lists(st.tuples(st.integers(0, 5), st.sampled_from("甲乙"))), min_size=3, max_size=3),
    planned=st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)),
)
def test_a_job_over_files_that_grow_has_each_document_once(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[tuple[int, str]]], planned: tuple[int, int, int]
) -> None:
    """A row that is added to the first file may have the id of a planned row of the second one."""
    folder = tmp_path_factory.mktemp("files")
    paths = [folder / f"{number}.jsonl" for number in range(3)]
    values = [[{"id": f"d{n}", "text": text} for n, text in rows] for rows in files]
    before: list[Any] = []
    for counts in (planned, tuple(map(len, values))):
        for path, rows_of_file, count in zip(paths, values, counts, strict=True):
            write_lines(path, [{"id": path.stem, "text": "甲"}, *rows_of_file[:count]])
        units = make_plan(paths, folder / "job").units
        planned_rows = [(unit.name, list(read_unit(Job(str(folder / "job")), unit))) for unit in units]
        documents = [row.id for _, rows in planned_rows for row in rows if isinstance(row, Document)]
        every = [row["id"] for path in paths for row in map(json.loads, path.read_text("utf-8").splitlines())]
        assert sorted(documents) == sorted({*every})
        assert all(unit in planned_rows for unit in before)
        before = planned_rows


def test_a_damaged_receipt_declares_nothing_done(encoded: Job, tmp_path: Path) -> None:
    whole = encoded.receipts()
    for content in ("{", "{}", "[1]"):
        (tmp_path / "job/receipts" / f"{next(iter(whole))}.json").write_text(content, encoding="utf-8")
        assert encoded.receipts().keys() == {*whole} - {next(iter(whole))}


@pytest.mark.parametrize("count", [5, 500])
def test_a_model_that_does_not_read_a_corpus_is_refused_before_a_unit_is_written(tmp_path: Path, count: int) -> None:
    class Blind(HashModel):
        def unread(self, text: str) -> list[str]:
            return text.split()

        def count_tokens(self, texts: Sequence[str]) -> list[int]:
            return [len(text) for text in texts]

        max_tokens = 40

    corpus, job = write_lines(tmp_path / "a.jsonl", rows(count)), Job(str(tmp_path / "job"))
    read: list[int] = []
    with pytest.raises(InputError, match=f"does not read 100% of {min(count, 32)} sampled texts"):
        plan([str(corpus)], job, draft(), Blind(), sparse=True, on_progress=read.append)
    assert not (tmp_path / "job").exists(), "no unit is written"
    assert read[-1] <= 40, "no more of the corpus is read than the units of the sample"
    assert plan([str(corpus)], job, draft(), Blind(), sparse=True, any_language=True).units
