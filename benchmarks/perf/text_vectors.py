"""Vectors of real sentences by the built-in pair, as files that other measurements read."""

import gzip
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import numpy as np

from care_qdrant.model.care_model import CareModel

DOCUMENTS, QUERIES = "documents.npy", "queries.npy"
MIN_CHARACTERS = 7
LABELS = frozenset({"source", "licence", "kind", "id"})
"""Fields of a row that are no text."""
ENCODED_AT_ONCE = 8_192
_ENDS = re.compile(r"[。！？!?；;\n]+")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--corpus",
    "files",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    multiple=True,
    required=True,
    help="JSONL file, also .gz; every text of its rows is cut into sentences. May be given more than once.",
)
@click.option(
    "--questions",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    required=True,
    help="JSONL file, also .gz; some of its texts are the queries, and are left out of the documents.",
)
@click.option("--queries", type=click.IntRange(1), default=1_000, show_default=True, help="Number of queries.")
@click.option("--documents", type=click.IntRange(1), help="Number of sentences.  [default: all]")
@click.option(
    "--pairs",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Further rows, which cost no encoding: the sum of the vectors of two sentences, at unit length.",
)
@click.option(
    "--output-dir", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder for the vectors."
)
def main(
    files: Sequence[Path], questions: Path, queries: int, documents: int | None, pairs: int, output_dir: Path
) -> None:
    """Encode the distinct sentences of a corpus, in random order, and write documents.npy and queries.npy.

    \b
    Example:
      python -m benchmarks.perf.text_vectors --corpus pairs.jsonl.gz --questions queries.jsonl.gz --output-dir vectors
    """
    rng, model = np.random.default_rng(0), CareModel.load()
    asked = sorted({text for text in _texts(questions) if len(text) >= MIN_CHARACTERS})
    asked = [asked[number] for number in rng.permutation(len(asked))[:queries]]
    sentences = sorted({part for file in files for part in _sentences(file)} - set(asked))
    click.echo(f"{len(sentences)} distinct sentences", err=True)
    order = rng.permutation(len(sentences))[:documents]
    output_dir.mkdir(parents=True, exist_ok=True)
    np.save(output_dir / QUERIES, model.query_encoder.encode(asked))
    shape = (len(order) + pairs, model.contract().dim)
    rows = np.lib.format.open_memmap(output_dir / DOCUMENTS, mode="w+", dtype=np.float32, shape=shape)
    for start in range(0, len(order), ENCODED_AT_ONCE):
        numbers = order[start : start + ENCODED_AT_ONCE]
        rows[start : start + len(numbers)] = model.document_encoder.encode([sentences[number] for number in numbers])
        click.echo(f"{start + len(numbers)} encoded", err=True)
    for start in range(len(order), len(rows), ENCODED_AT_ONCE):
        one, other = rng.integers(0, len(order), (2, min(ENCODED_AT_ONCE, len(rows) - start)))
        sums = rows[one] + rows[other]
        rows[start : start + len(sums)] = sums / np.linalg.norm(sums, axis=1, keepdims=True)


def _sentences(file: Path) -> Iterator[str]:
    for text in _texts(file):
        yield from (part.strip() for part in _ENDS.split(text) if len(part.strip()) >= MIN_CHARACTERS)


def _texts(file: Path) -> Iterator[str]:
    with gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8") as lines:
        for line in lines:
            for key, value in json.loads(line).items():
                if key not in LABELS:
                    values = value if isinstance(value, list) else [value]
                    yield from (each.strip() for each in values if isinstance(each, str))


if __name__ == "__main__":
    main()
