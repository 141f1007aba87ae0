"""Reads the texts of a live collection's points, and finds points whose vector is missing or outdated."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from qdrant_client import models

from care_qdrant.contracts.contract import SparseContract
from care_qdrant.contracts.layouts import NODE_TEXTS, Layout, guess_layout, lookup
from care_qdrant.contracts.payload import content_hash, node_embedded_texts, stored_hash
from care_qdrant.contracts.stand_in import STAND_INS
from care_qdrant.corpus.chunking import count_or_fail
from care_qdrant.encoders import TokenCounter
from care_qdrant.errors import InputError, counted
from care_qdrant.ingestion.pipeline import WINDOW_TEXTS, Task, Window
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.readable import PointId
from care_qdrant.types import CARE_KEY, embedded_text, half_character, is_blank

MOST_UNREADABLE = 100
"""Largest number of ids that a report lists for points with half a character in their text."""
NOTICEABLE_FRACTION = 0.05
"""Least fraction of points with their text in another field that is reported."""

_OUR_ENTRIES = {"chunk": int, "chunks": int, "payload": str, "vectors": Mapping, STAND_INS: list}
"""Entries that ingestion and attach write under `CARE_KEY`, with their types."""


@dataclass(frozen=True, slots=True)
class PointTask(Task):
    """The text of a stored point that lacks the vector of this text."""

    id: PointId
    hash: str
    """Hash of the model and the text, which the point will carry."""


@dataclass(slots=True)
class PointWindow(Window[PointTask]):
    """Window of points: those that need a vector, and the counts of the others."""

    read: int = 0
    without_text: int = 0
    unreadable: list[PointId] = field(default_factory=list)
    """Points of `without_text` that do have a text, but one that the encoder cannot read."""
    in_other_field: int = 0
    """Number of points without a text under the layout's field that have one in another field."""
    text_gone: list[PointId] = field(default_factory=list)
    """Points without a text, or without terms for BM25, that have a vector of an earlier text."""


class Characters:
    """Counts characters in place of tokens, which is enough to sort texts by length; no text is too long."""

    max_tokens = 2**31

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return the length of each text in characters."""
        return [len(text) for text in texts]


@dataclass(frozen=True, slots=True)
class PointReader:
    """Finds the points of a collection that need a vector."""

    layout: Layout
    vector_name: str
    constants: str
    """Model, or analyser and constants, as part of a content hash, which the text completes."""
    counter: TokenCounter
    sparse: SparseContract | None = None
    """Contract of a BM25 vector, which a text without terms does not get; None for a dense vector."""

    def needs_vector(self, payload: Mapping[str, Any]) -> bool:
        """Return whether a point that has the hash of a text needs the vector."""
        has_text = self.layout.of_point(payload).find_text(payload) is not None
        return self.sparse is None or not has_text or self.sparse.has_terms(stored_text(self.layout, payload))

    def windows(self, collection: Collection, where: models.Filter | None = None) -> Iterator[PointWindow]:
        """Read the points that pass a filter and yield those that need a vector, a few thousand at a time.

        An attach reads all of them in one process, since the encoder is its bottleneck.
        """
        for part in collection.parts():
            window = PointWindow(part)
            for records in part.scroll(where=where):
                self.sort(window, records)
                if len(window.encode) >= WINDOW_TEXTS:
                    yield window
                    window = PointWindow(part)
            yield window

    def lacking(self, place: Collection, tasks: Sequence[PointTask]) -> PointWindow:
        """Return the tasks whose point still has the text of their vector and still lacks the vector."""
        window = PointWindow(place)
        self.sort(window, list(place.retrieve([task.id for task in tasks]).values()))
        lacking = {(task.id, task.hash): task.unchanged for task in window.encode}
        window.encode = [
            replace(task, unchanged=lacking[task.id, task.hash]) for task in tasks if (task.id, task.hash) in lacking
        ]
        return window

    def sort(self, window: PointWindow, records: Sequence[models.Record]) -> None:
        """Add stored points to a window: as tasks if they need a vector, as counts otherwise."""
        window.read += len(records)
        todo: list[tuple[models.Record, str]] = []
        left_out: list[models.Record] = []
        for record in records:
            payload = record.payload or {}
            require_free_key(window.place.name, payload, record.id)
            expected = expected_hash(self.layout, payload, self.vector_name, self.constants)
            if expected is None:
                left_out.append(record)
                window.unreadable += [record.id] if is_unreadable(self.layout, payload) else []
                window.in_other_field += other_text_field(self.layout, payload) is not None
            elif stored_hash(payload, self.vector_name) == expected:
                window.unchanged += 1
            elif self.needs_vector(payload):
                todo.append((record, expected))
            else:
                left_out.append(record)
        texts = [stored_text(self.layout, record.payload or {}) for record, _ in todo]
        for (record, digest), text, tokens in zip(todo, texts, count_or_fail(texts, self.counter), strict=True):
            if isinstance(tokens, str):
                left_out.append(record)
                window.unreadable.append(record.id)
                continue
            payload = record.payload or {}
            unchanged, name = self.layout.of_point(payload).conditions(payload), f"point {record.id!r}"
            window.encode.append(
                PointTask(record.id, digest, text=text, tokens=tokens, name=name, kind="attach", unchanged=unchanged)
            )
        window.without_text += len(left_out)
        window.text_gone += [r.id for r in left_out if stored_hash(r.payload or {}, self.vector_name) is not None]


def stored_text(layout: Layout, payload: Mapping[str, Any]) -> str:
    """Return the text that the document encoder reads for a point that has one."""
    layout = layout.of_point(payload)
    return embedded_text(layout.title(payload), layout.text(payload))


def texts_of(collection: Collection, layout: Layout) -> Iterator[str]:
    """Return the texts that a document encoder reads for the points of a collection, read page by page."""
    payloads = (record.payload or {} for page in collection.scroll("reading texts") for record in page)
    return (stored_text(layout, payload) for payload in payloads if layout.of_point(payload).find_text(payload))


def possible_texts(layout: Layout, payload: Mapping[str, Any]) -> list[str]:
    """Return every text from which a point's vector may rightly have been made; first the one that attach encodes."""
    return list(dict.fromkeys([stored_text(layout, payload), *_texts_of_node(layout, payload)]))


