"""Layouts of payloads: the tool that wrote them, and its places for text, metadata and document id.

================  =======================  ==============  ===============================================
tool              text                     metadata        id of the source document
================  =======================  ==============  ===============================================
``care``          ``text``                 top level       ``doc_id``
``llama-index``   ``_node_content.text``   top level       ``doc_id``
``dify``          ``page_content``         ``metadata.``   ``metadata.document_id``; ``doc_id`` is a segment's
``langchain``     ``page_content``         ``metadata.``   ``metadata.doc_id``, ``metadata.source`` …
``langchain-js``  ``content``              ``metadata.``   the same; also Flowise and n8n
``haystack``      ``content``              ``meta.``       ``meta.source_id``, ``id``
``open-webui``    ``text``                 ``metadata.``   ``metadata.file_id``
``ragflow``       ``content_with_weight``  top level       ``doc_id``
``mem0``          ``data``                 top level       the point's own: a memory has no document
``spring-ai``     ``doc_content``          top level       ``doc_id``, ``id`` …
``langchain4j``   ``text_segment``         top level       ``doc_id``, ``id`` …
``plain``         ``text``, ``body``, …    top level       ``doc_id``, ``id`` …
================  =======================  ==============  ===============================================

A path is dotted, as Qdrant's own filters write it; where it meets a string that holds JSON (LlamaIndex's
``_node_content``), the path continues inside.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal, get_args

from qdrant_client import models

from care_qdrant.contracts.paths import quoted
from care_qdrant.errors import InputError, counted
from care_qdrant.types import CARE_KEY, LLAMA_INDEX_KEYS, RESERVED_KEYS, Hit

Payload = Mapping[str, Any]
Point = models.ScoredPoint | models.Record | models.PointStruct
Tool = Literal[
    "care",
    "llama-index",
    "dify",
    "langchain",
    "langchain-js",
    "haystack",
    "open-webui",
    "ragflow",
    "mem0",
    "spring-ai",
    "langchain4j",
    "plain",
]

TEXT_NAMES = ("text", "content", "page_content", "body", "chunk", "chunk_text", "document", "passage")
"""Names of fields that may hold the text, in order of precedence; the top level comes before nested fields."""

_TOOLS: tuple[Tool, ...] = get_args(Tool)
_DOCUMENT_NAMES = ("doc_id", "document_id", "ref_doc_id", "id", "_id")
# LightRAG's `source_id` is a chunk, which many of its entities share; Haystack's is the document.
_LLAMA_INDEX_IDS = ("doc_id", "document_id", "ref_doc_id")
_MAX_DEPTH = 3


@dataclass(frozen=True, slots=True)
class Layout:
    """Reads the payloads of one collection."""

    tool: Tool
    text_field: str
    title_path: str = ""
    """Embedded in front of the text; empty for other tools, whose text may hold the title already."""
    metadata_prefix: str = ""
    """Payload key that holds the user's metadata: ``"metadata"`` or ``"meta"``; empty for the top level."""
    document_paths: tuple[str, ...] = ()
    """Payload paths of the id of the source document; the first one present wins."""
    evidence: str = ""
    """Reason for the choice of this layout, for a person to check."""

    def of_point(self, payload: Payload) -> "Layout":
        """Return the layout of one point: a point that ingestion wrote keeps its own among points of another tool.

        A field that the user named is read from every point.
        """
        is_of_tool = self.text_field in _OUR_TEXTS or self.tool not in ("care", "llama-index", "plain")
        return CARE_LAYOUT if is_of_tool and _is_ours(payload) else self

    @property
    def certain_paths(self) -> tuple[str, ...]:
        """The document paths that always hold an id; a ``source`` may be a kind of text, such as `news`."""
        return tuple(path for path in self.document_paths if path != _SOURCE)

    def find_text(self, payload: Payload) -> str | None:
        """Return the text of a point, or None where it has none."""
        path = self._text_path(payload)
        return None if path is None else str(lookup(payload, path))

    def _text_path(self, payload: Payload) -> str | None:
        for path in (self.text_field, *_OTHER_TEXT_PATHS.get(self.tool, ())):
            text = lookup(payload, path)
            if isinstance(text, str) and text.strip():
                return path
        return None

    def conditions(self, payload: Payload) -> tuple[models.Condition, ...]:
        """Return conditions that a point meets until its text or title differs from this payload's."""
        paths = [self._text_path(payload), self.title_path]
        conditions = [_condition(payload, path) for path in paths if path]
        return tuple(condition for condition in conditions if condition is not None)

    def text(self, payload: Payload) -> str:
        """Return the text of a point."""
        text = self.find_text(payload)
        if text is None:
            keys = _key_names([payload])
            raise InputError(f"payload has no text under {self.text_field!r} (its keys: {keys})")
        return text

    def title(self, payload: Payload) -> str:
        """Return the title that is embedded in front of the text; empty without one."""
        title = lookup(payload, self.title_path) if self.title_path else None
        return title if isinstance(title, str) else ""

    def metadata(self, payload: Payload) -> dict[str, Any]:
        """Return the user's metadata: what filters see, without the text, the title and the tool's own keys."""
        if self.metadata_prefix:
            nested = payload.get(self.metadata_prefix)
            return dict(nested) if isinstance(nested, Mapping) else {}
        own = RESERVED_KEYS if self.tool == "care" else {CARE_KEY, *LLAMA_INDEX_KEYS}
        kept = {key: value for key, value in payload.items() if key not in own}
        return _without(_without(kept, self.text_field), self.title_path)

    def ref_doc_id(self, payload: Payload) -> str | None:
        """Return the id of the document that the point is a part of, or None where the payload names none."""
        absent = ("",) if self.tool == "care" else ("", "None")  # LlamaIndex writes it where a node has no document
        for path in self.document_paths:
            value = lookup(payload, path)
            if isinstance(value, str | int) and value not in absent:
                return str(value)
        return None

    def written(self, text: str, metadata: Mapping[str, Any], document_id: str | None) -> dict[str, Any]:
        """Return the fields that a point written by LlamaIndex also needs so that this layout can read it."""
        if self.tool == "llama-index":
            return {}
        payload: Any = text
        for name in reversed(self.text_field.split(".")):
            payload = {name: payload}
        if self.metadata_prefix:
            own_key = self.document_paths[0].removeprefix(f"{self.metadata_prefix}.")
            named = {} if document_id is None else {own_key: document_id}
            payload[self.metadata_prefix] = {**metadata, **named}
        return dict(payload)


