"""A killed attach, copy, publication or promotion is named in every place where its remains can be read."""

import json
import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from llama_index.vector_stores.care import CareVectorStore
from qdrant_client import QdrantClient, models

from care_qdrant.cli import search, status
from care_qdrant.errors import InputError
from care_qdrant.model.care_model import CareModel
from care_qdrant.qdrant.collection import Collection
from care_qdrant.search.retriever import Retriever
from care_qdrant.vectors.attach import AttachSettings, attach_vector
from care_qdrant.vectors.detach import detach_vector
from care_qdrant.vectors.status import describe
from care_qdrant.vectors.verify import verify_collection
from care_qdrant.versions.promote import promote_collection
from care_qdrant.versions.publish import publish_collection
from tests.tiny import HashModel
from tests.vectors.collections import NAME, fill

POINTS = 300
MODEL: Any = HashModel(name="care")
SMALL = AttachSettings(batch_tokens=4_000)
"""Several requests for the points of a test."""

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the killed process is a fork")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A database whose collection another tool wrote; every command loads `MODEL`."""
    monkeypatch.setattr(CareModel, "load", lambda *args, **kwargs: MODEL)
    with closing(QdrantClient(path=str(tmp_path / "qdrant"))) as client:
        fill(client, "named", "plain", count=POINTS)
    return tmp_path / "qdrant"


@pytest.fixture
def opened(folder: Path) -> Iterator[Callable[[], QdrantClient]]:
    """Opens the database of the test."""
    yield lambda: QdrantClient(path=str(folder))


def kill_at(place: Path, method: str, number: int, work: Callable[[QdrantClient], object]) -> None:
    """Do work in a process of its own that dies, by SIGKILL, at such a call of its client."""
    if (child := os.fork()) == 0:
        client, calls = QdrantClient(path=str(place)), 0
        call = getattr(client, method)

        def counted(*args: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **options)

        setattr(client, method, counted)
        work(client)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, status


def said(folder: Path, collection: str, caplog: pytest.LogCaptureFixture, *options: str) -> list[str | None]:
    """Return what the commands and the classes say of an unfinished collection."""
    target = ["--path", str(folder)]
    run = CliRunner()
    searched = run.invoke(search.command, ["高血压", "--collection", collection, *target, *options])
    listed = run.invoke(status.command, target)
    as_json = run.invoke(status.command, [*target, "--json"])
    examined = run.invoke(status.command, [collection, *target])
    with closing(QdrantClient(path=str(folder))) as client, caplog.at_level(logging.WARNING):
        model = None if "sparse" in options else MODEL
        retriever = Retriever(client, collection, model, mode="auto" if model else "sparse")
        caplog.clear()
        if model:
            CareVectorStore(collection, client, embedding=model, check_vectors=False)
        logged = "\n".join(record.getMessage() for record in caplog.records)
        [summary] = [each for each in json.loads(as_json.stdout) if each["name"] == collection]
        return [
            searched.stderr,
            listed.stderr,
            examined.stderr,
            retriever.unfinished,
            summary["unfinished"],
            *([logged] if model else []),
        ]


def _found(retriever: Retriever) -> list[str]:
    return [hit.point_id for hit in retriever.search(["高血压"])[0]]


def nothing_is_unfinished(client: QdrantClient) -> bool:
    return all(describe(Collection(client, name)).unfinished is None for name in Collection(client, "").names())


@pytest.mark.parametrize("number", [1, 2])
def test_a_first_attach(
    folder: Path, opened: Callable[[], QdrantClient], caplog: pytest.LogCaptureFixture, number: int
) -> None:
    kill_at(folder, "batch_update_points", number, lambda client: attach_vector(client, NAME, MODEL, settings=SMALL))
    for each in said(folder, NAME, caplog):
        assert each and "an attach of vector 'care'" in each and "care attach articles --vector-name care" in each
    with closing(opened()) as client:
        assert "has not ended" in verify_collection(client, NAME, MODEL).problems[-1]
        with pytest.raises(InputError, match="care attach articles --vector-name care"):
            publish_collection(client, NAME, "live")
        assert attach_vector(client, NAME, MODEL).covered == POINTS
        assert nothing_is_unfinished(client)
        assert not any("has not ended" in said for said in verify_collection(client, NAME, MODEL).problems)


def test_an_attach_that_is_killed_before_it_adds_the_vector(folder: Path, opened: Callable[[], QdrantClient]) -> None:
    kill_at(folder, "create_vector_name", 1, lambda client: attach_vector(client, NAME, MODEL))
    with closing(opened()) as client:
        assert "has not ended" in (describe(Collection(client, NAME)).unfinished or "")
        attach_vector(client, NAME, MODEL)
        assert nothing_is_unfinished(client)


