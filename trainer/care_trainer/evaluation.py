"""The score of a model on a labelled retrieval set, with sentence-transformers' own evaluator.

It encodes each side through its own route and keeps the best documents as it goes, so no matrix of all scores is held;
its nDCG and recall equal `care_qdrant.measures`.
"""

from itertools import islice
from pathlib import Path

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

from care_qdrant.errors import InputError
from care_qdrant.types import embedded_text
from care_trainer.config import Evaluation
from care_trainer.data.read import retrieval_rows


def read_retrieval(folder: Path) -> tuple[dict[str, str], dict[str, str], dict[str, set[str]]]:
    """Read the documents and the queries of a retrieval set by their ids, and the relevant documents of each query.

    Queries without a relevant document are left out.
    """
    corpus = {
        str(row["id"]): embedded_text(row.get("title", ""), row["text"]) for row, _ in retrieval_rows(folder, "corpus")
    }
    relevant: dict[str, set[str]] = {}
    for row, where in retrieval_rows(folder, "qrels"):
        if row["score"] > 0:
            if (document := str(row["document_id"])) not in corpus:
                raise InputError(f"{folder.name}/{where}: document {document!r} is not in the corpus")
            relevant.setdefault(str(row["query_id"]), set()).add(document)
    rows = retrieval_rows(folder, "queries")
    queries = {str(row["id"]): row["text"] for row, _ in rows if str(row["id"]) in relevant}
    return corpus, queries, relevant


def load_evaluator(evaluation: Evaluation, root: Path) -> InformationRetrievalEvaluator:
    """Read a retrieval set into an evaluator of nDCG@10, MRR@10, recall@10 and @100."""
    folder = root / evaluation.retrieval
    corpus, queries, relevant = read_retrieval(folder)
    queries = dict(islice(queries.items(), evaluation.max_queries))
    if not queries:
        raise InputError(f"{folder}: no query has a relevant document")
    return InformationRetrievalEvaluator(
        queries,  # type: ignore[arg-type]  # dict is invariant in its values
        corpus,  # type: ignore[arg-type]
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
    """Return the measures of a model by name, with queries and documents each through their own route."""
    prefix = f"{evaluator.name}_{model.similarity_fn_name}_"
    scores = evaluator(model)
    return {key.removeprefix(prefix): float(value) for key, value in scores.items() if key.startswith(prefix)}
