"""`CareModel`: two encoders that share one space, each loaded only when it is used."""

import hashlib
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from care_qdrant.encoders import Encoder, TextReader, TokenCounter
from care_qdrant.encoders.engine import LOCAL, Engine
from care_qdrant.encoders.side import Geometry, Side
from care_qdrant.encoders.usable import require_torch
from care_qdrant.errors import AlteredModel, IncompleteModel, InputError, ModelError
from care_qdrant.forking import ForkLock
from care_qdrant.model.card import CARD_FILE, Card, read_card, verified, verified_term_weights
from care_qdrant.model.engines import (
    DocumentSide,
    SavedEncoder,
    devices_of,
    document_encoder,
    first_device,
    onnx_side,
    require_precision,
    served_encoder,
    torch_files,
    torch_side,
)
from care_qdrant.model.folder import describe_side, geometry_of
from care_qdrant.model.hub import BUILT_IN, fetch_document_side, find_folder
from care_qdrant.types import Vectors

if TYPE_CHECKING:
    from qdrant_client.models import SparseVector
    from sentence_transformers import SentenceTransformer

    from care_qdrant.contracts.contract import VectorContract
    from care_qdrant.encoders.local.processes import ProcessEncoder

Precision = Literal["auto", "int8", "fp32"]


class CareModel:
    """A pair of encoders: a small one for queries, a large one for documents (paper, section 4).

    Loading reads the card and nothing else. Each encoder runs on onnxruntime, without torch, where the folder has an
    ONNX file of its side. Every file is checked against its recorded SHA-256 before it is read, and every ONNX file has
    to give the reference vectors of the card.

    Used by several threads: an encoder loads once, under a lock that a forked child has anew, and is then read without
    one; `Encoder` says the same of every encoder.
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
        find_term_weights: Callable[[], Path | None] = lambda: None,
        geometry: Geometry = "unit",
        card: Card | None = None,
        light_documents: bool = False,
    ) -> None:
        """Put a pair together; `CareModel.load` is the usual way."""
        self.name, self.dim, self.fingerprint, self.temperature = name, dim, fingerprint, temperature
        self.geometry: Geometry = geometry
        self.card = card
        """None for a plain sentence-transformers model that stands in as a symmetric pair."""
        self.light_documents = light_documents
        """Whether the document encoder needs neither torch nor much memory, as that of the built-in pair."""
        self._loaders = {"query": load_query_encoder, "document": load_document_encoder}
        self._require_documents = require_documents
        self._find_term_weights = find_term_weights
        self._load_document_tokenizer = load_document_tokenizer or (lambda: self.document_encoder)
        self._encoders: dict[str, Encoder] = {}
        self._lock = ForkLock()

    @classmethod
    def load(
        cls,
        source: str | Path = BUILT_IN,
        *,
        device: str | None = None,
        precision: Precision = "auto",
        revision: str | None = None,
        engine: Engine = LOCAL,
    ) -> "CareModel":
        """Open a pair.

        Args:
            source: A CARE folder; a hub name; ``built-in``; or any sentence-transformers model, which then stands in
                on both sides.
            device: Of the torch encoders; None takes CUDA, then MPS, then the CPU. With a device documents are encoded
                by torch also where the folder has an ONNX document encoder. Several, as ``cuda:0,cuda:1`` or
                ``cpu,cpu``, and ``all``, for all GPUs, encode documents by one process each.
            precision: Of the ONNX query encoder; ``auto`` takes int8 where its gate passed at export.
            revision: Branch, tag or commit on the hub.
            engine: What encodes documents.

        Raises:
            ModelError: The folder is not there, incomplete, altered, or newer than this version.
        """
        if device is not None and "," in device and engine.kind in ("onnx", "server"):
            raise InputError(f"several devices ({device}) are for --engine torch, not {engine.kind}; leave one out")
        folder = find_folder(source, revision=revision)
        if (folder / CARD_FILE).is_file():
            return _pair(source, folder, device, precision, revision, engine)
        if (folder / "modules.json").is_file():
            return _symmetric(fetch_document_side(source, revision=revision), str(source), device, engine)
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

    def unread(self, query: str) -> list[str]:
        """Return the words of a query that its tokenizer does not read, where they are most of it."""
        encoder = self.query_encoder
        return encoder.unread(query) if isinstance(encoder, TextReader) else []

    def query_terms(self, text: str) -> "SparseVector":
        """Return a query's BM25 terms: counts, times the weights that the pair has learned for them, where it has any.

        Raises:
            ModelError: The weights are not those that the card lists, or of another analyser.
        """
        return self._query_terms(text)

    @cached_property
    def _query_terms(self) -> Callable[[str], "SparseVector"]:
        # Here, because they take the Qdrant client with them, as in `contract`.
        from care_qdrant.encoders.terms.bm25 import query_vector
        from care_qdrant.encoders.terms.weights import TermWeights

        path = self._find_term_weights()
        return query_vector if path is None else TermWeights.load(path).query_vector

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
        from care_qdrant.contracts.contract import VectorContract

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
    source: str | Path, folder: Path, device: str | None, precision: Precision, revision: str | None, engine: Engine
) -> CareModel:
    card = read_card(folder)
    onnx_file = _onnx_file(card, precision, folder)

    def load_query_encoder() -> Encoder:
        if card.onnx is None or onnx_file is None:
            with verified(folder, card, "query", torch_files(card, "query")):
                return torch_side(folder / "query", "query", card.query, first_device(device))
        # Every graph of the folder may name the same external weights, so those are always checked.
        external = [path for path in card.files if path.startswith("query/onnx/") and not path.endswith(".onnx")]
        with verified(folder, card, "query", [f"query/{onnx_file}", "query/tokenizer.json", *external]):
            saved = SavedEncoder(folder / "query", card.name, card.fingerprint, card.dim, card.query, "unit")
            return onnx_side(saved, onnx_file, card.onnx)

    documents = DocumentSide(source, revision, card, device, engine)
    return CareModel(
        name=card.name,
        dim=card.dim,
        fingerprint=card.fingerprint,
        temperature=card.temperature,
        geometry=card.geometry,
        load_query_encoder=load_query_encoder,
        load_document_encoder=documents.load,
        load_document_tokenizer=documents.tokenizer,
        require_documents=documents.require,
        find_term_weights=lambda: verified_term_weights(folder, card),
        card=card,
        light_documents=source == BUILT_IN and documents.kind == "onnx",
    )


def _symmetric(folder: Path, name: str, device: str | None, engine: Engine) -> CareModel:
    """Let one sentence-transformers model play both roles, its weights loaded once."""
    from care_qdrant.encoders.local.torch import TorchEncoder, load_sentence_transformer

    fingerprint = _fingerprint_of_files(folder)

    def require_unchanged() -> None:
        """After loading: a change before it and one during it are both found."""
        if (found := _fingerprint_of_files(folder)) != fingerprint:
            raise AlteredModel(
                f"{folder}: changed since it was opened (fingerprint {fingerprint[:12]}, now {found[:12]}), and its "
                "vectors would be stored as those of the former model; open it again"
            )

    @cache
    def load() -> "SentenceTransformer":
        model = load_sentence_transformer(folder, first_device(device), engine.dtype)
        require_unchanged()
        return model

    side, dim = describe_side(folder, "document")
    saved = SavedEncoder(folder, Path(name).resolve().name, fingerprint, dim, side, geometry_of(folder))
    if engine.kind == "onnx":
        raise ModelError(f"{folder}: is a plain sentence-transformers model without an ONNX file; leave --engine out")

    def load_document_encoder() -> Encoder:
        if engine.kind == "server":
            return served_encoder(engine, saved, lambda: TorchEncoder(load(), "document"))
        encoder: TorchEncoder | ProcessEncoder
        if len(devices_of(device)) > 1:
            encoder = document_encoder(saved, device, engine)
            require_unchanged()
        else:
            encoder = TorchEncoder(load(), "document")
        require_precision(encoder, engine, saved)
        return encoder

    return CareModel(
        name=saved.name,
        dim=dim,
        fingerprint=fingerprint,
        temperature=0.05,
        geometry=saved.geometry,
        load_query_encoder=lambda: TorchEncoder(load(), "query"),
        load_document_encoder=load_document_encoder,
        load_document_tokenizer=saved.tokenizer if (folder / "tokenizer.json").is_file() else None,
        require_documents=(lambda: None) if engine.kind == "server" else require_torch,
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