def test_an_attach_of_changed_texts(
    folder: Path, opened: Callable[[], QdrantClient], caplog: pytest.LogCaptureFixture
) -> None:
    """The points were whole before: another program wrote them again, which takes the vector away."""
    with closing(opened()) as client:
        attach_vector(client, NAME, MODEL)
        rows = [
            models.PointStruct(id=n, vector={"old": [0.5] * 8}, payload={"text": f"第{n}段"}) for n in range(POINTS)
        ]
        client.upsert(NAME, rows, wait=True)
    kill_at(folder, "batch_update_points", 2, lambda client: attach_vector(client, NAME, MODEL, settings=SMALL))
    for each in said(folder, NAME, caplog):
        assert each and "an attach of vector 'care'" in each
    with closing(opened()) as client:
        attach_vector(client, NAME, MODEL)
        assert nothing_is_unfinished(client)


def test_a_first_attach_of_bm25(
    folder: Path, opened: Callable[[], QdrantClient], caplog: pytest.LogCaptureFixture
) -> None:
    """Until it has ended, searches that take what there is stay dense."""
    with closing(opened()) as client:
        attach_vector(client, NAME, MODEL)
        before = _found(Retriever(client, NAME, MODEL))
    kill_at(folder, "batch_update_points", 2, lambda client: attach_vector(client, NAME, None, settings=SMALL))
    for options in ((), ("--mode", "sparse")):
        for each in said(folder, NAME, caplog, *options):
            assert each and "an attach of vector 'bm25'" in each and "--bm25" in each
    with closing(opened()) as client:
        retriever = Retriever(client, NAME, MODEL)
        assert (_found(retriever), retriever.mode) == (before, "dense")
        attach_vector(client, NAME, None)
        retriever = Retriever(client, NAME, MODEL)
        assert retriever.unfinished is None
        retriever.search(["高血压"])
        assert retriever.mode == "hybrid"
        assert nothing_is_unfinished(client)


def test_a_detach_takes_the_note_away(folder: Path, opened: Callable[[], QdrantClient]) -> None:
    kill_at(folder, "batch_update_points", 1, lambda client: attach_vector(client, NAME, MODEL, settings=SMALL))
    with closing(opened()) as client:
        detach_vector(client, NAME)
        assert nothing_is_unfinished(client)
        assert {key for key, value in Collection(client, NAME).schema.metadata.items() if value} == {"owner"}


@pytest.mark.parametrize("method, number", [("delete_vector_name", 1), ("delete_payload", 1), ("delete_payload", 8)])
def test_an_attach_after_a_detach_that_was_killed(
    folder: Path, opened: Callable[[], QdrantClient], method: str, number: int
) -> None:
    """At its eighth page, the hashes that it leaves are too few for a sample to show them."""
    count = 7 * 256 + 3
    with closing(opened()) as client:
        client.delete_collection(NAME)
        fill(client, "named", "plain", count=count)
        attach_vector(client, NAME, MODEL)
    kill_at(folder, method, number, lambda client: detach_vector(client, NAME))
    with closing(opened()) as client:
        assert attach_vector(client, NAME, MODEL).covered == count


def test_readers_of_another_vector_are_not_told(folder: Path, opened: Callable[[], QdrantClient]) -> None:
    with closing(opened()) as client:
        attach_vector(client, NAME, MODEL)
    other = HashModel(name="other", salt="other")
    kill_at(folder, "batch_update_points", 1, lambda client: attach_vector(client, NAME, other, settings=SMALL))
    with closing(opened()) as client:
        assert Retriever(client, NAME, MODEL).unfinished is None
        assert "'other'" in (Retriever(client, NAME, other).unfinished or "")  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [1, 2])
def test_a_publication(
    folder: Path, opened: Callable[[], QdrantClient], caplog: pytest.LogCaptureFixture, number: int
) -> None:
    with closing(opened()) as client:
        attach_vector(client, NAME, MODEL)
    kill_at(folder, "upsert", number, lambda client: publish_collection(client, NAME, "live"))
    for each in said(folder, "live_v1", caplog):
        assert each and "the copy into collection 'live_v1' began" in each
        assert NAME not in each, "a client may read it whose key is for the copy alone"
    with closing(opened()) as client:
        assert describe(Collection(client, NAME)).unfinished is None
        assert publish_collection(client, NAME, "live").version == "live_v1"
        assert nothing_is_unfinished(client)


def test_a_promotion(
    folder: Path, opened: Callable[[], QdrantClient], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(opened()) as client:
        attach_vector(client, NAME, MODEL)
    there = tmp_path / "there"

    def promote(target: QdrantClient) -> None:
        with closing(opened()) as source:
            promote_collection(Collection(source, NAME), Collection(target, NAME))

    kill_at(there, "upsert", 2, promote)
    for each in said(there, NAME, caplog):
        assert each and "the copy into collection 'articles' began" in each
    with closing(QdrantClient(path=str(there))) as target:
        promote(target)
        assert nothing_is_unfinished(target)
        assert target.count(NAME).count == POINTS
