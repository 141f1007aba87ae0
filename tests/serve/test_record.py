"""Recorded searches are what `care learn --queries` reads: nothing more is kept than was asked for, and no longer."""

import errno
import json
import os
import stat
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from care_trainer.learn.learn import learn
from care_trainer.learn.settings import LearnSettings
from click.testing import CliRunner

from care_qdrant.cli.serve import command as care_serve
from care_qdrant.errors import InputError
from care_qdrant.model.care_model import CareModel
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import open_client
from care_qdrant.search.conditions import MandatoryConditions
from care_qdrant.search.fallback import Fallback
from care_qdrant.search.judged import read_queries
from care_qdrant.serve.backend import View
from care_qdrant.serve.record import Record
from care_qdrant.serve.settings import Limits
from tests.serve.conftest import aligned
from tests.tiny import TEXTS
from tests.trainer.learn.collections import DIM, WordModel, word_texts, write_langchain

DOCUMENTS = word_texts(300)
QUESTIONS = [text.split("。")[1] for text in DOCUMENTS[:60]]


def lines(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(row)
        for file in sorted(folder.glob("searches-*"))
        for row in file.read_text("utf-8").split("\n")
        if row
    ]


async def test_a_search_is_kept_with_its_hits(make_service, connect, filled, tmp_path: Path) -> None:
    service = make_service(aligned(), collections=("corpus",), over=filled, record=tmp_path)
    http = connect(service)
    question = f"{TEXTS[3]} 13800138000 ab.c@d.example"
    hits = (await http.post("/search", json={"query": question})).json()["hits"]
    [row] = lines(tmp_path / "corpus")
    assert row.pop("time").startswith(datetime.now(UTC).date().isoformat()[:8])
    [model] = service.models
    assert row == {
        "text": f"{TEXTS[3]} * *",
        "hits": [hit["document_id"] for hit in hits],
        "model": model.fingerprint,
    }
    [file] = (tmp_path / "corpus").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    await http.post("/labels", json={"query": question, "document_id": "d0", "relevant": True})
    assert (await http.post("/search", json={"query": question})).json()["hits"]
    assert "13800138000" not in "".join(each.read_text("utf-8") for each in (tmp_path / "corpus").iterdir())
    labelled = read_queries(tmp_path / "corpus", dim=32).labelled
    assert labelled is not None and labelled.texts == [f"{TEXTS[3]} * *"]


async def test_nothing_is_kept_unasked(make_service, connect, filled, tmp_path: Path) -> None:
    for settings in ({}, {"record": tmp_path, "record_days": 0}):
        http = connect(make_service(aligned(), collections=("corpus",), over=filled, **settings))
        assert (await http.post("/search", json={"query": TEXTS[3]})).status_code == 200
        assert not [*tmp_path.iterdir()]


async def test_learning_takes_the_record_as_it_is(make_service, connect, tmp_path: Path) -> None:
    """The old model's vectors of the unsure queries make the encoder agree with it on those."""
    old, folder = WordModel(), tmp_path / "articles-queries"
    settings = LearnSettings(vocabulary=200, batch=64, epochs=2, learning_rate=2e-2)
    with open_client(path=tmp_path / "qdrant") as client:
        write_langchain(client, DOCUMENTS, old.encode(DOCUMENTS))
        learn(client, "articles", folder, settings=settings, force=True)
        service = make_service(
            CareModel.load(folder),
            collections=("articles",),
            over=client,
            record=tmp_path / "record",
            open_fallback=lambda: Fallback(old.encode, share=0.5),
        )
        http = connect(service)
        for question in QUESTIONS:
            assert (await http.post("/search", json={"query": question})).status_code == 200
        rows = lines(tmp_path / "record" / "articles")
        assert [row["text"] for row in rows] == QUESTIONS
        sent = [row["text"] for row in rows if "vector" in row]
        assert 10 < len(sent) < len(QUESTIONS)
        recorded = partial(read_queries, tmp_path / "record" / "articles")
        log = recorded(DIM, Collection(client, "articles").schema.origin("")).log
        assert log is not None and log.texts == list(dict.fromkeys(sent))
        np.testing.assert_allclose(log.vectors, old.encode(log.texts), atol=1e-5)
        report = learn(
            client,
            "articles",
            tmp_path / "again",
            settings=settings,
            questions=recorded,
            force=True,
        )
        assert report.agreement is not None and 0 < report.agreement.questions < len(log.texts)
        # An alias that led to the one collection may lead to the other, whose vectors have the same name.
        write_langchain(client, DOCUMENTS, np.roll(old.encode(DOCUMENTS), 1, axis=1), name="others")
        with pytest.raises(InputError, match="holds no questions"):
            learn(client, "others", tmp_path / "others", settings=settings, questions=recorded, force=True)


