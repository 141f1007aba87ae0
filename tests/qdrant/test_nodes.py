"""Several URLs: nodes of one real cluster, of none, and of two."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores.types import VectorStoreQuery
from llama_index.vector_stores.care import CareVectorStore
from qdrant_client import models

from care_qdrant import IngestSettings, ingest
from care_qdrant.errors import InputError, Unreachable
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import open_client
from care_qdrant.qdrant.nodes import ClusterClient
from care_qdrant.types import Document
from tests.reliability.processes import BINARY, QdrantCluster
from tests.tiny import HashModel, medical_texts

pytestmark = pytest.mark.server
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QdrantCluster]:
    if BINARY is None:
        pytest.skip("QDRANT_BINARY names no qdrant server program")
    with QdrantCluster(BINARY, tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.mark.parametrize("grpc", [False, True], ids=["http", "grpc"])
def test_calls_go_on_with_another_node(cluster: QdrantCluster, grpc: bool, caplog: pytest.LogCaptureFixture) -> None:
    points = [models.PointStruct(id=number, vector={"v": [1.0, number]}, payload={}) for number in range(20)]
    with open_client(url=cluster.url, grpc=grpc) as client:
        assert isinstance(client, ClusterClient)
        collection = Collection(client, f"grpc-{grpc}")
        collection.create(vectors_config={"v": models.VectorParams(size=2, distance=models.Distance.DOT)})
        collection.upsert(points[:10])
        first = client.node
        cluster.nodes[first].kill()
        try:
            collection.upsert(points[10:])
            assert collection.count() == 20
            assert client.node != first
        finally:
            cluster.nodes[first].start()
    assert f"{cluster.nodes[first].url} does not answer; going on with" in caplog.text


def test_the_store_of_llama_index_goes_on_with_another_node(cluster: QdrantCluster) -> None:
    model = HashModel()
    documents = [Document(f"d{number}", text) for number, text in enumerate(medical_texts(30))]
    query = VectorStoreQuery(query_embedding=model.encode_query([documents[3].text])[0].tolist())
    with open_client(url=cluster.url) as client:
        written = ingest(documents, model, client, "store", settings=IngestSettings()).points
        store = CareVectorStore("store", client, fingerprint=model.fingerprint)
        first = client.node  # type: ignore[attr-defined]
        cluster.nodes[first].kill()
        try:
            found = store.query(query).nodes or []
            assert found[0].ref_doc_id == "d3"
            store.add([TextNode(id_=str(uuid.uuid4()), text="新的", embedding=query.query_embedding)])
            assert Collection(client, "store").count() == written + 1
        finally:
            cluster.nodes[first].start()


def test_ingestion_over_grpc_asks_the_port_of_each_node(cluster: QdrantCluster) -> None:
    """Ingestion finds gRPC by itself; after a change of node the new one has to reach the collection as well."""
    with open_client(url=cluster.url) as client:
        documents = [Document(f"d{number}", text) for number, text in enumerate(medical_texts(30))]
        written = ingest(documents, HashModel(), client, "found", settings=IngestSettings()).points
        collection = Collection(client, "found")
        assert collection.upsert_over_grpc()
        first = client.node  # type: ignore[attr-defined]
        cluster.nodes[first].kill()
        try:
            record = next(iter(collection.scroll(vectors=True)))[0]
            collection.upsert([models.PointStruct(id=record.id, vector=record.vector, payload=record.payload)])  # type: ignore[arg-type]
            assert collection.upsert_over_grpc()
            assert collection.count() == written
        finally:
            cluster.nodes[first].start()


def test_a_node_that_is_away_at_the_start_is_passed_over(
    cluster: QdrantCluster, caplog: pytest.LogCaptureFixture
) -> None:
    with open_client(url=f"{NOWHERE}, {cluster.url}") as client:
        assert client.get_collections()
    assert f"a node of the cluster does not answer: {NOWHERE}" in caplog.text


def test_no_node_answers() -> None:
    with (
        pytest.raises(Unreachable, match=r"no node of the cluster answers: .*:9 .*; .*:10 "),
        open_client(url=f"{NOWHERE},{NOWHERE[:-1]}10"),
    ):
        pass


def test_servers_that_are_not_of_one_cluster_are_refused(cluster: QdrantCluster, real_url: str, tmp_path: Path) -> None:
    with (
        pytest.raises(InputError, match="is not a node of a cluster; give one URL"),
        open_client(url=f"{real_url},{cluster.url}"),
    ):
        pass
    assert BINARY is not None
    with (
        QdrantCluster(BINARY, tmp_path) as other,
        pytest.raises(InputError, match="is a node of another cluster"),
        open_client(url=f"{cluster.url},{other.url}"),
    ):
        pass
