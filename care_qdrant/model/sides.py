"""The two sides of a model before their weights are loaded: what is checked first, and what opens them.

A model is put together of two sides, and reads nothing of them until they are used. A side of a CARE folder is
checked against the card; a plain sentence-transformers model stands in on both sides.
"""

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from care_qdrant.encoders import Encoder, TokenCounter
from care_qdrant.encoders.engine import Engine, Kind
from care_qdrant.encoders.local.weights import reading_folder
from care_qdrant.encoders.references import Reference, make_references
from care_qdrant.encoders.shifted import ShiftedEncoder
from care_qdrant.encoders.usable import require_torch
from care_qdrant.errors import AlteredModel, ModelError
from care_qdrant.forking import ForkLock
from care_qdrant.model.card import SHARING_ONNX, STORED, Card, is_onnx, verified, verify_files
from care_qdrant.model.engines import (
    Role,
    SavedEncoder,
    devices_of,
    first_device,
    on_devices,
    on_onnx,
    on_servers,
    on_torch,
    require_devices,
    require_precision,
)
from care_qdrant.model.folder import describe_side, geometry_of
from care_qdrant.model.hub import fetch_document_side

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from care_qdrant.encoders.local.processes import ProcessEncoder
    from care_qdrant.encoders.local.torch import TorchEncoder

logger = logging.getLogger(__name__)

Precision = Literal["auto", "int8", "fp32"]

STAND_IN_FILE = "stand_in.npy"
"""File of a learned query encoder: the vector that is added to document vectors (`care_trainer.learn.stand_in`)."""


class ModelSide(Protocol):
    """One side of a model, which can be examined before its weights are loaded."""

    def open(self) -> Encoder:
        """Load the encoder."""

    def tokenizer(self) -> TokenCounter:
        """Load the token counter of its texts: no weights if the side has a ``tokenizer.json``."""

    def require(self) -> None:
        """Refuse a side that cannot encode here; reads no weights."""


class OpenedOnce:
    """A side whose encoder is loaded at its first use; other threads wait, and a forked child has its own lock."""

    def __init__(self, side: ModelSide) -> None:
        self._side = side
        self._lock = ForkLock()
        self._encoder: Encoder | None = None

    def open(self) -> Encoder:
        """Return the encoder."""
        with self._lock:
            if self._encoder is None:
                self._encoder = self._side.open()
            return self._encoder

    def tokenizer(self) -> TokenCounter:
        """Return the token counter of its texts."""
        return self._tokenizer

    @cached_property
    def _tokenizer(self) -> TokenCounter:
        return self._side.tokenizer()

    def require(self) -> None:
        """Refuse a side that cannot encode here."""
        self._side.require()


@dataclass(frozen=True, slots=True)
class QueryFolder:
    """The query side of a CARE folder."""

    folder: Path
    card: Card
    precision: Precision
    device: str | None

    @property
    def onnx_file(self) -> str | None:
        """The ONNX file to load; None if the folder has none, and torch encodes."""
        if self.card.onnx is None:
            if self.precision != "auto":
                raise ModelError(
                    f"{self.folder}: has no ONNX query encoder, so precision {self.precision!r} is not available"
                )
            return None
        precision = self.card.onnx.default if self.precision == "auto" else self.precision
        file = self.card.onnx.int8 if precision == "int8" else self.card.onnx.fp32
        if file is None:
            raise ModelError(f"{self.folder}: has no {precision} ONNX query encoder")
        return file

    def open(self) -> Encoder:
        """Load the encoder from files that match the card; an ONNX file has to give the reference vectors."""
        card, file, saved = self.card, self.onnx_file, _saved(self.folder, "query", self.card)
        if card.onnx is None or file is None:
            with verified(self.folder, card, "query", _torch_files(card, "query")):
                return on_torch(saved, first_device(self.device))
        # Every graph of the folder may name the same external weights, so those are always checked.
        external = [path for path in card.files if path.startswith("query/onnx/") and not path.endswith(".onnx")]
        external += _torch_files(card, "query") if file == SHARING_ONNX else []
        with verified(self.folder, card, "query", {f"query/{file}", "query/tokenizer.json", *external}):
            return on_onnx(saved, file, card.onnx)

    def tokenizer(self) -> TokenCounter:
        """Load the token counter of queries."""
        verify_files(self.folder, self.card, ["query/tokenizer.json"])
        return _saved(self.folder, "query", self.card).tokenizer()

    def require(self) -> None:
        """Refuse a machine without torch where the folder has no ONNX file."""
        if self.onnx_file is None:
            require_torch()


