"""Switching a collection in use: after any interruption it goes on, and readers never get a hit of another space."""

import json
import multiprocessing
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qdrant_client import QdrantClient
from qdrant_client import models as qdrant_models

from care_qdrant.contracts.active import parse_active
from care_qdrant.contracts.learned import LearnedContract, signs
from care_qdrant.errors import InputError, NotSwitched
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import open_client
from care_qdrant.qdrant.point_equality import vectors_of
from care_qdrant.qdrant.schema import VersionRecord
from care_qdrant.search import resolve
from care_qdrant.search.retriever import Retriever
from care_qdrant.switch import switch
from care_qdrant.switch.compare import LOSSES
from care_qdrant.switch.switch import (
    find_state,
    plan_switch,
    retire_vector,
    switch_collection,
    undo_switch,
)
from care_qdrant.vectors import detach
from care_qdrant.vectors.attach import AttachSettings, attach_vector
from care_qdrant.vectors.detach import detach_vector
from care_qdrant.vectors.verify import verify_collection
from tests.standin import StandIn
from tests.switch import models
from tests.switch.models import NAME, TableModel, good
from tests.tiny import Killed, write_jsonl

OLD, NEW = good("old"), good("new", seed=1)
WORSE = models.weaker("worse")
COUNT = 200


def whole(client: QdrantClient) -> dict[str, Any]:
    """Return everything that a collection holds, but the times."""
    records, _ = client.scroll(NAME, limit=10_000, with_vectors=True)
    metadata = json.loads(json.dumps(Collection(client, NAME).refresh().metadata))
    for entry in metadata.values():
        if isinstance(entry, dict):
            entry.pop("since", None)
    points = {record.id: (record.payload, vectors_of(record)) for record in records}
    return {"metadata": metadata, "points": points}


def searched(client: QdrantClient) -> str | None:
    active = Collection(client, NAME).refresh().active
    return None if active is None else active.now.vector


def test_the_whole_flow(qdrant: QdrantClient) -> None:
    models.fill(qdrant, OLD, COUNT)
    before = whole(qdrant)
    plan = plan_switch(qdrant, NAME, NEW, OLD)
    assert plan.state.stage == "backfill" and plan.attach is not None and plan.attach.points_to_encode == COUNT
    assert plan.state.before is not None and plan.state.before.vector == "old" and plan.state.to.vector == "new"
    assert whole(qdrant) == before, "a plan writes nothing"

    report = switch_collection(qdrant, NAME, NEW, OLD)
    assert report.comparison is not None and report.comparison.verdict == "pass" and report.state.stage == "watch"
    assert report.attached is not None and report.attached.covered == COUNT and report.lacking == 0
    assert searched(qdrant) == "new"
    active = Collection(qdrant, NAME).schema.active
    assert active is not None and active.evidence["verdict"] == "pass"

    again = switch_collection(qdrant, NAME, NEW, OLD)
    assert again.state.stage == "watch" and again.attached is not None and again.attached.encoded == 0

    back = undo_switch(qdrant, NAME)
    assert back.now.vector == "old" == searched(qdrant) and back.evidence == active.evidence
    assert find_state(Collection(qdrant, NAME).schema, NEW.contract(), None).stage == "compare"
    switch_collection(qdrant, NAME, NEW, OLD)
    assert searched(qdrant) == "new"
    with pytest.raises(InputError, match=r"again in \d+ s"):
        retire_vector(qdrant, NAME)
    with pytest.raises(InputError, match="--roll-back"):
        detach_vector(qdrant, NAME, "new")
    retired = retire_vector(qdrant, NAME, grace_seconds=0)
    assert retired is not None and retired.vector_name == "old"
    assert Collection(qdrant, NAME).refresh().dense.keys() == {"new"} and searched(qdrant) == "new"
    assert verify_collection(qdrant, NAME, NEW).problems == []
    with pytest.raises(InputError, match="retired"):
        undo_switch(qdrant, NAME)


def test_a_worse_model_leaves_readers_where_they_are(qdrant: QdrantClient) -> None:
    models.fill(qdrant, OLD, COUNT)
    with pytest.raises(NotSwitched, match="worse"):
        switch_collection(qdrant, NAME, WORSE, OLD)
    assert searched(qdrant) is None
    switch_collection(qdrant, NAME, WORSE, OLD, accept="it costs nothing")
    active = Collection(qdrant, NAME).refresh().active
    assert active is not None and active.now.vector == "worse"
    assert active.evidence["accepted"] == "it costs nothing" and active.evidence["verdict"] == "refuse"


