"""OpenAI's embeddings protocol as its many servers speak it: what is sent, what an answer holds, what is too much.

Servers differ in how many texts they take in a request (10, 25, 32, 64, 2,048), and in how they say that there were too
many: 400 (DashScope), 413 (SiliconFlow, text-embeddings-inference), 422 (text-embeddings-inference), 500 (llama.cpp, LM
Studio), each with its own message. So no message is read: a request with one of these answers is sent again in halves,
and it is the answer to a single text that counts as an error.
"""

import base64
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import numpy as np

from care_qdrant.errors import EncodingError, counted, redact, remember_secret
from care_qdrant.http_client import Client, Response
from care_qdrant.types import Vectors

PERHAPS_TOO_MUCH = frozenset(
    {
        HTTPStatus.BAD_REQUEST,
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        HTTPStatus.UNPROCESSABLE_ENTITY,
        HTTPStatus.INTERNAL_SERVER_ERROR,
    }
)
"""Status codes with which servers refuse a request that they would answer in parts."""
MOST_TEXTS = 64
"""Texts of the first request of `embed`."""


def embeddings_client(url: str, api_key: str | None, timeout_seconds: float) -> Client:
    """Return a client of a server; its API key is hidden from now on in all that is printed."""
    remember_secret(api_key)
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    return Client(base_url=url, headers=headers, timeout=timeout_seconds)


def request_body(model: str, inputs: Sequence[Any]) -> dict[str, Any]:
    """Return the body of a request for vectors of texts or of lists of token ids."""
    # No encoding_format: its default is the one that is read below, and some servers refuse the field.
    return {"model": model, "input": list(inputs)}


def read_vectors(answer: Response, count: int) -> Vectors:
    """Return the vectors of an answer in the order of the inputs, (count, width) float32.

    Rows may come in any order, or all without an index or with the same one, in the order of the texts; a vector may be
    a list of numbers, or base64.

    Raises:
        EncodingError: The answer is an error, or holds no such vectors; or a vector is not finite, or zero.
    """
    where = redact(str(answer.request.url))
    if not answer.is_success:
        raise EncodingError(redact(f"{where}: {answer.status_code}, {answer.text[:200]}"))
    try:
        data = answer.json()["data"]
        places = [row.get("index") for row in data]
        if len(data) == count and len(set(places)) > 1 and sorted(places) != list(range(count)):
            # Which text each vector belongs to is unknown.
            raise EncodingError(f"{where}: gave vectors of index {str(places)[:80]} for {counted(count, 'text')}")
        rows = sorted(data, key=lambda row: row.get("index") or 0)
        with np.errstate(over="ignore"):  # an infinite number is refused below
            vectors = np.asarray([_numbers(row["embedding"]) for row in rows], dtype=np.float32)
    except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
        said = redact(f"{answer.text[:200]!r}")
        raise EncodingError(f"{where}: the answer is not a list of embeddings ({error!r}): {said}") from error
    if vectors.ndim != 2 or len(vectors) != count:
        raise EncodingError(f"{where}: gave vectors of shape {vectors.shape} for {counted(count, 'text')}")
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
    if not (np.isfinite(lengths) & (lengths > 0)).all():
        raise EncodingError(f"{where}: gave a vector that is not finite or has no length")
    return vectors


def embed(client: Client, model: str, texts: Sequence[str]) -> Vectors:
    """Return the vectors of texts, in requests as large as the server takes: (texts, width) float32.

    Raises:
        EncodingError: The server refuses a single text, or gives no vectors.
        HTTPError: It does not answer.
    """
    parts: list[Vectors] = []
    at, most = 0, MOST_TEXTS
    while at < len(texts):
        part = texts[at : at + most]
        answer = client.post("embeddings", json=request_body(model, part))
        if answer.status_code in PERHAPS_TOO_MUCH and len(part) > 1:
            most = len(part) // 2
            continue
        vectors = read_vectors(answer, len(part))
        if parts and parts[0].shape[1] != vectors.shape[1]:
            raise EncodingError(
                f"{redact(str(client.base_url))}: gave vectors of {parts[0].shape[1]} and then of {vectors.shape[1]} "
                "dimensions"
            )
        parts.append(vectors)
        at += len(part)
    return np.concatenate(parts) if parts else np.empty((0, 0), dtype=np.float32)


def _numbers(embedding: Any) -> Any:
    return np.frombuffer(base64.b64decode(embedding), "<f4") if isinstance(embedding, str) else embedding
