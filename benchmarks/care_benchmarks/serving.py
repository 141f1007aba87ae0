"""Times one contestant on the index that its accuracy was measured on."""

from dataclasses import dataclass
from pathlib import Path

from mteb.abstasks import AbsTask
from mteb.abstasks.task_metadata import TaskMetadata

from care_benchmarks.search import QdrantSearch
from care_benchmarks.speed import (
    WARM_UP_QUERIES,
    Latency,
    Speed,
    measure_calls,
    measure_cold_start,
    measure_load,
)
from care_benchmarks.tasks import texts_of
from care_qdrant.store.connection import is_embedded

TOP_K = 10


@dataclass(frozen=True, slots=True)
class SpeedSettings:
    """How the speed is measured."""

    clients: tuple[int, ...] = (1, 4, 16)
    samples: int = 200
    """Queries of each load, after the warm-up."""
    cold_start: bool = True


def measure_speed(search: QdrantSearch, task: AbsTask, settings: SpeedSettings, store: Path | None) -> Speed:
    """Measure a contestant that has been evaluated on ``task``.

    Args:
        search: The contestant with its index.
        task: A loaded retrieval or reranking task; its queries are sent, in their order.
        settings: Loads and samples.
        store: Folder of the embedded database; None for a server.
    """
    name, queries = task.metadata.name, list(texts_of(task)[0].values())
    answer = search.answerer(task.metadata)
    contestant, indexed = search.contestant, search.indexed[name]
    where = "embedded Qdrant, exact scan" if is_embedded(search.client) else "Qdrant server"
    has_vectors = contestant.mode == "dense"
    return Speed(
        path=f"{answer.path}, {where}, top {TOP_K}",
        warm_up_queries=WARM_UP_QUERIES,
        whole=[measure_load(lambda q: answer(q, TOP_K), queries, n, settings.samples) for n in settings.clients],
        encode=_encode(search, task.metadata, queries, settings.samples) if has_vectors else None,
        search=_search(search, task.metadata, queries, settings.samples) if has_vectors else None,
        cold_start=measure_cold_start(contestant.source, contestant.precision, queries[0])
        if has_vectors and settings.cold_start
        else None,
        documents_per_second=indexed.encoded / indexed.seconds if indexed.encoded == indexed.documents else None,
        index_bytes_per_document=_bytes_per_document(search, task.metadata, store, indexed.documents),
    )


def _encode(search: QdrantSearch, task: TaskMetadata, queries: list[str], samples: int) -> Latency:
    model = search.model_for(task)
    return measure_calls(lambda number: model.encode_query([queries[number % len(queries)]]), samples)


def _search(search: QdrantSearch, task: TaskMetadata, queries: list[str], samples: int) -> Latency:
    model, collection = search.model_for(task), search.collection(task)
    vectors = model.encode_query(queries[:samples]).tolist()
    return measure_calls(
        lambda number: search.client.query_points(
            collection,
            query=vectors[number % len(vectors)],
            using=model.name,
            limit=TOP_K,
            search_params=search.params,
        ),
        samples,
    )


def _bytes_per_document(search: QdrantSearch, task: TaskMetadata, store: Path | None, documents: int) -> float | None:
    if store is None or not documents:
        return None
    folder = store / "collection" / search.collection(task)
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / documents
