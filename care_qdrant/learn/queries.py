"""Questions with the vectors that the old model gives them: to compare with it, and to learn from as well."""

import json
import os
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from care_qdrant.errors import EncodingError, InputError
from care_qdrant.types import Vectors

Embed = Callable[[Sequence[str]], Vectors]
_BATCH = 64
_TIMEOUT_SECONDS = 60
KEY_VARIABLE = "CARE_LEARN_API_KEY"
"""Environment variable with the key of an embedding endpoint."""


@dataclass(frozen=True, slots=True)
class Questions:
    """A query log with the old model's query vectors."""

    texts: list[str]
    vectors: Vectors
    """Unit rows, (questions, dim)."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An OpenAI-compatible embedding service, and what it may cost."""

    url: str
    """Of its embeddings route, as https://host/v1/embeddings."""
    model: str
    usd_per_million_tokens: float
    max_usd: float


class SpendingCap(InputError):
    """The next request to an embedding service could cost more than allowed."""


def read_questions(path: Path, dim: int, embed: Embed | None = None) -> Questions:
    """Read JSON lines with a ``text`` and a ``vector``; without vectors ``embed`` makes them.

    Args:
        path: Of the file.
        dim: Of the collection's vector.
        embed: The old model's query side; None where the file holds the vectors.

    Raises:
        InputError: A line is not JSON, has no text, or its vector is missing or of another dimension.
    """
    texts: list[str] = []
    vectors: list[Any] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
            text, vector = str(row["text"]), row.get("vector")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f'{path}:{number}: expected {{"text": …, "vector": […]}}, found {line[:60]!r}') from error
        if embed is None and (not isinstance(vector, list) or len(vector) != dim):
            found = f"{len(vector)} numbers" if isinstance(vector, list) else "none"
            raise InputError(
                f"{path}:{number}: expected a vector of {dim} numbers, found {found}; "
                "name what encodes the texts: --query-model or --query-endpoint"
            )
        if text.strip():
            texts.append(text)
            vectors.append(vector)
    if not texts:
        raise InputError(f"{path}: holds no questions")
    found_vectors = np.array(vectors, dtype=np.float32) if embed is None else embed(texts)
    if found_vectors.shape != (len(texts), dim):
        raise InputError(
            f"the query vectors have {found_vectors.shape[-1]} dimensions and the stored ones {dim}: "
            "the questions have to be encoded by the model that made the stored vectors"
        )
    norms = np.linalg.norm(found_vectors, axis=1, keepdims=True)
    if not (np.isfinite(norms) & (norms > 0)).all():
        raise InputError(f"{path}: a query vector is zero or not finite")
    return Questions(texts, found_vectors / norms)


def embed_with_model(source: str) -> Embed:
    """Return the query side of a CARE folder or of any sentence-transformers model."""
    from care_qdrant.model import CareModel

    return CareModel.load(source).encode_query


def embed_with_endpoint(endpoint: Endpoint) -> Embed:
    """Return an embedding service as a function; it stops before a request that could pass the spending cap.

    A token is at least one byte of UTF-8, so the bytes of a request are an upper bound of what it may cost; what was
    spent is counted by the tokens that the service reports, and by the bytes where it reports none.
    """
    price = endpoint.usd_per_million_tokens / 1e6

    def embed(texts: Sequence[str]) -> Vectors:
        rows: list[list[float]] = []
        spent = 0.0
        for batch in _batches(texts):
            bound = price * sum(len(text.encode()) for text in batch)
            if spent + bound > endpoint.max_usd:
                raise SpendingCap(
                    f"{endpoint.url}: {len(rows):,} of {len(texts):,} questions cost {spent:.4f} USD; the next "
                    f"{len(batch)} may cost {bound:.4f} more, above the cap of {endpoint.max_usd} USD"
                )
            answer = _ask(endpoint, batch)
            tokens = (answer.get("usage") or {}).get("total_tokens")
            spent += price * tokens if isinstance(tokens, int) else bound
            rows += [item["embedding"] for item in sorted(answer["data"], key=lambda item: item["index"])]
        return np.array(rows, dtype=np.float32)

    return embed


def _ask(endpoint: Endpoint, texts: Sequence[str]) -> dict[str, Any]:
    body = json.dumps({"model": endpoint.model, "input": list(texts), "encoding_format": "float"}).encode()
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get(KEY_VARIABLE):
        headers["Authorization"] = f"Bearer {key}"
    request = urllib.request.Request(endpoint.url, body, headers)
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as response:
            answer = json.load(response)
        if len(answer["data"]) != len(texts):
            raise ValueError(f"{len(answer['data'])} vectors for {len(texts)} texts")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EncodingError(f"{endpoint.url}: gave no embeddings ({error}); nothing was learned") from error
    return dict(answer)


def _batches(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    return (texts[start : start + _BATCH] for start in range(0, len(texts), _BATCH))
