from pathlib import Path
from typing import Any

import pytest

from care_qdrant.corpus.column_types import ColumnGuess, convert, parse_types
from care_qdrant.corpus.files import Corpus, typed_fields
from care_qdrant.corpus.rows import Fields, Reject
from care_qdrant.errors import InputError


@pytest.mark.parametrize(
    ("name", "cells", "found"),
    [
        ("年份", ["2019", "2020", "0", "-3"], "int"),
        ("price", ["12.50", "3.00"], "float"),
        ("dose", ["12", "12.5"], "float"),
        ("day", ["2024-01-02", "2024-12-31"], "date"),
        ("day", ["2024/1/2", "2024/12/31"], "date"),
        ("day", ["2024年1月2日"], "date"),
        ("seen", ["2024-01-02 08:30", "2024-01-02T08:30:15"], "date"),
        ("ward", ["007", "012"], "text"),
        ("ward", ["7", "012"], "text"),
        ("contact", ["13800138000", "13900139000"], "text"),
        ("phone", ["65551234"], "text"),
        ("邮编", ["100000", "200000"], "text"),
        ("drug_id", ["1", "2"], "text"),
        ("drugId", ["1", "2"], "text"),
        ("version", ["1.1", "1.10"], "text"),
        ("code", ["110", "120"], "text"),
        ("barcode", ["6901234567892"], "text"),
        ("icd", ["E11", "110"], "text"),
        ("dose", ["5", "n/a"], "text"),
        ("dose", ["1e5", "2e5"], "text"),
        ("dose", ["1,200"], "text"),
        ("dose", ["٣"], "text"),
        ("dose", ["nan", "inf"], "text"),
        ("day", ["2024-01-02", "2024/1/3"], "text"),
        ("day", ["01/02/2024"], "text"),
        ("day", ["2024-13-01"], "text"),
        ("day", ["2024-01-02", "2024-01-02 08:30"], "text"),
        ("valid", ["5", "6"], "int"),
    ],
)
def test_a_column_is_what_all_its_cells_say(name: str, cells: list[str], found: str) -> None:
    guess = ColumnGuess(name)
    for cell in cells:
        guess.add(cell)
    assert guess.type == found


@pytest.mark.parametrize(("cells", "kind"), [(["5", "0.5"], "float"), (["5"], "int"), (["2024-01-02"], "date")])
@pytest.mark.parametrize("odd", ["n/a", "-", "无"])
@pytest.mark.parametrize("first", [True, False])
def test_the_one_value_that_keeps_a_column_from_being_numbers_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, cells: list[str], kind: str, odd: str, first: bool
) -> None:
    ordered = [odd, *cells, odd] if first else [*cells, odd]
    rows = "".join(f"{n},文,{cell},{odd}\n" for n, cell in enumerate(ordered))
    (tmp_path / "a.csv").write_text(f"id,text,dose,所见\n{rows}", encoding="utf-8")
    assert [row["dose"] for row in read(tmp_path / "a.csv")] == ordered
    assert "column 'dose' is text" in caplog.text and repr(odd) in caplog.text and f"it is {kind}" in caplog.text
    assert "所见" not in caplog.text
    caplog.clear()
    (tmp_path / "a.csv").write_text(f"id,text,dose,所见\n{rows}9,文,?,?\n", encoding="utf-8")
    assert [row["dose"] for row in read(tmp_path / "a.csv")] == [*ordered, "?"]
    assert "is text" not in caplog.text


