"""The rows of a stage as a memory-mapped Arrow table: memory does not grow with the corpus.

JSONL is read once a run and written, filtered and deduplicated, into one file below the run's output. Every stage and
every process maps that file, in the order of the JSONL: a batch is read from disk when it is trained on.
"""

import dataclasses
import hashlib
import json
import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]
from datasets import Dataset

from care_qdrant.errors import InputError
from care_trainer.config import Data, Side
from care_trainer.data.diversity import diverse_pairs
from care_trainer.data.read import Pair, file_hashes, iter_texts, text_key
from care_trainer.data.sampling import Sources
from care_trainer.disk import writing

ROWS_FOLDER = "rows"
"""Name of the folder below a run's output, while it has stages to train."""
LAYOUT = 2
"""Version of the layout, part of the key: a file of another layout is not read."""
PIECE_ROWS = 1024
"""Rows written at once."""
_PAIR_COLUMNS = {"query": pa.string(), "positive": pa.string(), "negatives": pa.list_(pa.string())}
_OWN_COLUMNS = {"prompt": pa.string(), "source": pa.string(), "score": pa.float32(), "label": pa.int64()}
_FIGURES = {"weight": pa.float64(), "characters": pa.int32()}


@dataclass(frozen=True)
class Rows:
    """The rows that a stage trains on."""

    columns: Dataset
    """Memory-mapped: the texts, ``prompt`` and ``source`` of each row, ``score`` (NaN where it has none) and ``label``,
    the number of the row."""
    weights: npt.NDArray[np.float64]
    """How often an epoch draws each row, (rows,)."""
    characters: npt.NDArray[np.int32]
    """Characters of all texts of each row, (rows,)."""
    sources: Sources
    """Number of each row's source, (rows,), and the names of the sources."""

    def __len__(self) -> int:
        return len(self.weights)


def pair_rows(data: Data, root: Path, folder: Path, *, by_source: bool = False) -> Rows:
    """Return the columns query, positive and negatives (a list), and those of the row."""

    def values(pair: Pair) -> list[Any]:
        score = math.nan if pair.score is None else pair.score
        return [pair.query, pair.positive, list(pair.negatives), pair.prompt, pair.source, score]

    rows = _rows(data, root, folder, _PAIR_COLUMNS, map(values, diverse_pairs(data, root)))
    _refuse_mixed(rows, data, by_source)
    return rows


class Documents(Sequence[str]):
    """The distinct documents of pairs in the order of their first occurrence, each read from disk when used."""

    def __init__(self, rows: Rows) -> None:
        self._columns = rows.columns.select_columns(["positive", "negatives"])
        keys, counts = array("q"), array("q")
        for piece in self._columns.iter(PIECE_ROWS):
            for texts in _documents(piece):
                keys.extend(map(text_key, texts))
                counts.append(len(texts))
        found, first, inverse = np.unique(np.frombuffer(keys, np.int64), return_index=True, return_inverse=True)
        order = np.argsort(first)
        self.keys = found[order]
        """Key of each document's text, (documents,)."""
        self._first = first[order]
        self._numbers = np.argsort(order)[inverse]
        self._starts = np.concatenate([[0], np.cumsum(counts)])

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, at: Any) -> Any:
        if not isinstance(at, slice):
            return self[at : at + 1][0]
        positions = self._first[at]
        rows = np.searchsorted(self._starts, positions, side="right") - 1
        texts = _documents(self._columns[rows.tolist()]) if len(rows) else ()
        return [row[at] for row, at in zip(texts, (positions - self._starts[rows]).tolist(), strict=True)]

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), PIECE_ROWS):
            yield from self[start : start + PIECE_ROWS]

    def of_row(self, row: int) -> npt.NDArray[np.int64]:
        """Return the numbers of a row's documents, the positive first."""
        numbers: npt.NDArray[np.int64] = self._numbers[self._starts[row] : self._starts[row + 1]]
        return numbers


def _documents(piece: Mapping[str, Any]) -> Iterator[list[str]]:
    for positive, negatives in zip(piece["positive"], piece["negatives"], strict=True):
        yield [positive, *negatives]


def scored(rows: Rows) -> npt.NDArray[np.bool_]:
    """Return which rows have a score, (rows,)."""
    found: npt.NDArray[np.bool_] = ~np.isnan(rows.columns.data.column("score").to_numpy())
    return found


def _refuse_mixed(rows: Rows, data: Data, by_source: bool) -> None:
    """Refuse batches of pairs with a score and pairs without: they have another loss."""
    codes, names = rows.sources
    groups = codes if by_source else np.zeros_like(codes)
    has_score = scored(rows)
    mixed = np.flatnonzero((np.bincount(groups, has_score) > 0) & (np.bincount(groups, ~has_score) > 0))
    if len(mixed):
        where = f"source {names[mixed[0]]!r}" if by_source else ", ".join(data.files)
        raise InputError(
            f"{where}: holds pairs with a score and pairs without, which have different losses; give each a source of "
            "its own, and set batch_by_source = true"
        )


def text_rows(
    data: Data, root: Path, folder: Path, sides: Sequence[Side] = ("query", "document"), *, joined: bool = False
) -> Rows:
    """Return the column text: every text of the given sides of pairs, and every single text, once."""
    texts = ([text.text, "", text.source, math.nan] for text in iter_texts(data, root, sides, joined=joined))
    return _rows(data, root, folder, {"text": pa.string()}, texts, [*sides, joined])


def _rows(
    data: Data,
    root: Path,
    folder: Path,
    texts: dict[str, pa.DataType],
    rows: Iterator[list[Any]],
    kind: Sequence[Side | bool] = (),
) -> Rows:
    key = json.dumps(
        [LAYOUT, list(texts), list(kind), dataclasses.asdict(data), file_hashes(data, root)], sort_keys=True
    )
    path = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.arrow"
    if not path.exists():
        _write(path, pa.schema({**texts, **_OWN_COLUMNS, **_FIGURES}), rows, data)
    table = Dataset.from_file(str(path))
    sources = table.data.column("source").dictionary_encode().combine_chunks()
    return Rows(
        columns=table.select_columns([*texts, *_OWN_COLUMNS]),
        weights=table.data.column("weight").to_numpy(),
        characters=table.data.column("characters").to_numpy(),
        sources=(sources.indices.to_numpy(), sources.dictionary.to_pylist()),
    )


def _write(path: Path, schema: pa.Schema, rows: Iterator[list[Any]], data: Data) -> None:
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


def _arrays(piece: list[list[Any]], start: int, schema: pa.Schema, data: Data) -> list[Any]:
    texts_and_own = list(zip(*piece, strict=True))
    labels = range(start, start + len(piece))
    weights = [data.weights.get(source, 1.0) for *_, source, _ in piece]
    characters = [sum(map(_characters, texts)) for *texts, _, _, _ in piece]
    columns = [*texts_and_own, labels, weights, characters]
    return [pa.array(column, type=field.type) for column, field in zip(columns, schema, strict=True)]


def _characters(texts: str | list[str]) -> int:
    return len(texts) if isinstance(texts, str) else sum(map(len, texts))
