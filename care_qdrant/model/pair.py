"""`CareModel`: two encoders that share one space, each loaded only when it is used."""

import hashlib
import threading
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from care_qdrant.encoders import Encoder, TokenCounter
from care_qdrant.encoders.usable import require_torch
from care_qdrant.errors import AlteredModel, IncompleteModel, ModelError
from care_qdrant.model.card import CARD_FILE, STORED, Card, Geometry, OnnxFiles, Side, is_onnx, read_card
from care_qdrant.model.folder import describe_side, geometry_of
from care_qdrant.model.hub import BUILT_IN, fetch_document_side, find_folder
from care_qdrant.model.integrity import verified, verify_files
from care_qdrant.model.references import check_references
from care_qdrant.types import Vectors

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from care_qdrant.qdrant.contracts import VectorContract

Precision = Literal["auto", "int8", "fp32"]


class CareModel:
    """A pair of encoders: a small one for queries, a large one for documents (paper, section 4).

    Loading reads the card and nothing else. Each encoder runs on onnxruntime, without torch, where the folder has an
    ONNX file of its side. Every file is checked against its recorded SHA-256 before it is read, and every ONNX file has
    to give the reference vectors of the card.
    """

    def __init__(
        self,
        *,
        name: str,
        dim: int,
        fingerprint: str,
        temperature: float,
        load_query_encoder: Callable[[], Encoder],
        load_document_encoder: Callable[[], Encoder],
        load_document_tokenizer: Callable[[], TokenCounter] | None = None,
        require_documents: Callable[[], None] = lambda: None,
        geometry: Geometry = "unit",
        card: Card | None = None,
    ) -> None:
        """Put a pair together; `CareModel.load` is the usual way."""
        self.name, self.dim, self.fingerprint, self.temperature = name, dim, fingerprint, temperature
        self.geometry: Geometry = geometry
        self.card = card
        """None for a plain sentence-transformers model that stands in as a symmetric pair."""
        self._loaders = {"query": load_query_encoder, "document": load_document_encoder}
        self._require_documents = require_documents
        self._load_document_tokenizer = load_document_tokenizer or (lambda: self.document_encoder)
        self._encoders: dict[str, Encoder] = {}
        self._lock = threading.RLock()

    @classmethod
    def load(
        cls,
        source: str | Path = BUILT_IN,
        *,
        device: str | None = None,
        precision: Precision = "auto",
        revision: str | None = None,
    ) -> "CareModel":
        """Open a pair.

        Args:
            source: A CARE folder; a hub name; ``built-in``; or any sentence-transformers model, which then stands in
                on both sides.
            device: Of the torch encoders; None takes CUDA, then MPS, then the CPU. With a device documents are encoded
                by torch also where the folder has an ONNX document encoder.
            precision: Of the ONNX query encoder; ``auto`` takes int8 where its gate passed at export.
            revision: Branch, tag or commit on the hub.

        Raises:
            ModelError: The folder is not there, incomplete, altered, or newer than this version.
        """
        folder = find_folder(source, revision=revision)
        if (folder / CARD_FILE).is_file():
            return _pair(source, folder, device, precision, revision)
        if (folder / "modules.json").is_file():
            return _symmetric(fetch_document_side(source, revision=revision), str(source), device)
        raise IncompleteModel(f"{folder}: holds neither {CARD_FILE} nor modules.json, so it is no model")

    @property
    def query_encoder(self) -> Encoder:
        """The online side."""
        return self._encoder("query")

    @property
    def document_encoder(self) -> Encoder:
        """The offline side."""
        return self._encoder("document")

    @cached_property
    def document_tokenizer(self) -> TokenCounter:
        """Counts the tokens of documents; loads no weights where the model has a ``tokenizer.json``."""
        return self._load_document_tokenizer()

    def encode_query(self, texts: Sequence[str], *, prompt: str | None = None) -> Vectors:
        """Encode queries: (len(texts), dim) float32 unit rows. None takes the model's own prompt."""
        return self.query_encoder.encode(texts, prompt=prompt)

    def encode_document(self, texts: Sequence[str], *, prompt: str | None = None) -> Vectors:
        """Encode documents: (len(texts), dim) float32 rows, of length 1 unless the geometry is ``cut``."""
        return self.document_encoder.encode(texts, prompt=prompt)

    def require_documents(self) -> None:
        """Refuse a model whose documents cannot be encoded here; reads no weights.

        Raises:
            MissingExtra: Torch or sentence-transformers are not installed, and there is no ONNX document encoder.
            ModelError: The model encodes queries only.
        """
        self._require_documents()

    def contract(self) -> "VectorContract":
        """Return what a collection must remember of this model's vectors."""
        # Here, because it takes the Qdrant client with it: a second that a process that only encodes need not pay.
        from care_qdrant.qdrant.contracts import VectorContract

        distance = "Cosine" if self.geometry == "unit" else "Dot"
        return VectorContract(fingerprint=self.fingerprint, model=self.name, dim=self.dim, distance=distance)

    def query_prompt(self, task: str | None = None) -> str | None:
        """Return the prompt of queries of a task, for ``encode_query(prompt=)``; None is the model's own prompt.

        Raises:
            InputError: The model has no prompt of that name.
        """
        if task is None:
            return None
        return (self.card.query if self.card else Side(pooling="", max_tokens=0)).task_prompt(task)

    def _encoder(self, side: str) -> Encoder:
        with self._lock:
            if side not in self._encoders:
                self._encoders[side] = self._loaders[side]()
            return self._encoders[side]


