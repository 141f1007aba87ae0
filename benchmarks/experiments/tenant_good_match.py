"""Studies whether a good-match score, which is measured without a filter, holds for the searches of one tenant.

The documents of a data set say their source, which is taken for the tenant. Each tenant is asked questions that one of
its documents answers, and questions of the other tenants, which none answers. A row says which share of the best hits
counts as a good match, without a tenant index (the IDF of all documents) and with one (the tenant's own).

Example, on a server: the embedded database counts the documents of a tenant in Python, for each question anew::

    python -m benchmarks.experiments.tenant_good_match data/dev/retrieval http://localhost:6333
"""

import random
import sys
from collections import Counter
from pathlib import Path

import numpy as np
from qdrant_client import QdrantClient, models

from benchmarks.experiments.tenant_idf import Questions, retrieval
from care_qdrant import CareModel, Retriever
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.settings import IngestSettings
from care_qdrant.qdrant.collection import Collection
from care_qdrant.search.good_match import fixed_questions, judge, measure_good_match

KEY, COLLECTION = "source", "tenants"
QUESTIONS = 60
"""Questions of each kind that a tenant is asked, drawn at random."""


def main(folder: Path, url: str | None) -> None:
    """Print a row for each tenant and way to count."""
    documents, questions = retrieval(folder)
    model, client = CareModel.load(), QdrantClient(url=url, timeout=600) if url else QdrantClient(":memory:")
    ingest(folder / "corpus.jsonl.gz", model, client, COLLECTION, settings=IngestSettings(sparse=True))
    for index in (None, models.KeywordIndexParams(type=models.KeywordIndexType.KEYWORD, is_tenant=True)):
        if index is not None:
            Collection(client, COLLECTION).create_indexes({KEY: index})
        retriever = Retriever(client, COLLECTION, model)
        found = measure_good_match(retriever, fixed_questions(retriever), seconds=3_600)
        assert found is not None
        print(
            f"{'IDF of all' if index is None else 'IDF of the tenant'}: good-match score {found.score:.3f}", flush=True
        )
        for tenant, count in Counter(tenant for tenant, _ in documents.values()).items():
            condition = models.FieldCondition(key=KEY, match=models.MatchValue(value=tenant))
            shares = []
            for asked in _asked(questions, tenant):
                hits = retriever.search(asked, 1, models.Filter(must=[condition]))
                verdicts = [
                    judge(each, found, model.unread(text)).is_good for each, text in zip(hits, asked, strict=True)
                ]
                best = np.median([each[0].score for each in hits])
                shares.append(f"{np.mean(verdicts):.2f} (median {best:.3f})")
            print(f"  {tenant:16} {count:6,}: answered {shares[0]}, not answered {shares[1]}", flush=True)


def _asked(questions: Questions, tenant: str) -> tuple[list[str], list[str]]:
    """Return questions that a tenant's documents answer, and questions of others."""
    draw = random.Random(0)
    own = [text for its, text, _ in questions if its == tenant]
    others = [text for its, text, _ in questions if its != tenant]
    return draw.sample(own, min(QUESTIONS, len(own))), draw.sample(others, QUESTIONS)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