CARE_LAYOUT = Layout("care", "text", title_path="title", document_paths=("doc_id",))
"""Layout of the points that ingestion writes."""

_OUR_TEXTS = ("text", "_node_content.text")
NODE_TEXTS = ("_node_content.text", "_node_content.text_resource.text")
"""Payload paths under which versions of LlamaIndex keep the text of a node."""
_OTHER_TEXT_PATHS: dict[Tool, tuple[str, ...]] = {"llama-index": (*NODE_TEXTS, "text"), "care": NODE_TEXTS}


def guess_layout(payloads: Sequence[Payload], *, text_field: str | None = None) -> Layout:
    """Return the layout that most of these payloads have."""
    votes = Counter(layout for payload in payloads if (layout := _layout_of(payload, text_field)) is not None)
    if not votes:
        required = repr(text_field) if text_field else "any of " + ", ".join(TEXT_NAMES)
        raise InputError(
            f"none of {counted(len(payloads), 'sampled payload')} has a text under {required} "
            f"(their keys: {_key_names(payloads)}); name the field that holds it, such as body or document.body"
        )
    # A sample is drawn at random: where two layouts hold equally many texts, its order must not decide.
    layout = min(votes, key=lambda option: (-votes[option], _TOOLS.index(option.tool), option.text_field))
    evidence = (
        f"{counted(votes[layout], 'sampled payload', 'have', of=len(payloads))} a text under {layout.text_field!r}"
    )
    return replace(layout, evidence=evidence)


