"""BM25 of a tenant counts the tenant's own documents, against the formula in a few lines."""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from qdrant_client import QdrantClient

from care_qdrant import IngestSettings, ingest
from care_qdrant.encoders.terms import bm25
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import open_client
from care_qdrant.qdrant.create import index_schemas
from care_qdrant.search.conditions import parse_filter
from care_qdrant.search.query import TENANT_IDF_SINCE
from care_qdrant.search.retriever import Mode, Retriever
from care_qdrant.types import Chunk, Document
from care_qdrant.versions.promote import promote_collection
from tests.search.conftest import COLLECTION, fill
from tests.standin import StandIn
from tests.tiny import HashModel

QUERY = "糖化血红蛋白 HbA1c 6.5% 说明什么"


@pytest.fixture
def tenants(qdrant: QdrantClient, model: HashModel, uneven: list[Document]) -> Iterator[QdrantClient]:
    """Two tenants of very different size in one collection, which says that they are tenants."""
    fill(qdrant, model, [Chunk(document, document.text) for document in uneven])
    Collection(qdrant, COLLECTION).create_indexes(index_schemas({"dept": "tenant"}))
    yield qdrant


@pytest.fixture(scope="session")
def uneven(documents: list[Document]) -> list[Document]:
    """The documents with one tenant of nine, and one of all others."""
    return [
        Document(one.id, one.text, metadata={"dept": "内科" if n % 7 == 0 else "外科", "year": n % 2})
        for n, one in enumerate(documents)
    ]


def _by_hand(model: HashModel, documents: list[Document], counted: list[Document], alpha: float | None) -> list[float]:
    """Return the scores of the tenant's documents, best first, with the IDF among some documents."""
    average = bm25.average_length(one.text for one in documents)
    terms = bm25.query_vector(QUERY) if alpha is None else model.query_terms(QUERY)

    def weights(one: Document) -> dict[int, float]:
        vector = bm25.document_vector(one.text, average_length=average)
        return dict(zip(vector.indices, vector.values, strict=True))

    frequencies = [sum(index in weights(one) for one in counted) for index in terms.indices]
    idf = [math.log(1 + (len(counted) - found + 0.5) / (found + 0.5)) for found in frequencies]
    scores = []
    for one in documents:
        if one.metadata["dept"] != "内科":
            continue
        has, factors = weights(one), zip(terms.indices, terms.values, idf, strict=True)
        lexical = sum(value * weight * has.get(index, 0.0) for index, value, weight in factors)
        if alpha is None:
            scores.append(lexical)
            continue
        cosine = float(np.dot(model.encode_document([one.text])[0], model.encode_query([QUERY])[0]))
        scores.append(alpha * cosine + (1 - alpha) * lexical / (10 * float(np.linalg.norm(terms.values))))
    return sorted((score for score in scores if score or alpha is not None), reverse=True)


def _scores(client: QdrantClient, model: HashModel, mode: Mode, conditions: list[str]) -> list[float]:
    retriever = Retriever(
        client, COLLECTION, None if mode == "sparse" else model, mode=mode, alpha=0.3 if mode == "hybrid" else None
    )
    [hits] = retriever.search([QUERY], 60, parse_filter(conditions, retriever.keys))
    return [hit.score for hit in hits]


@pytest.mark.parametrize(("mode", "alpha"), [("sparse", None), ("hybrid", 0.3)])
def test_terms_are_counted_among_the_documents_of_the_tenant(
    tenants: QdrantClient, model: HashModel, uneven: list[Document], mode: Mode, alpha: float | None
) -> None:
    collection = Collection(tenants, COLLECTION)
    has_idf_of_tenants = collection.is_embedded or collection.is_since(TENANT_IDF_SINCE)
    counted = [one for one in uneven if one.metadata["dept"] == "内科" or not has_idf_of_tenants]
    found = _scores(tenants, model, mode, ["dept=内科"])
    assert found == pytest.approx(_by_hand(model, uneven, counted, alpha), rel=1e-4)
    if mode == "sparse":
        narrower = _scores(tenants, model, mode, ["dept=内科", "year=1"])
        assert set(np.round(narrower, 4)) <= set(np.round(found, 4))
        assert narrower


def test_a_key_that_is_no_tenants_changes_no_score(tenants: QdrantClient, model: HashModel) -> None:
    everything = _scores(tenants, model, "sparse", [])
    assert set(np.round(_scores(tenants, model, "sparse", ["year=1"]), 4)) <= set(np.round(everything, 4))
    retriever = Retriever(tenants, COLLECTION, mode="sparse")
    [grouped] = retriever.search([QUERY], 2, group_by="dept", group_size=60)
    assert sorted(np.round([hit.score for hit in grouped], 4)) == sorted(np.round(everything, 4))


def test_an_older_server_counts_all_documents(model: HashModel, uneven: list[Document]) -> None:
    with StandIn(version="1.18.3") as server, open_client(url=server.url) as client:
        fill(client, model, [Chunk(document, document.text) for document in uneven])
        Collection(client, COLLECTION).create_indexes(index_schemas({"dept": "tenant"}))
        found = _scores(client, model, "sparse", ["dept=内科"])
    assert found == pytest.approx(_by_hand(model, uneven, uneven, None), rel=1e-4)


def test_a_tenant_key_of_a_folder_is_one_on_the_server(
    model: HashModel, uneven: list[Document], tmp_path: Path
) -> None:
    with StandIn() as server, open_client(path=tmp_path) as folder, open_client(url=server.url) as client:
        ingest(uneven, model, folder, COLLECTION, settings=IngestSettings(indexes={"dept": "tenant"}, sparse=True))
        before = _scores(folder, model, "sparse", ["dept=内科"])
        promote_collection(Collection(folder, COLLECTION), Collection(client, COLLECTION))
        assert Collection(client, COLLECTION).schema.tenant_keys == {"dept"}
        assert _scores(client, model, "sparse", ["dept=内科"]) == pytest.approx(before, rel=1e-5)
