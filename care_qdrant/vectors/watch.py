"""Watches a dense vector, which any tool may write, for vectors that another model than before has made.

The first check draws reference points. Each later one judges the points that are new since the check before, and the
reference points whose vectors were rewritten, by whether their vectors belong to their texts
(`care_qdrant.vectors.belonging`). Nothing is written to the collection: a key that may only read is enough.
"""

import json
import math
import uuid
import zlib
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from io import BytesIO
from itertools import chain
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
from qdrant_client import models

from care_qdrant.contracts.layouts import Layout, guess_layout
from care_qdrant.contracts.learned import probe_vectors
from care_qdrant.encoders.agreement import LEAST_STORED, cosines
from care_qdrant.encoders.terms.analyser import analyser_for
from care_qdrant.encoders.terms.bm25 import DEFAULT_LEAD, term_counts
from care_qdrant.encoders.terms.languages import language_of
from care_qdrant.errors import InputError, TooFewDocuments, counted
from care_qdrant.qdrant.checks import require_vector
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.measurements import holds
from care_qdrant.qdrant.readable import PointId, place_in_order
from care_qdrant.search.tuning import QUERIES, measure_recall
from care_qdrant.types import Vectors
from care_qdrant.vectors.belonging import LEAST_AGREEMENT, WINDOW, Expectation, Terms, foreign_windows
from care_qdrant.vectors.points import stored_text

REFERENCES = 1_000
LEAST_REFERENCES = 200
MOST_NEW = 256
"""Largest number of new points that one check reads, drawn at random."""
_SEED = 20261129


@dataclass(slots=True)
class WatchReport:
    """Findings of one check."""

    collection: str
    vector_name: str
    alarm: bool = False
    """Whether another model seems to have made vectors that are still there."""
    points: int = 0
    new: int = 0
    """Points that are new since the check before."""
    rewritten: int = 0
    """Reference points whose vector is another one than at the check before."""
    judged: int = 0
    """Different texts of new and rewritten points that the reference texts explain; the others are too new to judge."""
    agreement: float | None = None
    """Mean agreement of their vectors with their texts, about 0 for vectors of another model; None without any."""
    expected: float = 0.0
    """Mean agreement of the reference points."""
    suspects: list[PointId] = field(default_factory=list)
    """Points of the alarm."""
    recall_at_10: float | None = field(default=None, metadata={"unit": "fraction"})
    """As in `VerifyReport`."""


@dataclass(slots=True)
class _State:
    """State that a check leaves to the next one."""

    collection: str
    vector_name: str
    layout: Layout
    language: str
    points: int
    """Number of points when the references were drawn."""
    ids: list[PointId]
    """Ids of the reference points."""
    terms: list[Terms]
    vectors: Vectors
    seen: Vectors
    """Their vectors at the last check."""
    known: npt.NDArray[np.uint64]
    """Keys of the ids of all points."""
    observed: list[PointId] = field(default_factory=list)
    """Points that are judged again: those of an alarm, and the last ones, one fewer than a window."""