def read_hit(
    point: Point, layout: Layout | None = None, text_field: str | None = None, vector_name: str | None = None
) -> Hit:
    """Convert a point to a hit; without a text, the hit's text is empty and the search goes on.

    Args:
        point: A point as Qdrant returns it.
        layout: Layout of its payload; None guesses it. Points that ingestion wrote name their own.
        text_field: Payload field of the text, when the layout is not known.
        vector_name: Name of the dense vector to read.
    """
    payload, point_id, score = point.payload or {}, str(point.id), getattr(point, "score", 1.0)
    vector = vector_of(point, vector_name or "")
    is_ours = _is_ours(payload)
    try:
        layout = CARE_LAYOUT if is_ours else layout or guess_layout([payload], text_field=text_field)
    except InputError:
        return Hit(point_id, point_id, score, text="", metadata=payload, payload=payload, vector=vector)
    return Hit(
        document_id=layout.ref_doc_id(payload) or point_id,
        point_id=point_id,
        score=score,
        text=layout.find_text(payload) or "",
        title=layout.title(payload),
        chunk=payload[CARE_KEY]["chunk"] if is_ours else 0,
        metadata=layout.metadata(payload),
        payload=payload,
        vector=vector,
    )


def names_its_document(payload: Payload) -> bool:
    """Return whether the tool that wrote a point always names its document; others use such keys as they like."""
    return _is_ours(payload) or "_node_content" in payload or _is_of_dify(payload)


def vector_of(point: Point, vector_name: str) -> list[float] | None:
    """Return the stored vector of that name, ``(dim,)``; None where the answer has none."""
    vectors: Any = getattr(point, "vector", None)
    values = vectors.get(vector_name) if isinstance(vectors, Mapping) else None if vector_name else vectors
    return list(values) if values else None


def lookup(payload: Payload, path: str) -> Any:
    """Return the value at a dotted path, or None if it does not exist."""
    if path in payload:
        return payload[path]
    head, _, rest = path.partition(".")
    inner = payload.get(head)
    if isinstance(inner, str) and rest:
        inner = _parsed(inner)
    return lookup(inner, rest) if isinstance(inner, Mapping) and rest else None


def _condition(payload: Payload, path: str, above: str = "") -> models.Condition | None:
    """Return a condition on the value at a path; None where Qdrant has no such condition."""
    name, _, rest = (path, "", "") if path in payload else path.partition(".")
    value = payload.get(name)
    try:
        key = above + quoted(name)
    except InputError:
        return None
    if isinstance(value, Mapping) and rest:
        return _condition(value, rest, f"{key}.")
    if isinstance(value, str):  # also JSON with the path inside
        return models.FieldCondition(key=key, match=models.MatchValue(value=value))
    return models.IsEmptyCondition(is_empty=models.PayloadField(key=key)) if value is None else None


def _layout_of(payload: Payload, text_field: str | None) -> Layout | None:
    """Return the layout of one payload, or None where it has no text."""
    candidates = _candidates(payload)
    if text_field:
        candidates = chain((layout for layout in candidates if layout.text_field == text_field), [_plain(text_field)])
    return next((layout for layout in candidates if layout.find_text(payload) is not None), None)


def _is_ours(payload: Payload) -> bool:
    """Return whether ingestion wrote a point."""
    care = payload.get(CARE_KEY)
    return isinstance(care, Mapping) and isinstance(care.get("chunk"), int)


def _candidates(payload: Payload) -> Iterator[Layout]:
    yield from (layout for is_of_tool, layout in _WRITERS if is_of_tool(payload))
    yield from (_plain(path) for path in _text_paths(payload))


def _nested(tool: Tool, text_field: str, prefix: str, ids: Sequence[str]) -> Layout:
    return Layout(tool, text_field, metadata_prefix=prefix, document_paths=tuple(ids))


def _plain(text_field: str) -> Layout:
    return Layout("plain", text_field, document_paths=_DOCUMENT_NAMES)


def _is_nested(payload: Payload, text_field: str, prefix: str) -> bool:
    return text_field in payload and isinstance(payload.get(prefix), Mapping)


def _is_of_dify(payload: Payload) -> bool:
    """Return whether Dify wrote a segment: it names segment, document and dataset, in LangChain's shape."""
    metadata = payload.get("metadata")
    return "page_content" in payload and isinstance(metadata, Mapping) and {"document_id", "dataset_id"} <= {*metadata}


