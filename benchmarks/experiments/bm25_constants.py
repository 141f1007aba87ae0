"""A search for BM25 constants that suit Chinese questions: k1, b, and the weight of a document's beginning.

Searched are two splits of the publishable pairs (`token_tables`) with a table of token vectors and with term weights
that their own pairs have taught, and six collections of `learn_data`, which no published weight has read, with the
built-in pair and its term weights. The development set is searched so, too, with the chosen and the former constants.

    python -m benchmarks.experiments.bm25_constants DATA --work tables --collections CACHE --output RESULT.json
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt
from care_benchmarks.statistics import Comparison, compare_with_base
from qdrant_client import models
from scipy import sparse

from benchmarks.experiments.learn_data import read_texts, read_vectors
from benchmarks.experiments.term_weights import QueryVector, Questions, weights_of
from benchmarks.experiments.token_tables import (
    PUBLISHED,
    VARIANTS,
    Counted,
    Scores,
    Vectors,
    built_in_tokenizer,
    joined,
    ndcg_at_10,
    read_task,
)
from benchmarks.experiments.token_tables_training import Csr, unit
from benchmarks.perf.measured import output_option, save_measured
from care_qdrant.encoders.terms import bm25
from care_qdrant.model.care_model import CareModel
from care_qdrant.search.fusion import DEFAULT_ALPHA, bm25_weight

CHOSEN_ON = ("unseen", "mixed")


@dataclass(frozen=True, slots=True)
class Constants:
    """Constants of a contract."""

    k1: float = bm25.DEFAULT_K1
    b: float = bm25.DEFAULT_B
    lead: float | None = bm25.DEFAULT_LEAD


FORMER = Constants(1.2, 0.75, None)
TRIED = (
    FORMER,
    Constants(1.2, 0.75),
    Constants(lead=None),
    Constants(lead=20),
    Constants(),
    Constants(lead=80),
    Constants(k1=0.8),
    Constants(b=0.5),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One choice of the constants on some questions, means over seeds; nDCG@10."""

    searched: str
    constants: Constants
    questions: int
    bm25: float
    """nDCG@10 without weights of terms."""
    weighted: float
    hybrid: float
    """Weighted, with the dense vectors at the default share."""
    gains: dict[str, Comparison]
    """Over the former constants, by question, of the three; empty for those."""


@dataclass(frozen=True, slots=True)
class Searched:
    """Questions over documents, with the cosines of one dense model for each seed, or of one for all."""

    name: str
    questions: Questions
    documents: list[str]
    cosines: Sequence[Vectors]


def research_collections(cache: Path) -> Iterator[Searched]:
    """Yield the collections of a cache, searched with the built-in pair."""
    for path in sorted(cache.glob("*.json")):
        texts, vectors = read_texts(cache, path.stem), read_vectors(cache, path.stem, "built-in")
        questions = [(path.stem, text, set(rows)) for text, rows in zip(texts.questions, texts.relevant, strict=True)]
        yield Searched(path.stem, questions, texts.documents, [vectors.questions @ vectors.documents.T])


def split_of(counted: Counted, split: str, seeds: Sequence[int], work: Path) -> Searched:
    """Return a split with tables that its pairs have trained, or the development set with the built-in pair."""
    task = counted.task
    if split == "dev":
        model = CareModel.load()
        asked = model.encode_query([text for _, text, _ in task.queries])
        return Searched(split, task.queries, task.documents, [asked @ model.encode_document(task.documents).T])
    queries, documents = counted.scored(VARIANTS[PUBLISHED][0].lead)
    tables = (joined(counted, VARIANTS[PUBLISHED], seed, work, split) for seed in seeds)
    cosines = [unit(queries @ table) @ unit(documents @ table).T for table in tables]
    return Searched(split, task.queries, task.documents, cosines)


def by_term(vectors: Sequence[models.SparseVector], terms: npt.NDArray[np.uint32]) -> Csr:
    """Return sparse vectors as rows over some terms; others are left out."""
    ends = np.cumsum([0, *(len(vector.indices) for vector in vectors)])
    indices = np.concatenate([np.array(vector.indices, np.uint32) for vector in vectors])
    values = np.concatenate([np.array(vector.values, np.float64) for vector in vectors])
    places = np.minimum(np.searchsorted(terms, indices), len(terms) - 1)
    values[terms[places] != indices] = 0
    found = sparse.csr_matrix((values, places, ends), shape=(len(vectors), len(terms)))
    found.eliminate_zeros()
    return found


def scores(
    searched: Searched, tried: Sequence[Constants], encoders: Sequence[QueryVector]
) -> dict[Constants, dict[str, Scores]]:
    """Return nDCG@10 of each kind of search with each choice, (questions,), the mean over the encoders' seeds."""
    found: dict[Constants, dict[str, Scores]] = {}
    for lead in dict.fromkeys(each.lead for each in tried):
        counts = [bm25.term_counts(text, lead=lead) for text in searched.documents]
        average = float(np.mean([sum(its.values()) for its in counts]))
        for constants in (each for each in tried if each.lead == lead):
            documents = [bm25.weighted(its, average_length=average, k1=constants.k1, b=constants.b) for its in counts]
            found[constants] = scored(searched, documents, encoders)
    return found


