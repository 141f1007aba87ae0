"""The way back: ours goes, theirs stays, and nothing of theirs can be taken by mistake."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from qdrant_client import QdrantClient, models

from care_qdrant.contracts.learned import LearnedContract, learned_metadata
from care_qdrant.contracts.payload import chunk_payload
from care_qdrant.contracts.stand_in import stand_in_metadata
from care_qdrant.errors import InputError, Unreachable
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.settings import IngestSettings
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.retry import RetryPolicy
from care_qdrant.search.resolved import StoreConfig, choose_dense, choose_sparse
from care_qdrant.search.retriever import Retriever
from care_qdrant.types import Chunk, Document
from care_qdrant.vectors.attach import attach_vector
from care_qdrant.vectors.detach import detach_vector
from tests.standin import StandIn
from tests.tiny import HashModel
from tests.vectors.collections import NAME, contents, fill

IMPATIENT = RetryPolicy(attempts=2, base_seconds=0.01, cap_seconds=0.02)


def test_the_other_pair_stays_searchable(qdrant: QdrantClient) -> None:
    fill(qdrant, "named", "plain")
    first, second = HashModel(name="a", salt="a"), HashModel(name="b", salt="b")
    attach_vector(qdrant, NAME, first)
    before = contents(qdrant)
    attach_vector(qdrant, NAME, second)
    with pytest.raises(InputError, match="attached vectors are: a, b"):
        detach_vector(qdrant, NAME)
    report = detach_vector(qdrant, NAME, "b")
    assert (report.points, report.payloads_cleaned) == (40, 40)
    assert contents(qdrant) == before
    assert set(Collection(qdrant, NAME).schema.contracts) == {"a"}
    assert attach_vector(qdrant, NAME, first).encoded == 0
    assert Retriever(qdrant, NAME, first).search(["EGFR"], top_k=1)[0]


def test_no_record_of_the_vector_stays(qdrant: QdrantClient, model: HashModel) -> None:
    """Neither of a query encoder that was learned from it, nor of one that stood in for its model."""
    fill(qdrant, "named", "plain")
    attach_vector(qdrant, NAME, model)
    learned = LearnedContract("f" * 64, "learned", model.dim, "Cosine", {"1": "00"})
    records = learned_metadata(model.name, learned) | stand_in_metadata(model.name, {"f" * 64: "learned"})
    qdrant.update_collection(NAME, metadata=records | learned_metadata("old", learned))
    detach_vector(qdrant, NAME)
    metadata = Collection(qdrant, NAME).schema.metadata
    assert [key for key in metadata if key.endswith(model.name)] == []
    assert learned_metadata("old", learned).keys() <= metadata.keys(), "the record of another vector is not touched"


@given(names=st.lists(st.sampled_from("abc"), min_size=1, max_size=8), is_sparse=st.booleans())
def test_a_reader_that_names_no_vector_always_has_one_and_keeps_it_until_it_is_detached(
    names: list[str], is_sparse: bool
) -> None:
    """Vectors of one maker come and go in any order: a name is attached, or detached where it is there."""
    client, model = QdrantClient(":memory:"), HashModel(name="care")
    fill(client, "named", "plain", count=2)
    read: str | None = None
    for name in names:
        schema = Collection(client, NAME).schema
        if schema.has_vector(name):
            detach_vector(client, NAME, name)
            read = None if name == read else read
        else:
            attach_vector(client, NAME, None if is_sparse else model, vector_name=name)
        schema = Collection(client, NAME).schema
        if not schema.attached:
            continue
        config = StoreConfig(bm25=True, contract=None if is_sparse else model.contract())
        chosen = (choose_sparse if is_sparse else choose_dense)(schema, config)
        assert chosen in schema.attached and read in (None, chosen)
        read = chosen


def test_what_ingestion_keeps_under_our_key_stays(qdrant: QdrantClient, model: HashModel) -> None:
    fill(qdrant, "named", "plain", count=0)
    text = "二甲双胍"
    payload = chunk_payload(Chunk(Document("d1", text), text), {"old": "a hash"})
    qdrant.upsert(NAME, [models.PointStruct(id=1, vector={"old": [0.5] * 8}, payload=payload)], wait=True)
    before = contents(qdrant)
    assert attach_vector(qdrant, NAME, model).tool == "care"
    detach_vector(qdrant, NAME)
    assert contents(qdrant) == before


def test_vectors_of_other_tools_are_never_removed(qdrant: QdrantClient, model: HashModel) -> None:
    fill(qdrant, "two", "plain")
    attach_vector(qdrant, NAME, model)
    before = contents(qdrant)
    for name in ("old", "nothing"):
        with pytest.raises(InputError, match=r"was not attached \(attached: care\)"):
            detach_vector(qdrant, NAME, name)
    assert contents(qdrant) == before


def test_what_ingestion_made_is_not_detached(qdrant: QdrantClient, model: HashModel) -> None:
    documents = [Document("d1", "二甲双胍"), Document("d2", "阿司匹林")]
    ingest(documents, model, qdrant, NAME, settings=IngestSettings(sparse=True))
    attach_vector(qdrant, NAME, HashModel(name="b", salt="b"))
    before = contents(qdrant)
    for name in (model.name, "bm25"):
        with pytest.raises(InputError, match=r"was not attached \(attached: b\)"):
            detach_vector(qdrant, NAME, name)
    assert contents(qdrant) == before


def test_the_only_vector_is_not_removed(attached: QdrantClient) -> None:
    attached.delete_vector_name(NAME, "old")
    with pytest.raises(InputError, match="is the only one"):
        detach_vector(attached, NAME)


def test_a_point_that_has_no_other_vector_is_not_left_without_one(attached: QdrantClient, model: HashModel) -> None:
    """A program wrote it after the attach, with the attached vector alone."""
    row = model.encode_document(["头痛"])[0].tolist()
    attached.upsert(NAME, [models.PointStruct(id=901, vector={model.name: row}, payload={"text": "头痛"})], wait=True)
    before = contents(attached)
    with pytest.raises(InputError, match=r"1 point of collection 'articles' have no vector but 'care'"):
        detach_vector(attached, NAME)
    assert contents(attached) == before
    attached.delete(NAME, models.PointIdsList(points=[901]), wait=True)
    detach_vector(attached, NAME)
    assert all(set(point.vector or {}) for point in attached.scroll(NAME, limit=100, with_vectors=True)[0])


@pytest.mark.parametrize("conditions", [None, 1])
def test_a_point_that_had_no_vector_before_the_attach_has_none_after_it(
    qdrant: QdrantClient, model: HashModel, conditions: int | None
) -> None:
    """Points of ingestion have only our vector, and keep it; strict mode may leave no room for a filter on vectors."""
    fill(qdrant, "two", "plain", count=3)
    bare = [models.PointStruct(id=n, vector={}, payload={"text": f"没有向量的点{n}"}) for n in (901, 902)]
    qdrant.upsert(NAME, bare, wait=True)
    before = contents(qdrant)
    attach_vector(qdrant, NAME, model)
    attach_vector(qdrant, NAME, None)
    strict = models.StrictModeConfig(enabled=conditions is not None, filter_max_conditions=conditions)
    qdrant.update_collection(NAME, strict_mode_config=strict)
    for name in ("bm25", model.name):
        detach_vector(qdrant, NAME, name)
    assert contents(qdrant) == before

    qdrant.update_collection(NAME, strict_mode_config=models.StrictModeConfig(enabled=False))
    attach_vector(qdrant, NAME, model)
    ingest([Document("d", "头痛")], model, qdrant, NAME)
    with pytest.raises(InputError, match=r"1 point of collection 'articles' have no vector but 'care'"):
        detach_vector(qdrant, NAME)


def test_nothing_attached_says_so(qdrant: QdrantClient) -> None:
    fill(qdrant, "unnamed", "plain")
    with pytest.raises(InputError, match=r"no attached vector: .* what care attach added, .*: \(unnamed\)\. "):
        detach_vector(qdrant, NAME)


@pytest.mark.parametrize("method", ["POST", "DELETE", "PATCH"])
def test_an_interrupted_detach_is_finished_by_the_next(
    server: StandIn, client: QdrantClient, model: HashModel, method: str
) -> None:
    fill(client, "unnamed", "langchain")
    before = contents(client)
    attach_vector(client, NAME, model)
    server.faults.add("500", times=2, method=method)
    with pytest.raises(Unreachable):
        detach_vector(Collection(client, NAME, IMPATIENT))
    assert contents(client, without="care") == before
    detach_vector(client, NAME)
    assert contents(client) == before
    assert client.get_collection(NAME).config.metadata == {"owner": "team"}


def test_a_vector_that_another_program_made_again_stays(attached: QdrantClient, model: HashModel) -> None:
    collection = Collection(attached, NAME)
    collection.remove_vector(model.name)
    theirs = models.DenseVectorConfig(size=3, distance=models.Distance.DOT)
    collection.add_vector(model.name, models.DenseVectorNameConfig(dense=theirs))
    attached.update_vectors(NAME, [models.PointVectors(id=1, vector={model.name: [1.0, 2.0, 3.0]})], wait=True)
    report = detach_vector(attached, NAME)
    assert report.payloads_cleaned == 40
    [record] = attached.retrieve(NAME, [1], with_vectors=[model.name])
    assert record.vector == {model.name: [1.0, 2.0, 3.0]}
    assert "_care" not in (record.payload or {}) and collection.refresh().metadata == {"owner": "team"}