@dataclass(frozen=True, slots=True)
class StandInSide:
    """The query side of a learned model in the place of its document side."""

    query: ModelSide
    folder: Path
    card: Card

    def open(self) -> Encoder:
        """Load the query encoder, and the vector that moves its documents among the stored ones."""
        self.require()
        path = f"query/{STAND_IN_FILE}"
        verify_files(self.folder, self.card, [path])
        return ShiftedEncoder(self.query.open(), np.load(self.folder / path))

    def tokenizer(self) -> TokenCounter:
        """Load the token counter of queries."""
        return self.query.tokenizer()

    def require(self) -> None:
        """Refuse a model that does not know where its documents lie among the stored ones."""
        if f"query/{STAND_IN_FILE}" not in self.card.files:
            raise ModelError(
                f"--stand-in: model {self.card.name!r} was learned by an earlier version, which did not measure where "
                "its documents lie among the stored ones, so that they would be found too often or never; learn "
                "again: care learn COLLECTION"
            )
        self.query.require()


@dataclass(frozen=True, slots=True)
class DocumentFolder:
    """The document side of a CARE folder, which may still be on the hub."""

    source: str | Path
    revision: str | None
    card: Card
    device: str | None
    engine: Engine

    @property
    def kind(self) -> Kind:
        """The engine that was asked for, else onnx where the folder has that file and no device is named."""
        has_file = self.card.document_graph is not None
        if self.engine.kind == "onnx" and not has_file:
            raise ModelError(
                f"{self.source}: has no ONNX document encoder; leave --engine out, or add one: care model export-onnx"
            )
        return self.engine.kind or ("onnx" if has_file and self.device is None else "torch")

    def open(self) -> Encoder:
        """Load the encoder; one that does not run on the weights has to give the card's reference vectors."""
        self._require_weights()
        if self.kind == "torch":
            return self._open_torch()
        card, file, whole = self.card, self.card.document_graph, self._whole()
        saved = _saved(whole, "document", card)
        if self.kind == "server":
            verify_files(whole, card, ["document/tokenizer.json"])
            references = saved.known_references(self.engine) or _own_references(saved, self._open_torch)
            return on_servers(saved, self.engine, references)
        from care_qdrant.encoders.onnx import usable_cores

        assert card.document_onnx is not None and file is not None
        with verified(whole, card, "document", [f"document/{file}", *_torch_files(card, "document")]):
            return on_onnx(saved, file, card.document_onnx, workers=usable_cores())

    def tokenizer(self) -> TokenCounter:
        """Load the token counter of documents."""
        self._require_weights()
        whole = self._whole()
        verify_files(whole, self.card, ["document/tokenizer.json"])
        return _saved(whole, "document", self.card).tokenizer()

    def require(self) -> None:
        """Refuse a model whose documents cannot be encoded here, for example on a device that does not exist."""
        self._require_weights()
        if self.kind == "torch":
            require_devices(self.device)

    def _open_torch(self) -> Encoder:
        card, whole = self.card, self._whole()
        saved = _saved(whole, "document", card)
        with verified(whole, card, "document", _torch_files(card, "document")):
            encoder = on_devices(saved, self.device, self.engine)
        require_precision(encoder, self.engine, saved)
        return encoder

    def _whole(self) -> Path:
        return fetch_document_side(self.source, revision=self.revision)

    def _require_weights(self) -> None:
        if self.card.document.pooling == STORED:
            bases = (str(base.get("name")) for base in self.card.bases if base.get("side") == "document")
            raise ModelError(
                f"model {self.card.name!r} encodes queries only: it was learned from {next(bases, 'a collection')}, "
                "whose documents another model encodes. Write documents with the tool and the model that made those "
                "vectors, or learn again with --document MODEL. Where that model no longer exists, the query encoder "
                "stands in for it with care ingest --stand-in"
            )


