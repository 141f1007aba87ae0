"""State that `CareEmbedding` objects of equal settings share in a process: weights, micro-batches, recent queries."""

import asyncio
import logging
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from care_qdrant import CareModel, Precision
from care_qdrant.encoders import MAX_CHARACTERS_PER_TOKEN, Encoder, TokenCounter
from care_qdrant.encoders.microbatch import MicroBatcher, Vector
from care_qdrant.encoders.terms.analyser import DEFAULT, Analyser
from care_qdrant.encoders.usable import require_texts
from care_qdrant.errors import IncompleteModel, InputError, MissingExtra, UnusableText
from care_qdrant.forking import ForkLock
from care_qdrant.model.card import CARD_FILE
from care_qdrant.model.care_model import require_saved_model
from care_qdrant.types import TermVector, Vectors

if TYPE_CHECKING:
    from care_qdrant.contracts.contract import VectorContract

OnTruncation = Literal["ignore", "warn", "error"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """The fields of a `CareEmbedding` that decide what a text is embedded to, and how queries are served."""

    model: str
    revision: str | None
    precision: Precision
    device: str | None
    fingerprint: str | None
    documents: bool
    query_prompt: str | None
    query_task: str | None
    document_prompt: str | None
    on_truncation: OnTruncation
    query_batch_size: int
    query_workers: int
    query_cache_size: int


class SharedModel:
    """Embeds queries and documents for every `CareEmbedding` of these settings; each encoder loads on first use.

    It pickles as its settings, so an embedding that is copied, pickled or sent to a worker process carries no weights
    and finds them again where it arrives.
    """

    def __init__(self, settings: ModelSettings) -> None:
        """Keep the settings; nothing is read yet. `shared_model` is the usual way."""
        self.settings = settings
        self._has_cut = False
        self._recent, self._recent_documents = (_RecentVectors(settings.query_cache_size) for _ in range(2))
        # `model` is free of references to this object: the worker of the batcher holds it.
        self._model = model = cache(lambda: open_model(settings))
        self._batcher = MicroBatcher(
            lambda texts: _encode_queries(model(), texts, settings),
            max_batch=settings.query_batch_size,
            workers=settings.query_workers,
        )

    def __reduce__(self) -> tuple[object, ...]:
        return shared_model, (self.settings,)

    def contract(self) -> "VectorContract":
        """Return the contract that a collection must carry for this model to search it."""
        return self._model().contract()

    def query_terms(self, text: str, analyser: Analyser = DEFAULT) -> TermVector:
        """Return a query's BM25 terms with the model's weights."""
        return self._model().query_terms(text, analyser)

    @property
    def alpha(self) -> float | None:
        """Share of the dense score that the model's card gives."""
        return self._model().alpha

    @property
    def document_tokenizer(self) -> TokenCounter:
        """Counts the tokens of documents."""
        return self._model().document_tokenizer

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a query, ``(dim,)``, computed in this thread if the encoder is idle."""
        return _as_list(self._query_vector(text))

    def encode_queries(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of queries, ``(len(texts), dim)``; recent ones come from the cache."""
        return self._as_rows([self._query_vector(text) for text in texts])

    def _as_rows(self, vectors: list[Vector]) -> Vectors:
        return np.asarray(vectors, dtype=np.float32).reshape(len(vectors), self.contract().dim)

    def _query_vector(self, text: str) -> Vector:
        vector = self._recent.get(text)
        if vector is None:
            vector = self._batcher.encode(text)
            self._recent.put(text, vector)
        return vector

    async def aembed_query(self, text: str) -> list[float]:
        """Return the vector of a query, computed in the worker together with waiting queries."""
        vector = self._recent.get(text)
        if vector is None:
            vector = await asyncio.wrap_future(self._batcher.submit(text))
            self._recent.put(text, vector)
        return _as_list(vector)

    def embed_documents(self, texts: Sequence[str]) -> list[list[float]]:
        """Return the vectors of documents, one row of ``dim`` numbers per text."""
        settings = self.settings
        if not settings.documents:
            raise InputError(f"documents=False: this CareEmbedding embeds queries only. {_INGEST_INSTEAD}")
        try:
            encoder = self._model().document_encoder
        except (MissingExtra, IncompleteModel) as error:
            raise type(error)(f"{error}. {_INGEST_INSTEAD}") from error
        # Strip as `embedded_text` does for the ingestion: a trailing line feed is a token to a language model.
        texts = [text.strip() for text in texts]
        require_texts(texts)
        # An index makes a call for every ten texts: only the first one warns.
        accepted: OnTruncation = (
            "ignore" if self._has_cut and settings.on_truncation == "warn" else settings.on_truncation
        )
        self._has_cut |= _check_lengths(encoder, texts, "document", settings.document_prompt, accepted)
        vectors = _encode_all(encoder, texts, settings.document_prompt)
        for text, row in zip(texts, vectors, strict=True):
            self._recent_documents.put(text, row.copy())
        return [_as_list(row) for row in vectors]

    def encode_documents(self, texts: Sequence[str]) -> Vectors:
        """Return the same as `embed_documents` in one array, ``(len(texts), dim)``; recent ones come from the cache."""
        vectors = {text: self._recent_documents.get(text.strip()) for text in texts}
        if missing := [text for text, vector in vectors.items() if vector is None]:
            rows = np.asarray(self.embed_documents(missing), dtype=np.float32)
            vectors |= dict(zip(missing, rows, strict=True))
        return self._as_rows([vector for text in texts if (vector := vectors[text]) is not None])


_INGEST_INSTEAD = (
    "Write documents with care-ingest, on a machine that has the document encoder: "
    "care-ingest corpus.jsonl; this process then searches what it wrote"
)

_models: "weakref.WeakValueDictionary[tuple[object, ...], CareModel]" = weakref.WeakValueDictionary()
_shared: "weakref.WeakValueDictionary[tuple[object, ...], SharedModel]" = weakref.WeakValueDictionary()
_lock = ForkLock()


def shared_model(settings: ModelSettings) -> SharedModel:
    """Return the shared model of these settings in this process; it lives as long as it is referred to."""
    key = (settings, _saved_at(settings.model))
    with _lock:
        shared = _shared.get(key)
        if shared is None:
            shared = _shared[key] = SharedModel(settings)
        return shared


def open_model(settings: ModelSettings) -> CareModel:
    """Open the model, or return the one that is open: different prompts share one set of weights."""
    where = (settings.model, settings.revision, settings.device, settings.precision)
    with _lock:
        key = (*where, _saved_at(settings.model))
        model = _models.get(key)
        if model is None:
            source, revision, device, precision = where
            model = CareModel.load(source, revision=revision, device=device, precision=precision)
            _models[key] = model
    require_saved_model(model, settings.fingerprint, f"{settings.model}: this CareEmbedding")
    return model


def _as_list(vector: Vector) -> list[float]:
    values: list[float] = vector.tolist()
    return values


def _saved_at(source: str) -> int | None:
    """Return the time of a local model's card, so that a model that is trained again in place is read again."""
    card = Path(source, CARD_FILE)
    return card.stat().st_mtime_ns if card.is_file() else None


def _encode_queries(model: CareModel, texts: Sequence[str], settings: ModelSettings) -> Vectors:
    encoder = model.query_encoder
    prompt = settings.query_prompt if settings.query_prompt is not None else model.query_prompt(settings.query_task)
    _check_lengths(encoder, texts, "query", prompt, settings.on_truncation)
    return encoder.encode(texts, prompt=prompt)


def _encode_all(encoder: Encoder, texts: Sequence[str], prompt: str | None) -> Vectors:
    """Return a vector for each text; a text without a token that the model weighs gets the first axis, with a warning.

    LlamaIndex's splitters embed blank lines and pages, as the stock classes do, and compare neighbours by cosine, which
    is NaN for a zero vector.
    """
    try:
        return encoder.encode(texts, prompt=prompt)
    except UnusableText as error:
        logger.warning("%s. It got a vector without meaning", error)
        vectors = np.zeros((len(texts), encoder.dim), dtype=np.float32)
        vectors[:, 0] = 1
        usable = [place for place in range(len(texts)) if place not in error.problems]
        if usable:
            vectors[usable] = _encode_all(encoder, [texts[place] for place in usable], prompt)
        return vectors


def _check_lengths(
    encoder: Encoder, texts: Sequence[str], role: str, prompt: str | None, on_truncation: OnTruncation
) -> bool:
    """Refuse texts that are cut, or warn of them; return whether a warning was logged."""
    doubtful = [text for text in texts if not _is_short((prompt or encoder.prompt) + text, encoder.max_tokens)]
    if on_truncation == "ignore" or not doubtful:
        return False
    # Counting the tokens of a text that is far too long would stop an event loop for seconds.
    endless = [text for text in doubtful if len(text) > MAX_CHARACTERS_PER_TOKEN * encoder.max_tokens]
    too_long = [f"{role} of {len(text):,} characters" for text in endless]
    other_prompt = 0
    if prompt is not None:
        with_prompt, with_own_prompt = encoder.count_tokens([prompt, encoder.prompt])
        other_prompt = with_prompt - with_own_prompt
    for count in encoder.count_tokens([text for text in doubtful if text not in endless]):
        if count + other_prompt > encoder.max_tokens:
            too_long.append(f"{role} of {count + other_prompt} tokens")
    if not too_long:
        return False
    others = f" and {len(too_long) - 1} more of {len(texts)} texts" if len(too_long) > 1 else ""
    verb = "are" if others else "is"
    cut = f"{too_long[0]}{others} {verb} cut at {encoder.max_tokens} tokens"
    parser = "transformations=[CareNodeParser(embedding=...)] makes chunks that fit; " if role == "document" else ""
    message = f"{cut} ({parser}on_truncation='ignore' accepts that silently)"
    if on_truncation == "error":
        raise InputError(message)
    logger.warning(message)
    return True


def _is_short(text: str, max_tokens: int) -> bool:
    """Return whether a text is within the limit for sure, which saves tokenising it twice: a third of our time.

    A token is at least one byte of normalised text, and normalisation makes at most four characters of a byte (but for
    one Arabic ligature, U+FDFA); a few tokens frame the text.
    """
    return 4 * len(text.encode(errors="replace")) + 8 <= max_tokens


class _RecentVectors:
    """The vectors of the last ``size`` different texts of one side; least recently used leave first."""

    # No lock, which a fork could copy in its locked state: a dictionary keeps its order, each single operation on it is
    # atomic, and the worst that a race can do is to compute a vector once more.

    def __init__(self, size: int) -> None:
        self._size = size
        self._vectors: dict[str, Vector] = {}

    def get(self, text: str) -> Vector | None:
        vector = self._vectors.pop(text, None)
        if vector is not None:
            self._vectors[text] = vector
        return vector

    def put(self, text: str, vector: Vector) -> None:
        if self._size == 0:
            return
        self._vectors[text] = vector
        while len(self._vectors) > self._size:
            for oldest in list(self._vectors)[:1]:
                self._vectors.pop(oldest, None)
