"""Several tables of token vectors side by side, as one static encoder for both sides.

Every table reads another cut of a text: the tokens of a BPE tokenizer, or the pieces that they were before its later
merges, down to characters. Each is trained alone on pairs (`token_tables_training`), then a token's row is the sum of
its pieces' vectors in each table, side by side. So one tokenizer and one table compute what several would.

Choices follow held-out training sources; the development set is scored once. Training is resumable: a table that is in
the work folder is not trained again.
"""

import gzip
import json
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
from care_benchmarks.lexical import Bm25Matrix
from care_benchmarks.statistics import Comparison, Interval, compare_with_base, mean_interval
from tokenizers import Tokenizer

from benchmarks.experiments.learn_data import read_texts
from benchmarks.experiments.token_tables_training import Csr, Table, counts_of, pieces_of, train_table, unit
from benchmarks.perf.measured import output_option, save_measured
from care_qdrant import measures
from care_qdrant.encoders.terms import bm25
from care_qdrant.model.hub import BUILT_IN, find_folder
from care_qdrant.search.fusion import DEFAULT_ALPHA, bm25_weight

NOT_PUBLISHABLE = ("research-only", "unstated")
WEIGHTS = {"tcm_books": 0.1, "smilechat": 0.2, "cpsycoun": 0.3}
"""Share of a source's pairs that one epoch reads; 1 for the others."""
SPLITS: dict[str, dict[str, float]] = {
    "unseen": {"cmdd": 1, "haimol_tcm": 1, "medicalgpt_1k": 1, "toyhom_im": 0.15, "cmedir": 0.15},
    "mixed": {"cmedir": 1, "toyhom_im": 0.15, "cmdd": 0.3, "medicalgpt_1k": 0.5, "haimol_tcm": 0.2},
    "dev": {},
}
"""Share of the answers of a source that is held out; ``dev`` trains on all and is scored on the development set."""
MAX_QUERIES = 800
"""Most queries of one source."""
VARIANTS: dict[str, tuple[Table, ...]] = {
    "one table": (Table(256),),
    "one table, temperature 0.05": (Table(256, temperature=0.05),),
    **{f"from the beginning, half at {lead}": (Table(256, lead=lead),) for lead in (5, 10, 20, 40)},
    "one cut, four seeds": tuple(Table(192, seed=seed) for seed in (0, 100, 200, 300)),
    "two cuts": (Table(192), Table(192, merges=1500)),
    "three cuts": (Table(192), Table(192, merges=1500), Table(192, merges=0)),
    "three cuts, four tables": (Table(192), Table(192, seed=100), Table(192, merges=1500), Table(192, merges=0)),
    "three cuts, five tables": (
        *(Table(192, seed=seed) for seed in (0, 100, 200)),
        Table(192, merges=1500),
        Table(192, merges=0),
    ),
}
BASE = "one table"
PUBLISHED = "from the beginning, half at 10"
"""The variant of the built-in pair."""

Vectors = npt.NDArray[np.float32]
Scores = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Task:
    """Pairs to train on, and questions with their answers among all held-out ones."""

    pairs: list[dict[str, str]]
    documents: list[str]
    queries: list[tuple[str, str, set[int]]]
    """Source, text, rows of the documents that answer it."""


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a compressed JSONL file."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        yield from map(json.loads, stream)


def read_task(data: Path, split: str) -> Task:
    """Split the publishable pairs by answer; no question and no answer is on both sides."""
    rows = {
        (row["query"], row["positive"]): row
        for row in read_lines(data / "train" / "pairs_open.jsonl.gz")
        if row["licence"] not in NOT_PUBLISHABLE
    }
    if split == "dev":
        return _development(data, list(rows.values()))
    shares = SPLITS[split]
    held: dict[str, list[dict[str, str]]] = defaultdict(list)
    train = []
    for row in rows.values():
        place = int.from_bytes(blake2b((split + row["positive"]).encode(), digest_size=4).digest(), "big") / 2**32
        (held[row["source"]] if place < shares.get(row["source"], 0) else train).append(row)
    questions = {row["query"] for of_source in held.values() for row in of_source}
    answers = {row["positive"]: 0 for of_source in held.values() for row in of_source}
    numbers = {text: number for number, text in enumerate(answers)}
    queries = []
    for source, of_source in held.items():
        relevant: dict[str, set[int]] = defaultdict(set)
        for row in of_source:
            relevant[row["query"]].add(numbers[row["positive"]])
        chosen = sorted(relevant)
        random.Random(0).shuffle(chosen)
        queries += [(source, query, relevant[query]) for query in chosen[:MAX_QUERIES]]
    kept = [row for row in train if row["query"] not in questions and row["positive"] not in numbers]
    return Task(kept, list(numbers), queries)