class Watch:
    """Checks one vector of a collection again and again."""

    def __init__(self, vector_name: str | None, text_field: str | None = None, file: Path | None = None) -> None:
        """Set up; no database is read.

        Args:
            vector_name: Name of a dense vector; None takes the only one.
            text_field: Payload field with the text; None guesses it.
            file: File that keeps the state between programs; None keeps it in memory.

        Raises:
            InputError: The file is not the state of a watch.
        """
        self._vector_name, self._text_field, self._file = vector_name, text_field, file
        self._state = None if file is None or not file.exists() else _load(file)

    def check(self, collection: Collection) -> WatchReport:
        """Judge what is new since the last check; the first one takes the collection as it is for its reference.

        Raises:
            TooFewDocuments: There are too few points with text and vector to learn how the two belong together.
            InputError: The texts do not say where the vectors are, or there is no such vector.
        """
        collection = collection.whole()
        dense, name = collection.schema.dense, self._vector_name
        if name is None and len(dense) != 1:
            names = ", ".join(map(repr, dense)) or "none"
            raise InputError(
                f"collection {collection.name!r}: choose a dense vector with --vector-name (it has: {names})"
            )
        name = next(iter(dense)) if name is None else name
        require_vector(collection.schema, name)
        if dense[name].multivector_config is not None:
            raise InputError(
                f"vector {name!r} of collection {collection.name!r} is a multivector, which is not watched"
            )
        present = list(chain.from_iterable(collection.ids()))
        keys = np.frombuffer(b"".join(place_in_order(point_id, _SEED) for point_id in present), dtype="<u8")
        state = self._state or _draw(collection, name, self._text_field, keys)
        if (state.collection, state.vector_name, state.vectors.shape[1]) != (collection.name, name, dense[name].size):
            raise InputError(
                f"{self._file or 'the watch'}: has the state of vector {state.vector_name!r} of collection "
                f"{state.collection!r}, in {state.vectors.shape[1]} dimensions, not of {name!r} of {collection.name!r} "
                f"in {dense[name].size}; give another file with --state"
            )
        if self._text_field not in (None, state.layout.text_field):
            raise InputError(
                f"{self._file}: has the state of texts in field {state.layout.text_field!r}, not in "
                f"{self._text_field!r}; give another file with --state"
            )
        expectation = Expectation(state.terms, state.vectors)
        new = [present[row] for row in np.flatnonzero(~np.isin(keys, state.known))]
        rewritten, seen = _rewritten(collection, state)
        report = WatchReport(collection.name, name, points=len(present), new=len(new), rewritten=len(rewritten))
        report.expected = round(expectation.agreement, 2)
        if len(new) > MOST_NEW:
            new = sorted(new, key=lambda point_id: place_in_order(point_id, _SEED))[:MOST_NEW]
        _judge(collection, state, expectation, [*new, *rewritten], report)
        state.known, state.seen = keys, seen
        report.recall_at_10 = measure_recall(collection, name, state.vectors[:QUERIES].tolist())
        if not report.alarm and not holds(state.points, len(present)):
            with suppress(InputError):  # the former references stay
                state = replace(_draw(collection, name, self._text_field, keys), observed=state.observed)
        self._state = state
        if self._file is not None:
            _save(self._file, state)
        return report


def _judge(
    collection: Collection, state: _State, expectation: Expectation, changed: Sequence[PointId], report: WatchReport
) -> None:
    """Judge the observed points and the changed ones, in this order."""
    ids, vectors, terms = _read(collection, state, [*state.observed, *changed])
    by_text: dict[frozenset[tuple[int, float]], list[tuple[PointId, float]]] = defaultdict(list)
    for point_id, counts, value in zip(ids, terms, expectation.judge(terms, vectors).tolist(), strict=True):
        if not math.isnan(value):
            by_text[frozenset(counts.items())].append((point_id, value))
    # Points of one text are one piece of evidence: what is odd about the text is odd about each of them.
    known = {points[0][0]: sum(value for _, value in points) / len(points) for points in by_text.values()}
    judged = [known[point_id] for point_id in changed if point_id in known]
    report.judged = len(judged)
    report.agreement = round(sum(judged) / len(judged), 2) if judged else None
    order = list(known)
    suspects = [order[place] for window in foreign_windows(list(known.values())) for place in window]
    report.suspects = [point_id for point_id in dict.fromkeys(suspects) if known[point_id] < LEAST_AGREEMENT]
    report.alarm = bool(suspects)
    state.observed = list(dict.fromkeys([*suspects, *order[1 - WINDOW :]]))


