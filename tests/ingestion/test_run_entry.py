"""A run writes into the collection that it checked, and what an interrupted run left behind is found."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qdrant_client import QdrantClient, models

from care_qdrant.contracts.metadata import RUN, RUN_MET
from care_qdrant.errors import ContractError, EncodingError, QdrantError
from care_qdrant.ingestion import rows as reading
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.run_entry import RunEntry
from care_qdrant.ingestion.settings import IngestReport, IngestSettings
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.create import SPARSE_VECTOR_NAME, PointVectors
from care_qdrant.types import Document, Vectors, point_id
from tests.ingestion.conftest import WriteCorpus, short_rows
from tests.tiny import HashModel, medical_texts, point_alias

LONG = "".join(medical_texts(40))


def documents(count: int, interrupts: Mapping[int, Callable[[], object]] | None = None) -> Iterator[Document]:
    """Documents, and what happens before some of them are read, by their numbers."""
    for number, row in enumerate(short_rows(count)):
        (interrupts or {}).get(number, lambda: None)()
        yield Document(row["id"], row["text"])


def fail() -> None:
    raise ZeroDivisionError


def traces(client: QdrantClient) -> int:
    """Count the runs that have not ended."""
    return sum(key.startswith(RUN.of("")) for key in Collection(client, "corpus").schema.metadata)


def add_others(client: QdrantClient, model: HashModel) -> None:
    """Write points of another writer for the first seven documents."""
    vector: Any = {model.name: [1.0] + [0.0] * (model.dim - 1)}
    client.upsert("corpus", [models.PointStruct(id=n, vector=vector, payload={"doc_id": f"d{n}"}) for n in range(7)])


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "WINDOW_TEXTS", 20)


def test_an_alias_that_is_switched_meanwhile_does_not_move_the_run(qdrant: QdrantClient) -> None:
    first, second = HashModel(), HashModel(name="second", salt="2")
    ingest(documents(5), first, qdrant, "one")
    ingest(documents(5), second, qdrant, "two")
    point_alias(qdrant, "live", "one")
    report = ingest(documents(200, {100: lambda: point_alias(qdrant, "live", "two")}), first, qdrant, "live")
    assert report.collection == "one"
    assert (qdrant.count("one").count, qdrant.count("two").count) == (200, 5)


@pytest.mark.parametrize("second", [HashModel(), HashModel(salt="2")], ids=["the same model", "another model"])
def test_a_collection_that_is_made_again_meanwhile_is_not_filled(qdrant: QdrantClient, second: HashModel) -> None:
    first, stopped = HashModel(), list[IngestReport]()
    ingest(documents(5), first, qdrant, "corpus")

    def replace() -> None:
        qdrant.delete_collection("corpus")
        ingest(documents(5), second, qdrant, "corpus")

    # A write that is under way at the moment of the deletion is refused by Qdrant; the next window by the contract.
    with pytest.raises((ContractError, QdrantError), match=r"recreated|no such collection"):
        ingest(documents(600, {200: replace}), first, qdrant, "corpus", on_stopped=stopped.append)
    assert stopped[0].points == 0, "of what this run stored, nothing is there any more"
    assert qdrant.count("corpus").count < 300, "200 documents came before, and 400 would come after"


def test_a_collection_that_is_deleted_meanwhile_is_a_clear_error(qdrant: QdrantClient) -> None:
    model = HashModel()
    ingest(documents(5), model, qdrant, "corpus")
    stopped: list[IngestReport] = []
    with pytest.raises(QdrantError, match="deleted while this run wrote to it, with all that was stored"):
        ingest(
            documents(300, {200: lambda: qdrant.delete_collection("corpus")}),
            model,
            qdrant,
            "corpus",
            on_stopped=stopped.append,
        )
    assert stopped[0].points == 0


def test_chunks_that_a_killed_run_left_behind_a_gap_are_deleted(
    qdrant: QdrantClient, write_corpus: WriteCorpus
) -> None:
    """The run was killed when the last chunks were stored and the first were not; then the document became short."""
    rows = [*short_rows(30), {"id": "long", "text": LONG}]
    ingest(write_corpus(rows), HashModel(), qdrant, "corpus")
    collection = Collection(qdrant, "corpus")
    first = [
        record.id
        for page in collection.scroll()
        for record in page
        if (payload := record.payload or {})["doc_id"] == "long" and payload["_care"]["chunk"] < 4
    ]
    collection.delete(first)
    collection.update("as a killed run leaves it", metadata={RUN.of("killed"): {"shard": "1/1"}})

    rows[-1] = {"id": "long", "text": LONG[:40]}
    report = ingest(write_corpus(rows), HashModel(), qdrant, "corpus")
    assert report.deleted > 0
    assert qdrant.count("corpus").count == report.points == report.chunks == 31
    assert traces(qdrant) == 0


def test_a_run_that_fails_leaves_its_trace_and_a_whole_one_removes_it(qdrant: QdrantClient) -> None:
    model = HashModel()
    ingest(documents(5), model, qdrant, "corpus")
    with pytest.raises(ZeroDivisionError):
        ingest(documents(300, {250: fail}), model, qdrant, "corpus")
    assert traces(qdrant) == 1
    ingest(documents(300), model, qdrant, "corpus", settings=IngestSettings(limit=100))
    assert traces(qdrant) == 1
    ingest(documents(300), model, qdrant, "corpus")
    assert traces(qdrant) == 0


def test_points_of_another_writer_are_reported_and_replaced_if_asked(qdrant: QdrantClient) -> None:
    model = HashModel()
    ingest(documents(10), model, qdrant, "corpus")
    add_others(qdrant, model)
    report = ingest(documents(10), model, qdrant, "corpus")
    assert (report.other_points, report.deleted, qdrant.count("corpus").count) == (7, 0, 17)
    report = ingest(documents(10), model, qdrant, "corpus", settings=IngestSettings(replace_others=True))
    assert (report.other_points, report.deleted, qdrant.count("corpus").count) == (7, 7, 10)


def test_points_of_another_writer_are_replaced_by_stored_documents_alone(qdrant: QdrantClient) -> None:
    """No point is deleted for a document that cannot be cut, or of which the encoder makes no vector."""
    model, settings = HashModel(), IngestSettings(replace_others=True)
    ingest(documents(10), model, qdrant, "corpus")
    add_others(qdrant, model)
    encode = model._encoder.encode

    def encode_most(texts: Sequence[str], *, prompt: str | None = None) -> Vectors:
        return encode(texts) * [[0.0 if "坏" in text else 1.0] for text in texts]

    model._encoder.encode = encode_most  # type: ignore[method-assign]
    rows = [Document("d0", "好"), Document("d1", "坏"), Document("d2", "一" * 50, "题" * 40), Document("d3", "好" * 90)]
    dry = ingest(rows, model, qdrant, "corpus", settings=replace(settings, dry_run=True))
    assert (dry.other_points, dry.rejected) == (3, 1)
    report = ingest(rows, model, qdrant, "corpus", settings=settings)
    assert (report.rejected, report.documents, report.deleted) == (2, 2, 2)
    others = [record.id for record in qdrant.scroll("corpus", limit=100)[0] if isinstance(record.id, int)]
    assert sorted(others) == [1, 2, 4, 5, 6]

    model._encoder.encode = lambda texts, **_: encode(texts) * 0  # type: ignore[method-assign]
    with pytest.raises(EncodingError):
        ingest(list(documents(10)), model, qdrant, "corpus", settings=settings)
    assert len([record for record in qdrant.scroll("corpus", limit=100)[0] if isinstance(record.id, int)]) == 5


def test_a_dry_run_counts_the_points_of_another_writer(qdrant: QdrantClient) -> None:
    model = HashModel()
    ingest(documents(10), model, qdrant, "corpus")
    add_others(qdrant, model)
    for replaces, deleted in ((False, 0), (True, 7)):
        settings = IngestSettings(dry_run=True, sync=True, replace_others=replaces)
        report = ingest(documents(10), model, qdrant, "corpus", settings=settings)
        assert (report.other_points, report.deleted, qdrant.count("corpus").count) == (7, deleted, 17)


def test_a_collection_that_is_made_again_under_the_last_window_is_noticed_at_the_end(qdrant: QdrantClient) -> None:
    model, last = HashModel(), short_rows(50)[-1]["text"]
    ingest(documents(5), model, qdrant, "corpus")
    encode = model.query_encoder.encode

    def encode_and_replace(texts: Sequence[str], *, prompt: str | None = None) -> Vectors:
        if last in texts:
            qdrant.delete_collection("corpus")
            ingest(documents(5), HashModel(salt="2"), qdrant, "corpus")
        return encode(texts, prompt=prompt)

    model.query_encoder.encode = encode_and_replace  # type: ignore[method-assign]
    with pytest.raises((ContractError, QdrantError), match=r"recreated|no such collection"):
        ingest(documents(50), model, qdrant, "corpus")


@pytest.mark.parametrize("second", [HashModel(), HashModel(salt="2"), HashModel(dim=8)], ids=["same", "other", "size"])
def test_a_collection_that_is_made_again_before_the_entry_keeps_no_entry(
    qdrant: QdrantClient, monkeypatch: pytest.MonkeyPatch, second: HashModel
) -> None:
    """The entry of a run that wrote nothing to it would say for ever that chunks may be missing."""
    model, update, events = HashModel(), Collection.update, [1]
    ingest(documents(5), model, qdrant, "corpus")

    def made_again_before(self: Collection, what: str, **config: Any) -> None:
        if what == "noting the run" and events:
            events.clear()
            qdrant.delete_collection("corpus")
            ingest(documents(5), second, qdrant, "corpus")
        update(self, what, **config)

    monkeypatch.setattr(Collection, "update", made_again_before)
    with pytest.raises((ContractError, QdrantError)):
        ingest(documents(50), model, qdrant, "corpus")
    assert traces(qdrant) == 0
    assert Collection(qdrant, "corpus").schema.unfinished is None


def test_two_runs_at_once_with_other_chunking_leave_no_chunk_behind(qdrant: QdrantClient) -> None:
    """The second run begins and ends while the first one writes; a later run without sync makes everything right."""
    one, other, ended = HashModel(max_tokens=64), HashModel(max_tokens=20), threading.Event()
    rows = [Document(f"d{n}", f"{n} {LONG[n : n + 150]}") for n in range(120)]
    encode = one.query_encoder.encode

    def encode_after_the_other(texts: Sequence[str], *, prompt: str | None = None) -> Vectors:
        """Wait in the third window until the other run, which begins in the fifth, has ended."""
        assert not any(text.startswith("50 ") for text in texts) or ended.wait(60)
        return encode(texts, prompt=prompt)

    def interrupted() -> Iterator[Document]:
        for number, document in enumerate(rows):
            if number == 90:
                ingest(rows, other, qdrant, "corpus")
                ended.set()
            yield document

    ingest(rows[:1], one, qdrant, "corpus")
    one.query_encoder.encode = encode_after_the_other  # type: ignore[method-assign]
    ingest(interrupted(), one, qdrant, "corpus")
    report = ingest(rows, one, qdrant, "corpus")
    assert qdrant.count("corpus").count == report.points == report.chunks
    assert ingest(rows, one, qdrant, "corpus").unchanged == report.chunks


@pytest.mark.parametrize("is_longer", [True, False])
@given(st.integers(20, 59))
@settings(max_examples=8)
def test_a_newer_run_that_ends_first_keeps_its_documents_whole(is_longer: bool, switch: int) -> None:
    """Else the older run deletes their last chunks at its end, and both say that all is stored."""
    model = HashModel(max_tokens=14)
    texts = ("发烧。", "甲。二三四五六七八九十。三四五六七八九十一。")
    older, newer = ([Document(f"d{n}", f"{text}{n}") for n in range(60)] for text in texts[:: 1 if is_longer else -1])
    with closing(QdrantClient(":memory:")) as client:

        def overtaken() -> Iterator[Document]:
            for number, document in enumerate(older):
                if number == switch:
                    ingest(newer, model, client, "corpus")
                yield document

        ingest(older[-1:], model, client, "corpus")
        with suppress(QdrantError):  # a point that the newer run has deleted: run again
            ingest(overtaken(), model, client, "corpus")
            chunks: dict[str, list[dict[str, Any]]] = {}
            for record in client.scroll("corpus", limit=1_000)[0]:
                payload = record.payload or {}
                chunks.setdefault(payload["doc_id"], []).append(payload["_care"])
            for of_document in chunks.values():
                assert len(of_document) == next(each.get("chunks", 1) for each in of_document if each["chunk"] == 0)
            assert len(chunks) == 60


def test_what_an_equal_run_at_the_same_time_deletes_is_not_lost(qdrant: QdrantClient) -> None:
    """The other run, which begins in the fifth window, deletes the chunks of documents that became shorter."""
    model = HashModel(max_tokens=20)
    long, short = ([Document(f"d{n}", f"{n} {LONG[n : n + size]}") for n in range(120)] for size in (150, 30))

    def overtaken() -> Iterator[Document]:
        for number, document in enumerate(short):
            if number == 90:
                ingest(short, model, qdrant, "corpus")
            yield document

    ingest(long, model, qdrant, "corpus")
    report = ingest(overtaken(), model, qdrant, "corpus")
    assert qdrant.count("corpus").count == report.points == report.chunks


@given(st.permutations(range(4)))
def test_concurrent_runs_lose_no_entry_of_each_other(order: Sequence[int]) -> None:
    """All read the metadata before any of them writes, and at the end nothing is left of the runs that have ended."""
    with closing(QdrantClient(":memory:")) as client:
        ingest(documents(1), HashModel(), client, "corpus")
        vectors = PointVectors(HashModel().name, HashModel().contract())
        entries = [
            RunEntry(Collection(client, "corpus"), vectors, IngestSettings(), [f"/{number}.jsonl"])
            for number in range(len(order))
        ]
        for entry in entries:
            entry.check()
        for number in order:
            entries[number].begin()
        last = RunEntry(Collection(client, "corpus"), vectors, IngestSettings())
        last.check()
        assert {path for entry in entries for path in entry.inputs} <= {*last.other_inputs()}
        for entry in entries:
            entry.end()
        client.update_collection("corpus", metadata=RUN_MET.change(True, "of a run that ended at that very moment"))
        last.end()
        schema = last.collection.refresh()
        assert not RUN.all(schema.metadata) and not RUN_MET.all(schema.metadata)
        assert {path for entry in entries for path in entry.inputs} <= {*last.other_inputs()}


def test_a_run_whose_trace_another_run_removed_leaves_it_again(qdrant: QdrantClient) -> None:
    """Else a run that is killed after another one has ended would leave chunks of which nobody knows."""
    model = HashModel()
    ingest(documents(5), model, qdrant, "corpus")
    others = {100: lambda: ingest(documents(40), model, qdrant, "corpus"), 280: fail}
    with pytest.raises(ZeroDivisionError):
        ingest(documents(300, others), model, qdrant, "corpus")
    assert traces(qdrant) == 1


def test_a_run_of_another_corpus_leaves_the_trace_of_an_interrupted_one(
    qdrant: QdrantClient, write_corpus: WriteCorpus
) -> None:
    rows, model = short_rows(300), HashModel()
    large, small = write_corpus(rows, "large.jsonl"), write_corpus(rows[:5], "small.jsonl")
    shown = 0

    def interrupt(_: object) -> None:
        nonlocal shown
        shown += 1
        if shown == 8:
            fail()

    with pytest.raises(ZeroDivisionError):
        ingest(large, model, qdrant, "corpus", on_progress=interrupt)
    ingest(small, model, qdrant, "corpus")
    assert traces(qdrant) == 1
    ingest(large, model, qdrant, "corpus")
    assert traces(qdrant) == 0


def test_a_batch_of_a_program_leaves_the_trace_of_an_interrupted_one(qdrant: QdrantClient) -> None:
    """Programs pass their documents in batches: the next one does not end what the last one began."""
    model, rows = HashModel(), list(documents(300))
    with pytest.raises(ZeroDivisionError):
        ingest(documents(300, {250: fail}), model, qdrant, "corpus")
    ingest(rows[150:], model, qdrant, "corpus")
    assert traces(qdrant) == 1
    ingest(rows, model, qdrant, "corpus")
    assert traces(qdrant) == 0


def test_a_run_that_lost_points_leaves_its_trace(qdrant: QdrantClient) -> None:
    model = HashModel()
    ingest(documents(5), model, qdrant, "corpus")
    lose = {90: lambda: Collection(qdrant, "corpus").delete([point_id(f"d{n}", 0) for n in range(5)])}
    with pytest.raises(QdrantError, match="some were lost"):
        ingest(documents(100, lose), model, qdrant, "corpus")
    assert traces(qdrant) == 1
    assert ingest(documents(100), model, qdrant, "corpus").points == 100
    assert traces(qdrant) == 0


def test_points_of_other_documents_do_not_hide_what_a_concurrent_run_deleted(qdrant: QdrantClient) -> None:
    model, others = HashModel(), [Document(f"other{n}", f"发烧 {n}") for n in range(50)]
    ingest(others, model, qdrant, "corpus")

    def delete() -> None:
        collection = Collection(qdrant, "corpus")
        collection.update("as another run does it", metadata={RUN.of("other"): {"shard": "1/1"}})
        collection.delete([point_id("d0")])

    with pytest.raises(QdrantError, match=r"100 points were acknowledged, and 99 carry .* some were lost"):
        ingest(documents(100, {90: delete}), model, qdrant, "corpus")
    report = ingest(documents(100), model, qdrant, "corpus")
    assert (report.encoded, report.unchanged, report.points) == (1, 99, 150)


def test_a_missing_bm25_vector_is_written_again(qdrant: QdrantClient) -> None:
    """A text without terms has none, and is not written again and again."""
    model, settings = HashModel(), IngestSettings(sparse=True)
    rows = [*documents(5), Document("none", "。")]
    ingest(rows, model, qdrant, "corpus", settings=settings)
    collection = Collection(qdrant, "corpus")
    before = collection.count_with_vector(SPARSE_VECTOR_NAME)
    collection.delete_vector_of([point_id(f"d{n}", 0) for n in range(3)], SPARSE_VECTOR_NAME)
    report = ingest(rows, model, qdrant, "corpus")
    assert (report.encoded, report.updated) == (0, 3)
    assert collection.count_with_vector(SPARSE_VECTOR_NAME) == before
    assert ingest(rows, model, qdrant, "corpus").unchanged == 6
