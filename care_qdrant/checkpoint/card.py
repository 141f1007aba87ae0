"""``care.json``: what a CARE folder says of itself."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from care_qdrant.errors import AlteredModel, IncompleteModel, ModelError, NewerFormat

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CARD_FILE = "care.json"
FORMAT = 1
UNLIMITED = 2**31 - 1
"""Tokens."""
STORED = "stored"
"""Pooling of a document side without weights: the documents are the vectors that a collection holds."""


def static_limit(tokenizer: "Tokenizer") -> int:
    """Return the longest input of a static encoder in tokens: what its tokenizer cuts at, for it has no other limit."""
    return int(tokenizer.truncation["max_length"]) if tokenizer.truncation else UNLIMITED


@dataclass(frozen=True, slots=True)
class Side:
    """What one encoder does with a text before and after its transformer."""

    pooling: str
    """``cls``, ``mean`` or ``lasttoken``; ``static`` for the plain mean of token vectors, without any layer;
    ``stored`` for a document side without weights."""
    max_tokens: int
    """Longest input, special tokens and prompt included; `UNLIMITED` for a static encoder that reads all."""
    prompt: str = ""
    eos: str | None = None
    """The marker that the tokenizer must append, for last-token pooling (paper, appendix G)."""

    @property
    def special_tokens(self) -> bool:
        """Whether the encoder reads the markers that its tokenizer puts around a text; a static one does not."""
        return self.pooling != "static"


@dataclass(frozen=True, slots=True)
class OnnxFiles:
    """The query encoder for onnxruntime, relative to ``query/``."""

    fp32: str | None
    int8: str | None
    default: str
    """``int8`` where its gate passed, else ``fp32``."""
    gate: Mapping[str, Any] = field(default_factory=dict)
    """Comparison of int8 with fp32 vectors at export, by figure."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of the folder, as it was saved."""

    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Card:
    """The content of ``care.json``."""

    name: str
    dim: int
    query: Side
    document: Side
    temperature: float
    """Temperature of the contrastive loss: scores divided by it are the logits of training."""
    files: Mapping[str, FileEntry]
    """Every file under ``query/`` and ``document/``, by path relative to the folder."""
    fingerprint: str
    onnx: OnnxFiles | None = None
    license: str = ""
    stages: tuple[Mapping[str, Any], ...] = ()
    """The training stages in order, each with its configuration and figures."""
    bases: tuple[Mapping[str, Any], ...] = ()
    """Base models: side, name, revision, license."""
    data: tuple[Mapping[str, Any], ...] = ()
    """Training data: source, license, rows, SHA-256."""
    format: int = FORMAT

    @property
    def saved_sides(self) -> tuple[str, ...]:
        """Names of the sides that have files: a query encoder learned from stored vectors comes without documents'."""
        return ("query",) if self.document.pooling == STORED else ("query", "document")

    def save(self, folder: Path) -> None:
        """Write the card into a folder."""
        text = json.dumps(asdict(self), ensure_ascii=False, indent=2, sort_keys=True)
        (folder / CARD_FILE).write_text(text + "\n", encoding="utf-8")


def read_card(folder: Path) -> Card:
    """Read and check the card of a CARE folder, without opening a weight file.

    Raises:
        IncompleteModel: There is no card, or it lacks a field.
        NewerFormat: a newer version wrote it.
        AlteredModel: Its fingerprint is not that of its own content.
    """
    path = folder / CARD_FILE
    if not path.is_file():
        raise IncompleteModel(f"{folder}: has no {CARD_FILE}, so it is not a CARE folder")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path}: is not JSON ({error})") from error
    if values.get("format", 0) > FORMAT:
        raise NewerFormat(f"{path}: format {values['format']}, this version reads up to {FORMAT}; upgrade care-qdrant")
    try:
        card = _parse(values)
    except (KeyError, TypeError) as error:
        raise IncompleteModel(f"{path}: a field is missing or wrong: {error}") from error
    expected = fingerprint(card.dim, card.query, card.document, card.files)
    if card.fingerprint != expected:
        raise AlteredModel(f"{path}: fingerprint {card.fingerprint[:12]} is not that of its content ({expected[:12]})")
    return card


def fingerprint(dim: int, query: Side, document: Side, files: Mapping[str, FileEntry]) -> str:
    """Return the SHA-256 over everything that changes a vector: dimension, prompts, limits, weights, tokenizers.

    ONNX files are left out: they are another rendering of the same query encoder into the same space, so a new export
    does not orphan the collections that exist. Their own hashes are in `Card.files` and are checked on load.
    """
    sources = {path: entry.sha256 for path, entry in files.items() if not path.startswith("query/onnx/")}
    content = [dim, asdict(query), asdict(document), sources]
    return hashlib.sha256(json.dumps(content, ensure_ascii=False, sort_keys=True).encode()).hexdigest()


def _parse(values: Mapping[str, Any]) -> Card:
    fields = {key: value for key, value in values.items() if key in Card.__dataclass_fields__}
    return Card(
        **{
            **fields,
            "query": Side(**values["query"]),
            "document": Side(**values["document"]),
            "onnx": OnnxFiles(**values["onnx"]) if values.get("onnx") else None,
            "files": {path: FileEntry(**entry) for path, entry in values["files"].items()},
            "stages": tuple(values.get("stages", ())),
            "bases": tuple(values.get("bases", ())),
            "data": tuple(values.get("data", ())),
        }
    )
