"""Measures how wrong other tenants make BM25 of one: nDCG@10 with IDF over all documents and over its own.

The documents of a data set say their source, which is taken for the tenant. Each question has one answer and searches
the documents of its tenant, once with the IDF of all documents and once with that of the tenant's: by BM25, and for
small tenants also by the linear fusion with the built-in pair. Scores are computed here by the formulas of
`care_qdrant.encoders.terms.bm25` and `care_qdrant.search.fusion`, so nothing depends on a server.

Example::

    python -m benchmarks.experiments.tenant_idf data/dev/retrieval
    python -m benchmarks.experiments.tenant_idf data/train/pairs_open.jsonl.gz toyhom_im=500 tcm_books=15000
"""

import gzip
import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from care_qdrant import CareModel
from care_qdrant.encoders.terms import bm25
from care_qdrant.measures import ndcg_at_10
from care_qdrant.search.fusion import DEFAULT_ALPHA, bm25_weight

QUESTIONS = 400
"""Questions of a tenant, the first ones of the file."""
MOST_FUSED = 1_000
"""Largest number of documents of a tenant that are also searched by the pair."""

Documents = Mapping[str, tuple[str, str]]
"""Tenant and text of each document, by its id."""
Questions = Sequence[tuple[str, str, str]]
"""Tenant, text and answer of each question."""


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a gzipped JSONL file."""
    with gzip.open(path, "rt") as file:
        yield from map(json.loads, file)


def retrieval(folder: Path) -> tuple[Documents, Questions]:
    """Read a data set of three files: corpus, queries, qrels."""
    documents = {row["id"]: (row["metadata"]["source"], row["text"]) for row in rows(folder / "corpus.jsonl.gz")}
    texts = {row["id"]: row["text"] for row in rows(folder / "queries.jsonl.gz")}
    labels = list(rows(folder / "qrels.jsonl.gz"))
    found = [(documents[row["document_id"]][0], texts[row["query_id"]], row["document_id"]) for row in labels]
    return documents, found


def pairs(path: Path, sizes: Mapping[str, int]) -> tuple[Documents, Questions]:
    """Take the first so many different answers of some sources, with a question of each."""
    documents: dict[str, tuple[str, str]] = {}
    questions = []
    counts: Counter[str] = Counter()
    seen: set[str] = set()
    for row in rows(path):
        source, text = row["source"], row["positive"]
        if counts[source] < sizes.get(source, 0) and text not in seen:
            seen.add(text)
            counts[source] += 1
            documents[f"{source}{counts[source]}"] = source, text
            questions.append((source, row["query"], f"{source}{counts[source]}"))
    return documents, questions


def main(documents: Documents, questions: Questions) -> None:
    """Print a row for each tenant and way to search."""
    average = bm25.average_length(text for _, text in documents.values())
    holders: dict[int, list[tuple[str, float]]] = defaultdict(list)
    for number, (_, text) in documents.items():
        vector = bm25.document_vector(text, average_length=average)
        for index, value in zip(vector.indices, vector.values, strict=True):
            holders[index].append((number, value))
    for tenant, count in Counter(tenant for tenant, _ in documents.values()).items():
        asked = [question for question in questions if question[0] == tenant][:QUESTIONS]
        own = {number: text for number, (its, text) in documents.items() if its == tenant}
        ways = {"sparse": 0.0} | ({"hybrid": DEFAULT_ALPHA} if count <= MOST_FUSED else {})
        cosines = _cosines(own, asked) if "hybrid" in ways else [{}] * len(asked)
        gains: dict[tuple[str, bool], list[float]] = defaultdict(list)
        for (_, text, answer), cosine in zip(asked, cosines, strict=True):
            for of_tenant in (False, True):
                lexical = _lexical(text, holders, own, None if of_tenant else len(documents))
                for way, alpha in ways.items():
                    scores = {
                        number: alpha * cosine.get(number, 0.0) + (1 - alpha) * lexical.get(number, 0.0)
                        for number in cosine or lexical
                    }
                    best = sorted(scores, key=lambda number: -scores[number])[:10]
                    gains[way, of_tenant] += ndcg_at_10([best], [{answer}])
        for way in ways:
            of_all, of_own = (np.array(gains[way, of_tenant]) for of_tenant in (False, True))
            difference = of_own - of_all
            error = 1.96 * difference.std() / len(asked) ** 0.5
            print(
                f"{tenant:16} {count:6,} of {len(documents):,}, {way}, {len(asked)} questions: all "
                f"{of_all.mean():.4f}, own {of_own.mean():.4f}, {difference.mean():+.4f} ± {error:.4f}",
                flush=True,
            )


def _lexical(
    text: str, holders: Mapping[int, Sequence[tuple[str, float]]], own: Mapping[str, str], points: int | None
) -> dict[str, float]:
    """Return BM25 of the tenant's documents on the scale of a cosine; ``points`` None counts its own alone."""
    query, scores = bm25.query_vector(text), defaultdict[str, float](float)
    for index, weight in zip(query.indices, query.values, strict=True):
        listed = [(number, value) for number, value in holders.get(index, ()) if number in own]
        found = len(listed) if points is None else len(holders.get(index, ()))
        idf = math.log(1 + ((points or len(own)) - found + 0.5) / (found + 0.5))
        for number, value in listed:
            scores[number] += weight * value * idf * bm25_weight(query.values)
    return scores


def _cosines(own: Mapping[str, str], asked: Questions) -> list[dict[str, float]]:
    model = CareModel.load()
    products = model.encode_query([text for _, text, _ in asked]) @ model.encode_document(list(own.values())).T
    return [dict(zip(own, row, strict=True)) for row in products.tolist()]


if __name__ == "__main__":
    source = Path(sys.argv[1])
    wanted = {name: int(size) for name, size in (each.split("=") for each in sys.argv[2:])}
    main(*(pairs(source, wanted) if wanted else retrieval(source)))
