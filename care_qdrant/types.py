"""The plain data that all packages exchange."""

import hashlib
import unicodedata
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]
"""Shape (n, dim), rows of unit length."""

CARE_KEY = "_care"
"""Payload key of our own bookkeeping."""
LLAMA_INDEX_KEYS = ("_node_content", "_node_type", "doc_id", "document_id", "ref_doc_id")
RESERVED_KEYS = frozenset({CARE_KEY, "text", "title", *LLAMA_INDEX_KEYS})
"""Payload keys that a user's metadata may not use."""

_POINT_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "https://arxiv.org/abs/2604.10937#document")


@dataclass(frozen=True, slots=True)
class Document:
    """One row of a corpus."""

    id: str
    """The user's own identifier; any non-empty string."""
    text: str
    title: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """JSON values; they become top-level, filterable payload keys."""
    line: int = field(default=0, compare=False)
    """Line of the file it was read from, or row of a Parquet file, counted from 1; 0 for one that was not read."""
    file: str = field(default="", compare=False)
    """Name of the file it was read from, set where a corpus has several files."""


@dataclass(frozen=True, slots=True)
class TermCounts:
    """The BM25 terms of a text, counted before."""

    counts: Mapping[int, float]
    """Counts by the index of a term (`care_qdrant.encoders.terms.bm25.term_counts`)."""
    lead: float | None
    """The position weights that the counts have; None where all occurrences count the same."""
    analyser: str
    """Name of the analyser that cut the text."""


@dataclass(frozen=True, slots=True)
class TermVector:
    """A sparse vector of terms: their indices, and a value for each."""

    indices: list[int]
    values: list[float]


@dataclass(frozen=True, slots=True)
class Chunk:
    """The part of a document that one point holds. A short document is one chunk."""

    document: Document
    text: str
    number: int = 0
    """Position in the document, from 0."""
    total: int = 1
    """Number of chunks of the document."""
    tokens: int = field(default=0, compare=False)
    """Tokens that the document encoder reads; 0 where they were not counted."""
    terms: TermCounts | None = field(default=None, compare=False, repr=False)
    """BM25 terms of the text, where a bulk job has counted them; None where they are still to be counted."""
    vector: Vectors | None = field(default=None, compare=False, repr=False)
    """Vector of the text, shape (dim,), where a bulk job has it; None where it is still to be encoded."""

    @property
    def point_id(self) -> str:
        """The deterministic UUIDv5 of (document id, chunk number): writing twice writes once."""
        return point_id(self.document.id, self.number)

    @property
    def embedded_text(self) -> str:
        """The text that the document encoder reads: title and text."""
        return embedded_text(self.document.title, self.text)


@dataclass(frozen=True, slots=True)
class Hit:
    """One answer to a query, best first in its list."""

    document_id: str
    point_id: str
    score: float
    """Cosine similarity for a dense search, BM25 for a sparse one, the fused score for a hybrid one."""
    text: str
    title: str = ""
    chunk: int = 0
    metadata: Mapping[str, Any] = field(default_factory=dict)
    group: str | int | float | bool | None = None
    """Value of the payload key that the hits are grouped by; None where they are not, or by document."""
    payload: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """All that the point holds, as it is stored."""
    vector: Sequence[float] | None = field(default=None, repr=False, compare=False)
    """The stored dense vector, where it was asked for."""

    def as_dict(self) -> dict[str, Any]:
        """Return what an answer shows of the hit: neither its raw payload nor its vector."""
        shown = {name: getattr(self, name) for name in self.__slots__ if name not in ("payload", "vector")}
        return {**shown, "metadata": dict(self.metadata)}


def half_character(text: str) -> str:
    """Return half a surrogate pair that a text holds, as ``\\ud835``; empty where it holds none.

    PDF readers, JSON escapes, and command lines in another encoding leave such halves. No tokenizer, no UTF-8 and no
    server takes a text with one.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"\\u{ord(text[error.start]):04x}"
    return ""


def is_blank(text: str) -> bool:
    """Return whether a text shows nothing: only white space, controls and characters without a width."""
    return all(unicodedata.category(character)[0] in "CZ" for character in text)


@lru_cache(maxsize=1 << 14)
def point_id(document_id: str, chunk_number: int = 0) -> str:
    """Return the Qdrant point id of a chunk: Qdrant takes only integers and UUIDs."""
    # As uuid.uuid5 does it, in a third of the time.
    name = f"{document_id}\x1f{chunk_number}".encode()
    digits = hashlib.sha1(_POINT_NAMESPACE.bytes + name, usedforsecurity=False).hexdigest()
    variant = "89ab"[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-5{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:32]}"


def embedded_text(title: str, text: str) -> str:
    """Join title and text as mteb does. Ingestion, LlamaIndex and the harness all embed exactly this."""
    return f"{title} {text}".strip()
