"""Random files of every format against independent readers: json, csv and pyarrow.

Each row is a document or a rejected row, or the file is refused with an `InputError`; nothing else is ever raised.
"""

import csv
import gzip
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from care_qdrant.corpus.files import Corpus, typed_fields
from care_qdrant.corpus.rows import Fields, Reject
from care_qdrant.errors import InputError
from care_qdrant.types import Document

Row = Mapping[str, Any]

ODD_TEXTS = st.sampled_from(
    [
        "00123",
        "1.10",
        "True",
        "NO",
        "2024-01-02",
        "1e5",
        "",
        " ",
        '"',
        "a,b",
        "a\tb",
        "x\ny",
        "€",
        "标题",
        "\ufeff",
        "[]",
    ]
)
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6) | ODD_TEXTS
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | WORDS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(WORDS, inner, max_size=2),
    max_leaves=4,
)
JSON_ROWS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={"id": st.integers(0, 9) | WORDS, "text": WORDS | VALUES, "title": WORDS | st.none(), "more": VALUES},
    ),
    min_size=1,
    max_size=5,
)
# A byte order mark at the start of a line stands where two files were put together, and is no part of the first cell.
# Not every version of `csv` puts quotes around a carriage return.
CELLS = WORDS.map(lambda word: word.replace("\ufeff", "").replace("\r", ""))
TABLE_ROWS = st.lists(
    st.fixed_dictionaries({"id": CELLS, "text": CELLS, "more": CELLS, "year": st.integers(0, 3000).map(str) | CELLS}),
    min_size=1,
    max_size=5,
)
COMPRESSIONS = {"": lambda content: content, ".gz": gzip.compress, ".zst": zstandard.compress}
ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "utf-32", "gb18030", "utf-16-le"]


def read(path: Path, encoding: str) -> list[Document | Reject]:
    with Corpus(path, typed_fields(path, Fields(), encoding), encoding) as corpus:
        return list(corpus)


def write(folder: Path, name: str, text: str, encoding: str, compression: str, case: bool) -> Path:
    name += compression
    path = folder / (name.upper() if case else name)
    path.write_bytes(COMPRESSIONS[compression](text.encode(encoding)))
    return path


def without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nan(inner) for key, inner in value.items() if not is_nan(inner)}
    return [without_nan(inner) for inner in value] if isinstance(value, list) else value


def is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


@settings(max_examples=150)
@given(
    rows=JSON_ROWS,
    is_array=st.booleans(),
    encoding=st.sampled_from(ENCODINGS),
    compression=st.sampled_from([*COMPRESSIONS]),
    line_end=st.sampled_from(["\n", "\r\n"]),
    case=st.booleans(),
)
def test_json_is_what_the_standard_library_reads(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[Row],
    is_array: bool,
    encoding: str,
    compression: str,
    line_end: str,
    case: bool,
) -> None:
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    text = json.dumps(rows, ensure_ascii=False, indent=1) if is_array else "".join(line + "\n" for line in lines)
    name = "a.json" if is_array else "a.jsonl"
    folder = tmp_path_factory.mktemp("json")
    found = read(write(folder, name, text.replace("\n", line_end), encoding, compression, case), encoding)
    assert len(found) == len(rows)
    for row, line in zip(found, lines, strict=True):
        if isinstance(row, Document):
            values = without_nan(json.loads(line))
            title = values.get("title") or ""
            assert row.id == str(values["id"]) and row.text == values["text"]
            assert row.title == (title if title.strip() else "")
            assert row.metadata == {key: value for key, value in values.items() if key not in ("id", "text", "title")}
        else:
            assert row.reason


def written(value: Any, cell: str) -> str:
    """Return the cell that a value was read from: a number may have been written with more digits."""
    return cell if not isinstance(value, str) and value == float(cell) else str(value)


@settings(max_examples=150)
@given(
    rows=TABLE_ROWS,
    form=st.sampled_from([("a.csv", ","), ("a.csv", ";"), ("a.tsv", "\t")]),
    encoding=st.sampled_from(ENCODINGS),
    compression=st.sampled_from([*COMPRESSIONS]),
    line_end=st.sampled_from(["\n", "\r\n"]),
    quoting=st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
)
def test_a_table_is_what_the_standard_library_reads(
    tmp_path_factory: pytest.TempPathFactory,
    rows: Sequence[Row],
    form: tuple[str, str],
    encoding: str,
    compression: str,
    line_end: str,
    quoting: Any,
) -> None:
    name, delimiter = form
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, [*rows[0]], delimiter=delimiter, lineterminator=line_end, quoting=quoting)
    writer.writeheader()
    writer.writerows(rows)
    folder = tmp_path_factory.mktemp("table")
    try:
        found = read(write(folder, name, buffer.getvalue(), encoding, compression, False), encoding)
    except InputError:
        assert any("text" in (row["id"], row["more"], row["year"], row["text"]) for row in rows)
        return
    expected = [
        row
        for row in csv.DictReader(io.StringIO(buffer.getvalue(), newline=""), delimiter=delimiter)
        if any(row.values())
    ]
    assert len(found) == len(expected)
    for row, cells in zip(found, expected, strict=True):
        if isinstance(row, Document):
            texts = {
                "id": row.id,
                "text": row.text,
                **{key: written(value, cells[key]) for key, value in row.metadata.items()},
            }
            assert texts == {key: value for key, value in cells.items() if value}
        else:
            assert not cells["id"].strip() or not cells["text"].strip(), row.reason


