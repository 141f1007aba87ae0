"""BM25 for a collection that is there: the vectors of ingestion, found, verified, kept up and removed again."""

import pytest
from qdrant_client import QdrantClient, models

from care_qdrant.contracts.contract import SparseContract
from care_qdrant.errors import SchemaMismatch
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.settings import IngestSettings
from care_qdrant.qdrant.collection import Collection
from care_qdrant.search.retriever import Retriever
from care_qdrant.types import Document
from care_qdrant.vectors.attach import attach_vector
from care_qdrant.vectors.detach import detach_vector
from care_qdrant.vectors.verify import verify_collection
from tests.tiny import HashModel, medical_texts
from tests.vectors.collections import NAME, SCHEMAS, TOOLS, contents, fill

TEXTS = medical_texts(40)


@pytest.mark.parametrize("tool", TOOLS)
def test_it_is_added_found_verified_and_removed(qdrant: QdrantClient, tool: str) -> None:
    fill(qdrant, "named", tool)
    before = contents(qdrant)
    report = attach_vector(qdrant, NAME, None)
    assert (report.encoded, report.covered, report.without_text) == (40, 40, 0)
    assert attach_vector(qdrant, NAME, None).encoded == 0
    verified = verify_collection(qdrant, NAME, None)
    assert verified.problems == [] and verified.known_items == 1.0
    assert verified.lowest_cosine == pytest.approx(1.0, abs=1e-6)
    detach_vector(qdrant, NAME)
    assert contents(qdrant) == before
    assert not Collection(qdrant, NAME).schema.contracts


@pytest.mark.parametrize("schema", [name for name in SCHEMAS if name != "sparse"])
def test_with_a_models_vector_searches_are_hybrid(qdrant: QdrantClient, model: HashModel, schema: str) -> None:
    fill(qdrant, schema, "langchain")
    attach_vector(qdrant, NAME, model)
    attach_vector(qdrant, NAME, None)
    retriever = Retriever(qdrant, NAME, model)
    [[hit]] = retriever.search([TEXTS[7]], top_k=1)
    assert retriever.mode == "hybrid" and hit.text == TEXTS[7]
    [[hit]] = Retriever(qdrant, NAME, mode="sparse").search([TEXTS[9]], top_k=1)
    assert hit.text == TEXTS[9]


def test_points_and_hashes_are_those_of_ingestion(qdrant: QdrantClient) -> None:
    model = HashModel(max_tokens=512)
    documents = [Document(f"d{number}", text) for number, text in enumerate(TEXTS)]
    ingest(documents, model, qdrant, "whole", settings=IngestSettings(sparse=True))
    ingest(documents, model, qdrant, NAME)
    attach_vector(qdrant, NAME, None)
    whole, added = (Collection(qdrant, name) for name in ("whole", NAME))
    constants = [collection.schema.contracts["bm25"] for collection in (whole, added)]
    assert all(isinstance(contract, SparseContract) for contract in constants)
    assert constants[0].average_length == pytest.approx(constants[1].average_length)  # type: ignore[union-attr]
    ours, theirs = (
        {record.id: record.vector["bm25"] for page in collection.scroll(vectors=True) for record in page}  # type: ignore[index,call-overload]
        for collection in (added, whole)
    )
    assert ours.keys() == theirs.keys()
    for point_id, vector in ours.items():
        assert dict(zip(vector.indices, vector.values, strict=True)) == pytest.approx(
            dict(zip(theirs[point_id].indices, theirs[point_id].values, strict=True)), rel=1e-5
        )
    report = ingest(documents, model, qdrant, NAME, settings=IngestSettings(sparse=True))
    assert (report.encoded, report.updated, report.unchanged) == (0, 0, 40)


