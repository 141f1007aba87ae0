"""The points of a live collection: reads their texts, tells whose vector is missing or outdated, and writes vectors."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from qdrant_client import models

from care_qdrant.encoders import TokenCounter
from care_qdrant.errors import InputError, Rejected
from care_qdrant.qdrant.collection import Collection, PointId
from care_qdrant.qdrant.layout import NODE_TEXTS, Layout, guess_layout, lookup
from care_qdrant.qdrant.payload import content_hash, node_embedded_texts
from care_qdrant.qdrant.sender import hash_removal
from care_qdrant.types import CARE_KEY, embedded_text

WINDOW_POINTS = 4_096
"""Number of points to encode that are sorted by length together."""
NOTICEABLE_FRACTION = 0.05
"""Fraction of points with their text in another field from which on it is reported."""

_OUR_ENTRIES = frozenset({"chunk", "chunks", "payload", "vectors"})


@dataclass(frozen=True, slots=True)
class Text:
    """What the document encoder reads for one point."""

    id: PointId
    text: str
    hash: str
    """Hash of the model and the text, which the point will carry."""
    tokens: int


@dataclass(slots=True)
class Window:
    """The work of some thousand points."""

    part: Collection
    """Where they are written (`Collection.parts`)."""
    texts: list[Text] = field(default_factory=list)
    read: int = 0
    unchanged: int = 0
    without_text: int = 0
    elsewhere: int = 0
    """Those without a text under the layout's field that have one in another field."""
    outlived: list[PointId] = field(default_factory=list)
    """Those without a text that have a vector of the text that they had."""


def read_windows(
    collection: Collection, layout: Layout, vector_name: str, fingerprint: str, counter: TokenCounter
) -> Iterator[Window]:
    """Read all points of a collection and return those that need a vector, some thousand at a time.

    Args:
        collection: To read.
        layout: Where the texts are.
        vector_name: The vector to complete.
        fingerprint: Of its model.
        counter: Of the same model.

    Raises:
        InputError: A payload has a value of its own under the key at which attach keeps its hashes.
    """
    for part in collection.parts():
        yield from _read_part(part, layout, vector_name, fingerprint, counter)


def _read_part(
    collection: Collection, layout: Layout, vector_name: str, fingerprint: str, counter: TokenCounter
) -> Iterator[Window]:
    window = Window(collection)
    for records in collection.scroll():
        window.read += len(records)
        todo = []
        for record in records:
            payload = record.payload or {}
            require_free_key(collection.name, payload, record.id)
            expected, stored = (
                expected_hash(layout, payload, vector_name, fingerprint),
                stored_hash(payload, vector_name),
            )
            if expected is None:
                window.without_text += 1
                window.elsewhere += other_text_field(layout, payload) is not None
                window.outlived += [record.id] if stored is not None else []
            elif stored == expected:
                window.unchanged += 1
            else:
                todo.append((record.id, stored_text(layout, payload), expected))
        lengths = counter.count_tokens([text for _, text, _ in todo])
        window.texts += [Text(*each, tokens) for each, tokens in zip(todo, lengths, strict=True)]
        if len(window.texts) >= WINDOW_POINTS:
            yield window
            window = Window(collection)
    yield window


def stored_text(layout: Layout, payload: Mapping[str, Any]) -> str:
    """Return what the document encoder reads of a point that has a text."""
    layout = layout.of_point(payload)
    return embedded_text(layout.title(payload), layout.text(payload))


def possible_texts(layout: Layout, payload: Mapping[str, Any]) -> list[str]:
    """Return every text that the vector of a point may rightly have been made of; first what attach encodes."""
    return list(dict.fromkeys([stored_text(layout, payload), *_texts_of_node(layout, payload)]))


def _texts_of_node(layout: Layout, payload: Mapping[str, Any]) -> list[str]:
    """Return what LlamaIndex may have embedded of a point; empty where its node holds another text than the point.

    The points of ingestion hold a text and a node: whoever edits the text leaves the former one in the node.
    """
    texts = (lookup(payload, path) for path in NODE_TEXTS)
    return node_embedded_texts(payload) if layout.of_point(payload).find_text(payload) in texts else []