def _has_only(payload: Payload, *keys: str) -> bool:
    """Return whether a payload has no other keys than these and our own."""
    return payload.keys() <= {*keys, CARE_KEY}


_SOURCE = "metadata.source"
_IN_METADATA = (*(f"metadata.{name}" for name in _DOCUMENT_NAMES), _SOURCE)
_WRITERS: tuple[tuple[Callable[[Payload], bool], Layout], ...] = (
    (_is_ours, CARE_LAYOUT),
    (
        lambda payload: "_node_content" in payload,
        Layout("llama-index", "_node_content.text", document_paths=_LLAMA_INDEX_IDS),
    ),
    (_is_of_dify, _nested("dify", "page_content", "metadata", ["metadata.document_id", "metadata.doc_id"])),
    (
        lambda payload: "page_content" in payload and isinstance(payload.get("metadata"), Mapping | None),
        _nested("langchain", "page_content", "metadata", _IN_METADATA),
    ),
    (
        lambda payload: _is_nested(payload, "content", "meta"),
        _nested("haystack", "content", "meta", [*(f"meta.{name}" for name in ("source_id", *_DOCUMENT_NAMES)), "id"]),
    ),
    # The next two keep all metadata under ``metadata``. Next to other keys, that key is one of the user's own.
    (
        lambda payload: _is_nested(payload, "content", "metadata") and _has_only(payload, "content", "metadata"),
        _nested("langchain-js", "content", "metadata", _IN_METADATA),
    ),
    (
        lambda payload: _is_nested(payload, "text", "metadata") and _has_only(payload, "text", "metadata", "tenant_id"),
        _nested("open-webui", "text", "metadata", ["metadata.file_id", *_IN_METADATA]),
    ),
    (
        lambda payload: "content_with_weight" in payload,
        Layout("ragflow", "content_with_weight", document_paths=("doc_id",)),
    ),
    (lambda payload: {"data", "hash"} <= payload.keys(), Layout("mem0", "data")),
    (lambda payload: "doc_content" in payload, Layout("spring-ai", "doc_content", document_paths=_DOCUMENT_NAMES)),
    (lambda payload: "text_segment" in payload, Layout("langchain4j", "text_segment", document_paths=_DOCUMENT_NAMES)),
)
"""Tests that recognise the payloads of a tool, each with its layout; the first whose layout finds a text wins."""
METADATA_PREFIXES = tuple(dict.fromkeys(layout.metadata_prefix for _, layout in _WRITERS if layout.metadata_prefix))
"""Payload keys below which tools keep the user's metadata."""
DOCUMENT_PATHS = tuple(
    dict.fromkeys([*_DOCUMENT_NAMES, *(path for _, layout in _WRITERS for path in layout.document_paths)])
)
"""Payload paths under which any tool keeps the id of the source document."""


def _text_paths(payload: Payload) -> list[str]:
    """Return the paths whose last name is one of `TEXT_NAMES`, the shallowest first."""
    paths = [path for path in _string_paths(payload) if path.rpartition(".")[2] in TEXT_NAMES]
    return sorted(paths, key=lambda path: (path.count("."), TEXT_NAMES.index(path.rpartition(".")[2]), path))


def _string_paths(payload: Payload, prefix: str = "", depth: int = 1) -> Iterator[str]:
    for key, value in payload.items():
        if isinstance(value, str):
            yield prefix + key
        elif isinstance(value, Mapping) and depth < _MAX_DEPTH:
            yield from _string_paths(value, f"{prefix}{key}.", depth + 1)


def _without(metadata: dict[str, Any], path: str) -> dict[str, Any]:
    """Return a copy that lacks the value at a dotted path."""
    if not path or path in metadata:
        return {key: value for key, value in metadata.items() if key != path}
    head, _, rest = path.partition(".")
    inner = metadata.get(head)
    if not (isinstance(inner, Mapping) and rest):
        return metadata
    return {**metadata, head: _without(dict(inner), rest)}


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # the second where thousands of brackets are nested
        return None


def _key_names(payloads: Iterable[Payload]) -> str:
    return ", ".join(sorted({key for payload in payloads for key in payload})) or "none"
