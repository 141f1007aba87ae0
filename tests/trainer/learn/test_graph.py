"""How wide a collection's graph is searched for learned queries: measured, recorded, used by every reader."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from care_trainer.learn.graph import MAX_LOSS, Width, measure_graph, narrowest, recall
from care_trainer.learn.learn import learn
from care_trainer.learn.outcome import LearnReport
from care_trainer.learn.settings import LearnSettings
from llama_index.core import VectorStoreIndex
from llama_index.embeddings.care import CareEmbedding
from llama_index.vector_stores.care import CareVectorStore
from qdrant_client import QdrantClient, models

from care_qdrant.model.care_model import CareModel
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import open_client
from care_qdrant.search.retriever import Retriever
from tests.trainer.learn.collections import DIM, WordModel, word_texts, write_langchain

NAME, EF_CONSTRUCT = "graph", 8
TEXTS = word_texts(4_000)
QUESTIONS = [text[:11] for text in TEXTS[:60]]


@pytest.mark.parametrize(
    ("recalls", "chosen"),
    [((0.99, 0.995, 1.0), 8), ((0.9, 0.98, 0.99), 128), ((0.5, 0.6, 0.9), 256), ((0.7, 0.69, 0.7), 8)],
)
def test_the_narrowest_width_that_loses_little_is_chosen(recalls: Sequence[float], chosen: int) -> None:
    widths = [Width(hnsw_ef, found, 1.0) for hnsw_ef, found in zip((8, 128, 256), recalls, strict=True)]
    assert narrowest(widths) == chosen


def test_recall_is_the_mean_share_of_the_exact_answers() -> None:
    assert recall([{"a", "b"}, {"c"}, set()], [{"a", "b"}, {"c", "d"}, {"e"}]) == 0.5


def test_an_embedded_database_has_no_graph() -> None:
    client = QdrantClient(":memory:")
    write_langchain(client, TEXTS[:20], WordModel().encode(TEXTS[:20]))
    assert measure_graph(Collection(client, "articles"), "", WordModel().encode(QUESTIONS)) is None


@pytest.fixture(scope="module")
def poor(real_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[QdrantClient, Path, LearnReport]]:
    """A collection on a real server whose graph has few links, the folder learned from it, and the report."""
    with open_client(url=real_url) as client:
        client.delete_collection(NAME)
        client.create_collection(
            NAME,
            models.VectorParams(size=DIM, distance=models.Distance.COSINE),
            hnsw_config=models.HnswConfigDiff(m=4, ef_construct=EF_CONSTRUCT, full_scan_threshold=10),
            optimizers_config=models.OptimizersConfigDiff(indexing_threshold=100, default_segment_number=1),
        )
        payloads = [{"page_content": text, "metadata": {}} for text in TEXTS]
        client.upload_collection(NAME, WordModel().encode(TEXTS), payloads, ids=range(len(TEXTS)), wait=True)
        Collection(client, NAME).wait_for_optimizer(120)
        settings = LearnSettings(sample=1_000, vocabulary=200, batch=64, epochs=10, learning_rate=2e-2)
        folder = tmp_path_factory.mktemp("graph") / "queries"
        yield client, folder, learn(client, NAME, folder, settings=settings, force=True)
        client.delete_collection(NAME)


@pytest.mark.server
@pytest.mark.timeout(400)
def test_every_reader_searches_a_poor_graph_as_wide_as_learning_recorded(
    poor: tuple[QdrantClient, Path, LearnReport],
) -> None:
    client, folder, report = poor
    graph = report.graph
    assert graph is not None and graph.hnsw_ef is not None
    assert [width.hnsw_ef for width in graph.widths] == [EF_CONSTRUCT, 128, 256, 512]
    by_width = {width.hnsw_ef: width.recall_at_10 for width in graph.widths}
    assert by_width[graph.hnsw_ef] >= max(by_width.values()) - MAX_LOSS > by_width[EF_CONSTRUCT] + 0.05
    assert Collection(client, NAME).schema.learned[""].hnsw_ef == graph.hnsw_ef

    model = CareModel.load(folder)
    vectors = model.encode_query(QUESTIONS).tolist()

    def ask(params: models.SearchParams | None) -> list[set[str]]:
        requests = [models.QueryRequest(query=vector, params=params, limit=10) for vector in vectors]
        return [{str(point.id) for point in one.points} for one in client.query_batch_points(NAME, requests)]

    exact, narrow = ask(models.SearchParams(exact=True)), ask(None)
    hits = [{hit.point_id for hit in found} for found in Retriever(client, NAME, model).search(QUESTIONS)]
    index = VectorStoreIndex.from_vector_store(
        CareVectorStore(collection_name=NAME, client=client), embed_model=CareEmbedding(model=str(folder))
    )
    by_default = index.as_retriever(similarity_top_k=10)
    as_wide_as_asked = index.as_retriever(
        similarity_top_k=10, vector_store_kwargs={"search_params": {"hnsw_ef": EF_CONSTRUCT}}
    )
    nodes, few = (
        [{node.node_id for node in retriever.retrieve(question)} for question in QUESTIONS]
        for retriever in (by_default, as_wide_as_asked)
    )
    assert recall(narrow, exact) == recall(few, exact) < recall(hits, exact) - 0.05
    assert recall(nodes, exact) == recall(hits, exact) == recall(ask(models.SearchParams(hnsw_ef=graph.hnsw_ef)), exact)


@pytest.mark.server
@pytest.mark.timeout(400)
def test_what_a_server_forbids_is_not_asked_for(poor: tuple[QdrantClient, Path, LearnReport]) -> None:
    client, folder, _ = poor
    collection = Collection(client, NAME)

    def allow(**limits: object) -> None:
        config = models.StrictModeConfig(enabled=True, **limits)  # type: ignore[arg-type]
        client.update_collection(NAME, strict_mode_config=config)

    allow(search_max_hnsw_ef=100)
    assert len(Retriever(client, NAME, CareModel.load(folder)).search(QUESTIONS)[0]) == 10
    vectors = WordModel().encode(QUESTIONS)
    found = measure_graph(collection, "", vectors)
    assert found is not None and [width.hnsw_ef for width in found.widths] == [EF_CONSTRUCT]
    allow(search_allow_exact=False)
    assert measure_graph(collection, "", vectors) is None