def _draw(collection: Collection, name: str, text_field: str | None, known: npt.NDArray[np.uint64]) -> _State:
    """Draw reference points; refuse a collection whose texts say too little about its vectors."""
    where = f"vector {name!r} of collection {collection.name!r}"
    sample = collection.sample(REFERENCES)
    _require_enough(where, len(sample), len(sample))
    payloads = [record.payload or {} for record in sample]
    layout = guess_layout(payloads, text_field=text_field)
    language = language_of(layout.find_text(payload) or "" for payload in payloads)
    none = np.zeros((0, collection.schema.dense[name].size), dtype=np.float32)
    state = _State(collection.name, name, layout, language, len(known), [], [], none, none, known)
    state.ids, state.vectors, state.terms = _read(collection, state, [record.id for record in sample])
    state.seen = state.vectors
    _require_enough(where, len(state.ids), len(sample))
    if not Expectation(state.terms, state.vectors).tells:
        raise InputError(
            f"{where}: the vectors do not follow the words of their texts closely enough to judge new ones: several "
            "models made them, the model does not read these texts, or another field than "
            f"{layout.text_field!r} was encoded (--text-field)"
        )
    return state


def _require_enough(where: str, usable: int, sampled: int) -> None:
    if usable < LEAST_REFERENCES:
        raise TooFewDocuments(
            f"{where}: {counted(usable, 'sampled point', 'have', of=sampled)} a text and a vector, and "
            f"{LEAST_REFERENCES} are needed"
        )


def _read(collection: Collection, state: _State, ids: Sequence[PointId]) -> tuple[list[PointId], Vectors, list[Terms]]:
    """Return those of some points that have text and vector, in their order, with vectors and terms."""
    ids = list(dict.fromkeys(ids))
    records = collection.retrieve(ids, vectors=[state.vector_name])
    vectors = probe_vectors(records.values(), state.vector_name)
    there = [point_id for point_id in ids if str(point_id) in vectors and _text(state.layout, records[point_id])]
    rows = [vectors[str(point_id)] for point_id in there]
    analyser = analyser_for(state.language)
    texts = (_text(state.layout, records[point_id]) for point_id in there)
    terms: list[Terms] = [term_counts(text, lead=DEFAULT_LEAD, analyser=analyser) for text in texts]
    return there, np.array(rows, dtype=np.float32).reshape(len(rows), state.vectors.shape[1]), terms


def _text(layout: Layout, record: models.Record) -> str:
    payload = record.payload or {}
    return stored_text(layout, payload) if layout.of_point(payload).find_text(payload) else ""


def _rewritten(collection: Collection, state: _State) -> tuple[list[PointId], Vectors]:
    """Return the reference points whose vector is another one than before, and the vectors that all have now."""
    records = collection.retrieve(state.ids, "reading reference points", payload=False, vectors=[state.vector_name])
    stored = probe_vectors(records.values(), state.vector_name)
    now = np.stack([stored.get(str(point_id), seen) for point_id, seen in zip(state.ids, state.seen, strict=True)])
    is_changed = cosines(now, state.seen) < LEAST_STORED
    return [point_id for point_id, changed in zip(state.ids, is_changed, strict=True) if changed], now


_ARRAYS = ("vectors", "seen", "known")


def _save(file: Path, state: _State) -> None:
    """Write a state in one step."""
    values = {key: value for key, value in asdict(state).items() if key not in _ARRAYS}
    values["terms"] = [[list(counts), list(counts.values())] for counts in state.terms]
    header, content = json.dumps(values, default=str), BytesIO()
    np.savez_compressed(content, header=np.array(header), **{name: getattr(state, name) for name in _ARRAYS})
    draft = file.with_name(f".{file.name}.{uuid.uuid4().hex[:8]}")
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        draft.write_bytes(content.getvalue())
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)


def _load(file: Path) -> _State:
    try:
        with np.load(BytesIO(file.read_bytes()), allow_pickle=False) as arrays:
            values = json.loads(str(arrays["header"]))
            values["layout"] = Layout(**values["layout"])
            values["terms"] = [dict(zip(*counts, strict=True)) for counts in values["terms"]]
            return _State(**values, **{name: arrays[name] for name in _ARRAYS})
    except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile, zlib.error) as error:
        raise InputError(
            f"{file}: is not the state of care verify; give another file with --state ({error})"
        ) from error
