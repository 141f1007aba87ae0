"""The document encoder of a model by the engine that was asked for: torch, onnxruntime, or embeddings servers."""

import base64
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from tokenizers import Tokenizer

from care_qdrant.encoders import Encoder, TokenCounter
from care_qdrant.encoders.batching import TokenizerFile
from care_qdrant.encoders.engine import Dtype, Engine, Kind
from care_qdrant.encoders.side import Geometry, Side
from care_qdrant.encoders.usable import require_torch
from care_qdrant.errors import ModelError, redact
from care_qdrant.model.card import STORED, Card, OnnxFiles, is_onnx, verified, verify_files
from care_qdrant.model.hub import fetch_document_side
from care_qdrant.model.references import Reference, check_references

if TYPE_CHECKING:
    from care_qdrant.encoders.local.processes import ProcessEncoder
    from care_qdrant.encoders.local.torch import TorchEncoder
    from care_qdrant.encoders.remote.server import ReferenceVectors

logger = logging.getLogger(__name__)

LEAST_COSINE = 0.999
"""Of bfloat16 vectors of the reference texts with those that float32 gave at export."""


@dataclass(frozen=True, slots=True)
class SavedEncoder:
    """A saved sentence-transformers model of one side, and what its vectors have to be."""

    folder: Path
    name: str
    """Of the pair."""
    fingerprint: str
    dim: int
    side: Side
    geometry: Geometry
    references: tuple[Reference, ...] = ()
    """Vectors of known texts; none where the model has no card."""

    def tokenizer(self) -> TokenCounter:
        """Load what counts the tokens of its texts."""
        file, side = self.folder / "tokenizer.json", self.side
        return TokenizerFile(file, max_tokens=side.max_tokens, prompt=side.prompt, special_tokens=side.special_tokens)


@dataclass(frozen=True, slots=True)
class DocumentSide:
    """The document side of a CARE folder: which engine encodes, and its loading."""

    source: str | Path
    revision: str | None
    card: Card
    device: str | None
    engine: Engine

    @property
    def kind(self) -> Kind:
        """The engine that was asked for, else onnx where the folder has that file and no device is named."""
        has_file = self.card.document_onnx is not None and self.card.document_onnx.fp32 is not None
        if self.engine.kind == "onnx" and not has_file:
            raise ModelError(
                f"{self.source}: has no ONNX document encoder; leave --engine out, or add one: care model export-onnx"
            )
        return self.engine.kind or ("onnx" if has_file and self.device is None else "torch")

    def require(self) -> None:
        """Refuse a model whose documents cannot be encoded here; reads no weights."""
        self._require_weights()
        if self.kind == "torch":
            require_torch()

    def tokenizer(self) -> TokenCounter:
        """Load what counts the tokens of documents."""
        self._require_weights()
        verify_files(self._whole(), self.card, ["document/tokenizer.json"])
        return self._saved().tokenizer()

    def load(self) -> Encoder:
        """Load the encoder; one that does not run on the weights has to give the card's reference vectors."""
        self._require_weights()
        if self.kind == "torch":
            return self._load_torch()
        card, files, whole = self.card, self.card.document_onnx, self._whole()
        if self.kind == "server":
            verify_files(whole, card, ["document/tokenizer.json"])
            return served_encoder(self.engine, self._saved(), self._load_torch)
        from care_qdrant.encoders.onnx import usable_cores

        assert files is not None and files.fp32 is not None
        with verified(whole, card, "document", [f"document/{files.fp32}", *torch_files(card, "document")]):
            return onnx_side(self._saved(), files.fp32, files, workers=usable_cores())

    def _load_torch(self) -> Encoder:
        card, whole = self.card, self._whole()
        with verified(whole, card, "document", torch_files(card, "document")):
            encoder = document_encoder(self._saved(), self.device, self.engine)
        require_precision(encoder, self.engine, self._saved())
        return encoder

    def _saved(self) -> SavedEncoder:
        card = self.card
        references = card.document_onnx.references if card.document_onnx is not None else ()
        folder = self._whole() / "document"
        return SavedEncoder(folder, card.name, card.fingerprint, card.dim, card.document, card.geometry, references)

    def _whole(self) -> Path:
        return fetch_document_side(self.source, revision=self.revision)

    def _require_weights(self) -> None:
        if self.card.document.pooling == STORED:
            bases = (str(base.get("name")) for base in self.card.bases if base.get("side") == "document")
            raise ModelError(
                f"model {self.card.name!r} encodes queries only: it was learned from {next(bases, 'a collection')}, "
                "whose documents another model encodes. Write documents with the tool and the model that made those "
                "vectors, or learn again with --document MODEL"
            )


def devices_of(device: str | None) -> list[str]:
    """Return the devices of documents; empty for the fastest one there is."""
    if device != "all":
        return [] if device is None else [name.strip() for name in device.split(",")]
    import torch

    return [f"cuda:{number}" for number in range(torch.cuda.device_count())]


