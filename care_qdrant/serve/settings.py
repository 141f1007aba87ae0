"""The settings of one service, and the limits that it keeps."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from care_qdrant.serve.record import REDACTED

if TYPE_CHECKING:
    from qdrant_client import QdrantClient

    from care_qdrant.model.care_model import CareModel
    from care_qdrant.search.fallback import Fallback

READY = "ready"
"""Word that a worker reports when it has loaded all that it serves."""
DIRECTORY_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Names the folder of the counters that workers share; prometheus-client reads it at its import, and never again."""
LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Sizes that the body of a request may have."""

    max_bytes: int
    max_values: int
    """Commas and opening brackets, those inside texts included."""
    seconds: float = 10.0
    """Time in which the whole body must have arrived."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes and counts that a worker accepts; anything above them is refused with the reason."""

    connections: int = 4_096
    """Connections of clients; a worker with fewer file descriptors takes fewer."""
    texts_body: BodyLimits = BodyLimits(8 * 2**20, 200_000)
    """Limits of a body with texts to encode; the parsers let no other thread run meanwhile."""
    other_body: BodyLimits = BodyLimits(256 * 2**10, 10_000)
    """Limits of any other body."""
    batch_texts: int = 1024
    """Texts of one request."""
    query_characters: int = 8_192
    """Characters of a query: a tokenizer needs 5 µs for each and lets no other thread run meanwhile."""
    document_characters: int = 32_768
    waiting_texts: int = 4_096
    """Texts that were accepted and are not encoded yet, for each side of each model."""
    searches: int = 64
    """Searches that were accepted and are not answered yet."""
    search_threads: int = 8
    """Searches that run at the same time."""
    top_k: int = 1_000


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Settings of one service."""

    load_models: Callable[[], "list[CareModel]"]
    """Opens the models; called again at every reload. The first one is the default."""
    open_qdrant: "Callable[[], AbstractContextManager[QdrantClient]] | None" = None
    """Opens the Qdrant that holds the collections; None for a service that only encodes."""
    collections: tuple[str, ...] = ()
    """Names or aliases that may be searched; empty for all that the models can search."""
    examples: Mapping[str, str] = field(default_factory=dict)
    """Questions that the page offers, with an English gloss each; empty for questions of the collection's own."""
    record: Path | None = None
    """Folder for searches, and for the judgements of people who use the page; None asks for none and writes nothing."""
    record_days: int = 30
    """Days for which a search is kept; 0 keeps judgements alone."""
    redacted: str = REDACTED
    """Regular expression of what is not kept of a query."""
    open_fallback: "Callable[[], Fallback] | None" = None
    """Opens the model that made the vectors, for unsure queries; called by the first search of each worker."""
    mcp: bool = False
    documents: bool = False
    """Whether document encoders are loaded as well."""
    keys_file: Path | None = None
    """API keys (`care_qdrant.serve.keys`); None serves everybody who can connect."""
    host: str = "127.0.0.1"
    port: int = 8080
    workers: int = 1
    metrics_port: int | None = None
    """Port of the counters, where no key is asked for; None has them at /metrics of the service."""
    limits: Limits = field(default_factory=Limits)