def test_a_vector_of_what_was_redacted_is_not_kept(tmp_path: Path) -> None:
    record = Record(tmp_path, days=1)
    record.keep("c", "电话 13800138000", [], None, ([0.1], "v"))
    record.keep("c", "电话", [], None, ([0.123456789], "v"))
    assert [row.get("vector") for row in lines(tmp_path / "c")] == [None, [0.1234568]]


def test_vectors_of_the_model_before_a_switch_are_not_mixed_with_those_after_it(tmp_path: Path) -> None:
    """The two may have one width, or two."""
    record, before, after = Record(tmp_path, days=1), [1.0, 0.0], [0.0, 1.0, 0.0]
    encoded: list[tuple[Sequence[float], str] | None] = [(before, "old"), (after, "new"), None, (after[:2], "unknown")]
    for number, each in enumerate(encoded):
        record.keep("c", f"q{number}", ["d"], None, each)
    for name, vector, text in (("old", before, "q0"), ("new", after, "q1")):
        log = read_queries(tmp_path / "c", len(vector), name).log
        assert log is not None and (log.texts, log.vectors.tolist()) == ([text], [vector])
    with pytest.raises(InputError, match="holds no questions"):
        read_queries(tmp_path / "c", 2, "other")


@pytest.mark.parametrize(
    "alias", ["..", ".", "../x", "/x/y", "corpus/dept=内科-0123456789ab", "a" * 300, "糖\0", "..\n"]
)
@pytest.mark.parametrize("mandatory", [None, MandatoryConditions(("dept=内科",))])
def test_no_name_of_an_alias_leaves_its_own_folder(
    tmp_path: Path, alias: str, mandatory: MandatoryConditions | None
) -> None:
    view, root = View(alias, mandatory), tmp_path / "record"
    Record(root, days=1).keep(view.folder_name, "text", [], None)
    [file] = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert len(file.relative_to(root).parts) == (2 if mandatory is None else 3)
    assert file.parent not in {root / View(name, mandatory).folder_name for name in ("corpus", "..x", "x")}
    other = View("corpus", MandatoryConditions(("dept=内科",))).folder_name
    assert view.folder_name != other and View(other, None).folder_name != other


@pytest.mark.parametrize(
    ("pattern", "kept"), [("", "ab 12"), (r"\d*", "ab *"), (r"\w", "** **")], ids=["none", "also empty", "each"]
)
def test_the_pattern_decides_what_is_redacted(tmp_path: Path, pattern: str, kept: str) -> None:
    assert Record(tmp_path, days=1, redacted=pattern).redact("ab 12") == kept


@pytest.mark.parametrize("days", [0, 1, 3])
@pytest.mark.parametrize("place", ["c", "not-searched-any-more", "c/tenant=a-0123"])
def test_files_of_days_that_are_over_are_removed(tmp_path: Path, days: int, place: str) -> None:
    folder, today = tmp_path / place, datetime.now(UTC).date()
    folder.mkdir(parents=True)
    names = [f"searches-{today - timedelta(days=back)}.jsonl" for back in range(1, 5)]
    mine = ["searches.jsonl", "searches-2020-01-01.jsonl.bak", "my-searches-2020-01-01.jsonl", "queries.jsonl"]
    for name in (*names, *mine):
        (folder / name).write_text("{}\n")
    Record(tmp_path, days=days).keep("c", "a", [], None)
    assert (tmp_path / "c" / f"searches-{today}.jsonl").exists() is bool(days)
    kept = {file.name for file in folder.iterdir()} - {f"searches-{today}.jsonl"}
    assert kept == {*names[: max(0, days - 1)], *mine}


