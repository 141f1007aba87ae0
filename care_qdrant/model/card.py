"""``care.json``: the description of a CARE folder, and the check of its files against it."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from care_qdrant.encoders.agreement import INT8_MARGIN, LEAST_FLOAT32, LEAST_HALF_PRECISION
from care_qdrant.encoders.references import Reference, references_digest
from care_qdrant.encoders.side import Geometry, Side
from care_qdrant.errors import AlteredModel, IncompleteModel, ModelError, NewerFormat

CARD_FILE = "care.json"
FORMAT = 2
"""Format 2 adds an ONNX document encoder, reference vectors, the geometry and prompts by task; format 1 is read as it
is."""
# Not in a folder of its own: onnxruntime reads external weights only below the folder of a graph.
SHARING_ONNX = "model.onnx"
"""Graph that reads the safetensors file next to it, relative to the folder of its side."""
TERM_WEIGHTS = "term_weights.npz"
"""Weights of the terms of queries, relative to the folder."""
STORED = "stored"
"""Pooling of a document side without weights: the documents are the vectors that a collection holds."""


def license_notice(license: str) -> str:
    """Return a license by its SPDX identifier, with the words that a non-commercial one needs."""
    return f"{license}: non-commercial use only" if "-nc" in license.lower() else license


@dataclass(frozen=True, slots=True)
class OnnxFiles:
    """One encoder for onnxruntime; paths are relative to the folder of its side."""

    fp32: str | None
    int8: str | None
    default: Literal["int8", "fp32"]
    """``int8`` where its gate passed, else ``fp32``."""
    gate: Mapping[str, bool | int | float | None] = field(default_factory=dict)
    """Comparison of int8 with fp32 vectors at export, by figure."""
    references: tuple[Reference, ...] = ()
    """Vectors of fixed texts by sentence-transformers, which each file has to reproduce."""

    def least_cosine(self, file: str) -> float:
        """Return the least cosine with a reference that an encoder of this file may have."""
        return (self.gate.get("min_cosine") or 1.0) - INT8_MARGIN if file == self.int8 else LEAST_FLOAT32


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of the folder, as it was saved."""

    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True)
class TermWeightsEntry:
    """The weights of BM25 terms of queries, and what they gained on held-out pairs."""

    file: FileEntry
    gate: Mapping[str, Any]
    """nDCG@10 of BM25 without and with them, by figure."""


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
    """The query encoder."""
    document_onnx: OnnxFiles | None = None
    references_sha256: str = ""
    """Digest of the fingerprint and of both sides' reference vectors; empty where there are none."""
    # Not under the fingerprint: they change how stored terms are asked for, and no vector that is stored.
    term_weights: TermWeightsEntry | None = None
    """Weights of the terms of queries; None where the model has none."""
    alpha: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of the dense score that suits the model in hybrid searches; None where each collection measures it."""
    geometry: Geometry = "unit"
    license: str = ""
    stages: tuple[Mapping[str, Any], ...] = ()
    """The training stages in order, each with its configuration and figures."""
    bases: tuple[Mapping[str, Any], ...] = ()
    """Base models: side, name, revision, license."""
    data: tuple[Mapping[str, Any], ...] = ()
    """Training data: source, license, rows, SHA-256."""
    format: int = FORMAT

    @property
    def document_graph(self) -> str | None:
        """ONNX file of the document encoder, relative to ``document/``; None where it has none."""
        files = self.document_onnx
        return None if files is None else files.int8 if files.default == "int8" else files.fp32

    @property
    def least_document_cosine(self) -> float:
        """Least cosine of a document's vector with the one that another engine or machine makes of the same text."""
        file, onnx = self.document_graph, self.document_onnx
        return (
            LEAST_HALF_PRECISION if file is None or onnx is None else min(LEAST_HALF_PRECISION, onnx.least_cosine(file))
        )

    @property
    def saved_sides(self) -> tuple[str, ...]:
        """Names of the sides that have files; a query encoder learned from stored vectors has no document side."""
        return ("query",) if self.document.pooling == STORED else ("query", "document")

    def save(self, folder: str | Path) -> None:
        """Write the card into a folder, whole or not at all."""
        text = json.dumps(asdict(self), ensure_ascii=False, indent=2, sort_keys=True)
        folder = Path(folder)
        building = folder / f".{CARD_FILE}.partial"
        building.write_text(text + "\n", encoding="utf-8")
        building.replace(folder / CARD_FILE)


