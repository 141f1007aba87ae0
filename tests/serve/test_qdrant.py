"""A real Qdrant server that asks care serve: texts instead of vectors, over HTTP and gRPC."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import pytest
from grpc import RpcError
from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.settings import IngestSettings
from care_qdrant.model.care_model import CareModel
from care_qdrant.search.retriever import Retriever
from care_qdrant.types import Document
from tests.reliability.processes import BINARY, QdrantServer, free_port
from tests.serve.conftest import KEY, asked, pair
from tests.serve.test_admission import GatedEncoder
from tests.serve.test_workers import Running, wait_until
from tests.tiny import TEXTS

pytestmark = [
    pytest.mark.skipif(not BINARY, reason="QDRANT_BINARY names no qdrant server program"),
    pytest.mark.server,
]


@pytest.fixture(scope="module")
def ports(pair_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """Start a service with both sides and a key, and a Qdrant that asks it."""
    folder = tmp_path_factory.mktemp("qdrant")
    (folder / "keys").write_text(f"{KEY}\n")
    options = ("--model", str(pair_folder), "--documents", "--keys", str(folder / "keys"))
    service = Running(*options, log=folder / "serve.log")
    inference = {"QDRANT__INFERENCE__ADDRESS": f"{service.url}/inference", "QDRANT__INFERENCE__TOKEN": KEY}
    with QdrantServer(str(BINARY), folder, inference) as server:
        yield server.port, server.grpc_port
    service.stop()


@pytest.fixture(params=["http", "grpc"])
def asking(ports: tuple[int, int], request: pytest.FixtureRequest) -> Iterator[QdrantClient]:
    """Open a client that sends texts to the server."""
    client = QdrantClient(
        url=f"http://127.0.0.1:{ports[0]}",
        grpc_port=ports[1],
        prefer_grpc=request.param == "grpc",
        cloud_inference=True,
        check_compatibility=False,
        timeout=30,
    )
    yield client
    client.delete_collection("corpus")
    client.close()


def test_texts_find_what_the_retriever_finds(asking: QdrantClient, pair_folder: Path) -> None:
    model = CareModel.load(pair_folder)
    documents = [Document(f"d{number}", text) for number, text in enumerate(TEXTS)]
    ingest(documents, model, asking, "corpus", settings=IngestSettings(sparse=True))
    for mode, using, name in (("dense", model.name, model.name), ("sparse", "bm25", f"{model.name}/bm25")):
        [expected] = Retriever(asking, "corpus", None if mode == "sparse" else model, mode=mode).search([TEXTS[2]], 5)
        query = models.Document(text=TEXTS[2], model=name)
        found = asking.query_points("corpus", query, using=using, limit=5).points
        fetched = models.Prefetch(query=query, using=using, limit=5)
        nested = asking.query_points(
            "corpus", models.FusionQuery(fusion=models.Fusion.RRF), prefetch=[fetched], limit=5
        ).points
        assert [hit.point_id for hit in expected] == [str(point.id) for point in found]
        assert {str(point.id) for point in nested} == {str(point.id) for point in found}
        assert [point.score for point in found] == pytest.approx([hit.score for hit in expected], abs=1e-6)


def test_written_texts_are_read_by_the_document_side(asking: QdrantClient, pair_folder: Path) -> None:
    model = CareModel.load(pair_folder)
    params = models.VectorParams(size=model.dim, distance=models.Distance.COSINE)
    asking.create_collection("corpus", {"v": params})
    points = [
        models.PointStruct(id=number, vector={"v": models.Document(text=text, model=model.name)}, payload={})
        for number, text in enumerate([*TEXTS, TEXTS[0]])
    ]
    asking.upsert("corpus", points, wait=True)
    stored = asking.retrieve("corpus", list(range(len(points))), with_vectors=True)
    vectors = np.array([point.vector["v"] for point in sorted(stored, key=lambda point: int(point.id))])
    assert np.abs(vectors - model.encode_document([*TEXTS, TEXTS[0]])).max() < 1e-6


@pytest.mark.parametrize(
    ("text", "name", "reason"),
    [("发烧", "tiny-pair@ffff", "another space"), ("发烧", "other", "not served"), (" ", "tiny-pair", "is blank")],
)
def test_a_refusal_reaches_the_client_with_its_reason(asking: QdrantClient, text: str, name: str, reason: str) -> None:
    params = models.VectorParams(size=32, distance=models.Distance.COSINE)
    asking.create_collection("corpus", {"v": params})
    with pytest.raises(Exception, match=reason):
        asking.query_points("corpus", models.Document(text=text, model=name), using="v", limit=5)


def test_a_qdrant_that_goes_and_comes_back_is_searched_again(pair_folder: Path, tmp_path: Path) -> None:
    ask = {"query": TEXTS[2]}
    with ExitStack() as stack:
        server = stack.enter_context(QdrantServer(str(BINARY), tmp_path))
        address = server.url
        documents = [Document(f"d{number}", text) for number, text in enumerate(TEXTS)]
        qdrant = QdrantClient(url=address, check_compatibility=False)
        ingest(documents, CareModel.load(pair_folder), qdrant, "corpus")
        qdrant.close()
        options = ("--model", str(pair_folder), "--collection", "corpus", "--url", address)
        service = Running(*options, log=tmp_path / "serve.log")
        stack.callback(service.stop)
        client = stack.enter_context(httpx.Client(base_url=service.url, timeout=60))
        before = client.post("/search", json=ask).json()["hits"]
        assert before
        server.kill()
        away = client.post("/search", json=ask)
        assert (away.status_code, away.json()["code"]) == (503, "qdrant_unreachable")
        assert client.get("/ready").status_code == 200
        assert client.post("/v1/embeddings", json={"model": "tiny-pair", "input": TEXTS[2]}).status_code == 200
        server.start()
        assert client.post("/search", json=ask).json()["hits"] == before


def test_a_client_of_qdrant_that_is_late_leaves_the_queue(make_service, listen, tmp_path: Path) -> None:
    gated = GatedEncoder()
    service = make_service(pair(query=gated))
    address = listen(service)
    inference = {"QDRANT__INFERENCE__ADDRESS": f"{address}/inference"}
    with ExitStack() as stack:
        server = stack.enter_context(QdrantServer(str(BINARY), tmp_path, inference))
        for prefer_grpc in (False, True):
            qdrant = QdrantClient(
                url=server.url,
                grpc_port=server.grpc_port,
                prefer_grpc=prefer_grpc,
                cloud_inference=True,
                timeout=30,
            )
            stack.callback(qdrant.close)
            if not prefer_grpc:
                qdrant.create_collection("c", {"v": models.VectorParams(size=32, distance=models.Distance.COSINE)})
            ask = partial(qdrant.query_points, "c", using="v", timeout=1)
            gated.gate.clear()
            gated.entered.clear()
            with ThreadPoolExecutor(1) as pool:
                held = pool.submit(httpx.post, f"{address}/inference", json=asked("一"), timeout=60)
                assert gated.entered.wait(20)
                with pytest.raises((UnexpectedResponse, ResponseHandlingException, RpcError)):
                    ask(models.Document(text=f"late {prefer_grpc}", model="pair"))
                # The text of a client that is gone leaves the queue.
                wait_until(lambda: 'care_waiting_texts{side="query"} 1.0' in httpx.get(f"{address}/metrics").text)
                gated.gate.set()
                assert held.result().status_code == 200
    assert gated.runs == [["一"], ["一"]]


def test_scopes_and_request_ids_against_a_real_server(pair_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"{KEY} inference\n{KEY[::-1]} search:corpus\n")
    with ExitStack() as stack:
        (tmp_path / "server").mkdir()
        port = free_port()
        settings = {
            "QDRANT__INFERENCE__ADDRESS": f"http://127.0.0.1:{port}/inference",
            "QDRANT__INFERENCE__TOKEN": KEY,
            "QDRANT__AUDIT__ENABLED": "true",
            "QDRANT__AUDIT__DIR": str(tmp_path / "audit"),
        }
        server = stack.enter_context(QdrantServer(str(BINARY), tmp_path / "server", settings))
        options = ("--model", str(pair_folder), "--keys", str(tmp_path / "keys"), "--url", server.url)
        collections = ("--collection", "corpus", "--collection", "other")
        workers = ("--workers", "2", "--port", str(port))
        service = Running(*workers, *collections, *options, log=tmp_path / "serve.log")
        stack.callback(service.stop)
        qdrant = QdrantClient(
            url=server.url, grpc_port=server.grpc_port, cloud_inference=True, check_compatibility=False
        )
        stack.callback(qdrant.close)
        model = CareModel.load(pair_folder)
        ingest([Document(f"d{number}", text) for number, text in enumerate(TEXTS)], model, qdrant, "corpus")
        query = models.Document(text=TEXTS[2], model=model.name)
        assert qdrant.query_points("corpus", query, using=model.name).points
        client = stack.enter_context(httpx.Client(base_url=service.url, headers={"x-api-key": KEY[::-1]}, timeout=60))
        ask = {"query": TEXTS[2], "collection": "corpus"}
        headers = {"x-request-id": "the-id-of-this-search"}
        assert client.post("/search", json=ask, headers=headers).json()["hits"]
        assert client.post("/search", json=ask | {"collection": "other"}).json()["code"] == "forbidden"
        assert client.post("/inference", json=asked("发烧")).json()["code"] == "forbidden"
        audits = tmp_path / "audit"
        wait_until(lambda: any("the-id-of-this-search" in file.read_text() for file in audits.glob("*")), pause=0.2)
