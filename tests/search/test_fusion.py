"""The fused scores against the formula in a few lines, in local mode, over HTTP and in Qdrant's own engine."""

import math
from pathlib import Path

import numpy as np
import pytest
import qdrant_edge as edge
from qdrant_client import QdrantClient, models

from care_qdrant.contracts.contract import sparse_vector
from care_qdrant.encoders.terms import bm25
from care_qdrant.errors import InputError
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.settings import IngestSettings
from care_qdrant.search import fusion
from care_qdrant.search.retriever import Retriever
from care_qdrant.types import Document, embedded_text
from care_qdrant.vectors.attach import attach_vector
from tests.search.conftest import COLLECTION, EuclidModel
from tests.tiny import HashModel, medical_texts

QUERIES = ["糖化血红蛋白 HbA1c 6.5% 说明什么", "二甲双胍恶心怎么办", "EGFR 靶向药"]
ALPHA = 0.3


@pytest.fixture
def few_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take few candidates, so that most points are in one of the two lists only."""
    monkeypatch.setattr(fusion, "CANDIDATES", 8)


def test_every_candidate_is_scored_by_both_vectors(
    corpus: QdrantClient, model: HashModel, documents: list[Document], few_candidates: None
) -> None:
    retriever = Retriever(corpus, COLLECTION, model, mode="hybrid", alpha=ALPHA)
    for query, hits in zip(QUERIES, retriever.search(QUERIES, top_k=8), strict=True):
        expected = _linear(query, model, documents)
        assert [hit.document_id for hit in hits] == list(expected)[:8]
        assert [hit.score for hit in hits] == pytest.approx(list(expected.values())[:8], rel=1e-4)


def test_alpha_reaches_from_one_score_to_the_other(
    corpus: QdrantClient, model: HashModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scores(mode: str, alpha: float = 0.5) -> list[float]:
        [hits] = Retriever(corpus, COLLECTION, model, mode=mode, alpha=alpha).search(QUERIES[:1], top_k=5)
        return [hit.score for hit in hits]

    assert scores("hybrid", alpha=1.0) == pytest.approx(scores("dense"), rel=1e-5)
    monkeypatch.setattr(model, "query_terms", bm25.query_vector)  # as BM25 alone has them
    weight = fusion.bm25_weight(bm25.query_vector(QUERIES[0]).values)
    assert scores("hybrid", alpha=0.0) == pytest.approx([score * weight for score in scores("sparse")], rel=1e-5)


@pytest.mark.parametrize("method", ["linear", "dbsf", "rrf"])
def test_fewer_candidates_are_asked_of_a_server_that_allows_fewer(
    served: QdrantClient, model: HashModel, caplog: pytest.LogCaptureFixture, method: "fusion.Fusion"
) -> None:
    [free] = Retriever(served, COLLECTION, model, mode="hybrid", fusion=method).search(QUERIES[:1], top_k=3)
    strict = models.StrictModeConfig(enabled=True, max_query_limit=20, search_allow_exact=False)
    served.update_collection(COLLECTION, strict_mode_config=strict)
    retriever = Retriever(served, COLLECTION, model, mode="hybrid", fusion=method)
    [limited] = retriever.search(QUERIES[:1], top_k=3)
    retriever.search(QUERIES[:1], top_k=3)
    assert limited[0].point_id == free[0].point_id
    assert len(caplog.records) == 1


def test_a_batch_of_queries_is_halved_where_the_rate_allows_fewer(
    served: QdrantClient, model: HashModel, documents: list[Document]
) -> None:
    texts = [document.text for document in documents[:9]]
    free = Retriever(served, COLLECTION, model, mode="dense").search(texts, top_k=3)
    strict = models.StrictModeConfig(enabled=True, read_rate_limit=8)
    served.update_collection(COLLECTION, strict_mode_config=strict)
    assert Retriever(served, COLLECTION, model, mode="dense").search(texts, top_k=3) == free


@pytest.mark.parametrize("method", ["dbsf", "rrf"])
def test_qdrants_own_fusions_are_asked_for(corpus: QdrantClient, model: HashModel, method: "fusion.Fusion") -> None:
    [hits] = Retriever(corpus, COLLECTION, model, mode="hybrid", fusion=method).search(QUERIES[:1], top_k=10)
    dense = models.Prefetch(query=model.encode_query(QUERIES[:1])[0].tolist(), using=model.name, limit=100)
    sparse = models.Prefetch(query=sparse_vector(bm25.query_vector(QUERIES[0])), using=bm25.VECTOR_NAME, limit=100)
    expected = corpus.query_points(
        COLLECTION, prefetch=[dense, sparse], query=models.FusionQuery(fusion=models.Fusion(method)), limit=10
    )
    assert [hit.point_id for hit in hits] == [point.id for point in expected.points]


@pytest.mark.parametrize("alpha", [0.0, 0.2, 0.5, 0.8, 1.0])
def test_alpha_weighs_ranks(corpus: QdrantClient, model: HashModel, alpha: float) -> None:
    """The score is Qdrant's: 1 / ((rank + 1) / weight + 1) over both lists, with weights that sum to 2."""
    [found] = Retriever(corpus, COLLECTION, model, mode="hybrid", fusion="rrf", alpha=alpha).search(
        QUERIES[:1], top_k=9
    )
    expected: dict[str, float] = {}
    for vector, name, weight in (
        (model.encode_query(QUERIES[:1])[0].tolist(), model.name, 2 * alpha),
        (sparse_vector(model.query_terms(QUERIES[0])), bm25.VECTOR_NAME, 2 - 2 * alpha),
    ):
        listed = corpus.query_points(COLLECTION, query=vector, using=name, limit=100).points
        for rank, point in enumerate(listed):
            score = 1 / ((rank + 1) / weight + 1) if weight else 0.0
            expected[str(point.id)] = expected.get(str(point.id), 0.0) + score
    assert [hit.score for hit in found] == pytest.approx(sorted(expected.values(), reverse=True)[:9], rel=1e-4)
    assert [hit.score for hit in found] == pytest.approx([expected[hit.point_id] for hit in found], rel=1e-4)


