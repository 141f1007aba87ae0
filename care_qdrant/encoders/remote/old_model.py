"""The model that made a collection's vectors: a sentence-transformers folder, or a service."""

import os
import weakref
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from care_qdrant.encoders.remote.wire import embed, embeddings_client
from care_qdrant.encoders.usable import require_torch
from care_qdrant.errors import EncodingError, InputError, redact
from care_qdrant.forking import ForkLock
from care_qdrant.http_client import HTTPError
from care_qdrant.types import Vectors

TIMEOUT_SECONDS = 10.0
"""Longest wait for the service: a user waits for the hits, and another model can answer without this one."""


class OldModel(Protocol):
    """Makes vectors of queries and of documents, ``(texts, dim)`` float32."""

    def encode_query(self, texts: Sequence[str]) -> Vectors:
        """Encode texts as queries."""

    def encode_document(self, texts: Sequence[str]) -> Vectors:
        """Encode texts as documents."""


class ServiceModel:
    """A model behind OpenAI's protocol, which has no sides."""

    def __init__(self, url: str, model: str, api_key: str | None) -> None:
        self._client, self._model = embeddings_client(url, api_key, TIMEOUT_SECONDS), model
        weakref.finalize(self, self._client.close)

    def encode_query(self, texts: Sequence[str]) -> Vectors:
        """Encode texts by the service; raises `EncodingError` if it does not answer with vectors."""
        try:
            return embed(self._client, self._model, texts)
        except HTTPError as error:
            raise EncodingError(redact(f"{self._client.base_url}: {type(error).__name__}: {error}")) from error

    encode_document = encode_query


class FolderModel:
    """A sentence-transformers folder, with the prompts that it was saved with.

    Used by several threads, one at a time: sentence-transformers sets the padding of its tokenizer in each call. Texts
    are encoded one by one: in some models (FNet, convolutions) padding to a longer text changes a vector.
    """

    def __init__(self, folder: Path) -> None:
        from care_qdrant.encoders.local.torch import load_sentence_transformer

        model, self._lock = load_sentence_transformer(folder), ForkLock()
        self._encode_query = partial(model.encode_query, batch_size=1, show_progress_bar=False)
        self._encode_document = partial(model.encode_document, batch_size=1, show_progress_bar=False)

    def encode_query(self, texts: Sequence[str]) -> Vectors:
        """Encode texts with the prompt of queries."""
        with self._lock:
            return np.asarray(self._encode_query(list(texts)), dtype=np.float32)

    def encode_document(self, texts: Sequence[str]) -> Vectors:
        """Encode texts with the prompt of documents."""
        with self._lock:
            return np.asarray(self._encode_document(list(texts)), dtype=np.float32)


def require_old_model(where: str) -> None:
    """Refuse what `open_old_model` could not open; reads no weights, and asks no service.

    Raises:
        InputError: The folder does not exist, or no model is named.
        MissingExtra: The folder needs torch, which is not installed.
    """
    if where.startswith(("http://", "https://")):
        if not os.environ.get("CARE_ENDPOINT_MODEL"):
            raise InputError(f"{where}: name the model of this service in the environment: CARE_ENDPOINT_MODEL")
    elif not (Path(where) / "modules.json").is_file():
        raise InputError(f"{where}: no sentence-transformers folder and no URL of a service")
    else:
        require_torch()


def open_old_model(where: str, *, with_key: bool = True) -> OldModel:
    """Open a sentence-transformers folder, or the service at a URL, whose model is ``CARE_ENDPOINT_MODEL``.

    Args:
        where: The folder, or the URL.
        with_key: Whether the service gets the API key of ``CARE_ENDPOINT_KEY``.

    Raises:
        InputError: The folder does not exist, or no model is named.
    """
    require_old_model(where)
    if where.startswith(("http://", "https://")):
        key = os.environ.get("CARE_ENDPOINT_KEY") if with_key else None
        return ServiceModel(where, os.environ["CARE_ENDPOINT_MODEL"], key)
    return FolderModel(Path(where))
