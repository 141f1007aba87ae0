"""Settings and report of ingestion, and the interface of models that it needs."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from care_qdrant.contracts.contract import VectorContract
from care_qdrant.corpus.chunking import Overflow
from care_qdrant.encoders import Encoder, TokenCounter
from care_qdrant.encoders.terms import bm25
from care_qdrant.encoders.terms.languages import LANGUAGES
from care_qdrant.errors import InputError, require_counts
from care_qdrant.qdrant.create import Index

P = TypeVar("P")


class DocumentModel(Protocol):
    """The part of `CareModel` that ingestion uses."""

    @property
    def name(self) -> str:
        """Name of the model, and the default name of its vector."""

    def contract(self) -> VectorContract:
        """Return the contract that a collection stores for the model's vectors."""

    def require_documents(self) -> None:
        """Refuse a model whose documents cannot be encoded here, before anything is written."""

    @property
    def document_tokenizer(self) -> TokenCounter:
        """Tokenizer that decides where a long document is cut; every run loads it."""

    @property
    def document_encoder(self) -> Encoder:
        """Document encoder, loaded only when the first chunk has to be encoded."""


def name_of_vector(given: str | None, model: DocumentModel | None) -> str:
    """Return the name of a vector: the given one, or the default of its model or, for None, of BM25."""
    if given == "":
        raise InputError("a new vector needs a name: give --vector-name a value, or leave the option out")
    return given if given is not None else bm25.VECTOR_NAME if model is None else model.name


def require_bm25_language(language: str | None) -> None:
    """Refuse a language that BM25 does not support."""
    if language not in (None, *LANGUAGES):
        raise InputError(f"BM25 has no language {language!r}; expected one of {', '.join(LANGUAGES)}")


def require_fraction(option: str, value: float) -> None:
    """Refuse a value that is not a fraction from 0 to 1."""
    if not 0 <= value <= 1:
        raise InputError(f"{option} is {value}; expected a fraction from 0 to 1")


@dataclass(frozen=True, slots=True)
class Shard:
    """One of ``of`` disjoint shares of a corpus, numbered from 1, by a stable hash of the document id."""

    number: int = 1
    of: int = 1

    def __post_init__(self) -> None:
        require_counts(shard=self.number, shards=self.of)
        if self.number > self.of:
            raise InputError(f"shard {self.number}/{self.of}: shards count from 1/{self.of} to {self.of}/{self.of}")

    @property
    def name(self) -> str:
        """Name of the share in the entry of its run: a share of the same name has the same documents."""
        return f"{self.number}/{self.of}"

    def of_parts(self, parts: Sequence[P]) -> Sequence[P]:
        """Return this share of the parts of a bulk job."""
        return parts[self.number - 1 :: self.of]

    def has(self, document_id: str) -> bool:
        """Return whether a document belongs to this shard."""
        if self.of == 1:
            return True
        digest = hashlib.sha256(document_id.encode()).digest()
        return int.from_bytes(digest[:8], "big") % self.of == self.number - 1