def test_a_share_that_a_fusion_cannot_take_is_refused(corpus: QdrantClient, model: HashModel) -> None:
    with pytest.raises(InputError, match=r"alpha is 0\.8, and dbsf takes both lists alike"):
        Retriever(corpus, COLLECTION, model, mode="hybrid", fusion="dbsf", alpha=0.8).search(QUERIES)


def test_a_query_without_terms_is_searched_by_its_dense_vector(corpus: QdrantClient, model: HashModel) -> None:
    dense, hybrid = (Retriever(corpus, COLLECTION, model, mode=mode) for mode in ("dense", "hybrid"))
    assert hybrid.search(["？！"], top_k=3)[0][0].point_id == dense.search(["？！"], top_k=3)[0][0].point_id


def test_a_point_that_lacks_the_dense_vector_is_still_found(corpus: QdrantClient, model: HashModel) -> None:
    """An attach that is not finished leaves such points."""
    client = QdrantClient(":memory:")
    corpus.migrate(client, [COLLECTION])
    [best] = Retriever(client, COLLECTION, mode="sparse").search(["EGFR"], top_k=1)[0]
    client.delete_vectors(COLLECTION, [model.name], [best.point_id])
    hits = Retriever(client, COLLECTION, model, mode="hybrid", alpha=0.1).search(["EGFR"], top_k=60)[0]
    client.close()
    assert best.point_id in {hit.point_id for hit in hits}


@pytest.mark.parametrize("method", ["linear", "rrf"])
def test_distances_of_unit_vectors_fuse_as_their_cosines_do(client: QdrantClient, method: "fusion.Fusion") -> None:
    """Both vectors are in one collection: two collections may order points of equal BM25 scores in two ways."""
    documents = [Document(f"d{n}", text, title=f"第 {n} 问怎么办") for n, text in enumerate(medical_texts(80))]
    ingest(documents, HashModel(), client, "both", settings=IngestSettings(sparse=True))
    attach_vector(client, "both", EuclidModel(), vector_name="euclid")
    queries = [embedded_text(documents[7].title, documents[7].text), *QUERIES]
    by_cosine, by_distance = (
        Retriever(client, "both", model, mode="hybrid", vector_name=name, fusion=method).search(queries, top_k=8)
        for name, model in ((HashModel().name, HashModel()), ("euclid", EuclidModel()))
    )
    for expected, hits in zip(by_cosine, by_distance, strict=True):
        assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in expected], abs=1e-5)
    assert by_distance[0][0].document_id == "d7"


def test_a_fusion_that_has_no_scale_for_distances_is_refused() -> None:
    leaf = models.Prefetch(query=models.SparseVector(indices=[1], values=[1.0]))
    for method, distance in (("linear", "Manhattan"), ("dbsf", "Manhattan"), ("dbsf", "Euclid")):
        with pytest.raises(InputError, match=f"{distance} distance, which {method} cannot add to BM25: take rrf"):
            fusion.fused_request(leaf, leaf, fusion=method, alpha=0.5, limit=3, distance=models.Distance(distance))  # type: ignore[arg-type]