def test_the_questions_that_lose_most_are_shown(qdrant: QdrantClient, tmp_path: Path) -> None:
    """As by brute force over the models' own vectors."""
    rows = models.fill(qdrant, OLD, COUNT)
    texts = [row.partition("。")[0] for row in rows]
    asked = [{"text": text, "relevant": [f"d{number}"]} for number, text in enumerate(texts)]
    path = write_jsonl(tmp_path / "questions.jsonl", asked)
    report = switch_collection(qdrant, NAME, WORSE, OLD, questions=path, accept="it costs nothing")
    assert report.comparison is not None and len(report.comparison.losses) == LOSSES
    orders = [np.argsort(-(model.encode_query(texts) @ model.encode_document(rows).T)) for model in (OLD, WORSE)]
    places = [(order == np.arange(COUNT)[:, None]).argmax(axis=1) for order in orders]
    before, after = (np.where(place < 10, 1 / np.log2(place + 2), 0.0).round(4) for place in places)
    changes = [loss.after - loss.before for loss in report.comparison.losses]
    np.testing.assert_allclose(changes, np.sort(after - before)[:LOSSES])
    for loss in report.comparison.losses:
        number = texts.index(loss.question)
        assert (loss.before, loss.after) == (before[number], after[number])
        assert loss.relevant == [f"d{number}"] and loss.first == f"d{orders[1][number][0]}"


def test_few_questions_cannot_tell(qdrant: QdrantClient) -> None:
    models.fill(qdrant, OLD, 40)
    with pytest.raises(NotSwitched, match=r"40 questions about 40 documents cannot tell .* about \d+ would"):
        switch_collection(qdrant, NAME, NEW, OLD)
    assert searched(qdrant) is None


def test_judged_questions_decide(qdrant: QdrantClient, tmp_path: Path) -> None:
    rows = models.fill(qdrant, OLD, COUNT)
    asked = [{"text": row.partition("。")[2], "relevant": [f"d{number}"]} for number, row in enumerate(rows)]
    report = switch_collection(qdrant, NAME, NEW, OLD, questions=write_jsonl(tmp_path / "questions.jsonl", asked))
    assert report.comparison is not None and report.comparison.kind == "judged"
    assert report.comparison.before.mean > 0.99 and report.comparison.questions == COUNT


def foreign(client: QdrantClient, model: TableModel) -> list[str]:
    """Make a collection with an unnamed vector of a service, which only the service can make."""
    params = qdrant_models.VectorParams(size=model.dim, distance=qdrant_models.Distance.COSINE)
    client.create_collection(NAME, vectors_config=params)
    rows = models.texts(COUNT)
    client.upsert(
        NAME,
        [
            qdrant_models.PointStruct(id=number, vector=vector, payload={"text": text, "doc_id": f"d{number}"})
            for number, (text, vector) in enumerate(zip(rows, model.encode_document(rows).tolist(), strict=True))
        ],
        wait=True,
    )
    return rows


def test_away_from_a_service_by_its_query_vectors(qdrant: QdrantClient, tmp_path: Path) -> None:
    rows = foreign(qdrant, OLD)
    with pytest.raises(NotSwitched, match="cannot be compared"):
        switch_collection(qdrant, NAME, NEW, OLD)  # nothing shows that OLD made the vectors
    heads = [row.partition("。")[0] for row in rows]
    asked = [
        {"text": text, "relevant": [f"d{number}"], "vector": vector}
        for number, (text, vector) in enumerate(zip(heads, OLD.encode_query(heads).tolist(), strict=True))
    ]
    path = write_jsonl(tmp_path / "questions.jsonl", asked)
    assert switch_collection(qdrant, NAME, NEW, questions=path).state.stage == "watch"
    with pytest.raises(InputError, match="unnamed"):
        retire_vector(qdrant, NAME, grace_seconds=0)
    assert undo_switch(qdrant, NAME).now.vector == ""


