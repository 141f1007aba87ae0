"""How wrong BM25 of a tenant is by the documents of the others: nDCG@10 with IDF over all documents and over its own.

Each data set becomes one embedded collection whose documents say their source, which is the tenant; questions of a
tenant are filtered by it, once with the tenant's own IDF and once with that of the whole collection.

Example::

    python -m benchmarks.experiments.tenant_idf data/dev/retrieval
"""

import gzip
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from qdrant_client import QdrantClient

from care_qdrant import CareModel, Document, IngestSettings, ingest
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.schema import TENANTS_KEY
from care_qdrant.search.conditions import parse_filter
from care_qdrant.search.retriever import Mode, Retriever

QUESTIONS = 400
"""Questions of a tenant, the first ones of the file."""


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a gzipped JSONL file."""
    with gzip.open(path, "rt") as file:
        yield from map(json.loads, file)


def gains(retriever: Retriever, questions: Sequence[tuple[str, str]], tenant: str) -> np.ndarray[Any, Any]:
    """Return the discounted gain of each question's one answer among the first ten hits."""
    where = parse_filter([f'source="{tenant}"'])
    found = retriever.search([text for text, _ in questions], 10, where)
    ranks = [[hit.document_id for hit in hits] for hits in found]
    return np.array(
        [
            1 / math.log2(ids.index(answer) + 2) if answer in ids else 0.0
            for ids, (_, answer) in zip(ranks, questions, strict=True)
        ]
    )


def main(folder: Path) -> None:
    """Print a row for each tenant and mode."""
    model, client = CareModel.load(), QdrantClient(":memory:")
    source = {row["id"]: row["metadata"]["source"] for row in rows(folder / "corpus.jsonl.gz")}
    documents = (Document(row["id"], row["text"], metadata=row["metadata"]) for row in rows(folder / "corpus.jsonl.gz"))
    ingest(documents, model, client, "all", settings=IngestSettings(sparse=True, indexes={"source": "tenant"}))
    texts = {row["id"]: row["text"] for row in rows(folder / "queries.jsonl.gz")}
    questions: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for row in rows(folder / "qrels.jsonl.gz"):
        questions[source[row["document_id"]]].append((texts[row["query_id"]], row["document_id"]))
    modes: list[Mode] = ["sparse", "hybrid"]
    scores: dict[tuple[str, Mode, bool], np.ndarray[Any, Any]] = {}
    for own in (True, False):
        Collection(client, "all").update("changing the tenants", metadata={TENANTS_KEY: ["source"] if own else []})
        for mode in modes:
            retriever = Retriever(client, "all", None if mode == "sparse" else model, mode=mode)
            for tenant, asked in questions.items():
                scores[tenant, mode, own] = gains(retriever, asked[:QUESTIONS], tenant)
    for tenant in questions:
        count = sum(found == tenant for found in source.values())
        for mode in modes:
            its, of_all = scores[tenant, mode, True], scores[tenant, mode, False]
            difference = its - of_all
            error = 1.96 * difference.std() / math.sqrt(len(difference))
            print(
                f"{tenant:16} {count:6,} of {len(source):,} {mode:7} {len(difference):4} questions: all "
                f"{of_all.mean():.4f}, own {its.mean():.4f}, {difference.mean():+.4f} ± {error:.4f}",
                flush=True,
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
