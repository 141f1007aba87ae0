"""Any rows in any format, compressed or not, come back equal or are rejected by line."""

import csv
import gzip
import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from care_qdrant.corpus.files import Corpus, typed_fields
from care_qdrant.corpus.rows import Fields, Reject
from care_qdrant.types import Document

Row = Mapping[str, str]

# What a cell may hold: separators, quotes, line ends, marks, half pairs are for the JSON tests of `test_rows.py`.
CELLS = st.text(
    st.characters(codec="utf-8", exclude_characters="\0") | st.sampled_from(',;\t|"\n\r\ufeff'), max_size=12
)
ROWS = st.lists(st.fixed_dictionaries({"id": CELLS, "text": CELLS, "科室": CELLS}), min_size=1, max_size=8)


def lines(rows: Sequence[Row]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def array(rows: Sequence[Row]) -> bytes:
    return json.dumps(rows, ensure_ascii=False).encode()


def two_arrays(rows: Sequence[Row]) -> bytes:
    half = len(rows) // 2
    return array(rows[:half]) + b"\n" + array(rows[half:])


def array_and_lines(rows: Sequence[Row]) -> bytes:
    half = len(rows) // 2
    return array(rows[:half]) + b"\r\n" + lines(rows[half:])


def pretty(rows: Sequence[Row]) -> bytes:
    return "\n".join(json.dumps(row, ensure_ascii=False, indent=2) for row in rows).encode()


def table(delimiter: str, start: str = "") -> Callable[[Sequence[Row]], bytes]:
    def write(rows: Sequence[Row]) -> bytes:
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, ["id", "text", "科室"], delimiter=delimiter, quoting=csv.QUOTE_ALL)
        writer.writeheader()
        writer.writerows(rows)
        return (start + buffer.getvalue()).encode()

    return write


def parquet(rows: Sequence[Row]) -> bytes:
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), buffer)
    return buffer.getvalue()


FORMATS: dict[str, tuple[str, Callable[[Sequence[Row]], bytes]]] = {
    "lines": ("a.jsonl", lines),
    "array": ("a.json", array),
    "two arrays": ("a.json", two_arrays),
    "array and lines": ("a.json", array_and_lines),
    "pretty": ("a.json", pretty),
    "comma": ("a.csv", table(",")),
    "semicolon": ("a.csv", table(";", "\ufeff")),
    "excel": ("a.csv", table(";", "sep=;\r\n")),
    "tab": ("a.tsv", table("\t")),
    "parquet": ("a.parquet", parquet),
}


def parts(content: bytes) -> list[bytes]:
    """Cut a file into pieces that are too short to show its format."""
    return [content[start : start + 3] for start in range(0, len(content), 3)]


COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda content: content,
    "gzip": gzip.compress,
    "zstd": zstandard.compress,
    "gzip twice": lambda content: gzip.compress(gzip.compress(content)),
    "gzip members": lambda content: b"".join(map(gzip.compress, parts(content))),
    "zstd frames": lambda content: b"".join(map(zstandard.compress, parts(content))),
}


def expected(rows: Sequence[Row], *, is_table: bool) -> list[dict[str, Any] | None]:
    """Rows as a reader has to return them; None is a rejected one. Empty cells of a table are no values."""
    found: list[dict[str, Any] | None] = []
    for row in rows:
        if is_table and not any(row.values()):
            continue
        is_good = row["id"].strip() and row["text"].strip()
        meta = {} if is_table and not row["科室"] else {"科室": row["科室"]}
        found.append({"id": row["id"], "text": row["text"], **meta} if is_good else None)
    return found


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("form", FORMATS)
@settings(max_examples=25)
@given(rows=ROWS)
def test_rows_come_back_or_are_rejected(
    tmp_path_factory: pytest.TempPathFactory, form: str, compression: str, rows: list[Row]
) -> None:
    name, write = FORMATS[form]
    if compression != "plain" and form == "parquet":
        compression = "plain"  # it needs to seek, and compresses by itself
    path = tmp_path_factory.mktemp("corpus") / name
    path.write_bytes(COMPRESSIONS[compression](write(rows)))
    is_table = name.endswith((".csv", ".tsv"))
    # Types are given as text: what the cells of a column become otherwise is another test's.
    with Corpus(path, Fields(types={"科室": "text"} if is_table else {})) as corpus:
        found = list(corpus)
    read = [{"id": row.id, "text": row.text, **row.metadata} if isinstance(row, Document) else None for row in found]
    assert read == expected(rows, is_table=is_table)
    assert [row.line for row in found] == sorted({row.line for row in found})


@settings(max_examples=60)
@example(cells=["0", "0.0"])
@example(cells=["1.1", "1.10"])
@given(cells=st.lists(st.one_of(CELLS, st.integers(-(10**12), 10**12).map(str), st.floats().map(str)), min_size=1))
def test_a_typed_column_loses_nothing(tmp_path_factory: pytest.TempPathFactory, cells: list[str]) -> None:
    """Two cells that differ are two values, whatever type the column has; ``0`` and ``0.0`` are one decimal number."""
    path = tmp_path_factory.mktemp("typed") / "a.csv"
    rows = [{"id": str(number), "text": "文", "科室": cell} for number, cell in enumerate(cells)]
    path.write_bytes(table(",")(rows))
    with Corpus(path, typed_fields(path, Fields())) as corpus:
        found = list(corpus)
    assert not [row for row in found if isinstance(row, Reject)]
    values = {
        cell: row.metadata.get("科室")
        for cell, row in zip(cells, found, strict=True)
        if cell and isinstance(row, Document)
    }
    spellings = {cell.removesuffix(".0") if isinstance(value, float) else cell for cell, value in values.items()}
    assert len(set(values.values())) == len(spellings)
    assert len(set(map(type, values.values()))) <= 1