@pytest.mark.parametrize("distance", [models.Distance.COSINE, models.Distance.EUCLID])
def test_qdrants_engine_computes_what_local_mode_computes(
    model: HashModel, documents: list[Document], few_candidates: None, tmp_path: Path, distance: models.Distance
) -> None:
    shard = _shard(tmp_path, model, documents, edge.Distance.Euclid if distance == "Euclid" else edge.Distance.Cosine)
    for query in QUERIES:
        dense, sparse = model.encode_query([query])[0].tolist(), sparse_vector(model.query_terms(query))
        request = fusion.fused_request(
            models.Prefetch(query=dense, using="dense"),
            models.Prefetch(query=sparse, using="bm25"),
            fusion="linear",
            alpha=ALPHA,
            limit=8,
            distance=distance,
        )
        found = [documents[point.id].id for point in shard.query(_edge_request(request))]
        assert found == list(_linear(query, model, documents))[:8]
    shard.close()


def _linear(query: str, model: HashModel, documents: list[Document]) -> dict[str, float]:
    """Score the union of both candidate lists by both vectors, best first."""
    texts = [document.text for document in documents]
    cosine = model.encode_document(texts) @ model.encode_query([query])[0]
    average = bm25.average_length(texts)
    vectors = [bm25.document_vector(text, average_length=average) for text in texts]
    weights = [dict(zip(vector.indices, vector.values, strict=True)) for vector in vectors]
    terms = model.query_terms(query)
    lexical = np.zeros(len(texts))
    for index, count in zip(terms.indices, terms.values, strict=True):
        holders = [n for n, weight in enumerate(weights) if index in weight]
        idf = math.log(1 + (len(texts) - len(holders) + 0.5) / (len(holders) + 0.5))
        for n in holders:
            lexical[n] += idf * count * weights[n][index]
    candidates = {*np.argsort(-cosine)[:8], *(n for n in np.argsort(-lexical)[:8] if lexical[n] > 0)}
    scores = ALPHA * cosine + (1 - ALPHA) * lexical / (10 * np.linalg.norm(terms.values))
    return {documents[n].id: float(scores[n]) for n in sorted(candidates, key=lambda n: -scores[n])}


def _shard(folder: Path, model: HashModel, documents: list[Document], distance: "edge.Distance") -> "edge.EdgeShard":
    dense = edge.EdgeVectorParams(size=model.dim, distance=distance)
    sparse = edge.EdgeSparseVectorParams(modifier=edge.Modifier.Idf)
    shard = edge.EdgeShard.create(
        str(folder), edge.EdgeConfig(vectors={"dense": dense}, sparse_vectors={"bm25": sparse})
    )
    texts = [document.text for document in documents]
    average = bm25.average_length(texts)
    points = []
    for n, (text, vector) in enumerate(zip(texts, model.encode_document(texts), strict=True)):
        terms = bm25.document_vector(text, average_length=average)
        vectors = {"dense": vector.tolist(), "bm25": edge.SparseVector(terms.indices, terms.values)}
        points.append(edge.Point(n, vectors, {}))
    shard.update(edge.UpdateOperation.upsert_points(points))
    return shard


def _edge_request(request: models.QueryRequest) -> "edge.QueryRequest":
    """Translate our request word by word."""
    formula = request.query
    expression = edge.Expression

    def translated(part: models.Expression) -> "edge.Expression":
        if isinstance(part, models.MultExpression):
            return expression.Mult(list(map(translated, part.mult)))
        return expression.Variable(part) if isinstance(part, str) else expression.Constant(part)

    terms = list(map(translated, formula.formula.sum))
    return edge.QueryRequest(
        limit=request.limit,
        prefetches=[_edge_prefetch(prefetch) for prefetch in request.prefetch],
        query=edge.Formula(edge.Expression.Sum(terms), dict(formula.defaults)),
    )


def _edge_prefetch(prefetch: models.Prefetch) -> "edge.Prefetch":
    vector = prefetch.query
    if isinstance(vector, models.SparseVector):
        vector = edge.SparseVector(vector.indices, vector.values)
    return edge.Prefetch(
        limit=prefetch.limit,
        query=edge.Query.Nearest(vector, using=prefetch.using),
        prefetches=[_edge_prefetch(inner) for inner in prefetch.prefetch or []],
    )