def test_a_learned_encoder_writes_nothing_into_the_vector_that_it_searches(qdrant: QdrantClient) -> None:
    """Whichever vector readers search before it, and also when it is active already."""
    models.fill(qdrant, OLD, COUNT)
    encoder = models.weaker("learned", noise=0.05)
    probes = {str(n): signs(row) for n, row in enumerate(OLD.encode_document(models.texts(COUNT))[:60])}
    learned = LearnedContract(encoder.fingerprint, "learned", OLD.dim, "Cosine", probes, documents=OLD.fingerprint)
    Collection(qdrant, NAME).write_learned("old", learned)
    switch_collection(qdrant, NAME, NEW, encoder, accept="a test")
    before = whole(qdrant)

    def unchanged() -> bool:
        now = whole(qdrant)
        now["metadata"]["care_active"] = before["metadata"]["care_active"]
        return bool(now == before)

    assert undo_switch(qdrant, NAME).now.fingerprint == encoder.fingerprint
    assert switch_collection(qdrant, NAME, encoder).state.stage == "watch" and unchanged()
    undo_switch(qdrant, NAME)
    assert plan_switch(qdrant, NAME, encoder, NEW).attach is None
    assert switch_collection(qdrant, NAME, encoder, NEW, accept="a test").state.to.vector == "old" and unchanged()
    assert Retriever(qdrant, NAME, OLD).resolved.vector_name == "old"  # type: ignore[arg-type]


def test_readers_follow_back_to_a_vector_whose_model_was_not_given(qdrant: QdrantClient) -> None:
    """The learned encoder that searches it, whatever the order of the models."""
    foreign(qdrant, OLD)
    encoder = models.weaker("learned", noise=0.05)
    probes = {str(n): signs(row) for n, row in enumerate(OLD.encode_document(models.texts(COUNT))[:60])}
    Collection(qdrant, NAME).write_learned("", LearnedContract(encoder.fingerprint, "q", OLD.dim, "Cosine", probes))
    switch_collection(qdrant, NAME, NEW, accept="a test")
    readers = [
        Retriever(qdrant, NAME, first, other_models=[other], check_seconds=0)  # type: ignore[arg-type, list-item]
        for first, other in ((NEW, encoder), (encoder, NEW))
    ]
    assert [(reader.resolved.vector_name, reader.fingerprint) for reader in readers] == [("new", NEW.fingerprint)] * 2
    assert undo_switch(qdrant, NAME).now.fingerprint is None
    assert [(reader.resolved.vector_name, reader.fingerprint) for reader in readers] == [("", encoder.fingerprint)] * 2


@pytest.mark.parametrize("is_judged", [True, False])
def test_the_new_vector_is_made_of_the_field_of_the_old_one(
    qdrant: QdrantClient, tmp_path: Path, is_judged: bool
) -> None:
    """Not of another one that usually holds the text."""
    rows = models.texts(COUNT)
    qdrant.create_collection(NAME, vectors_config={"": qdrant_models.VectorParams(size=1, distance="Dot")})  # type: ignore[arg-type]
    points = [
        qdrant_models.PointStruct(id=number, vector=[1.0], payload={"text": "词001", "report": {"inhalt": row}})
        for number, row in enumerate(rows)
    ]
    qdrant.upsert(NAME, points, wait=True)
    attach_vector(qdrant, NAME, OLD, settings=AttachSettings(text_field="report.inhalt"))
    asked = [{"text": row.partition("。")[2], "relevant": [number]} for number, row in enumerate(rows)]
    questions = write_jsonl(tmp_path / "questions.jsonl", asked) if is_judged else None
    plan = plan_switch(qdrant, NAME, NEW, OLD, questions=questions)
    assert plan.attach is not None and plan.attach.text_field == "report.inhalt"
    report = switch_collection(qdrant, NAME, NEW, OLD, questions=questions)
    assert report.comparison is not None and report.comparison.questions == COUNT
    assert Collection(qdrant, NAME).refresh().text_field("new") == "report.inhalt"
    assert Retriever(qdrant, NAME, NEW).search([rows[7]], top_k=1)[0][0].point_id == "7"  # type: ignore[arg-type]


def test_a_third_model_says_that_the_first_vector_stays(qdrant: QdrantClient, caplog: pytest.LogCaptureFixture) -> None:
    models.fill(qdrant, OLD, COUNT)
    switch_collection(qdrant, NAME, NEW, OLD)
    undo_switch(qdrant, NAME)
    switch_collection(qdrant, NAME, NEW, OLD)
    assert "--retire" not in caplog.text
    for is_retired in (False, True):
        if is_retired:
            retire_vector(qdrant, NAME, grace_seconds=0)
        caplog.clear()
        plan_switch(qdrant, NAME, WORSE, NEW)
        assert ("vector 'old', which readers searched before 'new', stays" in caplog.text) != is_retired
    with pytest.raises(InputError, match="search vector 'new', not 'old'"):
        plan_switch(qdrant, NAME, WORSE, NEW, vector_name="old")


