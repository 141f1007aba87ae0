"""The instructions of judges and writers, as templates in Chinese and English, and the reading of their answers.

They ask what tables 21 to 23 of the paper ask, in words of their own.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import jinja2
import json_repair

from care_data.config import Language

GRADES: Mapping[str, int] = {"S": 4, "A": 3, "B": 2, "C": 1, "D": 0}
"""The paper's scale (table 21)."""
RELEVANT = GRADES["A"]
"""S and A answer the query."""
LETTERS = {grade: letter for letter, grade in GRADES.items()}


@lru_cache
def _templates() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("care_data"), undefined=jinja2.StrictUndefined, trim_blocks=True, autoescape=False
    )


def render(name: str, language: Language, **values: Any) -> list[dict[str, str]]:
    """Return the messages of one call."""
    text = _templates().get_template(f"{name}.{language}.j2").render(**values)
    return [{"role": "user", "content": text}]


def read_object(text: str) -> dict[str, Any]:
    """Return the JSON object of an answer, repaired where it is cut off or wrapped; empty where there is none."""
    start = text.find("{")
    found = json_repair.loads(text[start:]) if start >= 0 else None
    return found if isinstance(found, dict) else {}


def read_grades(text: str, count: int) -> dict[int, int]:
    """Return the grades of an answer by the number of the passage; those that are no grade are left out."""
    grades: dict[int, int] = {}
    for key, value in read_object(text).items():
        number = str(key).rpartition("-")[2].strip()
        letter = str(value).strip().upper()
        if number.isdigit() and int(number) < count and letter in GRADES:
            grades[int(number)] = GRADES[letter]
    return grades


def judge_messages(language: Language, query: str, documents: Sequence[str]) -> list[dict[str, str]]:
    """Return the request to rate documents for a query."""
    return render("judge", language, query=query, documents=documents)
