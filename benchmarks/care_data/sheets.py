"""Blind grades of a sample by experts: spreadsheets to fill in, and the grades of the page.

Question and document are shown in random order, without votes. One expert fills in one sheet.
"""

import json
import logging
import random
import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openpyxl import Workbook, load_workbook
from openpyxl.styles import Alignment
from openpyxl.worksheet.datavalidation import DataValidation

from care_data.config import Config
from care_data.exchange import corpus_texts
from care_data.files import LABELS, read_rows
from care_data.pool import QUERIES
from care_data.prompts import GRADES, LETTERS
from care_qdrant.errors import InputError

logger = logging.getLogger(__name__)

OPINIONS = "opinions.jsonl"  # what experts said on the page: an expert's last word on a pair counts
COLUMNS = ("query_id", "document_id", "question", "document", "grade", "expert")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
Key = tuple[str, str, str]  # expert, question, document


@dataclass(frozen=True, slots=True)
class Task:
    """One pair to rate."""

    query_id: str
    document_id: str
    question: str
    document: str


def sample_tasks(config: Config, count: int) -> list[Task]:
    """Draw pairs for experts: a third each of relevant, irrelevant and disputed pairs if there are enough."""
    rows = list(read_rows(config.folder / LABELS, config.command("vote")))
    draw = random.Random("review 0")  # experts share one sample
    draw.shuffle(rows)
    strata = [[row for row in rows if row["label"] == label] for label in ("relevant", "irrelevant", "disputed")]
    chosen = [row for stratum in strata for row in stratum[: -(-count // 3)]]
    rest = [row for row in rows if row not in chosen]
    chosen = (chosen + rest)[:count] if len(chosen) < count else draw.sample(chosen, count)
    draw.shuffle(chosen)
    texts = corpus_texts(config, (row["document_id"] for row in chosen))
    asked = {row["id"]: str(row["text"]) for row in read_rows(config.folder / QUERIES)}
    names = [(row["query_id"], row["document_id"]) for row in chosen]
    return [Task(query, document, asked[query], texts[document]) for query, document in names]


def write_sheet(path: Path, tasks: Sequence[Task], expert: str) -> None:
    """Write a spreadsheet for one expert; its column ``grade`` takes S, A, B, C or D."""
    book = Workbook()
    sheet: Any = book.active
    sheet.title = "review"
    sheet.append(COLUMNS)
    for number, task in enumerate(tasks, start=2):
        values = (task.query_id, task.document_id, task.question, task.document, "", expert)
        for column, value in enumerate(values, start=1):
            cell = sheet.cell(row=number, column=column)
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


def read_opinions(config: Config) -> dict[tuple[str, str], dict[str, int]]:
    """Return the grades of all sheets and of the page: question and document → expert → grade."""
    grades: dict[Key, tuple[int, str]] = {}
    for sheet in config.settings.vote.sheets:
        _read_sheet(config.at(sheet), grades)
    for key, grade in page_opinions(config).items():
        _add(grades, key, grade, str(config.folder / OPINIONS))
    opinions: dict[tuple[str, str], dict[str, int]] = {}
    for (expert, query, document), (grade, _) in grades.items():
        opinions.setdefault((query, document), {})[expert] = grade
    return opinions


def page_opinions(config: Config) -> dict[Key, int]:
    """Return the grades that experts gave on the page; a half-written line of a killed page is skipped."""
    path, grades = config.folder / OPINIONS, dict[Key, int]()
    for number, text in enumerate(path.read_bytes().split(b"\n") if path.is_file() else (), start=1):
        if text.strip():
            try:
                row = json.loads(text)
                grades[row["expert"], row["query_id"], row["document_id"]] = GRADES[row["grade"]]
            except (ValueError, KeyError, TypeError):
                logger.warning("%s:%d: is not an opinion; skipped", path, number)
    return grades


def _read_sheet(path: Path, read: dict[Key, tuple[int, str]]) -> None:
    if not path.is_file():
        raise InputError(f"{path}: does not exist (vote.sheets)")
    try:
        with closing(load_workbook(path, read_only=True)) as book:
            rows = list(book["review"].iter_rows(values_only=True))
    except Exception as error:  # openpyxl raises what zipfile and the XML parser raise.
        raise InputError(
            f"{path}: is not a spreadsheet of care-data review ({type(error).__name__}: {error})"
        ) from error
    if not rows or tuple(rows[0][: len(COLUMNS)]) != COLUMNS:
        raise InputError(f"{path}: its first row is {rows[0] if rows else ()}; expected {', '.join(COLUMNS)}")
    for number, row in enumerate(rows[1:], start=2):
        # Programs leave out the empty cells at the end of a row.
        values = (*row, *[None] * len(COLUMNS))[: len(COLUMNS)]
        query, document, _, _, grade, expert = (str(value or "").strip() for value in values)
        if grade and grade.upper() not in GRADES:
            raise InputError(f"{path}:E{number}: grade is {grade!r}; expected one of {', '.join(GRADES)}, or nothing")
        if grade and not expert:
            raise InputError(f"{path}:F{number}: the row has a grade and no expert")
        if grade:
            _add(read, (expert, query, document), GRADES[grade.upper()], f"{path}:E{number}")


def _add(grades: dict[Key, tuple[int, str]], key: Key, grade: int, where: str) -> None:
    if key in grades and grades[key][0] != grade:
        before, place = grades[key]
        raise InputError(
            f"{where}: expert {key[0]!r} rates question {key[1]!r} and document {key[2]!r} {LETTERS[grade]}, and "
            f"{LETTERS[before]} in {place}; keep one of the two"
        )
    grades[key] = grade, where
