"""Watches a dense vector, which any tool may write, for vectors that another model than before has made.

The first check draws reference points. Each later one judges the points that are new since the check before, and the
reference points whose vectors were rewritten, by whether their vectors belong to their texts
(`care_qdrant.vectors.belonging`). Nothing is written to the collection: a key that may only read is enough.
"""

import json
import math
import os
import zlib
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import compress
from operator import itemgetter
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from care_qdrant.contracts.layouts import Layout, guess_layout
from care_qdrant.contracts.learned import probe_vectors
from care_qdrant.destinations import require_writable
from care_qdrant.encoders.agreement import LEAST_STORED, cosines
from care_qdrant.encoders.terms.analyser import analyser_for
from care_qdrant.encoders.terms.bm25 import DEFAULT_LEAD, term_counts
from care_qdrant.encoders.terms.languages import language_of
from care_qdrant.errors import InputError, QdrantError, TooFewDocuments, counted
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
Keys = npt.NDArray[np.uint64]
"""Sorted keys of the ids of all points."""


@dataclass(slots=True)
class WatchReport:
    """Findings of one check."""

    collection: str
    """Name of the collection, or of the alias, that is watched."""
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
    known: Keys
    observed: list[PointId] = field(default_factory=list)
    """Points that are judged again: those of an alarm, and the last ones, one fewer than a window."""


class Watch:
    """Checks one vector of a collection, or of the collection behind an alias, again and again."""

    def __init__(self, vector_name: str | None, text_field: str | None = None, file: Path | None = None) -> None:
        """Set up; no database is read.

        Args:
            vector_name: Name of a dense vector; None takes the only one.
            text_field: Payload field with the text; None guesses it.
            file: File that keeps the state between programs; None keeps it in memory.

        Raises:
            InputError: The file is not the state of a watch, or cannot be written.
        """
        self._vector_name, self._text_field, self._file = vector_name, text_field, file
        if file is not None:
            require_writable(file)
        self._state = None if file is None or not file.exists() else _load(file)

    def check(self, place: Collection) -> WatchReport:
        """Judge what is new since the last check; the first one takes the collection as it is for its reference.

        Raises:
            TooFewDocuments: There are too few points with text and vector to learn how the two belong together.
            InputError: The texts do not say where the vectors are, or there is no such vector.
        """
        collection, name, text_field, state = place.whole(), self._vector_name, self._text_field, self._state
        dense = {key: params for key, params in collection.schema.dense.items() if params.multivector_config is None}
        if name is None and len(dense) == 1:
            name = next(iter(dense))
        if name is None or name not in dense:
            raise InputError(
                f"collection {collection.name!r}: choose one of its dense vectors with --vector-name (it has, beside "
                f"multivectors: {', '.join(map(repr, dense)) or 'none'})"
            )
        keys, new = _read_ids(collection, None if state is None else state.known)
        if state is None:
            state = _draw(collection, place.name, name, text_field, keys)
        kept = (state.collection, state.vector_name, state.vectors.shape[1], state.layout.text_field)
        if kept != (required := (place.name, name, dense[name].size, text_field or state.layout.text_field)):
            raise InputError(
                f"{self._file or 'the watch'}: has the state of collection, vector, dimensions and text field {kept}, "
                f"not of {required}; give another file with --state"
            )
        expectation = Expectation(state.terms, state.vectors)
        rewritten, seen = _rewritten(collection, state)
        report = WatchReport(place.name, name, points=len(keys), new=len(new), rewritten=len(rewritten))
        report.expected = round(expectation.agreement, 2)
        _judge(collection, state, expectation, [*new[:MOST_NEW], *rewritten], report)
        state.known, state.seen = keys, seen
        with suppress(QdrantError):  # it must not hide an alarm; one stored vector with NaN fails every search
            report.recall_at_10 = measure_recall(collection, name, state.vectors[:QUERIES].tolist())
        if not report.alarm and not holds(state.points, len(keys)):
            with suppress(InputError):  # the former references stay
                state = replace(_draw(collection, place.name, name, text_field, keys), observed=state.observed)
        self._state = state
        if self._file is not None:
            _save(self._file, state)
        return report


