import datetime
import subprocess
import sys
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.dataset
import pyarrow.parquet
import pytest

from care_qdrant.corpus.files import Corpus
from care_qdrant.corpus.rows import Fields, Reject
from care_qdrant.errors import InputError
from care_qdrant.types import Document

NANOSECONDS = 1_577_934_245_123_456_789
READ = """
import sys
from care_qdrant.corpus.files import Corpus
sys.modules["pandas"] = None
with Corpus(sys.argv[1]) as corpus:
    [row] = corpus
print(dict(row.metadata))
"""


def read(path: Path, **columns: Any) -> list[Document | Reject]:
    if columns:
        count = len(next(iter(columns.values())))
        table = pyarrow.table({"id": [str(n) for n in range(count)], "text": ["一"] * count, **columns})
        pyarrow.parquet.write_table(table, path)
    with Corpus(path) as corpus:
        return list(corpus)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (pyarrow.timestamp("ms"), 0, 253_402_300_800_000),
        (pyarrow.timestamp("s"), 0, -62_135_596_801),
        (pyarrow.date32(), 0, 10_000_000),
        (pyarrow.date32(), 0, -10_000_000),
        (pyarrow.list_(pyarrow.timestamp("ms")), [], [253_402_300_800_000]),
        (pyarrow.duration("s"), None, 9_000_000_000_000_000_000),
    ],
)
def test_a_time_that_no_calendar_has_is_a_rejected_row(tmp_path: Path, kind: Any, good: Any, bad: Any) -> None:
    rows = read(tmp_path / "a.parquet", seen=pyarrow.array([good, bad, good], kind))
    assert [isinstance(row, Document) for row in rows] == [True, False, True]
    assert isinstance(rows[1], Reject)
    assert rows[1].reason.startswith("'seen' is a ") and "cannot be read" in rows[1].reason


@pytest.mark.parametrize("nested", [False, True])
def test_nanoseconds_need_no_pandas(tmp_path: Path, nested: bool) -> None:
    seen = pyarrow.array([NANOSECONDS], pyarrow.timestamp("ns"))
    if nested:
        seen = pyarrow.StructArray.from_arrays(
            [pyarrow.array([[NANOSECONDS]], pyarrow.list_(pyarrow.timestamp("ns")))], ["at"]
        )
        read(tmp_path / "a.parquet", seen=seen)
        [row] = read(tmp_path / "a.parquet")
        assert isinstance(row, Document)
        assert row.metadata["seen"] == {"at": [datetime.datetime(2020, 1, 2, 3, 4, 5, 123456).isoformat()]}
        return
    [row] = read(tmp_path / "a.parquet", seen=seen)
    assert isinstance(row, Document)
    assert row.metadata["seen"] == datetime.datetime(2020, 1, 2, 3, 4, 5, 123456).isoformat()
    done = subprocess.run([sys.executable, "-c", READ, tmp_path / "a.parquet"], capture_output=True, text=True)
    assert done.stdout.strip() == str(dict(row.metadata)), done.stderr


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    arrays = [pyarrow.array([value]) for value in ("1", "一", 2019, 2020)]
    table = pyarrow.Table.from_arrays(arrays, names=["id", "text", "year", "year"])
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"a\.parquet: column 'year' occurs twice; rename one"):
        read(tmp_path / "a.parquet")
    kind = pyarrow.list_(pyarrow.struct([pyarrow.field("a", pyarrow.int64()), pyarrow.field("a", pyarrow.int64())]))
    table = pyarrow.Table.from_arrays([*arrays[:2], pyarrow.nulls(1, kind)], names=["id", "text", "more"])
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"column 'more' has the key 'a' twice"):
        read(tmp_path / "a.parquet")


