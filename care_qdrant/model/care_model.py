"""`CareModel`: two encoders that share one space, each loaded only when it is used."""

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from care_qdrant.encoders import Encoder, TextReader, TokenCounter
from care_qdrant.encoders.engine import LOCAL, Engine
from care_qdrant.encoders.references import REFERENCE_TEXTS
from care_qdrant.encoders.side import Geometry, Side
from care_qdrant.encoders.terms.analyser import DEFAULT, Analyser
from care_qdrant.encoders.terms.bm25 import query_vector
from care_qdrant.encoders.terms.weights import TermWeights
from care_qdrant.errors import FingerprintMismatch, IncompleteModel, InputError, ModelError, require_choice
from care_qdrant.model.card import CARD_FILE, STORED, TERM_WEIGHTS, Card, read_card, verify_term_weights
from care_qdrant.model.hub import BUILT_IN, fetch_document_side, find_folder
from care_qdrant.model.sides import (
    DocumentFolder,
    ModelSide,
    OpenedOnce,
    PlainModel,
    PlainSide,
    QueryFolder,
    StandInSide,
)
from care_qdrant.model.sides import Precision as Precision
from care_qdrant.types import TermVector, Vectors

if TYPE_CHECKING:
    from care_qdrant.contracts.contract import VectorContract