def stored_hash(payload: Mapping[str, Any], vector_name: str) -> str | None:
    """Return the hash of the text that a vector was made of, None where the point has none."""
    care = payload.get(CARE_KEY)
    hashes = care.get("vectors") if isinstance(care, Mapping) else None
    digest = hashes.get(vector_name) if isinstance(hashes, Mapping) else None
    return digest if isinstance(digest, str) else None


def expected_hash(layout: Layout, payload: Mapping[str, Any], vector_name: str, fingerprint: str) -> str | None:
    """Return the hash of the present text, None where there is no text.

    Of a node that LlamaIndex wrote, this is the stored hash where that is of a text that LlamaIndex embeds of it.
    """
    if layout.of_point(payload).find_text(payload) is None:
        return None
    expected, stored = content_hash(fingerprint, "", stored_text(layout, payload)), stored_hash(payload, vector_name)
    if stored in (None, expected) or "_node_content" not in payload:
        return expected
    others = {content_hash(fingerprint, "", text) for text in _texts_of_node(layout, payload)}
    return stored if stored in others else expected


def other_text_field(layout: Layout, payload: Mapping[str, Any]) -> str | None:
    """Return the field in which a point without a text under the layout's field has one, None where it has none."""
    try:
        found = layout.of_point(payload).find_text(payload)
        return guess_layout([payload]).text_field if found is None else None
    except InputError:
        return None


def elsewhere_warning(points: int, elsewhere: int, text_field: str) -> str | None:
    """Return what to say of points with their text in another field, None where they are a negligible fraction.

    Args:
        points: Number of points that were read.
        elsewhere: Number of those with no text under ``text_field``, and one in another field.
        text_field: From which the vector is made.
    """
    if elsewhere < max(1, NOTICEABLE_FRACTION * points):
        return None
    return (
        f"{elsewhere:,} of {points:,} points have no text under {text_field!r} and one in another field: they get no "
        "vector, and no search finds them. Put all texts under one field, or attach another vector for them: "
        "--vector-name NAME --text-field FIELD"
    )


def is_foreign_key(payload: Mapping[str, Any]) -> bool:
    """Return whether a payload has under our key what neither ingestion nor attach wrote."""
    if CARE_KEY not in payload:
        return False
    care = payload[CARE_KEY]
    return not (
        isinstance(care, Mapping) and care.keys() <= _OUR_ENTRIES and isinstance(care.get("vectors", {}), Mapping)
    )


def require_free_key(collection: str, payload: Mapping[str, Any], point_id: PointId) -> None:
    """Refuse a payload in which the hash of a text would replace a value of the user's own.

    Raises:
        InputError: It has such a value.
    """
    if is_foreign_key(payload):
        raise InputError(
            f"collection {collection!r}: payloads have a key {CARE_KEY!r} of their own (that of point {point_id!r} is "
            f"{str(payload[CARE_KEY])[:60]!r}), under which attach keeps the hash of each text. It was not changed; "
            "rename yours, and run the same command again"
        )


@dataclass(frozen=True, slots=True)
class Addition:
    """Points with the vector to add, by its name, and as payload the hash of its text under the same name.

    Others may delete points in the meantime: those stay deleted. Points that others replace lose our hash with
    our vector, and the next run encodes them again.
    """

    points: Sequence[models.PointStruct]

    def __len__(self) -> int:
        return len(self.points)

    def part(self, start: int, end: int) -> "Addition":
        """Return some of the points."""
        return Addition(self.points[start:end])

    def send(self, collection: Collection) -> None:
        """Remove old hashes, write the vectors and then their hashes.

        The request names ids, so it fails where one has been deleted.
        """
        points = list(self.points)
        while points:
            try:
                collection.apply(f"writing {len(points)} vectors", _operations(points))
                return
            except Rejected:
                there = collection.retrieve([point.id for point in points], payload=False)
                if len(there) == len(points):
                    raise
                points = [point for point in points if point.id in there]


def _operations(points: Sequence[models.PointStruct]) -> list[models.UpdateOperation]:
    vectors = [models.PointVectors(id=point.id, vector=point.vector) for point in points]
    hashes = (
        models.SetPayload(payload=point.payload or {}, key=f"{CARE_KEY}.vectors", points=[point.id]) for point in points
    )
    return [
        hash_removal(vectors),
        models.UpdateVectorsOperation(update_vectors=models.UpdateVectors(points=vectors)),
        *(models.SetPayloadOperation(set_payload=each) for each in hashes),
    ]