def test_a_day_that_is_over_is_noticed_by_a_running_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock:
        now = staticmethod(lambda _zone: datetime(2026, 11, 30, 0, 0, tzinfo=UTC) + timedelta(hours=next(hours)))

    hours = iter((-1, 0, 1, 24, 48))
    monkeypatch.setattr("care_qdrant.serve.record.datetime", Clock)
    record = Record(tmp_path, days=2)
    for name in ("a", "b", "c", "c", "c"):
        record.keep(name, "text", [], None)
    left = {f"{file.parent.name} {file.stem[-5:]}" for file in tmp_path.glob("*/*")}
    assert left == {"c 12-01", "c 12-02"}


def test_a_file_that_cannot_be_removed_costs_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_file: Path, **_: bool) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "unlink", refuse)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "searches-2020-01-01.jsonl").write_text("{}\n")
    Record(tmp_path, days=1).keep("c", "a", [], None)
    assert [row["text"] for row in lines(tmp_path / "c")] == ["a"]
    assert "searches-2020-01-01.jsonl: searches of a day that is over are not removed" in caplog.text


def test_a_full_disk_costs_no_search_and_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The line that did not fit is taken back, and the log says it once until it works again."""
    record, write = Record(tmp_path, days=1), os.write
    record.keep("c", "first", [], None)

    def half(descriptor: int, data: bytes) -> int:
        return write(descriptor, data[: len(data) // 2])

    def full(_descriptor: int, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for failing in (half, full):
        monkeypatch.setattr(os, "write", failing)
        record.keep("c", "lost", [], None)
    assert caplog.text.count("searches are not recorded") == 1 and "No space left" in caplog.text
    monkeypatch.setattr(os, "write", write)
    record.keep("c", "last", [], None)
    assert [row["text"] for row in lines(tmp_path / "c")] == ["first", "last"]


def _keep_many(folder: Path, worker: int) -> None:
    record = Record(folder, days=1)
    for number in range(100):
        record.keep("c", f"{worker}-{number}" * 500, [], None)


def test_workers_share_a_file(tmp_path: Path) -> None:
    workers = [get_context("spawn").Process(target=_keep_many, args=(tmp_path, number)) for number in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    texts = {row["text"] for row in lines(tmp_path / "c")}
    assert texts == {f"{worker}-{number}" * 500 for worker in range(3) for number in range(100)}


def test_a_record_without_anything_to_learn_from_says_what_is_missing(tmp_path: Path) -> None:
    Record(tmp_path, days=1).keep("c", "a", ["d"], None)
    with pytest.raises(InputError, match="with a vector of the old model"):
        read_queries(tmp_path / "c", dim=2)


@pytest.mark.parametrize(("variable", "value"), [("CARE_RECORD_DAYS", "-1"), ("CARE_RECORD_REDACTED", "(")])
def test_wrong_settings_are_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    done = CliRunner().invoke(care_serve, ["--record", str(tmp_path), "--path", str(tmp_path / "qdrant")])
    assert done.exit_code == 2 and variable in done.output


@pytest.mark.parametrize("word", ["a", "糖", "a.", "a@", "1a", "@", "a-@", f"{'a' * 64}@"])
def test_no_query_takes_long_to_redact(tmp_path: Path, word: str) -> None:
    """The worker answers nobody meanwhile."""
    text = (word * Limits().query_characters)[: Limits().query_characters]
    began = time.thread_time()
    Record(tmp_path, days=1).redact(text)
    assert time.thread_time() - began < 0.1


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("我的邮箱是zhang.san+x@mail.example.com。", "*。"),
        ("a@b.c+x@y.z", "**"),
        ("a@b.c,x@y.z", "*,*"),
        (f"{'a' * 70}@b.c", "aaaaaa*"),
        ("a@b", "a@b"),
        ("１３８００１３８０００ 12345", "* 12345"),
    ],
)
def test_addresses_and_long_numbers_are_redacted(tmp_path: Path, text: str, kept: str) -> None:
    assert Record(tmp_path, days=1).redact(text) == kept
