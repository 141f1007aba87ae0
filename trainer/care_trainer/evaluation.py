"""The score of a pair on a labelled retrieval set, with sentence-transformers' own evaluator."""

from pathlib import Path

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

from care_qdrant.errors import InputError
from care_qdrant.types import embedded_text
from care_trainer.config import Evaluation
from care_trainer.data import read_rows


def load_evaluator(evaluation: Evaluation, root: Path) -> InformationRetrievalEvaluator:
    """Read a retrieval set: nDCG@10, MRR@10, recall@10 and @100.

    Raises:
        InputError: a file is missing, or no query is left.
    """
    folder = root / evaluation.retrieval
    corpus = {
        str(row["id"]): embedded_text(row.get("title", ""), row["text"])
        for row, _ in read_rows(retrieval_file(folder, "corpus"))
    }
    relevant: dict[str, set[str]] = {}
    for row, _ in read_rows(retrieval_file(folder, "qrels")):
        if float(row["score"]) > 0:
            relevant.setdefault(str(row["query_id"]), set()).add(str(row["document_id"]))
    queries = {
        str(row["id"]): row["text"] for row, _ in read_rows(retrieval_file(folder, "queries")) if row["id"] in relevant
    }
    queries = dict(list(queries.items())[: evaluation.max_queries])
    if not queries:
        raise InputError(f"{folder}: no query has a relevant document")
    return InformationRetrievalEvaluator(
        queries,
        corpus,  # type: ignore[arg-type]  # dict is invariant in its values
        {query: relevant[query] for query in queries},
        ndcg_at_k=[10],
        mrr_at_k=[10],
        precision_recall_at_k=[10, 100],
        map_at_k=[10],
        accuracy_at_k=[1],
        batch_size=evaluation.batch_size,
        write_csv=False,
        name=folder.name,
    )


def score(evaluator: InformationRetrievalEvaluator, model: SentenceTransformer) -> dict[str, float]:
    """Give the measures of a model, queries and documents each through their own route."""
    prefix = f"{evaluator.name}_cosine_"
    found = evaluator(model)
    return {key.removeprefix(prefix): float(value) for key, value in found.items() if key.startswith(prefix)}


def retrieval_file(folder: Path, name: str) -> Path:
    """Find ``corpus``, ``queries`` or ``qrels`` of a retrieval set, plain or gzipped.

    Raises:
        InputError: there is neither.
    """
    for path in (folder / f"{name}.jsonl", folder / f"{name}.jsonl.gz"):
        if path.is_file():
            return path
    raise InputError(f"{folder}: holds neither {name}.jsonl nor {name}.jsonl.gz")
