"""The document encoder of a model by the engine that was asked for: torch, onnxruntime, or embeddings servers."""

import base64
import logging
from collections.abc import Callable, Sequence
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
from care_qdrant.model.card import STORED, Card, OnnxFiles, is_onnx
from care_qdrant.model.hub import fetch_document_side
from care_qdrant.model.integrity import verified, verify_files
from care_qdrant.model.references import Reference, check_references

if TYPE_CHECKING:
    from care_qdrant.encoders.processes import ProcessEncoder
    from care_qdrant.encoders.server import ReferenceVectors
    from care_qdrant.encoders.torch import TorchEncoder

logger = logging.getLogger(__name__)

LEAST_COSINE = 0.999
"""Of bfloat16 vectors of the reference texts with those that float32 gave at export."""


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
        whole = self._whole()
        verify_files(whole, self.card, ["document/tokenizer.json"])
        return tokenizer_of(whole / "document", self.card.document)

    def load(self) -> Encoder:
        """Load the encoder; one that does not run on the weights has to give the card's reference vectors."""
        self._require_weights()
        if self.kind == "torch":
            return self._load_torch()
        card, files, whole = self.card, self.card.document_onnx, self._whole()
        if self.kind == "server":
            verify_files(whole, card, ["document/tokenizer.json"])
            return served_encoder(
                self.engine,
                name=card.name,
                fingerprint=card.fingerprint,
                dim=card.dim,
                side=card.document,
                geometry=card.geometry,
                tokenizer_file=whole / "document" / "tokenizer.json",
                references=files.references if files is not None else (),
                load_own=self._load_torch,
            )
        from care_qdrant.encoders.onnx import usable_cores

        assert files is not None and files.fp32 is not None
        with verified(whole, card, "document", [f"document/{files.fp32}", *torch_files(card, "document")]):
            return onnx_side(
                whole / "document",
                files.fp32,
                card.document,
                files,
                card.dim,
                workers=usable_cores(),
                geometry=card.geometry,
            )

    def _load_torch(self) -> Encoder:
        card, whole, devices = self.card, self._whole(), devices_of(self.device)
        with verified(whole, card, "document", torch_files(card, "document")):
            encoder: TorchEncoder | ProcessEncoder
            if len(devices) > 1:
                encoder = process_side(whole / "document", devices, card.document, card.dim, self.engine)
            else:
                device = devices[0] if devices else None
                encoder = torch_side(whole / "document", "document", card.document, device, self.engine.dtype)
        references = card.document_onnx.references if card.document_onnx is not None else ()
        require_precision(encoder, self.engine, card.fingerprint, references, whole / "document")
        return encoder

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


