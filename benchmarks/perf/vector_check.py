"""Time that `CareVectorStore` adds to a query by comparing its vector with the one that the embedding makes."""

import statistics
import time
from pathlib import Path

import click
import numpy as np
from llama_index.core.vector_stores.types import VectorStoreQuery
from llama_index.embeddings.care import CareEmbedding
from llama_index.vector_stores.care import CareVectorStore
from qdrant_client import QdrantClient, models

from benchmarks.perf.measured import output_option, save_measured
from care_qdrant.qdrant.collection import Collection

POINTS = 1_000
WARM_UP = 20
QUERIES = (
    "糖尿病人能吃西瓜吗",
    "吃二甲双胍老是恶心拉肚子怎么办",
    "孩子发烧三天，咳嗽有痰",
    "心梗发作的时候家里人该怎么办",
)


@click.command()
@click.option("--rounds", type=click.IntRange(10), default=500, show_default=True, help="Queries of each kind.")
@output_option
def main(rounds: int, output: Path) -> None:
    """Ask one query after the other with and without the check, and write the medians of the paired differences.

    \b
    Example:
      python -m benchmarks.perf.vector_check --output benchmarks/results/llama-vector-check.json
    """
    embedding = CareEmbedding(model="built-in", documents=False)
    client, contract = QdrantClient(":memory:"), embedding.contract()
    params = models.VectorParams(size=contract.dim, distance=contract.qdrant_distance)
    client.create_collection("corpus", {contract.model: params})
    Collection(client, "corpus").write_contract(contract.model, contract)
    rows = np.random.default_rng(0).normal(size=(POINTS, contract.dim))
    client.upsert(
        "corpus",
        [
            models.PointStruct(id=number, vector={contract.model: row.tolist()}, payload={"text": f"第{number}篇"})
            for number, row in enumerate(rows)
        ],
    )
    checked = CareVectorStore("corpus", client, embedding=embedding)
    unchecked = CareVectorStore("corpus", client, embedding=embedding, check_vectors=False)
    times: list[tuple[float, float, float]] = []
    for number in range(rounds + WARM_UP):
        text = f"{QUERIES[number % len(QUERIES)]}{number}"
        began = time.perf_counter()
        query = VectorStoreQuery(embedding.get_query_embedding(text), query_str=text, similarity_top_k=10)
        encoding = time.perf_counter() - began
        # Which of the two comes first changes from query to query.
        first = number % 2
        found = {index: _seconds((unchecked, checked)[index], query) for index in (first, 1 - first)}
        times.append((encoding, found[0], found[1]))
    encoding, without, with_check = (statistics.median(column) * 1e3 for column in zip(*times[WARM_UP:], strict=True))
    added = statistics.median(row[2] - row[1] for row in times[WARM_UP:]) * 1e3
    ratio = statistics.median((row[0] + row[2]) / (row[0] + row[1]) for row in times[WARM_UP:])
    result = {
        "rounds": rounds, "points": POINTS, "encoding_ms": encoding, "search_ms": without,
        "checked_search_ms": with_check, "added_ms": added, "ratio_of_whole_query": ratio,
    }  # fmt: skip
    save_measured(output, {key: round(value, 4) for key, value in result.items()})
    client.close()


def _seconds(store: CareVectorStore, query: VectorStoreQuery) -> float:
    began = time.perf_counter()
    store.query(query)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