@pytest.mark.parametrize(
    ("cells", "ids"),
    [
        (["1.0", "20.0"], ["1", "20"]),
        (["1", "20.0"], ["1", "20"]),
        (["1.0", "1.1"], ["1.0", "1.1"]),
        (["1.0", "a"], ["1.0", "a"]),
        (["007.0", "8.0"], ["007.0", "8.0"]),
        (["1.00", "2.00"], ["1.00", "2.00"]),
    ],
)
@pytest.mark.parametrize("column", ["id", "_id", "编号"])
def test_an_id_is_the_same_number_with_and_without_a_point(
    tmp_path: Path, cells: list[str], ids: list[str], column: str
) -> None:
    """A gap in the column lets pandas write 7.0, where it wrote 7 the night before."""
    path, fields = tmp_path / "t.csv", Fields(id="编号" if column == "编号" else "id")
    path.write_text(f"{column},text\n" + "".join(f"{cell},少吃盐\n" for cell in cells), encoding="utf-8")
    with Corpus(path, typed_fields(path, fields)) as corpus:
        assert [row.id for row in corpus] == ids


def test_a_row_without_an_id_is_the_same_beside_ids_with_and_without_a_point(tmp_path: Path) -> None:
    found = []
    for ids in (["7", "", "8"], ["7.0", "", "8.0"]):
        path = tmp_path / "t.csv"
        path.write_text("id,text\n" + "".join(f"{cell},少吃盐\n" for cell in ids), encoding="utf-8")
        with Corpus(path, typed_fields(path, Fields())) as corpus:
            found.append(list(corpus))
    assert found[0] == found[1]


def test_dates_become_iso_8601() -> None:
    assert [convert(cell, "date") for cell in ("2024/1/2", "2024年1月2日", "2024-01-02 8:30")] == [
        "2024-01-02",
        "2024-01-02",
        "2024-01-02T08:30:00",
    ]
    assert (convert("007", "int"), convert("1e2", "float")) == (7, 100.0)
    for cell, kind in (("1.5", "int"), ("9" * 30, "int"), ("1_0", "float"), ("01/02/2024", "date")):
        with pytest.raises(ValueError, match=kind):
            convert(cell, kind)  # type: ignore[arg-type]


def read(path: Path, types: str = "") -> list[Any]:
    with Corpus(path, typed_fields(path, Fields(types=parse_types(types)))) as corpus:
        return [row if isinstance(row, Reject) else dict(row.metadata) for row in corpus]


def test_types_of_a_table_are_those_of_all_its_rows(tmp_path: Path) -> None:
    rows = "".join(f"{n},文,{n},{n}\n" for n in range(1, 30_000))
    (tmp_path / "a.csv").write_text(f"id,text,year,ward\n{rows}x,文,5,0123\ny,文,,\n", encoding="utf-8")
    found = read(tmp_path / "a.csv")
    assert found[0] == {"year": 1, "ward": "1"}
    assert found[-2:] == [{"year": 5, "ward": "0123"}, {}]


def test_a_column_has_one_type_in_all_tables_of_a_corpus(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,text,dose\n1,文,5\n", encoding="utf-8")
    (tmp_path / "b.csv").write_text("id,text,dose\n2,文,5 mg\n", encoding="utf-8")
    assert read(tmp_path / "a.csv") == [{"dose": 5}]
    assert read(tmp_path) == [{"dose": "5"}, {"dose": "5 mg"}]


def test_types_that_are_given_hold(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,text,dose,ward\n1,文,5,007\n2,文,n/a,8\n", encoding="utf-8")
    first, second = read(tmp_path / "a.csv", "dose=float,ward=int")
    assert first == {"dose": 5.0, "ward": 7}
    assert second == Reject(3, "'dose' is 'n/a', which is not a valid float; fix it, or give --types dose=text", "2")
    assert read(tmp_path / "a.csv", "ward=text")[0] == {"dose": "5", "ward": "007"}
    with pytest.raises(
        InputError, match=r"has no column 'dosis', which --types names \(columns: dose, id, text, ward\)"
    ):
        read(tmp_path / "a.csv", "dosis=int")
    with pytest.raises(InputError, match="column 'id' is the id, the text"):
        read(tmp_path / "a.csv", "id=int")


@pytest.mark.parametrize("option", ["dose", "dose=number", "=int"])
def test_a_type_that_is_none_is_refused(option: str) -> None:
    with pytest.raises(InputError, match="expected NAME=TYPE, the type one of int, float, date, text"):
        parse_types(option)
