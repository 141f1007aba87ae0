"""A file of real questions: with the old model's vectors to compare with it and to learn from, or with judgements."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from care_qdrant.contracts.layouts import CARE_LAYOUT, Layout, Payload
from care_qdrant.corpus.json_lines import is_number, read_rows
from care_qdrant.errors import InputError, counted
from care_qdrant.qdrant.collection import Collection
from care_qdrant.types import CARE_KEY, Hit, Vectors

QUERIES, SEARCHES = "queries.jsonl", "searches-{day}.jsonl"
"""Files of a folder of ``care serve --record``: the labelled questions, and the searches of a day."""
Unit = Literal["points", "documents"]
_EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class Questions:
    """A query log with the old model's query vectors."""

    texts: list[str]
    vectors: Vectors
    """Unit rows, (questions, dim)."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """Questions whose relevant documents are known; nothing is trained on them."""

    texts: list[str]
    relevant: list[list[str]]
    """Ids of the relevant points or documents, a list for each question."""
    vectors: Vectors | None
    """The old model's vectors, unit rows, (questions, dim); None where the questions have none."""


@dataclass(frozen=True, slots=True)
class QueryFile:
    """Everything that a file of questions holds."""

    log: Questions | None
    """Questions without known documents; None where there are none."""
    labelled: Labelled | None
    """Questions with known documents; None where there are none."""


def read_queries(path: Path, dim: int, origin: str = "") -> QueryFile:
    """Read JSON lines with a ``text`` and a ``vector``, a list of ``relevant`` ids, or both.

    A line without ``relevant`` needs a vector; it is left out where a labelled question has the same text, since it may
    be trained on. Of lines with the same text the last vector counts, and the relevant documents of all: repeated
    questions would make an interval narrower than it is. Texts without letters and digits are left out.

    A folder is one that ``care serve --record`` wrote for a collection or an alias; its searches without a vector are
    left out, and those whose vectors are for stored ones of another ``origin`` (`CollectionSchema.origin`).
    """
    rows = _recorded(path, origin) if path.is_dir() else read_rows(path)
    lines = [_line(row, where, dim) for row, where in rows]
    questions = [line for line in lines if any(map(str.isalnum, line.text))]
    if not questions:
        needed = ": with a vector of the old model (--fallback), or with judgements" if path.is_dir() else ""
        raise InputError(f"{path}: holds no questions{needed}")
    relevant: dict[str, list[str]] = {}
    for row in questions:
        if row.relevant:
            relevant.setdefault(row.text, []).extend(row.relevant)
    labelled = {row.text: row for row in questions if row.relevant}.values()
    log = [*{row.text: row for row in questions if row.text not in relevant}.values()]
    encoded = [*log, *(labelled if all(row.vector for row in labelled) else [])]
    vectors = np.array([row.vector for row in encoded], dtype=np.float32).reshape(len(encoded), dim)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not (np.isfinite(norms) & (norms > 0)).all():
        raise InputError(f"{path}: a query vector is zero or not finite")
    vectors = np.asarray(vectors / norms, dtype=np.float32)
    old_model = vectors[len(log) :] if len(encoded) > len(log) else None
    return QueryFile(
        log=Questions([row.text for row in log], vectors[: len(log)]) if log else None,
        labelled=Labelled([*relevant], [*relevant.values()], old_model) if labelled else None,
    )


def _recorded(folder: Path, origin: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the labelled questions of a record, and the searches that have a vector for those of this origin."""
    for file in sorted([*folder.glob(QUERIES), *folder.glob(SEARCHES.format(day="*"))]):
        yield from (
            (row, where)
            for row, where in read_rows(file)
            if "relevant" in row or ("vector" in row and row.get("origin") == origin)
        )


@dataclass(frozen=True, slots=True)
class _Line:
    """One question of a file."""

    text: str
    vector: list[float] | None
    relevant: list[str]
    """Ids of relevant points or documents; empty where the line has none."""


def _line(row: Mapping[str, Any], where: str, dim: int) -> _Line:
    """Return the question of a line."""
    if row.get("text") is None:
        raise InputError(
            f"{where}: expected 'text' with a 'vector', with 'relevant' or both, found the keys {', '.join(row)}"
        )
    text, vector, relevant = str(row["text"]), row.get("vector"), row.get("relevant")
    if relevant is not None and not (
        isinstance(relevant, list) and relevant and all(isinstance(name, str | int) for name in relevant)
    ):
        raise InputError(
            f"{where}: expected 'relevant' to be a list of ids of points or documents, found {str(relevant)[:60]!r}; "
            "leave the field out where no relevant document is known"
        )
    if vector is not None or relevant is None:
        values = vector if isinstance(vector, list) else []
        if len(values) != dim or not all(map(is_number, values)):
            given = counted(len(values), "value") if values else "none"
            raise InputError(f"{where}: expected a vector of {dim} finite numbers, found {given}")
    return _Line(text, vector, [str(name) for name in relevant or []])


@dataclass(frozen=True, slots=True)
class KnownLabels:
    """Labelled questions with the ids that the collection has."""

    questions: Labelled
    unit: Unit
    layout: Layout
    unknown_ids: int
    left_out: int


def find_labels(collection: Collection, layout: Layout, labelled: Labelled) -> KnownLabels:
    """Look the labels' ids up among the ids of points or of documents, whichever holds more of them."""
    labels = {name for ids in labelled.relevant for name in ids}
    present: dict[Unit, set[str]] = {"documents": set(), "points": set()}
    example = ""
    # The fields that name a point's document, and those that tell our points from others.
    fields = [*{*layout.document_paths, *CARE_LAYOUT.document_paths, CARE_KEY}]
    for page in collection.scroll("reading ids", payload=fields):
        for record in page:
            point, document = str(record.id), _document_of(layout, record.id, record.payload or {})
            example = example or f"point {point!r} of document {document!r}"
            present["points"] |= {point} & labels
            present["documents"] |= {document} & labels
    unit: Unit = "points" if len(present["points"]) > len(present["documents"]) else "documents"
    known = present[unit]
    if not known:
        raise InputError(
            f"of {counted(len(labels), 'id')} under 'relevant' "
            f"({', '.join(map(repr, sorted(labels)[:_EXAMPLES]))} …) none is the id of a point or a document of "
            f"collection {collection.name!r} (it has, for example, {example})"
        )
    relevant = [sorted({*ids} & known) for ids in labelled.relevant]
    rows = [row for row, ids in enumerate(relevant) if ids]
    return KnownLabels(
        Labelled(
            [labelled.texts[row] for row in rows],
            [relevant[row] for row in rows],
            None if labelled.vectors is None else labelled.vectors[rows],
        ),
        unit,
        layout,
        unknown_ids=len(labels) - len(known),
        left_out=len(relevant) - len(rows),
    )


def ranked_ids(labels: KnownLabels, hits: Sequence[Hit]) -> list[str]:
    """Return the ids of the points, or of their documents, each once, best first."""
    if labels.unit == "points":
        return [hit.point_id for hit in hits]
    return list(dict.fromkeys(_document_of(labels.layout, hit.point_id, hit.payload) for hit in hits))


def _document_of(layout: Layout, point_id: object, payload: Payload) -> str:
    return layout.of_point(payload).ref_doc_id(payload) or str(point_id)
