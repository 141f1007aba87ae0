import csv
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from care_qdrant.corpus.files import Corpus
from care_qdrant.corpus.rows import HASH_ID, Fields, Reject
from care_qdrant.errors import InputError
from care_qdrant.types import Document


def read(path: Path, content: str | bytes, fields: Fields | None = None) -> list[Document | Reject]:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with Corpus(path, fields or Fields()) as corpus:
        return list(corpus)


def outcome(rows: list[Document | Reject]) -> list[str | int]:
    """The id of each document, the line of each rejected row."""
    return [row.line if isinstance(row, Reject) else row.id for row in rows]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ('id,text\na,一\nb,"二"x\nc,三\n', ["a", 3, "c"]),
        ('id,text\na,一\nb,"二\nc,三\nd,"四"\ne,五\n', ["a", 3, "c", "d", "e"]),
        ('id,text\na,一\nb,"二\nc,三\n', ["a", 3, "c"]),
        ('id,text\na,"一\n二"\nb,"三"x\nc,三\n', ["a", 4, "c"]),
        ('sep=;\nid;text\na;"一\nb;二\n', [3, "b"]),
    ],
)
def test_a_wrong_quote_takes_one_row(tmp_path: Path, content: str, found: list[str | int]) -> None:
    assert outcome(read(tmp_path / "a.csv", content)) == found


def test_a_wrong_byte_takes_one_row_and_a_long_line_another(tmp_path: Path) -> None:
    rows = read(tmp_path / "a.csv", b"id,text\na,1\nb,\xff\nc,2\nd," + b"x" * 5_000_001 + b"\ne,3\n")
    assert outcome(rows) == ["a", 3, "c", 5, "e"]
    assert [row.reason for row in rows if isinstance(row, Reject)] == [
        "is not UTF-8: byte 0xff at position 2",
        "is longer than 5,000,000 characters",
    ]


@pytest.mark.parametrize("fields", [Fields(), Fields(id=HASH_ID)])
@pytest.mark.parametrize("header", ["", "id,text,dept\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("row", ["b,二,y\n", '"b","二","y"\n', '"b","二","""y"\n'])
def test_tables_with_one_header_can_be_put_together(
    tmp_path: Path, fields: Fields, header: str, mark: str, row: str
) -> None:
    first, second = "id,text,dept\na,一,x\n", f"id,text,dept\n{row}"
    alone = [*read(tmp_path / "a.csv", first, fields), *read(tmp_path / "b.csv", second, fields)]
    together = read(tmp_path / "c.csv", f"{first}{mark}{header}{row}", fields)
    assert [replace(document, line=0) for document in together] == [replace(document, line=0) for document in alone]


@pytest.mark.parametrize("second", ["text,id,dept\n二,b,y\n", "id,text,year\nb,二,2020\n", "id,text\nb,二\n"])
def test_a_table_with_another_header_is_refused_with_its_line(tmp_path: Path, second: str) -> None:
    """Its cells would be taken for those of other columns."""
    with pytest.raises(InputError, match=r"line 3 is a header with other columns .*a second table begins there"):
        read(tmp_path / "a.csv", f"id,text,dept\na,一,x\n{second}")


def test_a_document_may_speak_of_text(tmp_path: Path) -> None:
    assert outcome(read(tmp_path / "a.csv", "id,text\na,text\ntext,id is text\n")) == ["a", "text"]
    assert outcome(read(tmp_path / "a.csv", "id,text,kind\n1,id,kind\n2,text,id\n")) == ["1", "2"]


def test_the_index_of_pandas_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"column 1 has no name; .*index=False"):
        read(tmp_path / "a.csv", ",id,text\n0,a,一\n")
    with pytest.raises(InputError, match=r"the header has an opening quote without an end"):
        read(tmp_path / "a.csv", 'id,"text\na,一\n')


CELLS = st.text(st.sampled_from('a中" ,'), min_size=1, max_size=5).filter(lambda text: text.strip('" '))


@given(st.lists(CELLS, min_size=1, max_size=8), st.sampled_from(["\n", "\r\n"]))
def test_quotes_between_tabs_join_no_rows(tmp_path_factory: pytest.TempPathFactory, texts: list[str], end: str) -> None:
    """A table that is written without quoting has as many rows as lines; only a cell in quotes loses them."""
    path = tmp_path_factory.mktemp("tsv") / "a.tsv"
    lines = ["id\ttext", *(f"{number}\t{text}" for number, text in enumerate(texts))]
    rows = read(path, end.join(lines) + end)
    assert [row.id for row in rows if isinstance(row, Document)] == [str(number) for number in range(len(texts))]
    for row, text in zip(rows, texts, strict=True):
        quoted = next(csv.reader([text]))[0] if text.startswith('"') else text
        assert isinstance(row, Document) and row.text in (text, quoted)


def test_a_quoted_cell_of_several_lines_is_one_cell_also_between_tabs(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    content = 'id\ttext\tn\n1\t"一\n二\t三"\tx\n2\t"四"""\ty\n'
    assert [row.text for row in read(path, content) if isinstance(row, Document)] == ["一\n二\t三", '四"']


@given(
    texts=st.lists(st.text("a中,¶", min_size=1, max_size=6), min_size=1, max_size=6),
    ends=st.sampled_from([("\n", "\r"), ("\r\n", "\r"), ("\r\r\n", "\r"), ("\r", "\n")]),
    is_quoted=st.booleans(),
    form=st.sampled_from([("a.csv", ","), ("a.csv", ";"), ("a.tsv", "\t")]),
)
def test_a_line_end_of_another_kind_begins_no_row(
    tmp_path_factory: pytest.TempPathFactory,
    texts: list[str],
    ends: tuple[str, str],
    is_quoted: bool,
    form: tuple[str, str],
) -> None:
    """Without quotes half of a cell would be taken for the whole, and the other half for another document."""
    end, foreign = ends
    texts = [f"<{text.replace('¶', foreign).replace(form[1], '')}>" for text in texts]
    quote = '"' if is_quoted else ""
    rows = [f"{number}{form[1]}{quote}{text}{quote}" for number, text in enumerate(texts)]
    path = tmp_path_factory.mktemp("ends") / form[0]
    found = read(path, end.join([f"id{form[1]}text", *rows, ""]))
    assert len(found) == len(texts)
    for row, text in zip(found, texts, strict=True):
        if isinstance(row, Document):
            assert row.text == text
        else:
            assert foreign in text and not is_quoted and "line end of another kind" in row.reason
