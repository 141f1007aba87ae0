"""The folder of a bulk job: a manifest, and for each unit a part, the rows it rejected, and a receipt.

Everything is written under another name and moved, or uploaded whole: a reader never sees half a file.
"""

import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal, cast

import fsspec  # type: ignore[import-untyped]
from pydantic import TypeAdapter, ValidationError

from care_qdrant.contracts.contract import SparseContract, VectorContract
from care_qdrant.corpus.chunking import Overflow
from care_qdrant.corpus.rows import Fields
from care_qdrant.encoders.terms import bm25
from care_qdrant.errors import InputError, NewerFormat, require_counts

FORMAT = 4
"""Raised with each change of what the folder or its files hold."""
MANIFEST = "manifest.json"
ROWS = "care-rows"
"""Folder with the rows of each unit, by which a corpus that holds the job leaves it out (`corpus.files.is_own`)."""
_REPLAN = "plan the corpus again, into another folder"


@dataclass(frozen=True, slots=True)
class Unit:
    """A range of rows of one file of the corpus."""

    name: str
    """Name of the unit, made of the file's name, the first row and the content, not of the place of the corpus."""
    label: str
    """Name of the file in messages, and of a text file's document."""
    first: int
    """Line, or row of a Parquet file, counted from 1."""
    last: int
    documents: int
    """Documents that no earlier row has."""
    rejected: int
    """Rows that are not documents, or that have the id of an earlier document and other content."""
    tokens: int
    """Tokens to encode, estimated from a sample of the corpus."""
    hash: str
    """SHA-256 of the rows of the file, by which another plan notices a changed corpus."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The description of a job: its units, its model, and its settings."""

    model: str
    """Folder or name of the model, as it was given."""
    model_name: str
    fingerprint: str
    dim: int
    distance: Literal["Cosine", "Dot"]
    vector_name: str
    fields: Fields = field(default_factory=Fields)
    encoding: str = "utf-8"
    overflow: Overflow = "split"
    datatype: str = "float32"
    """Type of the stored vectors, ``float32`` or ``float16``."""
    average_length: float | None = None
    """Mean document length in terms, of the BM25 vectors; None without them."""
    lead: float | None = None
    """Position constant with which the BM25 terms of the parts were counted (see `SparseContract`)."""
    analyser: str = "zh-char-bigram-1"
    """Name of the analyser that made these terms."""
    collection: str | None = None
    """Collection whose points are encoded; None for a job over a corpus."""
    text_field: str | None = None
    """Payload field of the collection with the text; None for a job over a corpus."""
    unit_rows: int = 8_192
    units: tuple[Unit, ...] = ()
    inputs: tuple[str, ...] = ()
    """Files and folders that were planned, which a collection records; empty in a job over a collection."""
    format: int = FORMAT

    def __post_init__(self) -> None:
        require_counts(unit_rows=self.unit_rows, dim=self.dim)

    @property
    def contract(self) -> VectorContract:
        """The record that a collection keeps of the vectors."""
        return VectorContract(self.fingerprint, self.model_name, self.dim, distance=self.distance)

    @property
    def sparse(self) -> SparseContract | None:
        """The record that a collection keeps of the BM25 vectors; None without them."""
        if self.average_length is None:
            return None
        return SparseContract(self.analyser, bm25.DEFAULT_K1, bm25.DEFAULT_B, self.average_length, self.lead)

    @property
    def rejected(self) -> int:
        """Rows of the corpus that are rejected."""
        return sum(unit.rejected for unit in self.units)

    @property
    def tokens(self) -> int:
        """Tokens of the whole corpus, estimated."""
        return sum(unit.tokens for unit in self.units)


@dataclass(frozen=True, slots=True)
class Receipt:
    """The proof of a finished unit: its part, by length and digest, and its figures."""

    unit: str
    sha256: str
    """SHA-256 of the part."""
    bytes: int
    documents: int
    chunks: int
    tokens: int
    rejected: int
    seconds: float
    fingerprint: str


