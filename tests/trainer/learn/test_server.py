"""Learning from a server that goes away, and the command line from end to end."""

import json
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from care_trainer.learn.earlier import unseen_fraction
from care_trainer.learn.learn import learn
from care_trainer.learn.settings import NEWS, LearnSettings
from click.testing import CliRunner
from qdrant_client import QdrantClient, models

from care_qdrant.cli import care
from care_qdrant.errors import InputError, MissingExtra, Unreachable
from care_qdrant.model.care_model import CareModel
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import open_client
from care_qdrant.qdrant.retry import RetryPolicy
from tests.forks import FORKS
from tests.standin import StandIn
from tests.trainer.learn.collections import WordModel, add_points, word_texts, write_langchain
from tests.trainer.learn.conftest import SETTINGS, TEXTS

POLICY = RetryPolicy(attempts=3, base_seconds=0.01, cap_seconds=0.02)


def test_a_server_that_stumbles_is_asked_again_and_one_that_is_gone_is_named(server: StandIn, tmp_path: Path) -> None:
    with open_client(url=server.url) as client:
        write_langchain(client, TEXTS, WordModel().encode(TEXTS))
        server.faults.add("500", times=2, method="POST", path="/points$")

        def leave(part: str, _done: int, _total: int) -> None:
            assert part == "reading"
            server.go_away()

        with pytest.raises(Unreachable, match="in collection 'articles': gave up after 3 attempts"):
            learn(Collection(client, "articles", POLICY), tmp_path / "queries", settings=SETTINGS, on_progress=leave)
        server.come_back()
        report = learn(Collection(client, "articles", POLICY), tmp_path / "queries", settings=SETTINGS)
        assert report.registered and report.sample.texts == len(TEXTS)


@pytest.mark.timeout(400)
def test_the_command_writes_registers_and_reports(tmp_path: Path) -> None:
    database, folder = tmp_path / "qdrant", tmp_path / "learned"
    teacher, questions = WordModel(), [text[:11] for text in TEXTS[:100]]
    with open_client(path=database) as client:
        write_langchain(client, TEXTS, teacher.encode(TEXTS), vector_name="openai")
    log = tmp_path / "log.jsonl"
    rows = zip(questions, teacher.encode(questions), strict=True)
    log.write_text("".join(json.dumps({"text": q, "vector": v.tolist()}) + "\n" for q, v in rows), encoding="utf-8")
    arguments = [
        "learn",
        "articles",
        "--path",
        str(database),
        "--output",
        str(folder),
        "--queries",
        str(log),
        "--force",
        "--json",
    ]
    done = CliRunner().invoke(care, arguments, catch_exceptions=False)
    report = json.loads(done.stdout)
    assert report["registered"] and report["vector_name"] == "openai"
    assert not any(part in done.output for text in TEXTS for part in text.split("。"))
    assert report["agreement"]["questions"] == 50
    assert json.loads((folder / "learn" / "report.json").read_text("utf-8"))["fingerprint"] == report["fingerprint"]
    assert "**Quality.** 50 documents were held out" in (folder / "learn" / "report.md").read_text("utf-8")
    assert (folder / "learn" / "report.png").stat().st_size > 1_000
    with open_client(path=database) as client:
        learned = Collection(client, "articles").schema.learned["openai"]
    assert learned.fingerprint == CareModel.load(folder).fingerprint
    shown = CliRunner().invoke(care, ["model", "info", str(folder)])
    assert "stored pooling" in shown.output


def test_below_the_limit_it_exits_with_the_reason(tmp_path: Path) -> None:
    database = tmp_path / "qdrant"
    vectors = WordModel().encode(TEXTS)
    noise = np.random.default_rng(0).normal(size=vectors.shape)
    vectors += 1.4 * noise / np.linalg.norm(noise, axis=1, keepdims=True)  # most of a vector says nothing of its text
    with open_client(path=database) as client:
        write_langchain(client, TEXTS, vectors)
    arguments = ["learn", "articles", "--path", str(database), "--output", str(tmp_path / "learned")]
    with pytest.raises(InputError, match=r"was written but not registered: only .*--force"):
        CliRunner().invoke(care, arguments, catch_exceptions=False)


def test_an_update_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        CliRunner().invoke(care, ["learn", "a", "--update", "--output", str(tmp_path / "none")], catch_exceptions=False)


def test_without_onnx_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(MissingExtra, match=r"'\.\[learn\]"):
        learn(QdrantClient(":memory:"), "articles", tmp_path / "queries")


@pytest.mark.timeout(400)
def test_a_watched_collection_is_learned_and_then_updated_until_a_signal(server: StandIn, tmp_path: Path) -> None:
    teacher, texts = WordModel(), word_texts(700)
    with open_client(url=server.url) as client:
        write_langchain(client, texts[:600], teacher.encode(texts[:600]))
        where = ["learn", "articles", "--url", server.url, "--output", str(tmp_path / "queries"), "--force"]
        command = [str(FORKS.commands / "care"), *where]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen([*command, "--json", "--watch", "0.1"], **pipes, text=True) as process:
            assert process.stdout is not None and process.stderr is not None
            first = json.loads(process.stdout.readline())
            add(client, texts, range(600, 620))  # fewer than 5 %: nothing to learn yet
            assert unseen_fraction(tmp_path / "queries", Collection(client, "articles"), LearnSettings()) < NEWS
            add(client, texts, range(620, 700))
            second = json.loads(process.stdout.readline())
            client.delete("articles", models.PointIdsList(points=list(range(100, 700))), wait=True)
            failed = (line for line in process.stderr if "has 100 points; learning needs at least 200" in line)
            assert all(next(failed).startswith("this pass failed, the next one continues") for _ in range(2))
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) == 0 and not process.stdout.read()
        assert (first["texts"], first["new_documents"]) == (600, None)
        assert second["texts"] > 640 and second["new_documents"]["queries"] == second["texts"] - 600
        [learned] = Collection(client, "articles").schema.learned.values()
        assert learned.fingerprint == second["fingerprint"] == CareModel.load(tmp_path / "queries").fingerprint


def add(client: QdrantClient, texts: Sequence[str], numbers: range) -> None:
    """Write further points of the same model, all at once."""
    chosen = [texts[number] for number in numbers]
    add_points(client, numbers, chosen, WordModel().encode(chosen))


def test_several_vectors_need_a_choice(tmp_path: Path) -> None:
    client = QdrantClient(":memory:")
    params = models.VectorParams(size=4, distance=models.Distance.COSINE)
    client.create_collection("articles", {"a": params, "b": params})
    with pytest.raises(InputError, match=r"has 2 dense vectors \(a, b\); choose one: --vector"):
        learn(client, "articles", tmp_path / "queries")
    with pytest.raises(InputError, match=r"no dense vector 'c' \(it has: a, b\)"):
        learn(client, "articles", tmp_path / "queries", vector_name="c")
    client.create_collection("mixed", {"": params, "b": params})
    with pytest.raises(InputError, match=r"has 2 dense vectors \('' \(unnamed\), b\); choose one: --vector"):
        learn(client, "mixed", tmp_path / "queries")