def _development(data: Path, pairs: list[dict[str, str]]) -> Task:
    folder = data / "dev" / "retrieval"
    documents = list(read_lines(folder / "corpus.jsonl.gz"))
    numbers = {row["id"]: number for number, row in enumerate(documents)}
    relevant: dict[str, set[int]] = defaultdict(set)
    for row in read_lines(folder / "qrels.jsonl.gz"):
        if row["score"] > 0:
            relevant[row["query_id"]].add(numbers[row["document_id"]])
    queries = [("dev", row["text"], relevant[row["id"]]) for row in read_lines(folder / "queries.jsonl.gz")]
    return Task(pairs, [row["text"] for row in documents], queries)


@dataclass(frozen=True)
class Counted:
    """A split as counts of tokens."""

    task: Task
    tokenizer: Tokenizer

    def pairs(self, lead: int | None) -> tuple[Csr, Csr]:
        """Return queries and answers to train on."""
        queries, answers = ([row[side] for row in self.task.pairs] for side in ("query", "positive"))
        return counts_of(self.tokenizer, queries), counts_of(self.tokenizer, answers, lead)

    def scored(self, lead: int | None = None) -> tuple[Csr, Csr]:
        """Return questions and documents to score."""
        queries = [text for _, text, _ in self.task.queries]
        return counts_of(self.tokenizer, queries), counts_of(self.tokenizer, self.task.documents, lead)

    @cached_property
    def lexical(self) -> Vectors:
        """BM25 on the scale of a cosine (`care_qdrant.search.fusion`), (queries, documents)."""
        return _lexical(self.task)


def _lexical(task: Task) -> Vectors:
    average = bm25.average_length(task.documents)
    matrix = Bm25Matrix([bm25.document_vector(text, average_length=average) for text in task.documents])
    found = np.empty((len(task.queries), len(task.documents)), np.float32)
    for row, (_, text, _) in enumerate(task.queries):
        terms = bm25.query_vector(text)
        found[row] = matrix.scores(terms)[0] * bm25_weight(terms.values)
    return found