def tokenizer_of(folder: Path, side: Side) -> TokenCounter:
    """Load what counts the tokens of a saved encoder."""
    return TokenizerFile(
        folder / "tokenizer.json",
        max_tokens=side.max_tokens,
        prompt=side.prompt,
        special_tokens=side.special_tokens,
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


def process_side(folder: Path, devices: Sequence[str], side: Side, dim: int, engine: Engine) -> "ProcessEncoder":
    """Load a document encoder in a process for each device."""
    from care_qdrant.encoders.processes import ProcessEncoder

    counter = tokenizer_of(folder, side)
    return ProcessEncoder(folder, "document", devices, counter, dim=dim, prompt=side.prompt, dtype=engine.dtype)


def torch_side(
    folder: Path, role: Literal["query", "document"], side: Side, device: str | None, dtype: Dtype = "auto"
) -> "TorchEncoder":
    """Load an encoder on torch."""
    from care_qdrant.encoders.torch import TorchEncoder, load_sentence_transformer

    model = load_sentence_transformer(folder, device, dtype)
    return TorchEncoder(model, role, prompt=side.prompt, max_tokens=side.max_tokens)


def onnx_side(
    folder: Path, file: str, side: Side, files: OnnxFiles, dim: int, workers: int = 1, geometry: Geometry = "unit"
) -> Encoder:
    """Load an encoder on onnxruntime, which has to give the reference vectors."""
    from care_qdrant.encoders.onnx import OnnxEncoder

    encoder = OnnxEncoder.of_side(folder, file, side, dim, workers=workers, geometry=geometry)
    check_references(encoder.encode, files.references, folder / file, files.min_cosine(file))
    return encoder


def require_precision(
    encoder: "TorchEncoder | ProcessEncoder",
    engine: Engine,
    fingerprint: str,
    references: tuple[Reference, ...],
    folder: Path,
) -> None:
    """Refuse an encoder whose bfloat16 vectors are not those of float32, where those of a few texts are known."""
    if (dtype := encoder.report()["dtype"]) == "float32":
        return
    if (known := _known_vectors(engine, fingerprint, references)) is None:
        logger.info("%s: no reference vectors are known, so those in %s are not checked", folder, dtype)
        return
    expected = np.asarray(known.vectors, dtype=np.float32)
    lowest = float(((encoder.encode(known.texts) * expected).sum(axis=1) / (expected**2).sum(axis=1)).min())
    if not lowest >= LEAST_COSINE:
        raise ModelError(
            f"{folder}: its vectors in {dtype} are not those in float32 (cosine {lowest:.3f}, expected "
            f"{LEAST_COSINE} or more): encode with CARE_DTYPE=float32, or restore the weights"
        )


def torch_files(card: Card, side: str) -> list[str]:
    """Return the files of a side that torch reads, relative to the folder."""
    return [path for path in card.files if path.startswith(f"{side}/") and not is_onnx(path)]


def served_encoder(
    engine: Engine,
    *,
    name: str,
    fingerprint: str,
    dim: int,
    side: Side,
    geometry: Geometry,
    tokenizer_file: Path,
    references: tuple[Reference, ...],
    load_own: Callable[[], Encoder],
) -> Encoder:
    """Return an encoder on servers that have given the model's own vectors."""
    from care_qdrant.encoders.server import ServerEncoder

    encoder = ServerEncoder(
        engine.endpoints,
        engine.served_model or name,
        Tokenizer.from_file(str(tokenizer_file)),
        _reference(engine, name, fingerprint, references, load_own),
        dim=dim,
        max_tokens=side.max_tokens,
        prompt=side.prompt,
        special_tokens=side.special_tokens,
        is_cut=geometry == "cut",
        sent=engine.sent,
        batch_tokens=engine.request_tokens,
        api_key=engine.api_key,
        patience_seconds=engine.patience_seconds,
    )
    where = redact(", ".join(engine.endpoints))
    logger.info("%s: reference vectors agree, smallest cosine %.5f", where, encoder.check())
    return encoder


def _known_vectors(engine: Engine, fingerprint: str, references: tuple[Reference, ...]) -> "ReferenceVectors | None":
    """Return the reference vectors of the file that was named, else those of the card."""
    from care_qdrant.encoders.server import ReferenceVectors, load_reference

    if engine.reference is not None:
        reference = load_reference(engine.reference)
        if reference.fingerprint != fingerprint:
            raise ModelError(
                f"{engine.reference}: the reference vectors are of {reference.fingerprint[:12]}, the model is "
                f"{fingerprint[:12]}; make them again with care model reference-vectors"
            )
        return reference
    if not references:
        return None
    rows = [np.frombuffer(base64.b64decode(each.vector), "<f4").tolist() for each in references]
    return ReferenceVectors(fingerprint, [each.text for each in references], rows)


def _reference(
    engine: Engine, name: str, fingerprint: str, references: tuple[Reference, ...], load_own: Callable[[], Encoder]
) -> "ReferenceVectors":
    from care_qdrant.encoders.server import make_reference

    if (known := _known_vectors(engine, fingerprint, references)) is not None:
        return known
    logger.info(
        "%s: its card has no reference vectors of documents, so they are made here, once; where its document encoder "
        "does not fit, make them with care model reference-vectors and name them in CARE_REFERENCE_VECTORS",
        name,
    )
    return make_reference(fingerprint, load_own().encode)