def test_a_switch_on_a_server_that_takes_one_condition(server: StandIn) -> None:
    strict = qdrant_models.StrictModeConfig(enabled=True, filter_max_conditions=1)
    with open_client(url=server.url) as client:
        models.fill(client, OLD, COUNT)
        client.update_collection(NAME, strict_mode_config=strict)
        assert switch_collection(client, NAME, NEW, OLD).lacking == 0
        point = qdrant_models.PointStruct(id=999, vector={"old": [1.0] * OLD.dim}, payload={"n": 1})
        client.upsert(NAME, [point], wait=True)
        with pytest.raises(InputError, match="1 point has vector 'old' and not 'new'"):
            retire_vector(client, NAME, grace_seconds=0)
        client.delete(NAME, [999], wait=True)
        assert [undo_switch(client, NAME).now.vector for _ in range(2)] == ["old", "new"]
        assert retire_vector(client, NAME, grace_seconds=0) is not None and searched(client) == "new"


def test_the_old_vector_stays_while_the_new_one_is_of_former_texts(qdrant: QdrantClient) -> None:
    """A program that knows the old model alone has written other texts since."""
    models.fill(qdrant, OLD, COUNT)
    switch_collection(qdrant, NAME, NEW, OLD)
    vectors = [qdrant_models.PointVectors(id=7, vector={"old": OLD.encode_document(["词001 词002"])[0].tolist()})]
    qdrant.update_vectors(NAME, vectors, wait=True)
    qdrant.set_payload(NAME, {"text": "词001 词002"}, [7], wait=True)
    with pytest.raises(InputError, match="1 point has a new text"):
        retire_vector(qdrant, NAME, grace_seconds=0)
    switch_collection(qdrant, NAME, NEW)
    assert retire_vector(qdrant, NAME, grace_seconds=0) is not None
    assert Retriever(qdrant, NAME, NEW).search(["词001 词002"], top_k=1)[0][0].point_id == "7"  # type: ignore[arg-type]


def test_points_that_only_the_old_vector_finds_are_not_lost(qdrant: QdrantClient) -> None:
    models.fill(qdrant, OLD, COUNT)
    vector = {"old": [1.0] * OLD.dim}
    blank = [qdrant_models.PointStruct(id=10_000 + number, vector=vector, payload={"n": 1}) for number in range(3)]
    qdrant.upsert(NAME, blank, wait=True)
    with pytest.raises(NotSwitched, match="3 of 203 points have vector 'old' and not 'new'"):
        switch_collection(qdrant, NAME, NEW, OLD)
    assert searched(qdrant) is None


def test_a_model_of_the_same_name_gets_a_vector_of_its_own(qdrant: QdrantClient) -> None:
    models.fill(qdrant, OLD, COUNT)
    newer = good("old", seed=5)
    newer.fingerprint = "f" * 64
    report = switch_collection(qdrant, NAME, newer, OLD)
    assert report.state.to.vector == "old-ffffffff" and searched(qdrant) == "old-ffffffff"


def test_several_vectors_need_the_model_that_readers_use(qdrant: QdrantClient) -> None:
    models.fill(qdrant, OLD, COUNT)
    switch_collection(qdrant, NAME, WORSE, OLD, accept="to have two")
    Collection(qdrant, NAME).update("as before the first switch", metadata={"care_active": None})
    with pytest.raises(InputError, match=r"--model.*--vector-name"):
        switch_collection(qdrant, NAME, NEW)
    for name in ("old", "worse"):
        before = plan_switch(qdrant, NAME, NEW, OLD, vector_name=name).state.before
        assert before is not None and before.vector == before.model == name
    with pytest.raises(InputError, match="no vector 'none'"):
        plan_switch(qdrant, NAME, NEW, vector_name="none")
    assert switch_collection(qdrant, NAME, NEW, OLD).state.before.vector == "old"  # type: ignore[union-attr]


def test_a_multivector_is_not_what_readers_search(qdrant: QdrantClient) -> None:
    """It reranks; beside it, the only other vector is the one that they search."""
    rows = models.texts(COUNT)
    params = qdrant_models.VectorParams(size=OLD.dim, distance=qdrant_models.Distance.COSINE)
    several = qdrant_models.MultiVectorConfig(comparator=qdrant_models.MultiVectorComparator.MAX_SIM)
    reranking = params.model_copy(update={"multivector_config": several})
    qdrant.create_collection(NAME, vectors_config={"colbert": reranking, "dense": params})
    points = [
        qdrant_models.PointStruct(id=number, vector={"dense": vector}, payload={"text": text})
        for number, (text, vector) in enumerate(zip(rows, OLD.encode_document(rows).tolist(), strict=True))
    ]
    qdrant.upsert(NAME, points, wait=True)
    state = switch_collection(qdrant, NAME, NEW, accept="a test").state
    assert state.before is not None and state.before.vector == "dense"


