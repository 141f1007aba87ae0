import json
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from care_qdrant.corpus.files import Corpus
from care_qdrant.corpus.rows import Reject
from care_qdrant.corpus.streams import MAX_LINE_BYTES
from care_qdrant.errors import InputError
from care_qdrant.types import Document

ROW = '{"id": "1", "text": "一"}'


def read(path: Path) -> list[Document | Reject]:
    with Corpus(path) as corpus:
        return list(corpus)


@pytest.mark.parametrize(
    ("behind", "place"),
    [
        ("<html>502 Bad Gateway", "line 2, character 28 of the file: '<html>502 Bad Gatewa'"),
        ("]", "line 2, character 28 of the file: ']'"),
        ("\0\0\0", "line 2, character 28 of the file: '\\x00\\x00\\x00'"),
        ('"text"', "line 2, character 28 of the file: '\"text\"'"),
        (f"[{ROW}, ", "line 2, character 55 of the file: the next element of the array is cut off"),
        ("[" + ROW[:-1], "line 2, character 29 of the file: the next element of the array is cut off"),
        (ROW[:-1], "line 2, character 28 of the file: the next element of the array is cut off"),
    ],
)
def test_what_follows_an_array_and_is_no_row_is_refused_with_its_place(tmp_path: Path, behind: str, place: str) -> None:
    """A sync would delete the documents behind the first array."""
    (tmp_path / "a.json").write_text(f"[{ROW}]\n{behind}", encoding="utf-8")
    with pytest.raises(InputError) as refused:
        read(tmp_path / "a.json")
    assert place in str(refused.value)
    assert "a.json: is damaged after row" in str(refused.value)


def test_an_array_in_each_line_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("\n".join(f'\ufeff[{{"id": "{n}", "text": "一"}}]' for n in range(3)))
    assert [row.id for row in read(tmp_path / "a.json")] == ["0", "1", "2"]


def test_a_row_that_nobody_reads_is_refused_and_one_of_another_kind_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"id": "1", "text": "' + "x" * 3 * MAX_LINE_BYTES)
    with pytest.raises(InputError, match=r"row 0 .*longer than 5,000,000 characters"):
        read(tmp_path / "a.json")
    (tmp_path / "a.json").write_text(f"[{ROW}, {'[' * 100_000}")
    with pytest.raises(InputError, match=r"row 1 .*nested too deeply"):
        read(tmp_path / "a.json")
    (tmp_path / "a.json").write_text(f"[{{}}, {' ' * 65_500}{'2' * 100}]")  # the number goes over the end of a part
    assert [row.line for row in read(tmp_path / "a.json")] == [1, 2]


def test_an_answer_of_a_service_names_the_key_with_its_rows(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"count": 1, "data": [{"id": "1", "text": "一"}]}, indent=1))
    [reject] = read(tmp_path / "a.json")
    assert isinstance(reject, Reject) and "its 'data': give that array alone" in reject.reason


ROWS = st.lists(
    st.fixed_dictionaries(
        {"rows": st.lists(st.just({"id": "2", "text": "二"}), min_size=1, max_size=2)}
        | {name: st.sampled_from(["", "一", "{"]) for name in ("id", "text")},
    )
    | st.just({"rows": [{"id": "1", "text": "一"}]}),
    min_size=1,
    max_size=3,
)


@given(rows=ROWS, breaks=st.lists(st.sampled_from(["", "\n", "\r\n  "]), min_size=1, max_size=12))
def test_rows_are_the_same_wherever_their_lines_break(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], breaks: list[str]
) -> None:
    """CouchDB and others write one object around the rows, each of which has a line of its own."""
    path = tmp_path_factory.mktemp("json") / "a.json"
    path.write_text("\n".join(map(json.dumps, rows)))
    alone = read(path)
    broken = (zip(json.JSONEncoder().iterencode(row), cycle(breaks)) for row in rows)  # an endless one ends no row
    path.write_text("\n".join("".join(f"{token}{end}" for token, end in row) for row in broken), newline="")
    assert read(path) == alone


def test_a_broken_first_line_is_one_rejected_row(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"id": "0",\n{ROW}\n')
    first, second = read(tmp_path / "a.jsonl")
    assert isinstance(first, Reject) and isinstance(second, Document)