def _read_ids(collection: Collection, known: Keys | None) -> tuple[Keys, list[PointId]]:
    """Return the keys of all points, and the ids of the new ones in random order; Qdrant does not say which are new."""
    pages: list[Keys] = [np.zeros(0, dtype=np.uint64)]
    new: list[tuple[int, PointId]] = []
    for ids in collection.ids():
        keys = np.frombuffer(b"".join(place_in_order(point_id, _SEED) for point_id in ids), dtype="<u8")
        pages.append(keys)
        if known is not None:
            is_new = np.searchsorted(known, keys) == np.searchsorted(known, keys, "right")
            new += compress(zip(keys.tolist(), ids, strict=True), is_new)
    return np.sort(np.concatenate(pages)), [point_id for _, point_id in sorted(new, key=itemgetter(0))]


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


def _draw(collection: Collection, known_as: str, name: str, text_field: str | None, known: Keys) -> _State:
    """Draw reference points; refuse a collection whose texts say too little about its vectors."""
    where = f"vector {name!r} of collection {collection.name!r}"
    sample = collection.sample(REFERENCES)
    too_few = TooFewDocuments(
        f"{where}: too few of {counted(len(sample), 'sampled point')} have a text and a vector; {LEAST_REFERENCES} are "
        "needed"
    )
    if len(sample) < LEAST_REFERENCES:
        raise too_few
    payloads = [record.payload or {} for record in sample]
    layout = guess_layout(payloads, text_field=text_field)
    language = language_of(layout.find_text(payload) or "" for payload in payloads)
    none = np.zeros((0, collection.schema.dense[name].size), dtype=np.float32)
    state = _State(known_as, name, layout, language, len(known), [], [], none, none, known)
    state.ids, state.vectors, state.terms = _read(collection, state, [record.id for record in sample])
    state.seen = state.vectors
    if len(state.ids) < LEAST_REFERENCES:
        raise too_few
    if not Expectation(state.terms, state.vectors).tells:
        raise InputError(
            f"{where}: the vectors do not follow the words of their texts closely enough to judge new ones: several "
            "models made them, the model does not read these texts, or another field than "
            f"{layout.text_field!r} was encoded (--text-field)"
        )
    return state


def _read(collection: Collection, state: _State, ids: Sequence[PointId]) -> tuple[list[PointId], Vectors, list[Terms]]:
    """Return those of some points that have text and vector, in their order, with vectors and terms."""
    layout, analyser = state.layout, analyser_for(state.language)
    records = collection.retrieve(list(dict.fromkeys(ids)), vectors=[state.vector_name])
    vectors = probe_vectors(records.values(), state.vector_name)
    payloads = {point_id: record.payload or {} for point_id, record in records.items()}
    has_text = {point_id for point_id, each in payloads.items() if layout.of_point(each).find_text(each)}
    there = [point_id for point_id in dict.fromkeys(ids) if point_id in has_text and str(point_id) in vectors]
    texts = (stored_text(layout, payloads[point_id]) for point_id in there)
    terms: list[Terms] = [term_counts(text, lead=DEFAULT_LEAD, analyser=analyser) for text in texts]
    rows = np.array([vectors[str(point_id)] for point_id in there], dtype=np.float32)
    return there, rows.reshape(len(there), state.vectors.shape[1]), terms


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
    values = asdict(state) | {"terms": [[*terms.items()] for terms in state.terms]}
    arrays = {name: values.pop(name) for name in _ARRAYS}
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{os.getpid()}.npz")
    np.savez_compressed(draft, state=np.array(json.dumps(values, default=str)), **arrays)
    draft.replace(file)


def _load(file: Path) -> _State:
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as content:
            values = json.loads(str(content["state"])) | {name: content[name] for name in _ARRAYS}
        values |= {"layout": Layout(**values["layout"]), "terms": list(map(dict, values["terms"]))}
        return _State(**values)
    except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile, zlib.error) as error:
        raise InputError(
            f"{file}: is not the state of care verify; give another file with --state ({error})"
        ) from error
