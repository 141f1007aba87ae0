"""The instructions of judges and writers, in Chinese and English, and the reading of their answers.

They ask for the same as tables 21 to 23 of the paper, in our own words.
"""

from collections.abc import Mapping
from typing import Any

import jinja2
import json_repair

GRADES: Mapping[str, int] = {"S": 4, "A": 3, "B": 2, "C": 1, "D": 0}  # the paper's scale (table 21)
RELEVANT = GRADES["A"]  # S and A answer the query
_LONGEST = 20  # digits of the number of a passage
LETTERS = {grade: letter for letter, grade in GRADES.items()}


_TEMPLATES = jinja2.Environment(  # prompts and Markdown: nothing is escaped
    loader=jinja2.PackageLoader("care_data"), undefined=jinja2.StrictUndefined, trim_blocks=True, autoescape=False
)


def render(name: str, **values: Any) -> str:
    """Fill in a template."""
    return _TEMPLATES.get_template(f"{name}.j2").render(**values)


def read_object(text: str) -> dict[str, Any]:
    """Return the JSON object of an answer, repaired if it is cut off or wrapped; empty if there is none."""
    start = text.find("{")
    try:
        value = json_repair.loads(text[start:]) if start >= 0 else None
    except (ValueError, RecursionError):  # nested too deeply
        value = None
    return value if isinstance(value, dict) else {}


def read_grades(text: str, count: int) -> dict[int, int]:
    """Return the grades of an answer by the number of the passage; values that are not grades are left out.

    An answer that grades a passage which is not there has numbered them in another way, so that none of it is known.
    """
    grades: dict[int, int] = {}
    for key, value in read_object(text).items():
        number, letter = str(key).rpartition("-")[2].strip(), str(value).strip().upper()
        # Python refuses to read numbers of thousands of digits.
        if number.isdecimal() and len(number) < _LONGEST and letter in GRADES:
            if int(number) >= count:
                return {}
            grades[int(number)] = GRADES[letter]
    return grades
