"""The folder of a bulk job: a manifest, and for each unit a part, the rows it rejected, and a receipt.

Everything is written under another name and moved, or uploaded whole: a reader never sees half a file.
"""

import json
import os
import tempfile
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal, cast

import fsspec  # type: ignore[import-untyped]
from pydantic import TypeAdapter

from care_qdrant.corpus.chunking import Overflow
from care_qdrant.corpus.rows import Fields
from care_qdrant.errors import InputError, NewerFormat
from care_qdrant.qdrant.contracts import VectorContract

FORMAT = 2
MANIFEST = "manifest.json"
POINTS = "points"
"""Folder with the texts of a job over a collection, a file for each unit."""
DRAFT_SECONDS = 86_400


@dataclass(frozen=True, slots=True)
class Unit:
    """A range of rows of one file of the corpus."""

    name: str
    """Of the file, the first row and the content; the place of the corpus is not in it."""
    file: str
    """Path or URL; of a unit of points, a file of the job."""
    label: str
    """Name of the file in messages, and of a text file's document."""
    first: int
    """Line, or row of a Parquet file, counted from 1."""
    last: int
    documents: int
    tokens: int
    """Estimated from a sample of the corpus."""
    hash: str
    """Of the rows: a corpus that was changed after planning is noticed."""
    bytes: tuple[int, int] | None = None
    """Where the rows are in a plain file of JSON lines, which is read from there; None for other files."""
    repeated: tuple[int, ...] = ()
    """Lines whose document an earlier row has: left out as direct ingestion leaves them out."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is to be done, and with which model."""

    model: str
    """Folder or name of the pair, as it was given."""
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
    """Of the BM25 terms that the parts have counted (`care_qdrant.qdrant.contracts.SparseContract`)."""
    collection: str | None = None
    """Whose points are encoded; None for a job over a corpus."""
    text_field: str | None = None
    """Where its payloads have the text."""
    unit_rows: int = 8_192
    units: tuple[Unit, ...] = ()
    rejected: int = 0
    """Rows of the corpus that are no documents."""
    format: int = FORMAT

    @property
    def contract(self) -> VectorContract:
        """What a collection keeps about the vectors."""
        return VectorContract(self.fingerprint, self.model_name, self.dim, distance=self.distance)

    @property
    def tokens(self) -> int:
        """Estimate for the whole corpus."""
        return sum(unit.tokens for unit in self.units)


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a finished unit says of itself."""

    unit: str
    sha256: str
    """Of the part."""
    bytes: int
    documents: int
    chunks: int
    tokens: int
    rejected: int
    seconds: float
    fingerprint: str


class Work:
    """The folder of one job. Safe to use from many processes at once."""

    def __init__(self, url: str) -> None:
        """Open a folder; a URL as ``s3://bucket/job`` needs the package that fsspec names for it."""
        self.url = url.rstrip("/")
        try:
            self._files, root = fsspec.core.url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            raise InputError(f"{url}: cannot be opened: {error}") from error
        self._root = PurePosixPath(root)

    def manifest(self) -> Manifest:
        """Read the manifest."""
        try:
            raw = self.read(MANIFEST)
        except OSError as error:
            raise InputError(f"{self.url}/{MANIFEST}: cannot be read: {error}; check the credentials") from error
        if raw is None:
            raise InputError(f"{self.url}: holds no bulk job; make one with care bulk plan CORPUS {self.url}")
        values = json.loads(raw)
        if values.get("format", 0) > FORMAT:
            raise NewerFormat(f"{self.url}/{MANIFEST}: has format {values['format']}; this version reads {FORMAT}")
        return TypeAdapter(Manifest).validate_python(values)

    def write_manifest(self, manifest: Manifest) -> None:
        """Write the manifest."""
        self.write(MANIFEST, json.dumps(asdict(manifest), ensure_ascii=False, indent=1).encode())

    def receipts(self) -> dict[str, Receipt]:
        """Return the receipts of the finished units, by name: those whose part has the length that they say."""
        receipts = [
            Receipt(**json.loads(cast(bytes, self.read(f"receipts/{name}")))) for name in self._list("receipts")
        ]
        parts = self._list("parts")
        return {receipt.unit: receipt for receipt in receipts if parts.get(f"{receipt.unit}.parquet") == receipt.bytes}

    def finished(self) -> set[str]:
        """Return the names of the units that have a receipt, of all workers; reads none of them."""
        return {name.removesuffix(".json") for name in self._list("receipts")}

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, None where it is not there."""
        try:
            return cast(bytes, self._files.cat_file(str(self._root / name)))
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """Write a file whole."""
        path = self._root / name
        if not self._is_local:
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

    def remove_drafts(self) -> None:
        """Remove what killed workers have left half written, a day after: no unit takes that long to write."""
        if not self._is_local:
            return
        with tempfile.NamedTemporaryFile(dir=self._root) as probe:  # the storage's clock, not that of this machine
            now = os.fstat(probe.fileno()).st_mtime
        for draft in Path(str(self._root)).glob("*/.*"):
            if now - draft.stat().st_mtime > DRAFT_SECONDS:
                draft.unlink(missing_ok=True)

    def _list(self, folder: str) -> dict[str, int]:
        """Return the files of a folder with their lengths in bytes; drafts are none."""
        self._files.invalidate_cache()
        try:
            found: list[dict[str, Any]] = self._files.ls(str(self._root / folder), detail=True)
        except FileNotFoundError:
            return {}
        named = {PurePosixPath(entry["name"]).name: int(entry["size"] or 0) for entry in found}
        return {name: size for name, size in sorted(named.items()) if not name.startswith(".")}

    @property
    def _is_local(self) -> bool:
        protocol = self._files.protocol
        return "file" in ((protocol,) if isinstance(protocol, str) else protocol)
