"""Measure `care verify --every`: how soon it notices another model's vectors, and how often it alarms for nothing.

A check is of eight writes, after seven of the right model. The reference points are of one source, and the writes of
the same source or of another; those of the right model also as float16, as int8 and in other batches. The result holds
no text.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import click
import numpy as np

from benchmarks.perf.measured import output_option, plain, save_measured, shown
from care_qdrant.encoders.terms.analyser import analyser_for
from care_qdrant.encoders.terms.bm25 import DEFAULT_LEAD, term_counts
from care_qdrant.encoders.terms.languages import language_of
from care_qdrant.model.care_model import CareModel
from care_qdrant.types import Vectors
from care_qdrant.vectors.belonging import WINDOW, Expectation, Terms, foreign_windows
from care_qdrant.vectors.watch import REFERENCES

SEED = 20261129
RIGHT = ("the same", "float16", "int8", "other batches")
_BATCH = 16


@dataclass(frozen=True, slots=True)
class Row:
    """Checks of one kind of writes against the references of one source."""

    model: str
    references: str
    """Source of the reference points."""
    writes: str
    """Source of the writes."""
    vectors: str
    """Model of the vectors of the writes, or how they were changed."""
    checks: int
    alarms: int
    judged: float
    """Fraction of the writes that were judged, from 0 to 1."""
    agreement: float | None
    """Mean agreement of the vectors with their texts."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Reference points of one source and model."""

    model: str
    source: str
    points: int
    agreement: float
    tells: bool
    """Whether the watch accepts them."""


def read_texts(path: Path, most: int, random: np.random.Generator) -> list[str]:
    """Return texts of a file of JSON Lines, with their titles, in random order."""
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    texts = list(dict.fromkeys("\n".join(filter(None, (row.get("title"), row["text"]))) for row in rows))
    return [texts[row] for row in random.permutation(len(texts))[:most]]


def as_int8(vectors: Vectors) -> Vectors:
    """Return vectors as a scalar quantisation keeps them."""
    scale = np.abs(vectors).max() / 127
    return np.asarray(np.rint(vectors / scale) * scale, dtype=np.float32)


def table(terms: Sequence[Terms], width: int, seed: int) -> Vectors:
    """Return the vectors of a model that is a table of random token vectors: their sum over the terms of a text."""
    tokens = {term: np.random.default_rng((seed, term)).normal(size=width) for counts in terms for term in counts}
    rows = [sum(tokens[term] * count for term, count in counts.items()) for counts in terms]
    return np.asarray(rows, dtype=np.float32)


def count_alarms(values: np.ndarray, before: np.ndarray, checks: int, random: np.random.Generator) -> int:
    """Return how many of some checks alarm: of eight random writes, after judged ones of the same model."""
    drawn = (values[random.permutation(len(values))[:WINDOW]] for _ in range(checks))
    rows = ([*before[random.permutation(len(before))[: WINDOW - 1]], *some[~np.isnan(some)]] for some in drawn)
    return sum(any(foreign_windows(row)) for row in rows)


@click.command()
@click.argument("corpora", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--other", help="Another model, at most as wide as the included one; it gets zeros to its width.")
@click.option("--most", default=1_000, show_default=True, help="Largest number of texts of a file.")
@click.option("--checks", default=1_000, show_default=True, help="Checks of each kind.")
@output_option
def main(corpora: tuple[Path, ...], other: str | None, most: int, checks: int, output: Path) -> None:
    """Write how many checks alarm, for CORPORA of JSON Lines with 'text' and 'title', a source each.

    \b
    Example:
      python -m benchmarks.experiments.model_watch a.jsonl b.jsonl --output model-watch.json
    """
    random, model = np.random.default_rng(SEED), CareModel.load("built-in")
    sources = {path.stem: read_texts(path, most, random) for path in corpora}
    texts = [text for source in sources.values() for text in source]
    labels = np.array([name for name, source in sources.items() for _ in source])
    analysers = {name: analyser_for(language_of(source)) for name, source in sources.items()}
    read = {
        analyser.name: [term_counts(text, lead=DEFAULT_LEAD, analyser=analyser) for text in texts]
        for analyser in set(analysers.values())
    }
    words, width = read[analysers[next(iter(sources))].name], model.dim
    in_batches = [model.encode_document(texts[start : start + _BATCH]) for start in range(0, len(texts), _BATCH)]
    made = {
        "included": model.encode_document(texts),
        "table": table(words, width, 0),
        "other table": table(words, width, 1),
    }
    if other is not None:
        vectors = CareModel.load(other).encode_document(texts)
        made["other"] = np.pad(vectors, ((0, 0), (0, width - vectors.shape[1])))
    query_side = model.encode_query(texts)
    rows: list[Row] = []
    references: list[Reference] = []
    for (name, vectors), source in product(made.items(), sources):
        terms = read[analysers[source].name]
        own = random.permutation(np.flatnonzero(labels == source))
        drawn, held = np.split(own, [min(REFERENCES, 2 * len(own) // 3)])
        expectation = Expectation([terms[row] for row in drawn], vectors[drawn])
        references.append(Reference(name, source, len(drawn), round(expectation.agreement, 2), bool(expectation.tells)))
        if not shown(references[-1]).tells:
            continue
        rotation = np.linalg.qr(random.normal(size=(width, width)))[0].astype(np.float32)
        kinds = {
            "the same": vectors,
            "float16": vectors.astype(np.float16).astype(np.float32),
            "int8": as_int8(vectors),
            **({"other batches": np.concatenate(in_batches), "query side": query_side} if name == "included" else {}),
            "rotated": vectors @ rotation,
            **{other_name: others for other_name, others in made.items() if other_name != name},
        }
        right = expectation.judge([terms[row] for row in held], vectors[held])
        right = right[~np.isnan(right)]
        for writes, (kind, written) in product(sources, kinds.items()):
            places = held if writes == source else np.flatnonzero(labels == writes)
            values = expectation.judge([terms[row] for row in places], written[places])
            known = values[~np.isnan(values)]
            mean = round(float(known.mean()), 2) if len(known) else None
            alarms = count_alarms(values, right, checks, random)
            rows.append(Row(name, source, writes, kind, checks, alarms, round(len(known) / len(values), 3), mean))
    right, foreign = ([row for row in rows if (row.vectors in RIGHT) == is_right] for is_right in (True, False))
    noticed = [row for row in foreign if row.writes == row.references and row.vectors != "query side"]
    save_measured(
        output,
        {
            "seed": SEED,
            "false_alarms": sum(row.alarms for row in right),
            "checks_of_the_same_model": sum(row.checks for row in right),
            "noticed": sum(row.alarms for row in noticed),
            "checks_of_other_models": sum(row.checks for row in noticed),
            "references": plain(references),
            "rows": plain(rows),
        },
    )


if __name__ == "__main__":
    main()