def first_device(device: str | None) -> str | None:
    """Return the device of queries; None for the fastest one there is."""
    return next(iter(devices_of(device)), None)


def document_encoder(saved: SavedEncoder, device: str | None, engine: Engine) -> "TorchEncoder | ProcessEncoder":
    """Load a document encoder on torch; on several devices, in a process for each."""
    if len(devices := devices_of(device)) < 2:
        return torch_side(saved.folder, "document", saved.side, next(iter(devices), None), engine.dtype)
    from care_qdrant.encoders.local.processes import ProcessEncoder

    prompt = saved.side.prompt
    return ProcessEncoder(
        saved.folder, "document", devices, saved.tokenizer(), dim=saved.dim, prompt=prompt, dtype=engine.dtype
    )


def torch_side(
    folder: Path, role: Literal["query", "document"], side: Side, device: str | None, dtype: Dtype = "auto"
) -> "TorchEncoder":
    """Load an encoder on torch."""
    from care_qdrant.encoders.local.torch import TorchEncoder, load_sentence_transformer

    model = load_sentence_transformer(folder, device, dtype)
    return TorchEncoder(model, role, prompt=side.prompt, max_tokens=side.max_tokens)


def onnx_side(saved: SavedEncoder, file: str, files: OnnxFiles, workers: int = 1) -> Encoder:
    """Load an encoder on onnxruntime, which has to give the reference vectors."""
    from care_qdrant.encoders.onnx import OnnxEncoder

    encoder = OnnxEncoder.of_side(saved.folder, file, saved.side, saved.dim, workers=workers, geometry=saved.geometry)
    check_references(encoder.encode, files.references, saved.folder / file, files.min_cosine(file))
    return encoder


def require_precision(encoder: "TorchEncoder | ProcessEncoder", engine: Engine, saved: SavedEncoder) -> None:
    """Refuse an encoder whose bfloat16 vectors are not those of float32, where those of a few texts are known."""
    if (dtype := encoder.report()["dtype"]) == "float32":
        return
    if (known := _known_vectors(engine, saved)) is None:
        logger.info("%s: no reference vectors are known, so those in %s are not checked", saved.folder, dtype)
        return
    expected = np.asarray(known.vectors, dtype=np.float32)
    lowest = float(((encoder.encode(known.texts) * expected).sum(axis=1) / (expected**2).sum(axis=1)).min())
    if not lowest >= LEAST_COSINE:
        raise ModelError(
            f"{saved.folder}: its vectors in {dtype} are not those in float32 (cosine {lowest:.3f}, expected "
            f"{LEAST_COSINE} or more): encode with CARE_DTYPE=float32, or restore the weights"
        )


def torch_files(card: Card, side: str) -> list[str]:
    """Return the files of a side that torch reads, relative to the folder."""
    return [path for path in card.files if path.startswith(f"{side}/") and not is_onnx(path)]


def served_encoder(engine: Engine, saved: SavedEncoder, load_own: Callable[[], Encoder]) -> Encoder:
    """Return an encoder on servers that have given the model's own vectors."""
    from care_qdrant.encoders.remote.server import ServerEncoder, make_reference

    if (reference := _known_vectors(engine, saved)) is None:
        logger.info(
            "%s: its card has no reference vectors of documents, so they are made here, once; where its document "
            "encoder does not fit, make them with care model reference-vectors and name them in CARE_REFERENCE_VECTORS",
            saved.name,
        )
        reference = make_reference(saved.fingerprint, load_own().encode)
    encoder = ServerEncoder(
        engine.endpoints,
        engine.served_model or saved.name,
        Tokenizer.from_file(str(saved.folder / "tokenizer.json")),
        reference,
        dim=saved.dim,
        max_tokens=saved.side.max_tokens,
        prompt=saved.side.prompt,
        special_tokens=saved.side.special_tokens,
        is_cut=saved.geometry == "cut",
        sent=engine.sent,
        batch_tokens=engine.request_tokens,
        api_key=engine.api_key,
        patience_seconds=engine.patience_seconds,
    )
    where = redact(", ".join(engine.endpoints))
    logger.info("%s: reference vectors agree, smallest cosine %.5f", where, encoder.check())
    return encoder


def _known_vectors(engine: Engine, saved: SavedEncoder) -> "ReferenceVectors | None":
    """Return the reference vectors of the file that was named, else those of the card."""
    from care_qdrant.encoders.remote.server import ReferenceVectors, load_reference

    if engine.reference is not None:
        reference = load_reference(engine.reference)
        if reference.fingerprint != saved.fingerprint:
            raise ModelError(
                f"{engine.reference}: the reference vectors are of {reference.fingerprint[:12]}, the model is "
                f"{saved.fingerprint[:12]}; make them again with care model reference-vectors"
            )
        return reference
    if not saved.references:
        return None
    rows = [np.frombuffer(base64.b64decode(each.vector), "<f4").tolist() for each in saved.references]
    return ReferenceVectors(saved.fingerprint, [each.text for each in saved.references], rows)