@settings(max_examples=100)
@given(
    content=st.binary(max_size=120) | st.text(max_size=60).map(str.encode),
    name=st.sampled_from(
        ["a.jsonl", "a.json", "a.csv", "a.tsv", "a.md", "a.txt", "a.parquet", "a.txt.gz", "a.jsonl.zst"]
    ),
    encoding=st.sampled_from(
        ["utf-8", "gb18030", "utf-16", "big5", "hex", "idna", "utf-7", "no such", "cp037", "rot13"]
    ),
)
def test_any_bytes_are_rows_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, name: str, encoding: str
) -> None:
    """The same ones, whatever the case of the name."""
    outcomes = []
    for path in (tmp_path_factory.mktemp("bytes") / each for each in (name, name.upper())):
        path.write_bytes(content)
        try:
            rows = read(path, encoding)
        except InputError:
            outcomes.append(None)
            continue
        assert all(isinstance(row, Document) or row.reason for row in rows)
        outcomes.append([(type(row), row.line) for row in rows])
    assert outcomes[0] == outcomes[1]


KINDS: dict[Any, st.SearchStrategy[Any]] = {
    pyarrow.int64(): st.integers(-(2**63), 2**63 - 1),
    pyarrow.uint64(): st.integers(0, 2**64 - 1),
    pyarrow.float64(): st.floats(),
    pyarrow.float32(): st.floats(width=32),
    pyarrow.float16(): st.floats(width=16),
    pyarrow.bool_(): st.booleans(),
    pyarrow.string(): WORDS,
    pyarrow.date32(): st.integers(-(2**31), 2**31 - 1) | st.integers(0, 20_000),
    pyarrow.timestamp("ns"): st.integers(-(2**63), 2**63 - 1),
    pyarrow.timestamp("s", "Asia/Shanghai"): st.integers(-(2**40), 2**40),
    pyarrow.time64("us"): st.integers(0, 86_399_999_999),
    pyarrow.duration("s"): st.integers(0, 2**40),
    pyarrow.decimal128(20, 3): st.decimals(-(10**16), 10**16, places=3, allow_nan=False),
    pyarrow.binary(): st.binary(max_size=3),
    pyarrow.null(): st.none(),
}


def nested(kind: Any, values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, list[Any]]]:
    some = st.none() | values
    cells: list[tuple[Any, st.SearchStrategy[Any]]] = [
        (kind, some),
        (pyarrow.list_(kind), st.lists(some, max_size=2)),
        (pyarrow.list_(kind, 2), st.lists(some, min_size=2, max_size=2)),
        (
            pyarrow.struct([("a", kind), ("b", pyarrow.list_(kind))]),
            st.fixed_dictionaries({"a": some, "b": st.lists(some)}),
        ),
        (pyarrow.map_(pyarrow.string(), kind), st.lists(st.tuples(WORDS, some), max_size=2)),
        (pyarrow.map_(pyarrow.int8(), kind), st.lists(st.tuples(st.integers(-9, 9), some), max_size=2)),
    ]
    return st.sampled_from(cells).flatmap(
        lambda cell: st.tuples(st.just(cell[0]), st.lists(cell[1], min_size=1, max_size=4))
    )


@settings(max_examples=150)
@given(column=st.sampled_from([*KINDS.items()]).flatmap(lambda item: nested(*item)))
def test_any_column_of_parquet_is_json_or_a_rejected_row(
    tmp_path_factory: pytest.TempPathFactory, column: tuple[Any, list[Any]]
) -> None:
    kind, values = column
    array = pyarrow.array(values, kind)
    table = pyarrow.table({"id": [str(n) for n in range(len(values))], "text": ["文"] * len(values), "more": array})
    path = tmp_path_factory.mktemp("parquet") / "a.parquet"
    pyarrow.parquet.write_table(table, path)
    rows = read(path, "utf-8")
    assert [row.line for row in rows] == [*range(1, len(values) + 1)]
    for row, value in zip(rows, values, strict=True):
        if isinstance(row, Document):
            text = json.dumps(dict(row.metadata), allow_nan=False)
            assert not re.search(r":[0-9]{2}\.[0-9]{7}", text), "nanoseconds, which need pandas"
            if isinstance(value, bool | int | str) and kind in (pyarrow.int64(), pyarrow.bool_(), pyarrow.string()):
                assert row.metadata == {"more": value}
            assert ("more" in row.metadata) == (value is not None and not is_nan(value))
