"""Reads the texts of stored points, and tells those whose vector is missing or was made of another text."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from qdrant_client import models

from care_qdrant.encoders import TokenCounter
from care_qdrant.store.layout import Layout
from care_qdrant.store.limits import read_limits
from care_qdrant.store.payload import CARE_KEY, content_hash
from care_qdrant.store.points import PointId
from care_qdrant.store.retry import Collection
from care_qdrant.types import embedded_text

WINDOW_POINTS = 4_096
"""Points to encode that are sorted by length together."""


@dataclass(frozen=True, slots=True)
class Text:
    """What the document encoder reads for one point."""

    id: PointId
    text: str
    hash: str
    """Of the text and the model: the point will carry it."""
    tokens: int


@dataclass(slots=True)
class Window:
    """The work of some thousand points."""

    texts: list[Text] = field(default_factory=list)
    read: int = 0
    unchanged: int = 0
    without_text: int = 0
    outlived: list[PointId] = field(default_factory=list)
    """Of those without a text: points that have a vector of the text that they had."""


def read_windows(
    link: Collection, layout: Layout, vector_name: str, fingerprint: str, counter: TokenCounter
) -> Iterator[Window]:
    """Read all points of a collection and give those that need a vector, some thousand at a time.

    Args:
        link: The collection.
        layout: Where the texts are.
        vector_name: The vector that is looked after.
        fingerprint: Of its model.
        counter: Of the same model.
    """
    window = Window()
    for records in read_payloads(link):
        window.read += len(records)
        wanted = []
        for record in records:
            payload = record.payload or {}
            digest, stored = wanted_hash(layout, payload, fingerprint), stored_hash(payload, vector_name)
            if digest is None:
                window.without_text += 1
                window.outlived += [record.id] if stored is not None else []
            elif stored == digest:
                window.unchanged += 1
            else:
                wanted.append((record.id, stored_text(layout, payload), digest))
        lengths = counter.count_tokens([text for _, text, _ in wanted])
        window.texts += [Text(*each, tokens) for each, tokens in zip(wanted, lengths, strict=True)]
        if len(window.texts) >= WINDOW_POINTS:
            yield window
            window = Window()
    yield window


def read_payloads(link: Collection) -> Iterator[Sequence[models.Record]]:
    """Give all points with their payloads, many at a time."""
    offset: Any = None
    limit = read_limits(link).page
    while True:
        records, offset = link.call("reading points", partial(_scroll, link, limit, offset))
        yield records
        if offset is None:
            return


def stored_text(layout: Layout, payload: Mapping[str, Any]) -> str:
    """Give what the document encoder reads of a point that has a text."""
    return embedded_text(layout.title(payload), layout.text(payload))


def stored_hash(payload: Mapping[str, Any], vector_name: str) -> str | None:
    """Give the hash of the text that a vector was made of, None where the point names none."""
    care = payload.get(CARE_KEY)
    hashes = care.get("vectors") if isinstance(care, Mapping) else None
    digest = hashes.get(vector_name) if isinstance(hashes, Mapping) else None
    return digest if isinstance(digest, str) else None


def wanted_hash(layout: Layout, payload: Mapping[str, Any], fingerprint: str) -> str | None:
    """Give the hash that the present text asks for, None where there is no text."""
    text = layout.find_text(payload)
    return None if text is None else content_hash(fingerprint, layout.title(payload), text)


def _scroll(link: Collection, limit: int, offset: Any) -> tuple[Sequence[models.Record], Any]:
    return link.client.scroll(link.collection, limit=limit, offset=offset, with_payload=True, with_vectors=False)
