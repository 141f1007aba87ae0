"""What experts say of a sample, blind: spreadsheets out and in.

A sheet shows question and document in random order, without votes. One expert fills in one sheet.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from care_data.config import Plan
from care_data.files import read_rows
from care_data.pool import CORPUS, QUERIES
from care_data.prompts import GRADES, LETTERS
from care_data.source import shown
from care_qdrant import InputError, needs_extra

SHEET = "review"
COLUMNS = ("query_id", "document_id", "question", "document", "grade", "expert")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")


@dataclass(frozen=True, slots=True)
class Opinion:
    """What one expert says of one pair."""

    expert: str
    query_id: str
    document_id: str
    grade: int


@dataclass(frozen=True, slots=True)
class Task:
    """One pair to rate."""

    query_id: str
    document_id: str
    question: str
    document: str


def sample_tasks(plan: Plan, count: int, seed: int = 0) -> list[Task]:
    """Draw pairs for experts: a third each of relevant, irrelevant and disputed ones where there are as many."""
    rows = list(read_rows(plan.folder / "labels.jsonl", "care-data vote"))
    draw = random.Random(f"review {seed}")
    draw.shuffle(rows)
    strata = [[row for row in rows if row["label"] == label] for label in ("relevant", "irrelevant", "disputed")]
    chosen = [row for stratum in strata for row in stratum[: -(-count // 3)]]
    rest = [row for row in rows if row not in chosen]
    chosen = (chosen + rest)[:count] if len(chosen) < count else draw.sample(chosen, count)
    draw.shuffle(chosen)
    wanted = {row["document_id"] for row in chosen}
    texts = {row["id"]: shown(row) for row in read_rows(plan.folder / CORPUS) if row["id"] in wanted}
    asked = {row["id"]: str(row["text"]) for row in read_rows(plan.folder / QUERIES)}
    return [
        Task(row["query_id"], row["document_id"], asked[row["query_id"]], texts[row["document_id"]]) for row in chosen
    ]


def write_sheet(path: Path, tasks: Sequence[Task], expert: str) -> None:
    """Write a spreadsheet for one expert; its column ``grade`` takes S, A, B, C or D."""
    with needs_extra("data", "a spreadsheet"):
        from openpyxl import Workbook
        from openpyxl.styles import Alignment
        from openpyxl.worksheet.datavalidation import DataValidation
    book = Workbook()
    sheet: Any = book.active
    sheet.title = SHEET
    sheet.append(COLUMNS)
    for task in tasks:
        sheet.append([""] * len(COLUMNS))
        values = (task.query_id, task.document_id, task.question, task.document, "", expert)
        for column, value in enumerate(values, start=1):
            cell = sheet.cell(row=sheet.max_row, column=column)
            # A text that begins with = is a text, and not a formula.
            cell.value, cell.data_type = _CONTROL.sub("", value)[:32_000], "s"
            cell.alignment = Alignment(wrap_text=True, vertical="top")
    grades = DataValidation(type="list", formula1=f'"{",".join(GRADES)}"', allow_blank=True)
    sheet.add_data_validation(grades)
    grades.add(f"E2:E{len(tasks) + 1}")
    sheet.freeze_panes = "A2"
    for letter, width in zip("ABCDEF", (12, 12, 40, 90, 8, 12), strict=True):
        sheet.column_dimensions[letter].width = width
    path.parent.mkdir(parents=True, exist_ok=True)
    book.save(path)


def read_sheet(path: Path) -> dict[tuple[str, str, str], tuple[int, str]]:
    """Return expert, question and document → grade and cell; rows without a grade are left out."""
    with needs_extra("data", "a spreadsheet"):
        from openpyxl import load_workbook
    try:
        book = load_workbook(path, read_only=True)
        rows = list(book[SHEET].iter_rows(values_only=True))
    except Exception as error:  # openpyxl raises what zipfile and the XML parser raise.
        raise InputError(f"{path}: is no spreadsheet of care-data review ({type(error).__name__}: {error})") from error
    if not rows or tuple(rows[0][: len(COLUMNS)]) != COLUMNS:
        raise InputError(f"{path}: its first row is {rows[0] if rows else ()}; expected {', '.join(COLUMNS)}")
    found: dict[tuple[str, str, str], tuple[int, str]] = {}
    for number, row in enumerate(rows[1:], start=2):
        query, document, _, _, grade, expert = (str(value or "").strip() for value in row[: len(COLUMNS)])
        where = f"{path}:E{number}"
        if not grade:
            continue
        if grade.upper() not in GRADES:
            raise InputError(f"{where}: grade is {grade!r}; expected one of {', '.join(GRADES)}, or nothing")
        if not expert:
            raise InputError(f"{path}:F{number}: the row has a grade and no expert")
        _add(found, (expert, query, document), GRADES[grade.upper()], where)
    return found


def read_opinions(sheets: Sequence[Path]) -> list[Opinion]:
    """Return what all experts said.

    Raises:
        InputError: One expert says two things of one pair, or a sheet is none.
    """
    found: dict[tuple[str, str, str], tuple[int, str]] = {}
    for sheet in sheets:
        if not sheet.is_file():
            raise InputError(f"{sheet}: is not there (vote.sheets)")
        for key, (grade, where) in read_sheet(sheet).items():
            _add(found, key, grade, where)
    return [Opinion(*key, grade) for key, (grade, _) in found.items()]


def _add(found: dict[tuple[str, str, str], tuple[int, str]], key: tuple[str, str, str], grade: int, where: str) -> None:
    if key in found and found[key][0] != grade:
        before, place = found[key]
        raise InputError(
            f"{where}: expert {key[0]!r} rates question {key[1]!r} and document {key[2]!r} {LETTERS[grade]}, and "
            f"{LETTERS[before]} in {place}; keep one of the two"
        )
    found[key] = grade, where
