"""A measurement of the weights of query terms (`care_trainer.terms`), alone and beside dense vectors.

The splits of `token_tables`, whose pairs train the weights and a table of token vectors, and collections of
`learn_data`, which neither the built-in pair nor the weights of any split have read. The development set is searched
with the built-in pair, which was trained on the pairs that train the weights.

    python -m benchmarks.experiments.term_weights DATA --work tables --collections CACHE --output RESULT.json
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import numpy as np
from care_benchmarks.lexical import Bm25Matrix
from care_benchmarks.statistics import Comparison, compare_with_base
from care_trainer.config import Data
from care_trainer.data.read import write_rows
from care_trainer.terms import TermGate, learn_terms

from benchmarks.experiments.learn_data import read_texts, read_vectors
from benchmarks.experiments.token_tables import (
    PUBLISHED,
    SPLITS,
    VARIANTS,
    WEIGHTS,
    Counted,
    Scores,
    Vectors,
    built_in_tokenizer,
    joined,
    ndcg_at_10,
    read_task,
)
from benchmarks.experiments.token_tables_training import unit
from benchmarks.perf.measured import output_option, save_measured
from care_qdrant.encoders.terms import bm25
from care_qdrant.encoders.terms.weights import TermWeights
from care_qdrant.model.care_model import CareModel
from care_qdrant.search.fusion import DEFAULT_ALPHA, bm25_weight
from care_qdrant.types import TermVector

CHOSEN_ON = ("unseen", "mixed")

Questions = list[tuple[str, str, set[int]]]
QueryVector = Callable[[str], TermVector]


@dataclass(frozen=True, slots=True)
class Row:
    """One way of searching one set, means over seeds and questions."""

    trained_on: str
    searched: str
    questions: int
    bm25: float
    weighted: float
    hybrid: float
    """BM25 and a dense vector, fused at the default share."""
    weighted_hybrid: float
    gain: Comparison
    """Gain of weighted BM25 over BM25."""
    hybrid_gain: Comparison


class Searched:
    """Questions over documents, with the cosines of a dense model."""

    def __init__(self, name: str, questions: Questions, documents: list[str], cosine: Vectors) -> None:
        self.name, self.questions, self._cosine = name, questions, cosine
        average = bm25.average_length(documents)
        self._matrix = Bm25Matrix([bm25.document_vector(text, average_length=average) for text in documents])

    def scores(self, query_vector: QueryVector) -> tuple[Scores, Scores]:
        """Return nDCG@10 of BM25 and of the hybrid search, (questions,) each."""
        terms = [query_vector(text) for _, text, _ in self.questions]
        lexical = np.stack([self._matrix.scores(vector)[0] * bm25_weight(vector.values) for vector in terms])
        fused = DEFAULT_ALPHA * self._cosine + (1 - DEFAULT_ALPHA) * lexical
        return ndcg_at_10(lexical.astype(np.float32), self.questions), ndcg_at_10(fused, self.questions)


def collections(cache: Path) -> Iterator[Searched]:
    """Yield the sources of a cache, searched with the built-in pair."""
    for path in sorted(cache.glob("*.json")):
        texts, vectors = read_texts(cache, path.stem), read_vectors(cache, path.stem, "built-in")
        questions = [(path.stem, text, set(rows)) for text, rows in zip(texts.questions, texts.relevant, strict=True)]
        yield Searched(path.stem, questions, texts.documents, vectors.questions @ vectors.documents.T)


def split_of(counted: Counted, split: str, work: Path) -> Searched:
    """Return a split, searched with one table of token vectors that its pairs have trained, or the built-in pair."""
    if split == "dev":
        model, task = CareModel.load(), counted.task
        questions = model.encode_query([text for _, text, _ in task.queries])
        return Searched(split, task.queries, task.documents, questions @ model.encode_document(task.documents).T)
    table = joined(counted, VARIANTS[PUBLISHED], 0, work, split)
    queries, documents = (unit(counts @ table) for counts in counted.scored(VARIANTS[PUBLISHED][0].lead))
    return Searched(split, counted.task.queries, counted.task.documents, queries @ documents.T)


def weights_of(counted: Counted, seed: int) -> tuple[TermWeights, TermGate]:
    """Return the weights that the training pairs of a split teach."""
    with TemporaryDirectory() as folder:
        root = Path(folder)
        write_rows(root / "pairs.jsonl", counted.task.pairs)
        return learn_terms(Data(files=("pairs.jsonl",), weights=WEIGHTS), root, root / "rows", seed=seed)


def compared(trained_on: str, searched: Searched, weights: Mapping[int, TermWeights]) -> Row:
    """Search a set without weights, and with those of each seed."""
    plain, plain_hybrid = searched.scores(bm25.query_vector)
    seeds = [searched.scores(found.query_vector) for found in weights.values()]
    weighted, hybrid = (np.mean(kind, axis=0) for kind in zip(*seeds, strict=True))
    [gain] = compare_with_base("bm25", {"bm25": plain, "weighted": weighted})
    [hybrid_gain] = compare_with_base("hybrid", {"hybrid": plain_hybrid, "weighted hybrid": hybrid})
    means = [float(scores.mean()) for scores in (plain, weighted, plain_hybrid, hybrid)]
    return Row(trained_on, searched.name, len(plain), *means, gain, hybrid_gain)


@click.command()
@click.argument("data", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--work", type=click.Path(path_type=Path), required=True, help="Folder of trained tables.")
@click.option("--collections", "cache", type=click.Path(path_type=Path, exists=True), help="Cache of `learn_data`.")
@click.option("--split", "splits", type=click.Choice([*SPLITS]), multiple=True, default=CHOSEN_ON, help="Splits.")
@click.option("--seeds", default="0,1,2", show_default=True, help="Seeds, by commas.")
@output_option
def main(data: Path, work: Path, cache: Path | None, splits: list[str], seeds: str, output: Path) -> None:
    """Learn weights from each split's pairs of DATA and search what the pairs do not hold.

    \b
    Example:
      python -m benchmarks.experiments.term_weights DATA --work tables --collections CACHE --output RESULT.json
    """
    unread = [] if cache is None else list(collections(cache))
    rows, gates = [], {}
    for split in splits:
        counted = Counted(read_task(data, split), built_in_tokenizer())
        found = {int(seed): weights_of(counted, int(seed)) for seed in seeds.split(",")}
        gates[split] = {seed: asdict(gate) for seed, (_, gate) in found.items()}
        weights = {seed: weights for seed, (weights, _) in found.items()}
        for searched in (split_of(counted, split, work), *unread):
            row = compared(split, searched, weights)
            rows.append(row)
            click.echo(
                f"{split:8} {row.searched:16} BM25 {row.bm25:.4f} {row.gain.difference:+.4f}  "
                f"hybrid {row.hybrid:.4f} {row.hybrid_gain.difference:+.4f}",
                err=True,
            )
    save_measured(output, {"seeds": seeds, "rows": [asdict(row) for row in rows], "gates": gates})


if __name__ == "__main__":
    main()
