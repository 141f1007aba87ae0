"""The rows of a stage as a memory-mapped Arrow table: memory does not grow with the corpus.

JSONL is read once, by all cores where it is large, and written, filtered and deduplicated, into one file that has its
name of all that decides its rows. Every stage and process maps that file, in the order of the JSONL: a batch is read
from disk when it is trained on.
"""

import dataclasses
import hashlib
import json
import logging
import multiprocessing
from array import array
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]
from datasets import Dataset

from care_qdrant.encoders.ahead import run_ahead
from care_qdrant.encoders.onnx import usable_cores
from care_qdrant.errors import InputError
from care_trainer.config import Data, Side
from care_trainer.data.diversity import diverse
from care_trainer.data.read import Columns, distinct, file_hashes, open_lines, read_rows, text_key, unused_keys
from care_trainer.data.sampling import Sources
from care_trainer.disk import writing

logger = logging.getLogger(__name__)

LAYOUT = 5
"""Version of the layout and of how rows are read, part of the key: a file of another version is not read."""
PIECE_ROWS = 1024
"""Rows written at once, and lines that a process parses at once."""
LARGE = 1 << 26
"""Bytes of JSONL from which processes of their own are worth their start."""
_PAIR_COLUMNS = {"query": pa.string(), "positive": pa.string(), "negatives": pa.list_(pa.string())}
_OWN_COLUMNS = {"prompt": pa.string(), "source": pa.string(), "score": pa.float32(), "label": pa.int64()}
_FIGURES = {"weight": pa.float64(), "characters": pa.int32(), "digest": pa.uint64()}


@dataclass(frozen=True)
class Rows:
    """The rows that a stage trains on."""

    columns: Dataset
    """Memory-mapped columns: the texts, ``prompt`` and ``source`` of each row, ``score`` (NaN where it has none) and
    ``label``, the number of the row."""
    weights: npt.NDArray[np.float64]
    """Times that an epoch draws each row, (rows,)."""
    characters: npt.NDArray[np.int32]
    """Characters of all texts of each row, (rows,)."""
    sources: Sources
    """Number of each row's source, (rows,), and the names of the sources."""

    def __len__(self) -> int:
        return len(self.weights)

    def with_texts(self, columns: Sequence[str]) -> "Rows":
        """Return the same rows with some of their texts, and without a score."""
        # Columns that are not tokenised are not read from disk.
        return dataclasses.replace(self, columns=self.columns.select_columns([*columns, "prompt", "source", "label"]))


def pair_rows(data: Data, root: Path, folder: Path, *, by_source: bool = False) -> Rows:
    """Return the columns query, positive and negatives (a list), and the columns of every row."""
    rows = _rows(data, root, folder, _PAIR_COLUMNS)
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
        distinct_keys, first, inverse = np.unique(np.frombuffer(keys, np.int64), return_index=True, return_inverse=True)
        order = np.argsort(first)
        self.keys = distinct_keys[order]
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
    has_score: npt.NDArray[np.bool_] = ~np.isnan(rows.columns.data.column("score").to_numpy())
    return has_score


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
    return _rows(data, root, folder, {"text": pa.string()}, sides, joined)


def _rows(
    data: Data,
    root: Path,
    folder: Path,
    texts: dict[str, pa.DataType],
    sides: Sequence[Side] = (),
    joined: bool = False,
) -> Rows:
    hashes = file_hashes(data, root)
    kind = [*sides, joined] if sides else []
    key = json.dumps([LAYOUT, list(texts), kind, dataclasses.asdict(data), hashes], sort_keys=True)
    path = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.arrow"
    if not path.exists():
        with writing(f"{path}: the rows cannot be written"):
            _write(path, pa.schema({**texts, **_OWN_COLUMNS, **_FIGURES}), Columns(data, tuple(sides), joined), root)
    table = Dataset.from_file(str(path))
    sources = table.data.column("source").dictionary_encode().combine_chunks()
    return Rows(
        columns=table.select_columns([*texts, *_OWN_COLUMNS]),
        weights=table.data.column("weight").to_numpy(),
        characters=table.data.column("characters").to_numpy(),
        sources=(sources.indices.to_numpy(), sources.dictionary.to_pylist()),
    )


def _name_unused_keys(data: Data, root: Path) -> None:
    """Warn of keys, among the first rows of each file, that training does not read."""
    for name in data.files:
        if unused := unused_keys(row for row, _ in islice(read_rows(root / name), PIECE_ROWS)):
            logger.warning("%s: training does not read %s", name, ", ".join(map(repr, unused)))


def _pieces(data: Data, root: Path) -> Iterator[tuple[str, list[tuple[int, str]]]]:
    for name in data.files:
        lines = open_lines(root / name)
        while piece := list(islice(lines, PIECE_ROWS)):
            yield Path(name).name, piece


def _parsed(parse: Columns, root: Path) -> Iterator[list[list[Any]]]:
    """Yield the columns of all pieces, in order."""
    pieces = _pieces(parse.data, root)
    if sum((root / name).stat().st_size for name in parse.data.files) < LARGE:
        yield from map(parse, pieces)
        return
    count = usable_cores()
    with ProcessPoolExecutor(count, multiprocessing.get_context("spawn")) as pool:
        yield from (
            columns for _, columns in run_ahead(pieces, lambda piece: pool.submit(parse, piece).result(), lambda: count)
        )


def _write(path: Path, schema: pa.Schema, parse: Columns, root: Path) -> None:
    """Write all rows, then those that stay, each with its number: JSON is read once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _name_unused_keys(parse.data, root)
    everything, partial = path.with_suffix(".all"), path.with_suffix(".partial")
    try:
        with pa.OSFile(str(everything), "wb") as file, pa.ipc.new_stream(file, schema) as stream:
            digests = [np.zeros(0, np.uint64)]
            for columns in _parsed(parse, root):
                if columns[-1]:
                    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
                    stream.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
                    digests.append(arrays[-1].to_numpy())
        kept = distinct(np.concatenate(digests), parse.data)
        if parse.data.diversify is not None and not parse.sides:
            kept[kept] = diverse(parse.data.diversify, _texts_of(everything, kept))
        with pa.OSFile(str(partial), "wb") as file, pa.ipc.new_stream(file, schema) as stream:
            written = 0
            for batch in _kept_batches(everything, kept):
                labels = pa.array(np.arange(written, written + len(batch)), pa.int64())
                stream.write_batch(batch.set_column(schema.get_field_index("label"), schema.field("label"), labels))
                written += len(batch)
        partial.replace(path)
    finally:
        everything.unlink(missing_ok=True)
        partial.unlink(missing_ok=True)


def _kept_batches(path: Path, kept: npt.NDArray[np.bool_]) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
        start = 0
        for batch in stream:
            remaining = batch.filter(pa.array(kept[start : start + len(batch)]))
            start += len(batch)
            if len(remaining):
                yield remaining


def _texts_of(path: Path, kept: npt.NDArray[np.bool_]) -> Iterator[tuple[str, str]]:
    for batch in _kept_batches(path, kept):
        yield from zip(batch.column("query").to_pylist(), batch.column("positive").to_pylist(), strict=True)
