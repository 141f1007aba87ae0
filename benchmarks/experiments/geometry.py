"""What the two geometries of document vectors differ by: normalised before the cut, or after it.

Both are taken of the same full-width vectors of one trained pair; queries are cut and have unit length in both. The
score is the dot product, by exact search.
"""

from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
import torch
from care_benchmarks.measures import per_query
from care_benchmarks.statistics import Interval
from care_trainer.config import Evaluation
from care_trainer.evaluation import load_evaluator
from care_trainer.models import towers
from care_trainer.models.teacher import encoding
from care_trainer.models.vector_cache import VectorCache, encoder_digest

from benchmarks.perf.measured import output_option, save_measured

from .training_cells import DEPTH, Array
from .training_grid import percentiles, resampled_means

MEASURE = "nDCG@10"


@dataclass(frozen=True)
class Compared:
    """Both geometries at one number of dimensions."""

    dim: int
    cut: float
    """nDCG@10 of vectors that were normalised at full width and cut, by dot product."""
    unit: float
    """nDCG@10 of vectors that were cut and normalised."""
    difference: float
    """``cut`` minus ``unit``."""
    interval: Interval
    """Interval of the difference over queries, paired."""
    shortest: float
    longest: float
    """Lengths of cut document vectors."""


def compare(queries: Array, documents: Array, dim: int, score: "Scorer") -> Compared:
    """Score both geometries."""
    own = unit(queries[:, :dim])
    cut = unit(documents)[:, :dim]
    lengths = np.linalg.norm(cut, axis=1)
    found = np.array([[score(own @ kind.T)] for kind in (cut, unit(cut))])
    drawn = resampled_means(found)
    means = found.mean(axis=(1, 2))
    return Compared(
        dim=dim,
        cut=float(means[0]),
        unit=float(means[1]),
        difference=float(means[0] - means[1]),
        interval=percentiles(drawn[:, 0] - drawn[:, 1]),
        shortest=float(lengths.min()),
        longest=float(lengths.max()),
    )


def unit(vectors: Array) -> Array:
    """Return vectors of length 1."""
    unit_vectors: Array = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit_vectors


class Scorer:
    """The measure of each query of a retrieval set, from all scores."""

    def __init__(self, root: Path, name: str) -> None:
        self.evaluator = load_evaluator(Evaluation(retrieval=name), root)

    def __call__(self, scores: Array) -> list[float]:
        """Return nDCG@10 of each query, (queries,), of scores (queries, documents)."""
        order = np.argsort(-scores, axis=1, kind="stable")[:, :DEPTH]
        corpus, queries = self.evaluator.corpus_ids, self.evaluator.queries_ids
        ranked = {
            query: {corpus[at]: float(row[at]) for at in best}
            for query, row, best in zip(queries, scores, order, strict=True)
        }
        qrels = {query: dict.fromkeys(self.evaluator.relevant_docs[query], 1) for query in queries}
        found = per_query(qrels, ranked)[MEASURE]
        return [found[query] for query in qrels]


@click.command()
@click.option("--query", type=click.Path(path_type=Path, exists=True), required=True, help="Query encoder's folder.")
@click.option("--document", type=click.Path(path_type=Path, exists=True), required=True, help="Document encoder's.")
@click.option("--data", type=click.Path(path_type=Path, exists=True), required=True, help="Folder of all data files.")
@click.option("--cache", type=click.Path(path_type=Path), required=True, help="Folder of stored document vectors.")
@click.option("--dims", default="256,128,64", show_default=True, help="Dimensions that are kept, between commas.")
@output_option
def main(query: Path, document: Path, data: Path, cache: Path, dims: str, output: Path) -> None:
    """Score a trained pair in both geometries on dev/retrieval.

    \b
    Example:
      python -m benchmarks.experiments.geometry --query runs/pair/joint/query --document runs/pair/base/document \\
        --data data --cache runs/teacher-vectors --output geometry.json
    """
    torch.set_num_threads(1)
    score = Scorer(data, "dev/retrieval")
    queries: Array = towers.load(query).encode_query([str(text) for text in score.evaluator.queries])
    stored = VectorCache(cache, encoder_digest(document, None), queries.shape[1])
    texts = [str(text) for text in score.evaluator.corpus]
    documents = stored.encode(texts, encoding(lambda: towers.load(document), prompt=None)).astype(np.float32)
    found = [compare(queries, documents, int(dim), score) for dim in dims.split(",")]
    save_measured(output, {"full_width": queries.shape[1], "compared": [asdict(row) for row in found]})


if __name__ == "__main__":
    main()