def table_of(counted: Counted, table: Table, seed: int, work: Path, split: str) -> Vectors:
    """Return a trained table whose rows are whole tokens, (tokens, width), from the work folder if it is there."""
    lead = "" if table.lead is None else f"-lead-{table.lead}"
    path = work / f"{split}-{table.width}-{table.merges}-{table.temperature}-{table.seed + seed}{lead}.npy"
    if path.is_file():
        return np.asarray(np.load(path))
    pieces = pieces_of(counted.tokenizer, table.merges)
    whole_tokens = counted.pairs(table.lead)
    queries, documents = (counts @ pieces for counts in whole_tokens)
    rows = counted.task.pairs
    weights = np.array([WEIGHTS.get(row["source"], 1.0) for row in rows])
    trained = train_table(
        queries,
        documents,
        _numbers([row["query"] for row in rows]),
        _numbers([row["positive"] for row in rows]),
        weights,
        width=table.width,
        seed=table.seed + seed,
        temperature=table.temperature,
    )
    whole = np.asarray(pieces @ trained, dtype=np.float32)
    # Every table counts the same in the cosine of the whole.
    whole /= np.linalg.norm(whole_tokens[1][:: max(1, len(rows) // 5000)] @ whole, axis=1).mean()
    work.mkdir(parents=True, exist_ok=True)
    np.save(path, whole)
    return whole


def _numbers(texts: Sequence[str]) -> npt.NDArray[np.int64]:
    known: dict[str, int] = {}
    return np.array([known.setdefault(text, len(known)) for text in texts])


def ndcg_at_10(scores: Vectors, queries: Sequence[tuple[str, str, set[int]]]) -> Scores:
    """Return nDCG@10 of each query, for binary judgements."""
    found = []
    for row in range(len(queries)):
        best = np.argpartition(-scores[row], 10)[:10]
        found.append(best[np.argsort(-scores[row, best], kind="stable")].tolist())
    return np.array(measures.ndcg_at_10(found, [relevant for _, _, relevant in queries]))


@dataclass(frozen=True, slots=True)
class Row:
    """One variant on one split, means over seeds."""

    split: str
    variant: str
    dimensions: int
    seeds: list[int]
    ndcg_at_10: float
    """Mean over queries; `by_source` has the parts."""
    of_seeds: list[float]
    with_bm25: float
    """Fused with BM25 at the default weight."""
    interval: Interval
    by_source: dict[str, float]
    against_base: Comparison | None
    """Comparison with one table, per query over the mean of the seeds; None for the table itself."""
    fused_against_base: Comparison | None


def measure(
    counted: Counted,
    split: str,
    variants: Sequence[str],
    seeds: Sequence[int],
    work: Path,
    searched: Sequence[Counted] = (),
) -> list[Row]:
    """Train the variants on a split, and score them there or on other collections, one after the other."""
    searched = searched or [counted]
    queries = [query for one in searched for query in one.task.queries]
    dense: dict[str, Scores] = {}
    fused: dict[str, Scores] = {}
    for name in variants:
        lead = VARIANTS[name][0].lead
        counts = [one.scored(lead) for one in searched]
        by_seed = []
        for seed in seeds:
            whole = joined(counted, VARIANTS[name], seed, work, split)
            found = []
            for one, (asked, documents) in zip(searched, counts, strict=True):
                cosine = unit(asked @ whole) @ unit(documents @ whole).T
                mixed = DEFAULT_ALPHA * cosine + (1 - DEFAULT_ALPHA) * one.lexical
                found.append([ndcg_at_10(kind, one.task.queries) for kind in (cosine, mixed)])
            by_seed.append(tuple(map(np.concatenate, zip(*found, strict=True))))
        dense[name], fused[name] = (np.array(kind) for kind in zip(*by_seed, strict=True))
        click.echo(f"{split:8} {name:24} {dense[name].mean():.4f}  with BM25 {fused[name].mean():.4f}", err=True)
    compared, compared_fused = (
        {one.other: one for one in compare_with_base(BASE, {name: kind[name].mean(axis=0) for name in variants})}
        for kind in (dense, fused)
    )
    sources = np.array([source for source, _, _ in queries])
    return [
        Row(
            split if searched[0] is counted else f"{split}, other sources",
            name,
            sum(table.width for table in VARIANTS[name]),
            list(seeds),
            float(dense[name].mean()),
            [float(values.mean()) for values in dense[name]],
            float(fused[name].mean()),
            mean_interval(dense[name].mean(axis=0)),
            {str(source): float(dense[name][:, sources == source].mean()) for source in np.unique(sources)},
            compared.get(name),
            compared_fused.get(name),
        )
        for name in variants
    ]


def joined(counted: Counted, tables: Sequence[Table], seed: int, work: Path, split: str) -> Vectors:
    """Return the tables of a variant side by side, (tokens, dimensions)."""
    return np.concatenate([table_of(counted, table, seed, work, split) for table in tables], axis=1)


def collections(cache: Path) -> Iterator[Counted]:
    """Yield the sources of a cache of `learn_data`, which no publishable pair is of."""
    for path in sorted(cache.glob("*.json")):
        texts = read_texts(cache, path.stem)
        queries = [(path.stem, text, set(rows)) for text, rows in zip(texts.questions, texts.relevant, strict=True)]
        yield Counted(Task([], texts.documents, queries), built_in_tokenizer())


@cache
def built_in_tokenizer() -> Tokenizer:
    """Return the built-in pair's tokenizer, which has read all publishable pairs, the held-out ones included."""
    return Tokenizer.from_file(str(find_folder(BUILT_IN) / "query" / "tokenizer.json"))


@click.command()
@click.argument("data", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--work", type=click.Path(path_type=Path), required=True, help="Folder of trained tables.")
@click.option("--split", "splits", type=click.Choice(list(SPLITS)), multiple=True, default=list(SPLITS), help="Splits.")
@click.option("--variant", "variants", type=click.Choice(list(VARIANTS)), multiple=True, help="Variants; default: all.")
@click.option("--seeds", default="0,1,2", show_default=True, help="Seeds, by commas.")
@click.option(
    "--collections", "cache", type=click.Path(path_type=Path, exists=True), help="Cache of `learn_data` to score, too."
)
@output_option
def main(
    data: Path, work: Path, splits: list[str], variants: list[str], seeds: str, cache: Path | None, output: Path
) -> None:
    """Train the variants on the pairs of DATA and score them on held-out sources and the development set.

    \b
    Example:
      python -m benchmarks.experiments.token_tables DATA --work tables --output benchmarks/results/token-tables.json
    """
    chosen = [BASE, *(name for name in variants or VARIANTS if name != BASE)]
    rows, lexical = [], {}
    for split in splits:
        counted = Counted(read_task(data, split), built_in_tokenizer())
        lexical[split] = float(ndcg_at_10(counted.lexical, counted.task.queries).mean())
        numbers = [int(seed) for seed in seeds.split(",")]
        rows += measure(counted, split, chosen, numbers, work)
        if cache is not None:
            rows += measure(counted, split, chosen, numbers, work, list(collections(cache)))
    save_measured(output, {"bm25": lexical, "rows": [asdict(row) for row in rows]})


if __name__ == "__main__":
    main()