@dataclass(frozen=True, slots=True)
class IngestSettings:
    """Treatment of the rows of a corpus."""

    overflow: Overflow = "split"
    sparse: bool | None = False
    """Whether to write BM25 vectors. An existing collection that has them always gets them; one that lacks them is
    refused for True. None adds them to a new collection, and leaves an existing one as it is."""
    bm25_language: str | None = None
    """Language of BM25 in a new collection (`care_qdrant.encoders.terms.languages`); None detects it in the first
    texts. An existing collection keeps its own: another language is refused."""
    limit: int | None = None
    """Largest number of rows to read."""
    shard: Shard = field(default_factory=Shard)
    sync: bool = False
    """Delete the points of documents that the corpus no longer has."""
    max_delete_fraction: float = 0.2
    """Largest fraction of the stored points that a sync may delete, in [0, 1]."""
    sync_despite_rejects: bool = False
    """Let a sync delete points although rows were rejected, each of which may be a stored document."""
    sync_other_files: bool = False
    """Let a sync also delete documents of files that earlier runs read and this one does not."""
    replace_others: bool = False
    """Delete points of the corpus's documents that another writer made under other ids."""
    dry_run: bool = False
    """Write nothing; report what would be written."""
    stand_in: bool = False
    """Encode documents with the query encoder, if the model that it was learned from no longer exists. A document that
    this model encoded keeps its vector; the others are marked."""
    any_language: bool = False
    """Accept texts of a language that the model does not read also for a new collection."""
    batch_tokens: int = 16_384
    """Largest number of tokens in a batch, including padding."""
    indexes: Mapping[str, Index] = field(default_factory=dict)
    """Payload indexes that the collection gets before its search graph: key to type of its values."""
    finish: bool = True
    """Let the server build its search graph at the end; False leaves that to the run that finishes the last part."""

    def __post_init__(self) -> None:
        require_bm25_language(self.bm25_language)
        if self.sync and self.limit is not None:
            raise InputError("--sync needs the whole corpus, and --limit reads a part of it; leave one out")
        if self.stand_in and self.replace_others:
            raise InputError(
                "--replace-others would delete vectors of the model for which --stand-in stands in; leave one out"
            )
        require_fraction("--max-delete-fraction", self.max_delete_fraction)
        require_counts(batch_tokens=self.batch_tokens, limit=self.limit)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Size and cost of a run, as its dry run estimates them."""

    points: int
    """Points to write."""
    tokens: int
    """Tokens to encode."""
    bytes: int
    """Size of vectors and payloads to write, without indexes."""
    seconds: float | None
    """Time of encoding with this engine, at the speed that was measured; None where nothing is to be encoded."""
    hours: float | None = None
    tokens_per_second: float | None = None
    documents_per_second: float | None = None
    padding: float | None = None
    """Padded tokens for each token, 1 or more."""
    encoder_idle_fraction: float | None = None
    """Fraction of the time in which the encoder was idle, in [0, 1]."""


@dataclass(slots=True, kw_only=True)
class IngestReport:
    """Counts of an ingestion, up to now. Chunks are encoded, updated or unchanged; each is one point."""

    documents: int = 0
    """Number of documents that were read and accepted, each id once."""
    chunks: int = 0
    encoded: int = 0
    """Chunks that were encoded; after a run that was stopped, not all of them may be stored."""
    updated: int = 0
    """Chunks written without encoding: only their metadata or their sparse vector differed."""
    unchanged: int = 0
    duplicates: int = 0
    """Rows that repeat an earlier one word for word."""
    rejected: int = 0
    deleted: int = 0
    other_points: int = 0
    """Points of the same documents that another writer made under other ids."""
    points: int = 0
    """Points of the collection with this vector, counted exactly; for a stopped run, points that it stored or found."""
    tokens: int = 0
    """Number of tokens that were encoded."""
    seconds: float = 0.0
    documents_per_second: float = 0.0
    tokens_per_second: float = 0.0
    """Tokens encoded per second, from the start of the first batch to the end of the last."""
    encoder_idle_fraction: float = 0.0
    """Fraction of that time in which the encoder was idle, in [0, 1]."""
    collection: str
    vector_name: str
    fingerprint: str
    rejects_file: str | None = None
    estimate: Estimate | None = None
    """Result of a dry run, which wrote nothing."""
    first_rejects: list[str] = field(default_factory=list)
    """Line and reason of the first rejected rows."""
    stand_ins: int = 0
    """Points whose vector a learned query encoder made in place of the vector's model."""
    other_vectors: list[str] = field(default_factory=list)
    """Vectors of the collection that this run does not write, so that its encoded points lack them for their text;
    empty where nothing was encoded."""
    first_deleted: list[str] = field(default_factory=list)
    """First documents that --sync deleted, or would delete."""
    engine: Mapping[str, Any] = field(default_factory=dict)
    """Engine that encoded: its device and kernels, or the counts of each server; empty where nothing was encoded."""
    stopped: str | None = None
    """Reason why the run did not finish: the error or the interruption. None for a run that finished."""