def read_card(folder: Path) -> Card:
    """Read and check the card of a CARE folder, without opening a weight file."""
    path = folder / CARD_FILE
    if not path.is_file():
        raise IncompleteModel(f"{folder}: has no {CARD_FILE}, so it is not a CARE folder")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: is not JSON ({error})") from error
    format_ = values.get("format", 0) if isinstance(values, dict) else 0
    if isinstance(format_, int) and format_ > FORMAT:
        raise NewerFormat(f"{path}: format {format_}, this version reads up to {FORMAT}; upgrade care-qdrant")
    try:
        card = TypeAdapter(Card).validate_python(values)
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"])) or "the whole"
        raise IncompleteModel(f"{path}: {place} is missing, or has a value that no card has") from error
    expected = fingerprint(card.dim, card.query, card.document, card.files, card.geometry)
    if card.fingerprint != expected:
        raise AlteredModel(f"{path}: fingerprint {card.fingerprint[:12]} is not that of its content ({expected[:12]})")
    if card.references_sha256 != bind_references(card.fingerprint, card.onnx, card.document_onnx):
        raise AlteredModel(
            f"{path}: its reference vectors do not belong to fingerprint {card.fingerprint[:12]}, so its ONNX files "
            "may belong to another model; restore the folder, or export the model again"
        )
    return card


def bind_references(fingerprint: str, *sides: OnnxFiles | None) -> str:
    """Return the digest that ties the reference vectors of both sides to a fingerprint."""
    return references_digest(fingerprint, [reference for side in sides if side for reference in side.references])


def fingerprint(
    dim: int, query: Side, document: Side, files: Mapping[str, FileEntry], geometry: Geometry = "unit"
) -> str:
    """Return the SHA-256 over all that changes a vector or a score: dimension, prompts, limits, weights, tokenizers.

    ONNX files are left out: they are another rendering of the same query encoder into the same space, so a new export
    does not orphan the collections that exist. Their own hashes are in `Card.files` and are checked on load, and so is
    that they give the reference vectors (`care_qdrant.encoders.references`).
    """
    sources = {path: entry.sha256 for path, entry in files.items() if not is_onnx(path)}
    # A field that is new since format 1 counts only if it is used: other models keep their fingerprint.
    sides = [
        {key: value for key, value in asdict(side).items() if key != "tasks" or value} for side in (query, document)
    ]
    content = [dim, *sides, sources, *([] if geometry == "unit" else [geometry])]
    return hashlib.sha256(json.dumps(content, ensure_ascii=False, sort_keys=True).encode()).hexdigest()


def is_onnx(path: str) -> bool:
    """Return whether a file, by its path relative to the CARE folder, is a rendering for onnxruntime."""
    return path.startswith("query/onnx/") or path in (f"query/{SHARING_ONNX}", f"document/{SHARING_ONNX}")


@contextmanager
def verified(folder: Path, card: Card, side: str, paths: Iterable[str]) -> Iterator[None]:
    """Check one side of a CARE folder before the block that loads it, and that nothing changed meanwhile after it."""
    paths = list(paths)
    refuse_unlisted(folder, card, side)
    before = [_state(folder / path) for path in paths]
    verify_files(folder, card, paths)
    yield
    for path, state in zip(paths, before, strict=True):
        if _state(folder / path) != state:
            raise AlteredModel(f"{folder}: {path} changed while it was loaded; load the model again")


def verify_files(folder: Path, card: Card, paths: Iterable[str]) -> None:
    """Check single files of a CARE folder against its card."""
    for path in paths:
        if path not in card.files:
            raise IncompleteModel(f"{folder / CARD_FILE}: lists no file {path}; export the model again")
        _verify_file(folder, path, card.files[path])


def verify_term_weights(folder: Path, card: Card) -> None:
    """Check the file of the term weights against its card, where the model has one."""
    if card.term_weights is not None:
        _verify_file(folder, TERM_WEIGHTS, card.term_weights.file)


def _verify_file(folder: Path, path: str, expected: FileEntry) -> None:
    file = folder / path
    if not file.is_file():
        raise IncompleteModel(f"{folder}: {path} is missing; copy the folder again, or export it again")
    size = file.stat().st_size
    if size != expected.bytes or sha256(file) != expected.sha256:
        raise AlteredModel(
            f"{folder}: {path} is not the file that was saved ({size} bytes, expected {expected.bytes}, "
            f"SHA-256 {expected.sha256[:12]}); restore it, or export the model again"
        )


def refuse_unlisted(folder: Path, card: Card, side: str) -> None:
    """Refuse files of a side that the card does not list: a stray ``adapter_config.json`` changes vectors by itself.

    Hidden files and Markdown files are not part of a model.
    """
    for path in list_files(folder / side, folder):
        is_hidden = any(part.startswith(".") for part in Path(path).parts)
        if path not in card.files and not is_hidden and not path.endswith(".md"):
            raise AlteredModel(
                f"{folder}: {path} was added after the model was saved, and could change its vectors; remove it, or "
                "export the model again"
            )


def list_files(side: Path, root: Path) -> list[str]:
    """Return the files of a side in order, as paths relative to the CARE folder."""
    if not side.is_dir():
        raise IncompleteModel(f"{root}: the folder {side.name}/ is missing")
    return sorted(file.relative_to(root).as_posix() for file in side.rglob("*") if file.is_file())


def sha256(file: Path) -> str:
    """Return the SHA-256 of a file, as hexadecimal digits."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _state(file: Path) -> tuple[int, ...] | None:
    """Return the facts that change when a file is written or replaced; None for one that cannot be read."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