_RECEIPT = TypeAdapter(Receipt)


@contextmanager
def storage_errors(place: str) -> Iterator[None]:
    """Name the place that cannot be used: the package of each storage has errors of its own, and so has a refusal."""
    try:
        yield
    except Exception as error:
        raise InputError(f"{place}: cannot be opened: {error}; check the address and the credentials") from error


class Job:
    """The folder of one job. Safe to use from many processes at once."""

    def __init__(self, url: str) -> None:
        """Open a folder; a URL such as ``s3://bucket/job`` needs the package that fsspec names for it."""
        self.url = url.rstrip("/")
        with storage_errors(url):
            self._files, root = fsspec.core.url_to_fs(self.url)
        self._root = PurePosixPath(root)

    def manifest(self, name: str = MANIFEST) -> Manifest:
        """Read the manifest of the job, or of one share of a plan."""
        raw = self.read(name)
        if raw is None:
            raise InputError(f"{self.url}: holds no bulk job; make one with care bulk plan CORPUS {self.url}")
        foreign = f"{self.url}/{name}: does not belong to a bulk job and was not changed; give another folder"
        try:
            values = json.loads(raw)
        except ValueError as error:
            raise InputError(foreign) from error
        form = values.get("format") if isinstance(values, dict) else None
        if isinstance(form, int) and form != FORMAT:
            kind, advice = (NewerFormat, "update care-qdrant") if form > FORMAT else (InputError, _REPLAN)
            raise kind(f"{self.url}/{name}: has format {form}, and this version reads {FORMAT}: {advice}")
        try:
            return TypeAdapter(Manifest).validate_python(values)
        except ValidationError as error:
            raise InputError(foreign) from error

    def write_manifest(self, manifest: Manifest, name: str = MANIFEST) -> None:
        """Write the manifest of the job, or of one share of a plan."""
        self.write(name, json.dumps(asdict(manifest), ensure_ascii=False, indent=1).encode())

    def receipts(self) -> dict[str, Receipt]:
        """Return the receipts of the finished units by name, if their part has the recorded length.

        A damaged receipt does not count.
        """
        receipts: list[Receipt] = []
        for name in self.files("receipts"):
            # A receipt may disappear between listing and reading: users remove it to have its part made again.
            with suppress(ValidationError):
                receipts.append(_RECEIPT.validate_json(self.read(f"receipts/{name}") or b""))
        parts = self.files("parts")
        return {receipt.unit: receipt for receipt in receipts if parts.get(f"{receipt.unit}.parquet") == receipt.bytes}

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if it does not exist."""
        with storage_errors(f"{self.url}/{name}"), suppress(FileNotFoundError):
            return cast(bytes, self._files.cat_file(str(self._root / name)))
        return None

    def write(self, name: str, content: bytes) -> None:
        """Write a file atomically."""
        path = self._root / name
        if not self._is_local:
            with storage_errors(f"{self.url}/{name}"):
                self._files.pipe_file(str(path), content)
            return
        self._files.makedirs(str(path.parent), exist_ok=True)
        draft = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
        try:
            with Path(draft).open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(draft).replace(path)
        finally:
            Path(draft).unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with its files, if it exists."""
        with suppress(FileNotFoundError):
            self._files.rm(str(self._root / name), recursive=True)

    def files(self, folder: str) -> dict[str, int]:
        """Return the files of a folder with their lengths in bytes, without drafts."""
        self._files.invalidate_cache()
        entries: list[dict[str, Any]] = []
        with storage_errors(f"{self.url}/{folder}"), suppress(FileNotFoundError):
            entries = self._files.ls(str(self._root / folder), detail=True)
        named = {PurePosixPath(entry["name"]).name: int(entry["size"] or 0) for entry in entries}
        return {name: size for name, size in sorted(named.items()) if not name.startswith(".")}

    @property
    def _is_local(self) -> bool:
        protocol = self._files.protocol
        return "file" in ((protocol,) if isinstance(protocol, str) else protocol)