class Together:
    """Lets two runs write the active vector only after both have read that nothing was switched."""

    def __init__(self, barrier: Any) -> None:
        self._barrier = barrier

    def join(self, client: QdrantClient) -> None:
        write = client.update_collection

        def together(name: str, **config: Any) -> Any:
            if "care_active" in (config.get("metadata") or {}):
                time.sleep(0.3 * self._barrier.wait(60))
            return write(name, **config)

        client.update_collection = together  # type: ignore[method-assign]


def at_once(url: str, end: str, barrier: Any) -> str | None:
    """Return the vector to which a run of its own has switched readers, or None where it says that it did not."""
    with closing(QdrantClient(url=url, timeout=60, check_compatibility=False)) as client:
        Together(barrier).join(client)
        try:
            if end == "back":
                return undo_switch(client, NAME).now.vector
            model = {"new": NEW, "worse": WORSE}[end]
            return switch_collection(client, NAME, model, OLD, accept="a race").state.to.vector
        except NotSwitched:
            return None


@pytest.mark.parametrize("ends", [("new", "worse"), ("back", "worse"), ("new", "new")])
def test_of_two_switches_at_once_the_one_that_stays_is_reported(
    server: StandIn, ends: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(switch, "_SETTLE_SECONDS", 1.0)
    with open_client(url=server.url) as client:
        models.fill(client, OLD, COUNT)
        for model in (NEW, WORSE):
            attach_vector(client, NAME, model)
        if "back" in ends:
            switch_collection(client, NAME, NEW, OLD)
        barrier = threading.Barrier(2)
        with ThreadPoolExecutor(2) as threads:
            reported = list(threads.map(lambda end: at_once(server.url, end, barrier), ends))
        kept = [name for name in reported if name is not None]
        assert kept and {*kept} == {searched(client)}
        assert len(kept) == 1 or ends == ("new", "new")


@pytest.mark.slow
@pytest.mark.server
def test_of_two_programs_that_switch_at_once_the_one_that_stays_is_reported(own_url: str) -> None:
    with closing(QdrantClient(url=own_url, timeout=60, check_compatibility=False)) as client:
        for _ in range(5):
            client.delete_collection(NAME)
            models.fill(client, OLD, COUNT)
            for model in (NEW, WORSE):
                attach_vector(client, NAME, model)
            with (
                multiprocessing.Manager() as manager,
                ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool,
            ):
                barrier = manager.Barrier(2)
                reported = [
                    run.result() for run in [pool.submit(at_once, own_url, end, barrier) for end in ("new", "worse")]
                ]
            [kept] = [name for name in reported if name is not None]
            assert kept == searched(client)


class Dying:
    """Raises `Killed` at one of the calls of a client."""

    def __init__(self, client: QdrantClient, at: int | None) -> None:
        self.client, self.at, self.calls = client, at, 0
        self._lock = threading.Lock()

    def __enter__(self) -> "Dying":
        for name in CALLS:
            setattr(self.client, name, self._counted(name, getattr(self.client, name)))
        return self

    def __exit__(self, *_: object) -> None:
        for name in CALLS:
            delattr(self.client, name)

    def _counted(self, name: str, call: Any) -> Any:
        def counted(*args: Any, **options: Any) -> Any:
            with self._lock:
                self.calls += 1
                is_last = self.calls == self.at
            if is_last:
                raise Killed
            return call(*args, **options)

        return counted


CALLS = ("update_collection", "create_vector_name", "batch_update_points", "scroll", "count", "query_batch_points")


@pytest.fixture(scope="module")
def uninterrupted() -> Iterator[tuple[int, dict[str, Any]]]:
    with closing(QdrantClient(":memory:")) as client:
        models.fill(client, OLD, COUNT)
        with Dying(client, None) as counting:
            switch_collection(client, NAME, NEW, OLD)
        yield counting.calls, whole(client)


@settings(max_examples=20)
@given(data=st.data())
def test_run_again_after_any_kill_it_ends_alike(uninterrupted: tuple[int, dict[str, Any]], data: st.DataObject) -> None:
    calls, end = uninterrupted
    kills = data.draw(st.lists(st.integers(1, calls), min_size=1, max_size=3))
    with closing(QdrantClient(":memory:")) as client:
        models.fill(client, OLD, COUNT)
        for kill in kills:
            with Dying(client, kill) as dying:
                try:
                    switch_collection(client, NAME, NEW, OLD)
                except Killed:
                    assert searched(client) in (None, "new")
            assert dying.calls >= 1
        switch_collection(client, NAME, NEW, OLD)
        assert whole(client) == end


@pytest.mark.parametrize("kill", range(1, 40, 3))
def test_a_retirement_that_was_killed_ends_when_run_again(kill: int) -> None:
    with closing(QdrantClient(":memory:")) as client:
        models.fill(client, OLD, COUNT)
        switch_collection(client, NAME, NEW, OLD)
        with Dying(client, kill):
            try:
                retire_vector(client, NAME, grace_seconds=0)
            except Killed:
                retire_vector(client, NAME, grace_seconds=0)
        schema = Collection(client, NAME).schema
        assert schema.dense.keys() == {"new"} and schema.active is not None and schema.active.before is None
        assert not [key for key in schema.metadata if key.endswith(":old")]


def test_readers_follow_without_a_failed_or_mixed_query(qdrant: QdrantClient) -> None:
    """Each hit's score is the one of its text by one of the two models, in the vector of that model."""
    rows = models.fill(qdrant, OLD, COUNT)
    asked = [row.partition("。")[0] for row in rows[:20]]
    scores = {model.name: models.brute_force(model, asked, rows) for model in (OLD, NEW)}
    switch_collection(qdrant, NAME, NEW, OLD)
    undo_switch(qdrant, NAME)
    faults: list[object] = []
    seen: set[str] = set()
    stop = threading.Event()

    def read(retriever: Retriever) -> None:
        number = 0
        while not stop.is_set():
            number = (number + 1) % len(asked)
            try:
                [hits] = retriever.search([asked[number]], top_k=5)
            except Exception as error:
                faults.append(error)
                return
            places = [int(hit.point_id) for hit in hits]
            by = [
                name
                for name, known in scores.items()
                if np.allclose([hit.score for hit in hits], known[number][places], atol=1e-4)
                and np.allclose([hit.score for hit in hits], np.sort(known[number])[::-1][:5], atol=1e-4)
            ]
            seen.update(by)
            if len(by) != 1:
                faults.append((number, hits))

    readers = [
        Retriever(qdrant, NAME, OLD, other_models=[NEW], check_seconds=0.02),  # type: ignore[arg-type, list-item]
        Retriever(qdrant, NAME, NEW, other_models=[OLD], check_seconds=0.02),  # type: ignore[arg-type, list-item]
        Retriever(qdrant, NAME, OLD, check_seconds=0.02),  # type: ignore[arg-type]
        Retriever(qdrant, NAME, OLD, vector_name="old", other_models=[NEW], check_seconds=0.02),  # type: ignore[arg-type, list-item]
    ]
    threads = [threading.Thread(target=read, args=(retriever,)) for retriever in readers]
    for thread in threads:
        thread.start()
    for _ in range(6):
        undo_switch(qdrant, NAME)
        time.sleep(0.15)
    stop.set()
    for thread in threads:
        thread.join()
    assert faults == [] and seen == {"old", "new"}
    assert searched(qdrant) == "old"
    assert [reader.resolved.vector_name for reader in readers] == ["old"] * 4
    undo_switch(qdrant, NAME)
    time.sleep(0.03)
    assert [reader.resolved.vector_name for reader in readers] == ["new", "new", "old", "old"]


def test_a_rollback_is_followed_within_a_second(server: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """By one request a second while the vector before is there, of a reader that knows both models and of no other."""
    now = 100.0
    monkeypatch.setattr(resolve, "time", SimpleNamespace(monotonic=lambda: now))
    with open_client(url=server.url) as client:
        rows = models.fill(client, OLD, COUNT)
        switch_collection(client, NAME, NEW, OLD)
        both = Retriever(client, NAME, OLD, other_models=[NEW])  # type: ignore[arg-type, list-item]
        alone = Retriever(client, NAME, NEW)  # type: ignore[arg-type]

        def asked(reader: Retriever) -> list[str]:
            server.requests.clear()
            assert reader.search([rows[7]], top_k=1)[0][0].point_id == "7"
            return [request.method for request in server.requests]

        asked(both), asked(alone)
        for name in ("old", "new"):
            undo_switch(client, NAME)
            assert asked(both) == ["POST"]
            now += 1
            assert asked(both) == ["GET", "GET", "GET", "POST"] and both.resolved.vector_name == name
            assert asked(both) == asked(alone) == ["POST"]
            now += 1
            assert asked(both) == ["GET", "POST"]
        retire_vector(client, NAME, grace_seconds=0)
        now += 30
        assert asked(both) == ["GET", "GET", "POST"]
        now += 1
        assert asked(both) == ["POST"], "nothing can be rolled back"


@pytest.mark.parametrize("fault", ["500", "429", "reset"])
def test_a_look_that_fails_costs_no_answer(server: StandIn, monkeypatch: pytest.MonkeyPatch, fault: Any) -> None:
    """Neither its own search nor the next ones, which do not look again before the next check."""
    now = 100.0
    monkeypatch.setattr(resolve, "time", SimpleNamespace(monotonic=lambda: now))
    with open_client(url=server.url) as client:
        rows = models.fill(client, OLD, COUNT)
        switch_collection(client, NAME, NEW, OLD)
        both = Retriever(client, NAME, OLD, other_models=[NEW])  # type: ignore[arg-type, list-item]
        both.search([rows[7]])
        server.requests.clear()
        server.faults.add(fault, times=100, method="GET", path=f"/collections/{NAME}$")
        for _ in range(3):
            now += 1
            assert both.search([rows[7]], top_k=1)[0][0].point_id == "7"
        assert [request.method for request in server.requests] == ["GET", "POST", "POST", "POST"]
        server.faults.clear()
        undo_switch(client, NAME)
        now += 30
        assert both.search([rows[7]]) and both.resolved.vector_name == "old"


def test_queries_made_elsewhere_are_refused_by_a_reader_of_several_models(qdrant: QdrantClient) -> None:
    """They are of one model, and would be searched in the vector of whichever is active."""
    models.fill(qdrant, OLD, COUNT)
    reader = Retriever(qdrant, NAME, OLD, other_models=[NEW])  # type: ignore[arg-type, list-item]
    with pytest.raises(InputError, match="encode="):
        reader.search(["词001"], encode=OLD.encode_query)


def test_a_reader_of_the_old_model_says_once_that_it_stays(
    qdrant: QdrantClient, caplog: pytest.LogCaptureFixture
) -> None:
    rows = models.fill(qdrant, OLD, COUNT)
    reader = Retriever(qdrant, NAME, OLD, check_seconds=0)  # type: ignore[arg-type]
    switch_collection(qdrant, NAME, NEW, OLD)
    for _ in range(3):
        [hits] = reader.search([rows[7]], top_k=1)
        assert hits[0].point_id == "7"
    assert sum("was switched to vector 'new'" in record.getMessage() for record in caplog.records) == 1


def test_readers_of_the_new_vector_see_the_old_one_retired(qdrant: QdrantClient) -> None:
    rows = models.fill(qdrant, OLD, COUNT)
    reader = Retriever(qdrant, NAME, OLD, other_models=[NEW], check_seconds=0)  # type: ignore[arg-type, list-item]
    switch_collection(qdrant, NAME, NEW, OLD)
    assert reader.search([rows[7]], top_k=1)[0][0].point_id == "7"
    retire_vector(qdrant, NAME, grace_seconds=0)
    assert reader.search([rows[7]], top_k=1)[0][0].point_id == "7" and reader.fingerprint == NEW.fingerprint


def test_the_vector_before_is_not_retired_where_the_active_one_is_gone(qdrant: QdrantClient) -> None:
    """Another program removed that, and readers have returned to the one before."""
    rows = models.fill(qdrant, OLD, COUNT)
    attach_vector(qdrant, NAME, WORSE)
    switch_collection(qdrant, NAME, NEW, OLD)
    qdrant.delete_vector_name(NAME, "new")
    with pytest.raises(InputError, match="is gone"):
        retire_vector(qdrant, NAME, grace_seconds=0)
    reader = Retriever(qdrant, NAME, OLD, other_models=[NEW])  # type: ignore[arg-type, list-item]
    assert reader.search([rows[7]], top_k=1)[0][0].point_id == "7"
    assert undo_switch(qdrant, NAME).now.vector == "old" and searched(qdrant) == "old"
    assert retire_vector(qdrant, NAME, grace_seconds=0) is not None, "what is left of the other one"


@pytest.mark.parametrize("is_undone", [True, False])
def test_the_only_vector_of_points_written_since_is_not_retired(qdrant: QdrantClient, is_undone: bool) -> None:
    """Not even where the switch has written it again, or where the points have terms."""
    models.fill(qdrant, OLD, COUNT)
    attach_vector(qdrant, NAME, None)
    switch_collection(qdrant, NAME, NEW, OLD)
    writer = NEW if is_undone else OLD
    vector: Any = {writer.name: writer.encode_document(["词001 词002"])[0].tolist()}
    qdrant.upsert(NAME, [qdrant_models.PointStruct(id=999, vector=vector, payload={"text": "词001 词002"})], wait=True)
    if is_undone:
        switch_collection(qdrant, NAME, NEW, OLD)
        undo_switch(qdrant, NAME)
    attach_vector(qdrant, NAME, None)
    with pytest.raises(InputError, match=f"1 point has vector '{writer.name}' and not"):
        retire_vector(qdrant, NAME, grace_seconds=0)
    switch_collection(qdrant, NAME, OLD if is_undone else NEW)
    assert retire_vector(qdrant, NAME, grace_seconds=0) is not None
    assert Collection(qdrant, NAME).count_with_vector("old" if is_undone else "new") == COUNT + 1


def test_a_vector_to_which_readers_return_meanwhile_is_not_retired(
    qdrant: QdrantClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.fill(qdrant, OLD, COUNT)
    switch_collection(qdrant, NAME, NEW, OLD)
    wait = Collection._wait_before_renaming

    def wait_for_minutes(place: Collection) -> None:
        undo_switch(qdrant, NAME)
        wait(place)

    monkeypatch.setattr(Collection, "_wait_before_renaming", wait_for_minutes)
    with pytest.raises(InputError, match="were switched to vector 'old'"):
        retire_vector(qdrant, NAME, grace_seconds=0)
    assert searched(qdrant) == "old" and Collection(qdrant, NAME).count_with_vector("old") == COUNT


def test_readers_return_to_no_vector_that_is_being_retired(
    qdrant: QdrantClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.fill(qdrant, OLD, COUNT)
    switch_collection(qdrant, NAME, NEW, OLD)
    clean = detach._clean_payloads

    def clean_for_minutes(part: Collection, name: str) -> int:
        with pytest.raises(InputError, match=r"vector 'old' .* is gone"):
            undo_switch(qdrant, NAME)
        return clean(part, name)

    monkeypatch.setattr(detach, "_clean_payloads", clean_for_minutes)
    assert retire_vector(qdrant, NAME, grace_seconds=0) is not None
    assert searched(qdrant) == "new"


def test_a_switch_of_a_published_version_says_that_the_next_one_loses_it(
    qdrant: QdrantClient, caplog: pytest.LogCaptureFixture
) -> None:
    models.fill(qdrant, OLD, COUNT)
    switch_collection(qdrant, NAME, NEW, OLD)
    undo_switch(qdrant, NAME)
    assert "care publish" not in caplog.text
    Collection(qdrant, NAME).update("as a version", metadata=VersionRecord("source").metadata())
    for _ in range(2):
        caplog.clear()
        undo_switch(qdrant, NAME)
        assert "search what 'source' names: switch that, too" in caplog.text
    caplog.clear()
    switch_collection(qdrant, NAME, NEW, OLD)
    assert "search what 'source' names: switch that, too" in caplog.text


@pytest.mark.parametrize("since", ["", "yesterday", "2026-11-29T14:46:35.5Z", "2026-13-45T99:99:99Z"])
def test_nothing_is_retired_at_a_time_that_is_not_read(qdrant: QdrantClient, since: str) -> None:
    models.fill(qdrant, OLD, COUNT)
    switch_collection(qdrant, NAME, NEW, OLD)
    record = Collection(qdrant, NAME).refresh().metadata["care_active"]
    Collection(qdrant, NAME).update("by another version", metadata={"care_active": {**record, "since": since}})
    with pytest.raises(InputError, match="--roll-back, twice"):
        retire_vector(qdrant, NAME, grace_seconds=0)
    assert undo_switch(qdrant, NAME).now.vector == "old" and undo_switch(qdrant, NAME).now.vector == "new"
    assert retire_vector(qdrant, NAME, grace_seconds=0) is not None


def test_a_record_of_another_version_is_as_none(qdrant: QdrantClient) -> None:
    models.fill(qdrant, OLD, COUNT)
    Collection(qdrant, NAME).update("by another version", metadata={"care_active": {"vector": "new"}})
    assert parse_active(Collection(qdrant, NAME).schema.metadata) is None
    assert Retriever(qdrant, NAME, OLD).resolved.vector_name == "old"  # type: ignore[arg-type]
