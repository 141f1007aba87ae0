"""A run writes into the collection that it checked, and what an interrupted run left behind is found."""

from collections.abc import Iterator
from typing import Any

import pytest
from qdrant_client import QdrantClient, models

from care_qdrant.errors import ContractError, QdrantError
from care_qdrant.ingestion import reading
from care_qdrant.ingestion.run import ingest
from care_qdrant.ingestion.settings import IngestSettings
from care_qdrant.store.collection import Collection
from care_qdrant.store.schema import RUN_PREFIX
from care_qdrant.types import Document
from tests.ingestion.conftest import WriteCorpus, short_rows
from tests.tiny import HashModel, medical_texts

LONG = "".join(medical_texts(40))


def documents(count: int, interrupt: Any = None, at: int = 0) -> Iterator[Document]:
    """Documents, and something that happens before one of them is read."""
    for number, row in enumerate(short_rows(count)):
        if number == at and interrupt is not None:
            interrupt()
        yield Document(row["id"], row["text"])


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "WINDOW_DOCUMENTS", 20)


def test_an_alias_that_is_switched_meanwhile_does_not_move_the_run(qdrant: QdrantClient) -> None:
    first, second = HashModel(), HashModel(name="second", salt="2")
    ingest(documents(5), first, qdrant, "one")
    ingest(documents(5), second, qdrant, "two")

    def switch(to: str) -> None:
        create = models.CreateAlias(collection_name=to, alias_name="live")
        qdrant.update_collection_aliases([models.CreateAliasOperation(create_alias=create)])

    switch("one")
    report = ingest(documents(200, lambda: switch("two"), at=100), first, qdrant, "live")
    assert report.collection == "one"
    assert (qdrant.count("one").count, qdrant.count("two").count) == (200, 5)


def test_a_collection_that_is_made_again_meanwhile_is_not_filled(qdrant: QdrantClient) -> None:
    first, second = HashModel(), HashModel(name="hash-model", salt="2")
    ingest(documents(5), first, qdrant, "corpus")

    def replace() -> None:
        qdrant.delete_collection("corpus")
        ingest(documents(5), second, qdrant, "corpus")

    # A write that is under way at the moment of the deletion is refused by Qdrant; the next window by the contract.
    with pytest.raises((ContractError, QdrantError), match="made by|made again|not found"):
        ingest(documents(600, replace, at=200), first, qdrant, "corpus")
    assert qdrant.count("corpus").count < 300, "200 documents came before, and 400 would come after"


def test_the_same_model_in_a_new_collection_of_the_same_name_is_noticed(qdrant: QdrantClient) -> None:
    model = HashModel()
    ingest(documents(5), model, qdrant, "corpus")

    def replace() -> None:
        qdrant.delete_collection("corpus")
        ingest(documents(5), model, qdrant, "corpus")

    with pytest.raises((ContractError, QdrantError), match="deleted and made again while this run wrote|not found"):
        ingest(documents(600, replace, at=200), model, qdrant, "corpus")
    assert qdrant.count("corpus").count < 300, "200 documents came before, and 400 would come after"


def test_a_collection_that_is_deleted_meanwhile_is_a_clear_error(qdrant: QdrantClient) -> None:
    model = HashModel()
    ingest(documents(5), model, qdrant, "corpus")
    with pytest.raises(QdrantError, match="corpus"):
        ingest(documents(300, lambda: qdrant.delete_collection("corpus"), at=200), model, qdrant, "corpus")


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
    collection.update("as a killed run leaves it", metadata={f"{RUN_PREFIX}killed": {"shard": "1/1"}})

    rows[-1] = {"id": "long", "text": LONG[:40]}
    report = ingest(write_corpus(rows), HashModel(), qdrant, "corpus")
    assert report.deleted > 0
    assert qdrant.count("corpus").count == report.points == report.chunks == 31
    assert not any(key.startswith(RUN_PREFIX) for key in collection.refresh().metadata)


def test_a_run_that_fails_leaves_its_trace_and_a_whole_one_removes_it(qdrant: QdrantClient) -> None:
    model = HashModel()
    ingest(documents(5), model, qdrant, "corpus")

    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ingest(documents(300, fail, at=250), model, qdrant, "corpus")
    collection = Collection(qdrant, "corpus")
    assert sum(key.startswith(RUN_PREFIX) for key in collection.schema.metadata) == 1
    ingest(documents(300), model, qdrant, "corpus", settings=IngestSettings(limit=100))
    assert sum(key.startswith(RUN_PREFIX) for key in collection.refresh().metadata) == 1
    ingest(documents(300), model, qdrant, "corpus")
    assert not any(key.startswith(RUN_PREFIX) for key in collection.refresh().metadata)


def test_points_of_another_writer_are_reported_and_replaced_if_asked(qdrant: QdrantClient) -> None:
    model = HashModel()
    ingest(documents(10), model, qdrant, "corpus")
    nodes = [
        models.PointStruct(
            id=number, vector={model.name: [1.0] + [0.0] * (model.dim - 1)}, payload={"doc_id": f"d{number}"}
        )
        for number in range(7)
    ]
    qdrant.upsert("corpus", nodes)
    report = ingest(documents(10), model, qdrant, "corpus")
    assert (report.other_points, report.deleted, qdrant.count("corpus").count) == (7, 0, 17)
    report = ingest(documents(10), model, qdrant, "corpus", settings=IngestSettings(replace_others=True))
    assert (report.other_points, report.deleted, qdrant.count("corpus").count) == (7, 7, 10)