def _pair(
    source: str | Path, folder: Path, device: str | None, precision: Precision, revision: str | None
) -> CareModel:
    card = read_card(folder)
    onnx_file = _onnx_file(card, precision, folder)

    def load_query_encoder() -> Encoder:
        if card.onnx is None or onnx_file is None:
            with verified(folder, card, "query", _torch_files(card, "query")):
                return _torch_side(folder / "query", "query", card, device)
        # Every graph of the folder may name the same external weights, so those are always checked.
        external = [path for path in card.files if path.startswith("query/onnx/") and not path.endswith(".onnx")]
        with verified(folder, card, "query", [f"query/{onnx_file}", "query/tokenizer.json", *external]):
            return _onnx_side(folder / "query", onnx_file, card.query, card.onnx, card.dim)

    def require_documents() -> None:
        _require_document_side(card)
        if card.document_onnx is None or card.document_onnx.fp32 is None or device is not None:
            require_torch()

    def load_document_encoder() -> Encoder:
        _require_document_side(card)
        whole = fetch_document_side(source, revision=revision)
        files = card.document_onnx
        if files is None or files.fp32 is None or device is not None:
            with verified(whole, card, "document", _torch_files(card, "document")):
                return _torch_side(whole / "document", "document", card, device)
        from care_qdrant.encoders.onnx import usable_cores

        with verified(whole, card, "document", [f"document/{files.fp32}", *_torch_files(card, "document")]):
            return _onnx_side(
                whole / "document",
                files.fp32,
                card.document,
                files,
                card.dim,
                workers=usable_cores(),
                geometry=card.geometry,
            )

    def load_document_tokenizer() -> TokenCounter:
        _require_document_side(card)
        whole = fetch_document_side(source, revision=revision)
        verify_files(whole, card, ["document/tokenizer.json"])
        return _tokenizer(whole / "document", card.document)

    return CareModel(
        name=card.name,
        dim=card.dim,
        fingerprint=card.fingerprint,
        temperature=card.temperature,
        geometry=card.geometry,
        load_query_encoder=load_query_encoder,
        load_document_encoder=load_document_encoder,
        load_document_tokenizer=load_document_tokenizer,
        require_documents=require_documents,
        card=card,
    )


def _require_document_side(card: Card) -> None:
    if card.document.pooling == STORED:
        origin = next((str(base.get("name")) for base in card.bases if base.get("side") == "document"), "a collection")
        raise ModelError(
            f"model {card.name!r} encodes queries only: it was learned from {origin}, whose documents another model "
            "encodes. Write documents with the tool and the model that made those vectors, or learn again with "
            "--document MODEL"
        )


def _symmetric(folder: Path, name: str, device: str | None) -> CareModel:
    """Let one sentence-transformers model play both roles, its weights loaded once."""
    from care_qdrant.encoders.torch import TorchEncoder, load_sentence_transformer

    fingerprint = _fingerprint_of_files(folder)

    @cache
    def load() -> "SentenceTransformer":
        model = load_sentence_transformer(folder, device)
        # After loading: a change before it and one during it are both found.
        if (found := _fingerprint_of_files(folder)) != fingerprint:
            raise AlteredModel(
                f"{folder}: changed since it was opened (fingerprint {fingerprint[:12]}, now {found[:12]}), and its "
                "vectors would be stored as those of the former model; open it again"
            )
        return model

    side, dim = describe_side(folder, "document")
    return CareModel(
        name=Path(name).resolve().name,
        dim=dim,
        fingerprint=fingerprint,
        temperature=0.05,
        geometry=geometry_of(folder),
        load_query_encoder=lambda: TorchEncoder(load(), "query"),
        load_document_encoder=lambda: TorchEncoder(load(), "document"),
        load_document_tokenizer=(lambda: _tokenizer(folder, side)) if (folder / "tokenizer.json").is_file() else None,
        require_documents=require_torch,
    )


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


def _tokenizer(folder: Path, side: Side) -> TokenCounter:
    from care_qdrant.encoders.tokens import TokenizerFile

    return TokenizerFile(
        folder / "tokenizer.json",
        max_tokens=side.max_tokens,
        prompt=side.prompt,
        special_tokens=side.special_tokens,
    )


def _torch_side(folder: Path, side: Literal["query", "document"], card: Card, device: str | None) -> Encoder:
    from care_qdrant.encoders.torch import TorchEncoder, load_sentence_transformer

    settings = card.query if side == "query" else card.document
    model = load_sentence_transformer(folder, device)
    return TorchEncoder(model, side, prompt=settings.prompt, max_tokens=settings.max_tokens)


def _onnx_file(card: Card, precision: Precision, folder: Path) -> str | None:
    """Choose the ONNX file of the query encoder; None where there is none."""
    if card.onnx is None:
        if precision != "auto":
            raise ModelError(f"{folder}: has no ONNX query encoder, so precision {precision!r} cannot be had")
        return None
    wanted = card.onnx.default if precision == "auto" else precision
    file = card.onnx.int8 if wanted == "int8" else card.onnx.fp32
    if file is None:
        raise ModelError(f"{folder}: has no {wanted} ONNX query encoder")
    return file


def _onnx_side(
    folder: Path, file: str, side: Side, files: OnnxFiles, dim: int, workers: int = 1, geometry: Geometry = "unit"
) -> Encoder:
    from care_qdrant.encoders.onnx import OnnxEncoder

    encoder = OnnxEncoder.of_side(folder, file, side, dim, workers=workers, geometry=geometry)
    check_references(encoder.encode, files.references, folder / file, files.min_cosine(file))
    return encoder


def _torch_files(card: Card, side: str) -> list[str]:
    return [path for path in card.files if path.startswith(f"{side}/") and not is_onnx(path)]
