"""Search on a real server: latency of dense, BM25 and hybrid queries, and what each layer of the path adds."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import click
import httpx
import numpy as np
from care_benchmarks.cold_start import peak_memory_mib
from llama_index.core.vector_stores.types import VectorStoreQuery, VectorStoreQueryMode
from llama_index.vector_stores.care import CareVectorStore
from llama_index.vector_stores.qdrant import QdrantVectorStore
from qdrant_client import QdrantClient, models

from care_qdrant.contracts.contract import sparse_vector
from care_qdrant.encoders.terms import bm25
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.settings import IngestSettings
from care_qdrant.model.care_model import CareModel
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import open_client
from care_qdrant.search.fusion import fused_request
from care_qdrant.types import Document
from tests.reliability.ready_model import ReadyModel

from .cloud import DIM, CloudEncoder
from .measured import output_option, plain, save_measured, shown

WORDS = 50_000
TEXT_WORDS, QUERY_WORDS = 30, 8
TOP_K = 10
WARM_UP = 20


class _CloudModel(ReadyModel):
    """A document model around a `CloudEncoder`."""

    def __init__(self) -> None:
        super().__init__(DIM)
        self.document_encoder = self.document_tokenizer = CloudEncoder()  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Latency:
    """One kind of query through one layer, in turn with all others."""

    query: str
    through: str
    p50_ms: float
    p95_ms: float
    p99_ms: float
    cpu_ms: float
    """Median CPU time of the client, which other load on the machine changes less than the time on the clock."""
    queries_per_second: float
    """Queries a second of one client that waits for each answer: 1 / mean."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--url", envvar="QDRANT_URL", required=True, help="URL of a Qdrant server; its collections are kept.")
@click.option("--points", type=click.IntRange(1_000), default=10_000, show_default=True, help="Generated documents.")
@click.option("--queries", type=click.IntRange(10), default=300, show_default=True, help="Rounds of all kinds.")
@click.option("--index-minutes", type=click.FloatRange(0), default=120, show_default=True, help="Wait for the index.")
@click.option("--keep", is_flag=True, help="Keep the collection, for another run with the same number of points.")
@output_option
def main(url: str, points: int, queries: int, index_minutes: float, keep: bool, output: Path) -> None:
    """Ingest generated documents with BM25, and measure single queries layer by layer.

    \b
    Example:
      python -m benchmarks.perf.server_search --url http://localhost:6333 --points 100000 \\
        --output benchmarks/results/server-search-100000.json
    """
    name = f"care-perf-search-{points}"
    with open_client(url=url) as client:
        loaded = {}
        if not client.collection_exists(name):
            report = ingest(_documents(points), _CloudModel(), client, name, settings=IngestSettings(sparse=True))
            loaded = {
                "points_per_second": report.documents_per_second,
                "client_peak_memory_mib": round(peak_memory_mib(), 1),
            }
        until = time.monotonic() + 60 * index_minutes
        while client.get_collection(name).status is not models.CollectionStatus.GREEN and time.monotonic() < until:
            time.sleep(2)
        info = client.get_collection(name)
        found = [shown(one) for one in _measure(client, url, name, queries)]
        own = _own_cpu_ms(client, name, queries)
        version = client.info().version
        if not keep:
            client.delete_collection(name)
    save_measured(
        output,
        {
            "server": version,
            "points": points,
            "dim": DIM,
            "index": {"status": info.status.value, "indexed_vectors": info.indexed_vectors_count},
            "load": loaded,
            "rounds": queries,
            "encode_ms": _encode_ms(queries),
            "own_cpu_ms": own,
            "cpu_ms": {
                "wire": _cpu(found, "dense", "raw HTTP"),
                "client": _added(found, "dense", "plain client", "raw HTTP"),
                "CareVectorStore": _added(found, "dense", "CareVectorStore", "plain client"),
                "CareVectorStore, hybrid": _added(found, "hybrid", "CareVectorStore", "plain client"),
                "QdrantVectorStore": _added(found, "dense", "QdrantVectorStore", "plain client"),
            },
            "hybrid_to_dense": round(_p50(found, "hybrid", "plain client") / _p50(found, "dense", "plain client"), 2),
            "latencies": plain(found),
        },
    )