class PlainModel:
    """A sentence-transformers model without a card, which stands in on both sides; its weights are loaded once."""

    def __init__(self, folder: Path, name: str, device: str | None, engine: Engine) -> None:
        """Read all files for their fingerprint; no weights are loaded."""
        if engine.kind == "onnx":
            raise ModelError(
                f"{folder}: is a plain sentence-transformers model without an ONNX file; leave --engine out"
            )
        self.folder, self.device, self.engine = folder, device, engine
        side, dim = describe_side(folder, "document")
        fingerprint = _fingerprint_of_files(folder)
        self.saved = SavedEncoder(folder, "document", name, fingerprint, dim, side, geometry_of(folder))
        self._lock = ForkLock()
        self._weights: SentenceTransformer | None = None

    def weights(self) -> "SentenceTransformer":
        """Load the weights, once for both sides."""
        from care_qdrant.encoders.local.torch import load_sentence_transformer

        with self._lock:
            if self._weights is None:
                self._weights = load_sentence_transformer(self.folder, first_device(self.device), self.engine.dtype)
                self.require_unchanged()
            return self._weights

    def require_unchanged(self) -> None:
        """Refuse files that changed since they were read; after loading, so that a change meanwhile is found."""
        if (current := _fingerprint_of_files(self.folder)) != self.saved.fingerprint:
            raise AlteredModel(
                f"{self.folder}: changed since it was opened (fingerprint {self.saved.fingerprint[:12]}, now "
                f"{current[:12]}), and its vectors would be stored as vectors of the former model; open it again"
            )


@dataclass(frozen=True, slots=True)
class PlainSide:
    """A plain model as one side."""

    model: PlainModel
    role: Role

    def open(self) -> Encoder:
        """Load the encoder; documents may be encoded by several devices, or by servers."""
        model, engine, saved = self.model, self.model.engine, self.model.saved
        if self.role == "query":
            return self._on_weights()
        if engine.kind == "server":
            references = saved.known_references(engine) or _own_references(saved, self._on_weights)
            return on_servers(saved, engine, references)
        encoder: TorchEncoder | ProcessEncoder
        if len(devices_of(model.device)) > 1:
            encoder = on_devices(saved, model.device, engine)
            model.require_unchanged()
        else:
            encoder = self._on_weights()
        require_precision(encoder, engine, saved)
        return encoder

    def tokenizer(self) -> TokenCounter:
        """Load the token counter of its texts; the encoder itself if the model has no ``tokenizer.json``."""
        file = reading_folder(self.model.folder) / "tokenizer.json"
        return self.model.saved.tokenizer() if file.is_file() else self.open()

    def require(self) -> None:
        """Refuse a machine without torch, or without the devices that were named, unless servers encode."""
        if self.role == "query" or self.model.engine.kind != "server":
            require_devices(self.model.device)

    def _on_weights(self) -> "TorchEncoder":
        from care_qdrant.encoders.local.torch import TorchEncoder

        return TorchEncoder(self.model.weights(), self.role)


def _own_references(saved: SavedEncoder, open_encoder: Callable[[], Encoder]) -> tuple[Reference, ...]:
    logger.info(
        "%s: its card has no reference vectors of documents, so they are made here, once; where its document encoder "
        "does not fit, make them with care model reference-vectors and name them in CARE_REFERENCE_VECTORS",
        saved.name,
    )
    return make_references(open_encoder().encode)


def _saved(folder: Path, role: Role, card: Card) -> SavedEncoder:
    """Return one side of a CARE folder as its card describes it."""
    is_query = role == "query"
    side, files = (card.query, card.onnx) if is_query else (card.document, card.document_onnx)
    return SavedEncoder(
        folder / role,
        role,
        card.name,
        card.fingerprint,
        card.dim,
        side,
        "unit" if is_query else card.geometry,
        files.references if files is not None else (),
    )


def _torch_files(card: Card, role: Role) -> list[str]:
    """Return the files of a side that torch reads, relative to the folder."""
    return [path for path in card.files if path.startswith(f"{role}/") and not is_onnx(path)]


def _fingerprint_of_files(folder: Path) -> str:
    """Hash all files of a model but hidden ones and texts for people: weights have many formats, and code has none."""
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*")):
        path = file.relative_to(folder)
        if file.is_file() and file.suffix != ".md" and not any(part.startswith(".") for part in path.parts):
            digest.update(path.as_posix().encode())
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()
