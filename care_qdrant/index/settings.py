"""How a corpus is ingested, and what ingestion needs of a model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from care_qdrant.corpus.chunking import Overflow
from care_qdrant.encoders import Encoder, TokenCounter
from care_qdrant.errors import InputError
from care_qdrant.index.reading import Shard
from care_qdrant.qdrant.contracts import VectorContract
from care_qdrant.qdrant.create import Index


class DocumentModel(Protocol):
    """The part of `CareModel` that ingestion uses."""

    @property
    def name(self) -> str:
        """Also the default name of the vector."""

    def contract(self) -> VectorContract:
        """Return what the collection remembers of the model's vectors."""

    def require_documents(self) -> None:
        """Refuse a model whose documents cannot be encoded here, before anything is written."""

    @property
    def document_tokenizer(self) -> TokenCounter:
        """Loaded by every run, since it decides where a long document is cut."""

    @property
    def document_encoder(self) -> Encoder:
        """Loaded when the first chunk has to be encoded, and not before."""


@dataclass(frozen=True, slots=True)
class IngestSettings:
    """What to do with the rows of a corpus."""

    overflow: Overflow = "split"
    sparse: bool = False
    """Write BM25 vectors, too. A collection that has them gets them in any case."""
    limit: int | None = None
    """Rows to read."""
    shard: Shard = field(default_factory=Shard)
    sync: bool = False
    """Delete the points of documents that the corpus does not have any more."""
    max_delete_fraction: float = 0.2
    """Largest fraction of the stored points that a sync may delete, in [0, 1]."""
    sync_despite_rejects: bool = False
    """A rejected row may be a document that is stored: without this, a sync then deletes nothing."""
    replace_others: bool = False
    """Delete points of the corpus's documents that another writer made under other ids."""
    dry_run: bool = False
    """Write nothing; say what would be written."""
    price_per_hour: float | None = None
    """Of this machine, in any currency: a dry run then says what encoding costs."""
    batch_tokens: int = 16_384
    """Padded tokens that the encoder gets at once."""
    shard_key: str | None = None
    """Key of the shards that the corpus goes to, in a collection with shards by key. A document id has to be of one
    key alone: a search of all shards returns one of two points with the same id."""
    indexes: Mapping[str, Index] = field(default_factory=dict)
    """Payload indexes that the collection gets before its search graph: key to type of its values."""
    finish: bool = True
    """Let the server build its search graph at the end; False leaves that to whoever finishes the last part."""
    grpc: bool = True
    """Write new points over gRPC where that port of the server answers, also with a client for HTTP."""

    def __post_init__(self) -> None:
        if self.sync and self.limit is not None:
            raise InputError("--sync needs the whole corpus, and --limit reads a part of it; leave one out")
        if not 0 <= self.max_delete_fraction <= 1:
            raise InputError(f"--max-delete-fraction is {self.max_delete_fraction}; expected a fraction from 0 to 1")
        if self.batch_tokens < 1 or (self.limit is not None and self.limit < 1):
            raise InputError(f"batch_tokens {self.batch_tokens} and --limit {self.limit} must be at least 1")