class CareModel:
    """A pair of encoders: a small one for queries, a large one for documents (paper, section 4).

    Loading reads the card and nothing else. Each encoder runs on onnxruntime, without torch, where the folder has an
    ONNX file of its side. Every file is checked against its recorded SHA-256 before it is read, and every ONNX file has
    to give the reference vectors of the card.

    Several threads may use it: an encoder loads once, under a lock that a forked child replaces, and is then read
    without one; `Encoder` says the same of every encoder.
    """

    def __init__(
        self,
        *,
        name: str,
        dim: int,
        fingerprint: str,
        temperature: float,
        query: ModelSide,
        document: ModelSide,
        geometry: Geometry = "unit",
        card: Card | None = None,
        term_weights: str | Path | None = None,
        folder: str | Path | None = None,
        light_documents: bool = False,
    ) -> None:
        """Build a model from its two sides; `CareModel.load` is the usual way."""
        self.name, self.dim, self.fingerprint, self.temperature = name, dim, fingerprint, temperature
        self.query: ModelSide = OpenedOnce(query)
        self.document: ModelSide = OpenedOnce(document)
        self.geometry: Geometry = geometry
        self.card = card
        """Content of ``care.json``; None for a plain sentence-transformers model that is both sides."""
        self.term_weights = None if term_weights is None else Path(term_weights)
        """File with the weights of the terms of queries; None where the model has none."""
        self.folder = None if folder is None else Path(folder)
        """The CARE folder; None for a model without a card."""
        self.light_documents = light_documents
        """Whether every service encodes documents with it: the document encoder needs neither torch nor much memory."""

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
        """Open a model.

        Args:
            source: A CARE folder; a hub name; ``built-in``; or any sentence-transformers model, which then stands in
                on both sides.
            device: Device of the torch encoders; None takes CUDA, then MPS, then the CPU. With a device documents are
                encoded by torch also where the folder has an ONNX document encoder. Several, such as ``cuda:0,cuda:1``
                or ``cpu,cpu``, and ``all``, for all GPUs, encode documents by one process each.
            precision: Precision of the ONNX query encoder; ``auto`` takes int8 where its gate passed at export.
            revision: Branch, tag or commit on the hub.
            engine: The program that encodes documents.

        Raises:
            InputError: A setting is not one of its choices.
            ModelError: The folder is missing, incomplete, altered, newer than this version, or without an ONNX query
                encoder of this precision.
        """
        require_choice("precision", precision, get_args(Precision))
        if device is not None and "," in device and engine.kind in ("onnx", "server"):
            raise InputError(f"several devices ({device}) are for --engine torch, not {engine.kind}; leave one out")
        folder = find_folder(source, revision=revision)
        if (folder / CARD_FILE).is_file():
            card = read_card(folder)
            query = QueryFolder(folder, card, precision, device)
            query.onnx_file  # noqa: B018  # refuses a precision that the folder does not have
            document = DocumentFolder(source, revision, card, device, engine)
            return cls(
                name=card.name,
                dim=card.dim,
                fingerprint=card.fingerprint,
                temperature=card.temperature,
                query=query,
                document=document,
                geometry=card.geometry,
                card=card,
                term_weights=None if card.term_weights is None else folder / TERM_WEIGHTS,
                folder=folder,
                light_documents=source == BUILT_IN and document.kind == "onnx",
            )
        if (folder / "modules.json").is_file():
            if precision == "int8":
                raise ModelError(
                    f"{folder}: is a plain sentence-transformers model without an ONNX query encoder, so precision "
                    "'int8' is not available"
                )
            whole = fetch_document_side(source, revision=revision)
            plain = PlainModel(whole, Path(source).resolve().name, device, engine)
            return cls(
                name=plain.saved.name,
                dim=plain.saved.dim,
                fingerprint=plain.saved.fingerprint,
                temperature=0.05,
                query=PlainSide(plain, "query"),
                document=PlainSide(plain, "document"),
                geometry=plain.saved.geometry,
            )
        raise IncompleteModel(f"{folder}: holds neither {CARD_FILE} nor modules.json, so it is not a model")

    @property
    def encodes_documents(self) -> bool:
        """Whether it has a document encoder; a query encoder that was learned from stored vectors comes without."""
        return self.card is None or self.card.document.pooling != STORED

    @property
    def alpha(self) -> float | None:
        """Share of the dense score in a hybrid search that its card gives; None where each collection measures it."""
        return None if self.card is None else self.card.alpha

    @property
    def term_weights_digest(self) -> str | None:
        """SHA-256 of the weights of the terms of queries, as the card lists it; None where there are none."""
        entry = None if self.card is None else self.card.term_weights
        return None if entry is None else entry.file.sha256

    @property
    def probe_texts(self) -> tuple[str, ...]:
        """Short texts that the model reads: the reference texts of its card, else the general ones."""
        files = None if self.card is None else self.card.onnx
        references = files.references if files else ()
        return tuple(reference.text for reference in references) or REFERENCE_TEXTS

    @property
    def query_encoder(self) -> Encoder:
        """Encoder of queries, the online side."""
        return self.query.open()

    @property
    def document_encoder(self) -> Encoder:
        """Encoder of documents, the offline side."""
        return self.document.open()

    @property
    def document_tokenizer(self) -> TokenCounter:
        """Counts the tokens of documents; loads no weights where the model has a ``tokenizer.json``."""
        return self.document.tokenizer()

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

    def query_terms(self, text: str, analyser: Analyser = DEFAULT) -> TermVector:
        """Return a query's BM25 terms: counts, times the weights that the model has learned for them, where it has any.

        Args:
            text: Text of the query.
            analyser: Analyser of the collection (`SparseContract.analyser`).

        Raises:
            ModelError: The weights differ from the card, or are for another analyser.
        """
        return self._query_terms(text, analyser)

    @cached_property
    def _query_terms(self) -> Callable[[str, Analyser], TermVector]:
        if self.term_weights is None:
            return query_vector
        if self.card is not None:
            verify_term_weights(self.term_weights.parent, self.card)
        return TermWeights.load(self.term_weights).query_vector

    def require_documents(self) -> None:
        """Refuse a model whose documents cannot be encoded here; reads no weights.

        Raises:
            MissingExtra: Torch or sentence-transformers are not installed, and there is no ONNX document encoder.
            ModelError: The model encodes queries only.
        """
        self.document.require()

    def standing_in(self) -> "CareModel":
        """Return this model with its query encoder as document encoder, for a document encoder that no longer exists.

        Raises:
            InputError: The model has a document encoder.
            ModelError: It was learned by a version that did not measure where its documents lie.
        """
        if self.encodes_documents or self.card is None or self.folder is None:
            raise InputError(
                f"--stand-in: model {self.name!r} has a document encoder, and documents are better encoded by it; "
                "leave the option out"
            )
        side = StandInSide(self.query, self.folder, self.card)
        side.require()
        return CareModel(
            name=self.name,
            dim=self.dim,
            fingerprint=self.fingerprint,
            temperature=self.temperature,
            query=self.query,
            document=side,
            card=self.card,
            term_weights=self.term_weights,
        )

    def contract(self) -> "VectorContract":
        """Return the contract that a collection stores for this model's vectors."""
        # Imported here, since it imports the Qdrant client: a second that a process that only encodes saves.
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


def require_saved_model(model: CareModel, saved: str | None, component: str) -> None:
    """Refuse a model whose fingerprint differs from the one that a component has saved; None accepts any model.

    Raises:
        FingerprintMismatch: The fingerprints differ; the message begins with the component.
    """
    if saved not in (None, model.fingerprint):
        raise FingerprintMismatch(
            f"{component} was saved with {str(saved)[:12]}, and the fingerprint of the model is now "
            f"{model.fingerprint[:12]}: the model has changed, and vectors of the two do not compare. Give the model "
            "of that time, or embed the documents again with a new component"
        )
