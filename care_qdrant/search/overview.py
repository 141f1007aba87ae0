"""Overview of an unknown collection: its size, questions that it answers, keys to filter by.

Everything but the size comes from a sample of the points.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from care_qdrant.contracts.layouts import read_hit
from care_qdrant.errors import InputError
from care_qdrant.qdrant.collection import Collection
from care_qdrant.search.conditions import written_key
from care_qdrant.types import Hit, half_character

Scalar = str | int | float | bool

SAMPLE_POINTS = 256
MAX_VALUES = 50
"""Largest number of values of a key in the sample that are listed."""
_QUESTION_CHARACTERS = 60
_ASKS = re.compile(
    r"[?？]|[吗呢]$|怎么|如何|什么|哪些|为何|多少|能不能|\b(how|what|why|when|which|can|does|is)\b", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Question:
    """The title of a document, or its first sentence where it has none, taken as a query."""

    text: str
    document_id: str


@dataclass(frozen=True, slots=True)
class Overview:
    """Size, questions and keys of a collection, as a sample shows them."""

    points: int
    """Points of the collection, counted exactly."""
    questions: tuple[Question, ...]
    """Questions, one of each sampled document; those that ask something come first."""
    keys: Mapping[str, tuple[Scalar, ...]]
    """Metadata keys, as a condition writes them, with the values that the sample has, sorted; empty for a key with more
    than `MAX_VALUES`. A key that no condition can name is left out."""


def overview(collection: Collection) -> Overview:
    """Read what a collection holds off a random sample of its points."""
    hits = [read_hit(record) for record in collection.sample(SAMPLE_POINTS)]
    values: dict[str, set[Scalar]] = {}
    for hit in hits:
        for key, value in hit.metadata.items():
            items = value if isinstance(value, list) else [value]
            scalars = {item for item in items if isinstance(item, Scalar)}
            if scalars:
                values.setdefault(key, set()).update(scalars)
    keys: dict[str, tuple[Scalar, ...]] = {}
    for key, there in sorted(values.items()):
        try:
            keys[written_key(key)] = tuple(sorted(there, key=str)) if len(there) <= MAX_VALUES else ()
        except InputError:
            continue
    return Overview(collection.count(as_seen=True), tuple(own_questions(hits)), keys)


def own_questions(hits: Iterable[Hit]) -> list[Question]:
    """Return one question of each text that has one, no question twice; those that ask something come first."""
    questions: dict[str, Question] = {}
    for hit in hits:
        if (text := _question(hit.title or hit.text)) and not half_character(text):
            questions.setdefault(text, Question(text, hit.document_id))
    return sorted(questions.values(), key=lambda question: _ASKS.search(question.text) is None)


def _question(text: str) -> str:
    """Return the first sentence of a text, with its question mark where it has one; empty where no model reads it."""
    match = re.match(r"\s*([^。！!.\n?？]+[?？]?)", text)
    question = match[1].strip()[:_QUESTION_CHARACTERS] if match else ""
    return question if any(map(str.isalnum, question)) else ""