def test_strings_that_are_stored_as_bytes_are_named(tmp_path: Path) -> None:
    table = pyarrow.table({"id": ["1"], "text": [b"one"]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    [row] = read(tmp_path / "a.parquet")
    assert isinstance(row, Reject) and "'text' is a column of bytes" in row.reason
    [row] = read(tmp_path / "b.parquet", dept=[b"x"])
    assert isinstance(row, Reject) and "'dept' is a column of bytes" in row.reason


@pytest.mark.parametrize(
    ("values", "kind", "read_as"),
    [
        ([Decimal("1.50")], pyarrow.decimal128(10, 2), 1.5),
        ([Decimal("12345678901234567.89")], pyarrow.decimal128(25, 2), "12345678901234567.89"),
        ([Decimal("7.00")], pyarrow.decimal256(40, 2), 7),
        ([0.1], pyarrow.float32(), 0.1),
        ([0.1], pyarrow.float16(), 0.1),
        ([[0.1, None]], pyarrow.list_(pyarrow.float32()), [0.1, None]),
        ([[0.1]], pyarrow.list_(pyarrow.float32(), 1), [0.1]),
        (
            [{"a": 0.1, "b": None}],
            pyarrow.struct([("a", pyarrow.float32()), ("b", pyarrow.date32())]),
            {"a": 0.1, "b": None},
        ),
        ([[datetime.date(2024, 1, 2)]], pyarrow.large_list(pyarrow.date32()), ["2024-01-02"]),
        ([[("a", 1)]], pyarrow.map_(pyarrow.string(), pyarrow.int8()), {"a": 1}),
        ([[(7, None)]], pyarrow.map_(pyarrow.int32(), pyarrow.date32()), {"7": None}),
        (
            [[(datetime.date(2024, 1, 2), [0.1])]],
            pyarrow.map_(pyarrow.date32(), pyarrow.list_(pyarrow.float32())),
            {"2024-01-02": [0.1]},
        ),
        ([uuid.UUID(int=1).bytes], pyarrow.uuid(), str(uuid.UUID(int=1))),
    ],
)
def test_values_that_json_lacks_are_written_as_json_would(tmp_path: Path, values: Any, kind: Any, read_as: Any) -> None:
    column = pyarrow.array(values, kind)
    [row] = read(tmp_path / "a.parquet", value=column)
    assert isinstance(row, Document) and row.metadata == {"value": read_as}
    [row] = read(tmp_path / "b.parquet", value=column.dictionary_encode() if kind == pyarrow.float32() else column)
    assert isinstance(row, Document) and row.metadata == {"value": read_as}


def test_ids_of_floats_are_whole_numbers(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(
        pyarrow.table({"id": [1.0, 2.5, float("nan"), 2.0**60], "text": ["一"] * 4}), tmp_path / "a.parquet"
    )
    rows = read(tmp_path / "a.parquet")
    assert [row.id for row in rows] == ["1", "", "", ""]
    assert [isinstance(row, Reject) for row in rows] == [False, True, True, True]


def test_a_key_that_a_map_has_twice_is_a_rejected_row(tmp_path: Path) -> None:
    kind = pyarrow.map_(pyarrow.string(), pyarrow.int8())
    [twice, once] = read(tmp_path / "a.parquet", more=pyarrow.array([[("a", 1), ("a", 2)], [("a", 1)]], kind))
    assert isinstance(twice, Reject) and twice.reason == "a map has the key 'a' twice"
    assert isinstance(once, Document) and once.metadata == {"more": {"a": 1}}


def test_the_text_may_stand_inside_a_column(tmp_path: Path) -> None:
    content = pyarrow.array([{"body": "一", "lang": "zh"}])
    pyarrow.parquet.write_table(pyarrow.table({"id": ["1"], "content": content}), tmp_path / "a.parquet")
    with Corpus(tmp_path / "a.parquet", Fields(text="content.body")) as corpus:
        assert list(corpus) == [Document("1", "一", metadata={"content": {"lang": "zh"}})]
    with (
        pytest.raises(InputError, match=r"has no column 'content\.text'"),
        Corpus(tmp_path / "a.parquet", Fields(text="content.text")) as corpus,
    ):
        list(corpus)