def scored(
    searched: Searched, documents: Sequence[models.SparseVector], encoders: Sequence[QueryVector]
) -> dict[str, Scores]:
    """Return nDCG@10 of each kind of search over document vectors, (questions,), the mean over the encoders' seeds."""
    terms = np.unique(np.concatenate([np.array(vector.indices, np.uint32) for vector in documents]))
    stored = by_term(documents, terms)
    holders = stored.getnnz(axis=0)
    rarity = np.log((len(documents) - holders + 0.5) / (holders + 0.5) + 1)
    searchable = (stored @ sparse.diags(rarity)).T.tocsc()

    def lexical(encode: QueryVector) -> Vectors:
        asked = [encode(text) for _, text, _ in searched.questions]
        scale = np.array([bm25_weight(vector.values) for vector in asked])
        return np.asarray((by_term(asked, terms) @ searchable).toarray() * scale[:, None], dtype=np.float32)

    weighted, hybrid = [], []
    for seed, encode in enumerate(encoders):
        found, cosine = lexical(encode), searched.cosines[min(seed, len(searched.cosines) - 1)]
        weighted.append(ndcg_at_10(found, searched.questions))
        hybrid.append(ndcg_at_10(DEFAULT_ALPHA * cosine + (1 - DEFAULT_ALPHA) * found, searched.questions))
    return {
        "bm25": ndcg_at_10(lexical(bm25.query_vector), searched.questions),
        "weighted": np.mean(weighted, axis=0),
        "hybrid": np.mean(hybrid, axis=0),
    }


def rows_of(name: str, found: dict[Constants, dict[str, Scores]]) -> Iterator[Row]:
    """Yield a row for each choice of the constants."""
    for constants, its in found.items():
        gains = {}
        for kind in its if constants != FORMER else ():
            [gains[kind]] = compare_with_base("former", {"former": found[FORMER][kind], "now": its[kind]})
        means = [float(its[kind].mean()) for kind in ("bm25", "weighted", "hybrid")]
        yield Row(name, constants, len(its["bm25"]), *means, gains)


@click.command()
@click.argument("data", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--work", type=click.Path(path_type=Path), required=True, help="Folder of trained tables.")
@click.option("--collections", "cache", type=click.Path(path_type=Path, exists=True), help="Cache of `learn_data`.")
@click.option(
    "--split",
    "splits",
    type=click.Choice([*CHOSEN_ON, "dev"]),
    multiple=True,
    default=CHOSEN_ON,
    help="Split. Repeatable.",
)
@click.option("--seeds", default="0,1,2", show_default=True, help="Seeds, by commas.")
@output_option
def main(data: Path, work: Path, cache: Path | None, splits: list[str], seeds: str, output: Path) -> None:
    """Search held-out questions with several constants of BM25.

    \b
    Example:
      python -m benchmarks.experiments.bm25_constants DATA --work tables --collections CACHE --output RESULT.json
    """
    numbers, rows, gates = [int(seed) for seed in seeds.split(",")], list[Row](), {}

    def note(name: str, found: dict[Constants, dict[str, Scores]]) -> None:
        for row in rows_of(name, found):
            rows.append(row)
            click.echo(
                f"{row.searched:16} {row.constants} BM25 {row.bm25:.4f}, weighted {row.weighted:.4f}, "
                f"hybrid {row.hybrid:.4f}",
                err=True,
            )
        save_measured(output, {"seeds": seeds, "rows": [asdict(row) for row in rows], "gates": gates})

    if cache is not None:
        built_in = [CareModel.load().query_terms]
        by_source = {each.name: scores(each, TRIED, built_in) for each in research_collections(cache)}
        for name, found in by_source.items():
            note(name, found)
        kinds = ("bm25", "weighted", "hybrid")
        note(
            "six sources",
            {
                one: {kind: np.concatenate([its[one][kind] for its in by_source.values()]) for kind in kinds}
                for one in TRIED
            },
        )
    for split in splits:
        counted = Counted(read_task(data, split), built_in_tokenizer())
        if split == "dev":
            tried, encoders = (FORMER, Constants()), [CareModel.load().query_terms]
        else:
            learned = {seed: weights_of(counted, seed) for seed in numbers}
            gates[split] = {seed: asdict(gate) for seed, (_, gate) in learned.items()}
            tried, encoders = TRIED, [weights.query_vector for weights, _ in learned.values()]
        note(split, scores(split_of(counted, split, numbers, work), tried, encoders))


if __name__ == "__main__":
    main()
