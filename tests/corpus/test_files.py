import gzip
import io
import json
import sys
from datetime import date
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from care_qdrant.corpus.files import Corpus
from care_qdrant.corpus.formats import MAX_LINE_BYTES, numbered_lines
from care_qdrant.corpus.rejects import RejectsFile, rejects_path
from care_qdrant.corpus.rows import Fields, Reject
from care_qdrant.errors import InputError, MissingExtra
from care_qdrant.types import Document

LINES = b'{"id": "1", "text": "\xe4\xb8\x80"}\n{"id": "2", "text": "two"}\n'


def read(path: Path) -> list[Document | Reject]:
    with Corpus(path) as rows:
        return list(rows)


def ids(rows: list[Document | Reject]) -> list[str]:
    return [row.id for row in rows if isinstance(row, Document)]


def test_byte_order_mark_windows_line_ends_and_blank_lines_are_no_errors(tmp_path: Path) -> None:
    windows = b"\xef\xbb\xbf" + LINES.replace(b"\n", b"\r\n\r\n")
    (tmp_path / "windows.jsonl").write_bytes(windows)
    rows = read(tmp_path / "windows.jsonl")
    assert ids(rows) == ["1", "2"]
    assert [row.line for row in rows] == [1, 3]


def test_a_byte_order_mark_inside_the_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "joined.jsonl").write_bytes(LINES + b"\xef\xbb\xbf" + LINES)
    rows = read(tmp_path / "joined.jsonl")
    assert [row.line for row in rows if isinstance(row, Reject)] == [3]


def test_a_line_of_more_than_5_mb_is_skipped_and_the_next_one_read(tmp_path: Path) -> None:
    long = b'{"id": "long", "text": "' + b"x" * MAX_LINE_BYTES + b'"}\n'
    (tmp_path / "long.jsonl").write_bytes(LINES + long + LINES.replace(b'"1"', b'"3"'))
    rows = read(tmp_path / "long.jsonl")
    assert rows[2] == Reject(3, "is longer than 5,000,000 bytes")
    assert [row.line for row in rows] == [1, 2, 3, 4, 5]
    assert isinstance(rows[3], Document)


def test_parquet(tmp_path: Path) -> None:
    table = pyarrow.table(
        {
            "doc": ["1", "2", "3"],
            "text": ["一", "二", None],
            "day": [date(2020, 1, 2), None, None],
            "tags": [["a"], None, None],
        }
    )
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    with Corpus(tmp_path / "a.parquet", Fields(id="doc")) as corpus:
        first, second, third = corpus
    assert isinstance(first, Document)
    assert first.metadata == {"day": "2020-01-02", "tags": ["a"]}
    assert isinstance(second, Document)
    assert second.metadata == {}
    assert third == Reject(3, "document has no 'text' (keys: doc)", "3")


def test_a_corpus_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing\.jsonl: does not exist"):
        Corpus(tmp_path / "nothing.jsonl")
    with pytest.raises(InputError, match="is a folder"):
        Corpus(tmp_path)


@pytest.mark.parametrize(("module", "name"), [("zstandard", "a.jsonl.zst"), ("pyarrow.parquet", "a.parquet")])
def test_a_missing_package_is_named_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, name: str
) -> None:
    (tmp_path / name).write_bytes(LINES)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=r"pip install '\.\[(zstd|parquet)\]'"):
        Corpus(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("cut.jsonl.gz", gzip.compress(LINES * 100, mtime=0)[:-10]),
        ("none.jsonl.gz", LINES),
        ("none.jsonl.zst", LINES),
        ("none.parquet", LINES),
    ],
)
def test_a_damaged_file_is_an_error_after_the_rows_before_it(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match="is damaged after row"):
        read(tmp_path / name)


def test_rejects_are_written_and_forgotten_by_the_next_run(tmp_path: Path) -> None:
    path = rejects_path(tmp_path / "corpus.jsonl")
    assert path.name == "corpus.jsonl.rejects.jsonl"
    with RejectsFile(path) as rejects:
        rejects.write(Reject(3, "is empty", "\ud800"))
    assert json.loads(path.read_text()) == {"line": 3, "id": "\ud800", "reason": "is empty"}
    with pytest.raises(InputError), RejectsFile(path):
        raise InputError("refused")
    assert path.exists()
    with RejectsFile(path):
        pass
    assert not path.exists()
    assert rejects_path("a.jsonl", (2, 4)).name == "a.jsonl.rejects-2-of-4.jsonl"


@settings(max_examples=50)
@given(st.binary(max_size=300))
def test_any_bytes_are_rows_or_rejects(content: bytes) -> None:
    lines = list(numbered_lines(io.BufferedReader(io.BytesIO(content))))
    assert b"".join(raw for _, raw in lines if isinstance(raw, bytes)) == content.removeprefix(b"\xef\xbb\xbf")
    assert [number for number, _ in lines] == list(range(1, len(lines) + 1))