def _own_cpu_ms(client: QdrantClient, name: str, rounds: int) -> dict[str, float]:
    """Return the median CPU milliseconds of each store from a query to its nodes, with the server's answer at hand."""
    vector_name = next(iter(Collection(client, name).schema.dense))
    stock, dense, hybrid = _stores(client, name, vector_name)
    [vector], text = CloudEncoder().encode(["query"]).tolist(), _text(np.random.default_rng(3), QUERY_WORDS)
    answer = client.query_batch_points(name, [_leaf(models.Prefetch(query=vector, using=vector_name))])
    client.query_batch_points = lambda *_, **__: answer  # type: ignore[method-assign]
    client.query_points = lambda *_, **__: answer[0]  # type: ignore[method-assign]
    works = {
        "QdrantVectorStore": _through(stock, vector, text, VectorStoreQueryMode.DEFAULT),
        "CareVectorStore": _through(dense, vector, text, VectorStoreQueryMode.DEFAULT),
        "CareVectorStore, BM25": _through(hybrid, vector, text, VectorStoreQueryMode.SPARSE),
        "CareVectorStore, hybrid": _through(hybrid, vector, text, VectorStoreQueryMode.HYBRID),
    }
    taken: dict[str, list[float]] = {through: [] for through in works}
    for number in range(-WARM_UP, rounds):
        for through, work in works.items():
            cpu = time.process_time()
            work()
            if number >= 0:
                taken[through].append((time.process_time() - cpu) * 1e3)
    return {through: round(median(values), 3) for through, values in taken.items()}


def _stores(
    client: QdrantClient, name: str, vector_name: str
) -> tuple[QdrantVectorStore, CareVectorStore, CareVectorStore]:
    """Return the stock store, ours for dense queries alone, and ours as it opens a collection that has BM25."""
    return (
        QdrantVectorStore(name, client, dense_vector_name=vector_name),
        CareVectorStore(name, client, vector_name=vector_name, enable_hybrid=False),
        CareVectorStore(name, client, vector_name=vector_name, enable_hybrid=True),
    )


def _documents(points: int) -> Iterator[Document]:
    rng = np.random.default_rng(1)
    for number in range(points):
        yield Document(f"d{number}", _text(rng, TEXT_WORDS), metadata={"number": number})


def _text(rng: np.random.Generator, words: int) -> str:
    """Return words drawn by Zipf's law."""
    ranks = np.minimum(rng.zipf(1.2, words), WORDS)
    return " ".join(f"w{rank:x}x" for rank in ranks)


