"""The rows of a stage as a memory-mapped Arrow table: memory does not grow with the corpus.

JSONL is read once a run and written, filtered and deduplicated, into one file below the run's output. Every stage and
every process maps that file, in the order of the JSONL: a batch is read from disk when it is trained on.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]
from datasets import Dataset

from care_trainer.config import Data, Side
from care_trainer.data.diversity import diverse_pairs
from care_trainer.data.read import Pair, Text, file_hashes, iter_texts
from care_trainer.disk import writing

ROWS_FOLDER = "rows"
"""Name of the folder below a run's output, while it has stages to train."""
LAYOUT = 1
"""Version of the layout, part of the key: a file of another layout is not read."""
PIECE_ROWS = 1024
"""Rows written at once."""


@dataclass(frozen=True)
class Rows:
    """The rows that a stage trains on."""

    columns: Dataset
    """One text column for each text of a row, and ``label``, the number of the row; memory-mapped."""
    weights: npt.NDArray[np.float64]
    """How often an epoch draws each row, (rows,)."""
    characters: npt.NDArray[np.int32]
    """Characters of all texts of each row, (rows,)."""

    def __len__(self) -> int:
        return len(self.weights)

    def select(self, *names: str) -> Dataset:
        """Return some of the columns."""
        return self.columns.select_columns(list(names))

    def text_columns(self) -> Dataset:
        """Return the columns without ``label``."""
        return self.columns.remove_columns("label")


def pair_rows(data: Data, root: Path, folder: Path, hard_negatives: int = 0) -> Rows:
    """Return the columns query, positive, negative_1…; a row with too few negatives repeats its positive.

    The loss masks the repeated positive like any candidate whose text is the positive's, so it adds nothing.

    Args:
        data: The data set.
        root: Folder of its files.
        folder: Folder of the Arrow files; one that is there already is used.
        hard_negatives: Number of columns of negatives.

    Raises:
        InputError: a file is missing, a row is no pair, or nothing is left.
        TrainingError: the table cannot be written.
    """
    names = ["query", "positive", *(f"negative_{number + 1}" for number in range(hard_negatives))]

    def values(pair: Pair) -> list[str]:
        missing = hard_negatives - len(pair.negatives)
        return [pair.query, pair.positive, *pair.negatives[:hard_negatives], *[pair.positive] * missing]

    return _rows(data, root, folder, names, ((values(pair), pair.source) for pair in diverse_pairs(data, root)))


def text_rows(data: Data, root: Path, folder: Path, sides: Sequence[Side] = ("query", "document")) -> Rows:
    """Return the column text: every text of the given sides of pairs, and every single text, once.

    Args:
        data: The data set.
        root: Folder of its files.
        folder: Folder of the Arrow files; one that is there already is used.
        sides: Sides of pairs whose texts are read.

    Raises:
        InputError: a file is missing, a row holds no text, or nothing is left.
        TrainingError: the table cannot be written.
    """
    texts: Iterable[Text] = iter_texts(data, root, sides)
    return _rows(data, root, folder, ["text"], (([text.text], text.source) for text in texts), sides)


def _rows(
    data: Data,
    root: Path,
    folder: Path,
    names: list[str],
    rows: Iterator[tuple[list[str], str]],
    sides: Sequence[Side] = (),
) -> Rows:
    key = json.dumps([LAYOUT, names, list(sides), dataclasses.asdict(data), file_hashes(data, root)], sort_keys=True)
    path = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.arrow"
    if not path.exists():
        _write(path, names, rows, data)
    table = Dataset.from_file(str(path))
    return Rows(
        columns=table.select_columns([*names, "label"]),
        weights=table.data.column("weight").to_numpy(),
        characters=table.data.column("characters").to_numpy(),
    )


def _write(path: Path, names: list[str], rows: Iterator[tuple[list[str], str]], data: Data) -> None:
    schema = pa.schema(
        [(name, pa.string()) for name in names]
        + [("label", pa.int64()), ("weight", pa.float64()), ("characters", pa.int32())]
    )
    partial, written = path.with_suffix(".partial"), 0
    try:
        with writing(f"{path}: the rows cannot be written"):
            path.parent.mkdir(parents=True, exist_ok=True)
            with pa.OSFile(str(partial), "wb") as file, pa.ipc.new_stream(file, schema) as stream:
                while piece := list(islice(rows, PIECE_ROWS)):
                    stream.write_batch(pa.RecordBatch.from_arrays(_arrays(piece, written, schema, data), schema=schema))
                    written += len(piece)
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _arrays(piece: list[tuple[list[str], str]], start: int, schema: pa.Schema, data: Data) -> list[Any]:
    texts = list(zip(*(values for values, _ in piece), strict=True))
    labels = range(start, start + len(piece))
    weights = [data.weights.get(source, 1.0) for _, source in piece]
    characters = [sum(map(len, values)) for values, _ in piece]
    columns = [*texts, labels, weights, characters]
    return [pa.array(column, type=field.type) for column, field in zip(columns, schema, strict=True)]