def _texts_of_node(layout: Layout, payload: Mapping[str, Any]) -> list[str]:
    """Return the texts that LlamaIndex may have embedded; empty where the node's text differs from the point's.

    Points that ingestion wrote hold a text and a node: an edit of the text leaves the former text in the node.
    """
    if layout.of_point(payload).find_text(payload) not in (lookup(payload, path) for path in NODE_TEXTS):
        return []
    return [text for text in node_embedded_texts(payload) if not half_character(text)]  # as of an odd file name


def expected_hash(layout: Layout, payload: Mapping[str, Any], vector_name: str, fingerprint: str) -> str | None:
    """Return the hash of the current text; None without a text that an encoder can read.

    For a node that LlamaIndex wrote, it is the stored hash if that is of any text that LlamaIndex embeds for the node.
    """
    if layout.of_point(payload).find_text(payload) is None or is_unreadable(layout, payload):
        return None
    expected, stored = content_hash(fingerprint, "", stored_text(layout, payload)), stored_hash(payload, vector_name)
    if stored in (None, expected) or "_node_content" not in payload:
        return expected
    others = {content_hash(fingerprint, "", text) for text in _texts_of_node(layout, payload)}
    return stored if stored in others else expected


def is_unreadable(layout: Layout, payload: Mapping[str, Any]) -> bool:
    """Return whether a point has a text that no encoder reads: with half a character, or with nothing that shows."""
    if layout.of_point(payload).find_text(payload) is None:
        return False
    text = stored_text(layout, payload)
    return bool(half_character(text)) or is_blank(text)


def unreadable_warning(points: Sequence[PointId]) -> str | None:
    """Return the warning about points whose text the encoder cannot read; None without such points."""
    if not points:
        return None
    count = f"{len(points)} points" if len(points) < MOST_UNREADABLE else f"{MOST_UNREADABLE} or more points"
    which = f"point {points[0]!r}" if len(points) == 1 else f"{count} (the first is {points[0]!r})"
    return (
        f"the encoder cannot read the text of {which}, for example since it holds an unpaired surrogate, or invisible "
        "characters or words alone that the model does not know, so it has no vector, and no search finds it. Fix the "
        "text, then run care attach again"
    )


def other_text_field(layout: Layout, payload: Mapping[str, Any]) -> str | None:
    """Return the field that holds the text of a point without one under the layout's field; None without any."""
    try:
        text = layout.of_point(payload).find_text(payload)
        return guess_layout([payload]).text_field if text is None else None
    except InputError:
        return None


def other_field_warning(points: int, in_other_field: int, text_field: str) -> str | None:
    """Return the warning about points with their text in another field; None for a negligible fraction of points."""
    if in_other_field < max(1, NOTICEABLE_FRACTION * points):
        return None
    return (
        f"{counted(in_other_field, 'point', 'have', of=points)} no text under {text_field!r} and one in another field: "
        "they get no vector, and no search finds them. Put all texts under one field, or attach another vector for "
        "them: --vector-name NAME --text-field FIELD"
    )


def is_key_of_others(payload: Mapping[str, Any]) -> bool:
    """Return whether a payload has values under our key that neither ingestion nor attach wrote."""
    if CARE_KEY not in payload:
        return False
    care = payload[CARE_KEY]
    return not (care and isinstance(care, Mapping)) or not all(  # neither writes an empty object
        isinstance(value, _OUR_ENTRIES.get(key, ())) for key, value in care.items()
    )


def require_free_key(collection: str, payload: Mapping[str, Any], point_id: PointId) -> None:
    """Refuse a payload in which the hash of a text would replace a value of the user's own."""
    if is_key_of_others(payload):
        raise InputError(
            f"collection {collection!r}: payloads have a key {CARE_KEY!r} of their own (that of point {point_id!r} is "
            f"{str(payload[CARE_KEY])[:60]!r}), under which attach keeps the hash of each text. It was not changed; "
            "rename yours, and run the same command again"
        )