def _measure(client: QdrantClient, url: str, name: str, rounds: int) -> Iterator[Latency]:
    """Time each layer on the same query, one after the other, so that other load affects all of them."""
    vector_name = next(iter(Collection(client, name).schema.dense))
    stock, care, care_hybrid = _stores(client, name, vector_name)
    rng, encoder = np.random.default_rng(2), CloudEncoder()
    times: dict[tuple[str, str], list[tuple[float, float]]] = {}
    # The client's own connections: what they leave out is its building and reading of messages.
    http: httpx.Client = client.http.client._client
    for number in range(-WARM_UP, rounds):
        [vector], text = encoder.encode(["query"]).tolist(), _text(rng, QUERY_WORDS)
        dense = models.Prefetch(query=vector, using=vector_name)
        sparse = models.Prefetch(query=sparse_vector(bm25.query_vector(text)), using=bm25.VECTOR_NAME)
        hybrid = fused_request(dense, sparse, fusion="linear", alpha=0.4, limit=TOP_K)
        requests = {
            "dense": _leaf(dense),
            "BM25": _leaf(sparse),
            "hybrid": hybrid,
            "hybrid, one level": _one_level(hybrid, dense, sparse),
            "hybrid, rrf": fused_request(dense, sparse, fusion="rrf", alpha=0.4, limit=TOP_K),
        }
        layers: dict[tuple[str, str], Callable[[], object]] = {}
        for kind, request in requests.items():
            body = request.model_dump_json(exclude_none=True)
            layers[kind, "raw HTTP"] = _post(http, f"{url}/collections/{name}/points/query", body)
            layers[kind, "plain client"] = _plain(client, name, request)
        for through, store in (("QdrantVectorStore", stock), ("CareVectorStore", care)):
            layers["dense", through] = _through(store, vector, text, VectorStoreQueryMode.DEFAULT)
        for kind, mode in (("BM25", VectorStoreQueryMode.SPARSE), ("hybrid", VectorStoreQueryMode.HYBRID)):
            layers[kind, "CareVectorStore"] = _through(care_hybrid, vector, text, mode)
        for place in rng.permutation(len(layers)):
            key = list(layers)[place]
            start, cpu = time.perf_counter(), time.process_time()
            layers[key]()
            if number >= 0:
                taken = time.perf_counter() - start, time.process_time() - cpu
                times.setdefault(key, []).append((taken[0] * 1e3, taken[1] * 1e3))
    for (kind, through), pairs in sorted(times.items()):
        wall, used = np.array(pairs).T
        p50, p95, p99 = (round(float(value), 2) for value in np.percentile(wall, [50, 95, 99]))
        yield Latency(
            kind, through, p50, p95, p99, round(float(np.median(used)), 3), round(1e3 / float(wall.mean()), 1)
        )


def _leaf(leaf: models.Prefetch) -> models.QueryRequest:
    return models.QueryRequest(query=leaf.query, using=leaf.using, limit=TOP_K, with_payload=True)


def _one_level(hybrid: models.QueryRequest, dense: models.Prefetch, sparse: models.Prefetch) -> models.QueryRequest:
    """Return the same formula over the two lists alone: a point that only one list holds has no score by the other."""
    leaves = [leaf.model_copy(update={"limit": 100}) for leaf in (dense, sparse)]
    return hybrid.model_copy(update={"prefetch": leaves})


def _post(http: httpx.Client, address: str, body: str) -> Callable[[], object]:
    headers = {"content-type": "application/json"}
    return lambda: http.post(address, content=body, headers=headers).raise_for_status()


def _plain(client: QdrantClient, name: str, request: models.QueryRequest) -> Callable[[], object]:
    return lambda: client.query_batch_points(name, [request])


def _through(
    store: QdrantVectorStore, vector: list[float], text: str, mode: VectorStoreQueryMode
) -> Callable[[], object]:
    query = VectorStoreQuery(query_embedding=vector, query_str=text, similarity_top_k=TOP_K, mode=mode, alpha=0.4)
    return lambda: store.query(query)


def _p50(found: Sequence[Latency], query: str, through: str) -> float:
    return next(one.p50_ms for one in found if (one.query, one.through) == (query, through))


def _cpu(found: Sequence[Latency], query: str, through: str) -> float:
    return next(one.cpu_ms for one in found if (one.query, one.through) == (query, through))


def _added(found: Sequence[Latency], query: str, upper: str, lower: str) -> float:
    """Return the CPU milliseconds that one layer adds to the one below it."""
    return round(_cpu(found, query, upper) - _cpu(found, query, lower), 3)


def _encode_ms(rounds: int) -> float:
    """Return the median time in which the built-in query encoder reads a question."""
    encoder = CareModel.load().query_encoder
    taken = []
    for number in range(-WARM_UP, rounds):
        start = time.perf_counter()
        encoder.encode([f"糖尿病人能吃西瓜吗？血糖{number}"])
        taken.append((time.perf_counter() - start) * 1e3)
    return round(median(taken[WARM_UP:]), 2)


if __name__ == "__main__":
    main()
