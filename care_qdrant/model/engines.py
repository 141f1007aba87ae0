"""The encoder of saved files by the engine that was asked for: torch, onnxruntime, or embeddings servers.

Each of them has to give the vectors of the weights, as far as some of these are known (`encoders.references`).
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from care_qdrant.encoders import Encoder, TokenCounter
from care_qdrant.encoders.agreement import LEAST_HALF_PRECISION
from care_qdrant.encoders.batching import TokenizerFile, read_tokenizer
from care_qdrant.encoders.engine import Dtype, Engine
from care_qdrant.encoders.references import Reference, check_references, least_agreement, load_references
from care_qdrant.encoders.side import Geometry, Side
from care_qdrant.encoders.usable import require_torch
from care_qdrant.errors import ModelError, redact
from care_qdrant.model.card import OnnxFiles

if TYPE_CHECKING:
    from care_qdrant.encoders.local.processes import ProcessEncoder
    from care_qdrant.encoders.local.torch import TorchEncoder

logger = logging.getLogger(__name__)

Role = Literal["query", "document"]


@dataclass(frozen=True, slots=True)
class SavedEncoder:
    """A saved sentence-transformers model of one side, with the reference vectors that it has to give."""

    folder: Path
    role: Role
    name: str
    """Name of the model."""
    fingerprint: str
    dim: int
    side: Side
    geometry: Geometry
    references: tuple[Reference, ...] = ()
    """Vectors of known texts; none where the model has no card."""

    def tokenizer(self) -> TokenCounter:
        """Load the token counter of its texts."""
        return TokenizerFile(self.folder, self.side)

    def known_references(self, engine: Engine) -> tuple[Reference, ...]:
        """Return the reference vectors of the named file, else of the card."""
        return (
            self.references if engine.reference is None else load_references(Path(engine.reference), self.fingerprint)
        )


def devices_of(device: str | None) -> list[str]:
    """Return the devices that encode documents; empty for the fastest one available."""
    if device != "all":
        return [] if device is None else [name.strip() for name in device.split(",")]
    import torch

    return [f"cuda:{number}" for number in range(torch.cuda.device_count())]


def first_device(device: str | None) -> str | None:
    """Return the device that encodes queries; None for the fastest one available."""
    return next(iter(devices_of(device)), None)


def require_devices(device: str | None) -> None:
    """Refuse named devices that do not exist, and a machine without torch; reads no weights."""
    require_torch()
    if named := devices_of(device):
        from care_qdrant.encoders.local.torch import require_device

        for name in named:
            require_device(name)


def on_devices(saved: SavedEncoder, device: str | None, engine: Engine) -> "TorchEncoder | ProcessEncoder":
    """Load an encoder on torch; on several devices, in a process for each."""
    if len(devices := devices_of(device)) < 2:
        return on_torch(saved, next(iter(devices), None), engine.dtype)
    from care_qdrant.encoders.local.processes import ProcessEncoder

    counter, prompt = saved.tokenizer(), saved.side.prompt
    return ProcessEncoder(saved.folder, saved.role, devices, counter, dim=saved.dim, prompt=prompt, dtype=engine.dtype)


def on_torch(saved: SavedEncoder, device: str | None, dtype: Dtype = "auto") -> "TorchEncoder":
    """Load an encoder on torch."""
    from care_qdrant.encoders.local.torch import TorchEncoder, load_sentence_transformer

    model = load_sentence_transformer(saved.folder, device, dtype)
    return TorchEncoder(model, saved.role, prompt=saved.side.prompt, max_tokens=saved.side.max_tokens)


def on_onnx(saved: SavedEncoder, file: str, files: OnnxFiles, workers: int = 1) -> Encoder:
    """Load an encoder on onnxruntime, which has to give the reference vectors."""
    from care_qdrant.encoders.onnx import OnnxEncoder

    encoder = OnnxEncoder(saved.folder, file, saved.side, saved.dim, workers=workers, geometry=saved.geometry)
    check_references(encoder.encode, files.references, saved.folder / file, files.least_cosine(file))
    return encoder


def on_servers(saved: SavedEncoder, engine: Engine, references: Sequence[Reference]) -> Encoder:
    """Return an encoder on servers that have given the reference vectors."""
    from care_qdrant.encoders.remote.server import ServerEncoder

    tokenizer = read_tokenizer(saved.folder)
    encoder = ServerEncoder(
        engine, saved.name, tokenizer, saved.side, references, dim=saved.dim, geometry=saved.geometry
    )
    where = redact(", ".join(engine.endpoints))
    logger.info("%s: reference vectors agree, smallest cosine %.5f", where, encoder.check())
    return encoder


def require_precision(encoder: "TorchEncoder | ProcessEncoder", engine: Engine, saved: SavedEncoder) -> None:
    """Refuse an encoder whose bfloat16 vectors differ from float32 reference vectors, if any are known."""
    if (dtype := encoder.report()["dtype"]) == "float32":
        return
    if not (known := saved.known_references(engine)):
        logger.info("%s: no reference vectors are known, so those in %s are not checked", saved.folder, dtype)
        return
    lowest = least_agreement(encoder.encode, known, saved.folder)
    if not lowest >= LEAST_HALF_PRECISION:
        raise ModelError(
            f"{saved.folder}: its vectors in {dtype} are not those in float32 (cosine {lowest:.3f}, expected "
            f"{LEAST_HALF_PRECISION} or more): encode with CARE_DTYPE=float32, or restore the weights"
        )