def test_a_changed_text_is_noticed_and_made_anew(qdrant: QdrantClient) -> None:
    fill(qdrant, "named", "plain")
    attach_vector(qdrant, NAME, None)
    qdrant.set_payload(NAME, {"text": "完全不同的句子"}, points=[1], wait=True)
    assert verify_collection(qdrant, NAME, None).outdated == 1
    assert attach_vector(qdrant, NAME, None).encoded == 1
    assert verify_collection(qdrant, NAME, None).problems == []
    qdrant.update_vectors(
        NAME, [models.PointVectors(id=1, vector={"bm25": models.SparseVector(indices=[5], values=[1.0])})], wait=True
    )
    assert any("cosine" in problem for problem in verify_collection(qdrant, NAME, None).problems)


def test_a_sparse_vector_of_another_tool_is_left_alone(qdrant: QdrantClient) -> None:
    fill(qdrant, "sparse", "plain")
    before = contents(qdrant)
    with pytest.raises(SchemaMismatch, match="IDF modifier"):
        attach_vector(qdrant, NAME, None, vector_name="terms")
    assert contents(qdrant) == before
    assert attach_vector(qdrant, NAME, None).covered == 40
    assert contents(qdrant) != before


@pytest.mark.parametrize("marks", ["。。。", "!!!", "😀", "…—"])
def test_a_text_without_terms_gets_no_vector_and_stops_nothing(qdrant: QdrantClient, marks: str) -> None:
    fill(qdrant, "named", "plain")
    text = (qdrant.retrieve(NAME, [1])[0].payload or {})["text"]
    qdrant.set_payload(NAME, {"text": marks}, points=[1, 3], wait=True)
    first = attach_vector(qdrant, NAME, None)
    assert (first.encoded, first.without_text, first.covered) == (38, 2, 38)
    again = attach_vector(qdrant, NAME, None)
    assert (again.encoded, again.unchanged, again.without_text, again.removed) == (0, 38, 2, 0)
    assert verify_collection(qdrant, NAME, None).problems == []

    qdrant.set_payload(NAME, {"text": text}, points=[1], wait=True)
    qdrant.set_payload(NAME, {"text": marks}, points=[5], wait=True)
    changed = attach_vector(qdrant, NAME, None)
    assert (changed.encoded, changed.removed, changed.covered) == (1, 1, 38)
    assert verify_collection(qdrant, NAME, None).problems == []
    detach_vector(qdrant, NAME)
    assert not any("_care" in (record.payload or {}) for record in qdrant.scroll(NAME, limit=100)[0])


def test_a_collection_whose_texts_have_no_terms_waits_for_some(qdrant: QdrantClient) -> None:
    fill(qdrant, "named", "plain", count=3)
    everything = [record.id for record in qdrant.scroll(NAME)[0]]
    qdrant.set_payload(NAME, {"text": "。。。"}, points=everything, wait=True)
    assert (attach_vector(qdrant, NAME, None).without_text, verify_collection(qdrant, NAME, None).problems) == (3, [])
    qdrant.set_payload(NAME, {"text": "高血压"}, points=everything, wait=True)
    assert attach_vector(qdrant, NAME, None).covered == 3


def test_ingestion_takes_the_vector_of_a_text_that_lost_its_terms(qdrant: QdrantClient) -> None:
    """Whether the dense vector is written with it or not."""
    model, settings = HashModel(), IngestSettings(sparse=True)
    rows = [Document("a", "高血压"), Document("b", "。。。"), Document("c", "糖尿病")]
    ingest(rows, model, qdrant, NAME, settings=settings)
    collection = Collection(qdrant, NAME)
    rows[0] = Document("a", "!!!")
    ingest(rows, model, qdrant, NAME, settings=settings)
    assert collection.count_with_vector("bm25") == 1
    assert verify_collection(qdrant, NAME, model).problems == []
    for point in collection.ids():
        collection.delete_payload_key(point, '_care.vectors."bm25"')
    report = ingest(rows, model, qdrant, NAME, settings=settings)
    assert (report.encoded, report.updated) == (0, 3)
    assert attach_vector(qdrant, NAME, None).encoded == 0
    assert ingest(rows, model, qdrant, NAME, settings=settings).unchanged == 3
    assert verify_collection(qdrant, NAME, model).problems == []
