"""The models of a service, and the names that clients give them: ``name``, ``name@fingerprint``, ``name/bm25``.

A service does not see the collections that its vectors are for. A client that writes ``care@3f2a9c`` is therefore
refused by a service whose model of that name has another fingerprint, instead of getting vectors of another space.
"""

import asyncio
import re
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from care_qdrant.encoders.agreement import LEAST_BATCHED, cosines
from care_qdrant.encoders.references import check_references
from care_qdrant.errors import AlteredModel, InputError
from care_qdrant.model.care_model import CareModel
from care_qdrant.serve.admission import DocumentSide, QuerySide, Side
from care_qdrant.serve.metrics import Metrics
from care_qdrant.serve.refusal import Refusal
from care_qdrant.serve.settings import Limits
from care_qdrant.types import Vectors

BM25_SUFFIX = "/bm25"
_INVISIBLE = ("Cc", "Cf", "Zl", "Zp", "Zs")
"""Categories of Unicode: control characters, zero-width and other format characters, separators."""
_FINGERPRINT = re.compile(r"[0-9a-f]{4,64}")


class ServedModel:
    """One model: its query encoder, and its document encoder if the service loads it."""

    def __init__(self, model: CareModel, *, documents: bool, limits: Limits, metrics: Metrics) -> None:
        """Load the query encoder; the document encoder waits for `DocumentSide.load`."""
        self.model, self.name, self.fingerprint, self.dim = model, model.name, model.fingerprint, model.dim
        self._limits, self._cut_texts = limits, metrics.cut_texts
        capacity = limits.waiting_texts
        self.query = QuerySide(self.name, model.query_encoder, capacity=capacity, metrics=metrics)
        self.document = (
            DocumentSide(self.name, lambda: model.document_encoder, capacity=capacity, metrics=metrics)
            if documents or model.light_documents
            else None
        )

    @property
    def ready(self) -> bool:
        """Whether both sides that are served are loaded."""
        return self.document is None or self.document.ready

    async def encode(self, texts: Sequence[str], side: Side) -> Vectors:
        """Encode texts by one side: (len(texts), dim) float32 unit rows, in order."""
        check_texts(texts, side, self._limits)
        if side == "query":
            return await self.query.queue.encode(texts)
        # Strip as the ingestion does: a trailing line feed is a token to a language model.
        return await self.require_documents().queue.encode([text.strip() for text in texts])

    async def count_tokens(self, texts: Sequence[str], side: Side) -> list[int]:
        """Return the uncut length of each text in tokens, special tokens and prompt included."""
        counter = self.model.query_encoder if side == "query" else self.model.document_tokenizer
        return await asyncio.to_thread(counter.count_tokens, texts)

    def max_tokens(self, side: Side) -> int:
        """Return the most tokens that a side reads; it cuts longer texts."""
        return (self.model.query_encoder if side == "query" else self.model.document_tokenizer).max_tokens

    def cut_texts(self, token_counts: Sequence[int], side: Side) -> list[int]:
        """Return and count the places of the texts that a side cuts, by their uncut lengths."""
        most = self.max_tokens(side)
        places = [place for place, count in enumerate(token_counts) if count > most]
        self._cut_texts.labels(self.name, side).inc(len(places))
        return places

    def require_documents(self) -> DocumentSide:
        """Return the document side, or refuse where the service has none."""
        if self.document is None:
            raise Refusal(
                400,
                "no_document_encoder",
                f"this service has the query encoder of {self.name} and not its document encoder, and a document that "
                "the query encoder reads would never be found again. Write documents with care ingest, or start the "
                "service with --documents",
            )
        return self.document

    def close(self) -> None:
        """Answer the accepted requests, then close the encoders."""
        self.query.close()
        if self.document is not None:
            self.document.close()


class ServedModels:
    """All models of a service, by the names that clients use."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        """Take the models; the first is the default."""
        self._models = models
        for index, served in enumerate(models):
            if any(other.fingerprint == served.fingerprint for other in models[:index]):
                raise InputError(
                    f"the model {served.name}@{served.fingerprint[:12]} is given twice; give each --model once"
                )

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)

    @property
    def default(self) -> ServedModel:
        """The first model."""
        return self._models[0]

    def find(self, model: str) -> ServedModel:
        """Return the model that a client names."""
        name, at, prefix = model.rpartition("@")
        name, prefix = (name, prefix.lower()) if at else (model, "")
        if at and not _FINGERPRINT.fullmatch(prefix):
            raise Refusal(400, "invalid_model", f"{model!r}: after @ come 4 to 64 hexadecimal digits of a fingerprint")
        named = [served for served in self._models if served.name == name]
        matching = [served for served in named if served.fingerprint.startswith(prefix)]
        if len(matching) == 1:
            return matching[0]
        if len(matching) > 1:
            raise Refusal(400, "ambiguous_model", f"{model!r} names several models: {_listed(matching)}")
        if named:
            raise Refusal(
                400,
                "fingerprint_mismatch",
                f"{model!r} is not the model that is served under this name ({_listed(named)}): its vectors are "
                "of another space. Ask for the model that made the vectors of the collection, or serve that one",
            )
        raise Refusal(404, "unknown_model", f"model {model!r} is not served; served models: {_listed(self._models)}")


def check_texts(texts: Sequence[str], side: Side, limits: Limits) -> None:
    """Refuse blank texts, and texts and batches that would block an encoder for long."""
    if len(texts) > limits.batch_texts:
        raise Refusal(
            413, "batch_too_large", f"{len(texts)} texts in one request; at most {limits.batch_texts}: split it"
        )
    most = limits.query_characters if side == "query" else limits.document_characters
    for index, text in enumerate(texts):
        if len(text) > most:
            raise Refusal(
                400, "text_too_long", f"text {index} has {len(text)} characters; a {side} may have {most}: cut it"
            )
        if not _has_content(text):
            raise Refusal(400, "blank_text", f"text {index} is blank: it has no meaning to encode; leave it out")


def _has_content(text: str) -> bool:
    """Return whether a text has a visible character; ingestion also rejects rows without a token."""
    return any(unicodedata.category(character) not in _INVISIBLE for character in set(text))


def _listed(models: Sequence[ServedModel]) -> str:
    return ", ".join(f"{served.name}@{served.fingerprint[:12]}" for served in models)


async def check_answers(served: ServedModel, side: Side) -> None:
    """Check that a served encoder gives the reference vectors, and the same ones alone and in a batch."""
    card = served.model.card
    files = None if card is None else card.onnx if side == "query" else card.document_onnx
    references = files.references if files is not None else ()
    texts = [reference.text for reference in references] or list(served.model.probe_texts)
    alone = np.concatenate([await served.encode([text], side) for text in texts])
    # What a batch pads, and what an int8 encoder scales, depend on its longest and largest text.
    batch = (await served.encode([*texts, " ".join(texts * 4)], side))[: len(texts)]
    where = Path(f"{served.name}@{served.fingerprint[:12]}/{side}")
    if files is not None:
        least = min(files.least_cosine(file) for file in (files.fp32, files.int8) if file is not None)
        for vectors in (alone, batch):
            check_references(lambda _, vectors=vectors: vectors, references, where, least)  # type: ignore[misc]
    lowest = float(cosines(batch, alone).min())
    if not lowest >= LEAST_BATCHED:
        raise AlteredModel(
            f"{where}: the vector of a text depends on the other texts of its batch (cosine {lowest:.3f}, expected at "
            f"least {LEAST_BATCHED}): this encoder cannot be served in batches. Check it with: care model verify"
        )
