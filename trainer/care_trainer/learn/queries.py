"""A file of real questions: with the old model's vectors to compare with it and to learn from, or with judgements."""

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
class Labelled:
    """Questions whose relevant documents are known; nothing is trained on them."""

    texts: list[str]
    relevant: list[list[str]]
    """Of each question, ids of points or of documents."""
    vectors: Vectors | None
    """The old model's vectors, unit rows, (questions, dim); None where the questions have none."""


@dataclass(frozen=True, slots=True)
class QueryFile:
    """Everything that a file of questions holds."""

    log: Questions | None
    """Questions without known documents; None where there are none."""
    labelled: Labelled | None
    """Questions with known documents; None where there are none."""


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


def read_queries(path: Path, dim: int, embed: Embed | None = None) -> QueryFile:
    """Read JSON lines with a ``text`` and a ``vector``, a list of ``relevant`` ids, or both.

    A line without ``relevant`` needs a vector; it is left out where a labelled question has the same text, since it may
    be trained on. Texts without letters and digits are left out.
    """
    found = [
        row
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if any(map(str.isalnum, (row := _read_line(line, f"{path}:{number}", dim, is_encoded=embed is not None)).text))
    ]
    if not found:
        raise InputError(f"{path}: holds no questions")
    labelled = [row for row in found if row.relevant]
    judged = {row.text for row in labelled}
    log = [row for row in found if not row.relevant and row.text not in judged]
    encoded = [*log, *(labelled if embed is not None or all(row.vector for row in labelled) else [])]
    if embed is not None:
        vectors = embed([row.text for row in encoded])
    else:
        vectors = np.array([row.vector for row in encoded], dtype=np.float32).reshape(len(encoded), dim)
    vectors = _unit_rows(vectors, dim, path)
    texts, relevant = [row.text for row in labelled], [row.relevant for row in labelled]
    old_model = vectors[len(log) :] if len(encoded) > len(log) else None
    return QueryFile(
        log=Questions([row.text for row in log], vectors[: len(log)]) if log else None,
        labelled=Labelled(texts, relevant, old_model) if labelled else None,
    )


@dataclass(frozen=True, slots=True)
class _Line:
    """One question of a file."""

    text: str
    vector: list[float] | None
    relevant: list[str]
    """Ids; empty where the line has none."""


def _read_line(line: str, where: str, dim: int, *, is_encoded: bool) -> _Line:
    """Return the question of a line."""
    try:
        row = json.loads(line)
        text, vector, relevant = str(row["text"]), row.get("vector"), row.get("relevant")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f'{where}: expected {{"text": …, "vector": […]}} or {{"text": …, "relevant": […]}}, found {line[:60]!r}'
        ) from error
    if relevant is not None and not (
        isinstance(relevant, list) and relevant and all(isinstance(one, str | int) for one in relevant)
    ):
        raise InputError(
            f"{where}: expected 'relevant' to be a list of ids of points or documents, found {str(relevant)[:60]!r}; "
            "leave the field out where no relevant document is known"
        )
    if not is_encoded and (vector is not None or relevant is None) and not _is_vector(vector, dim):
        found = f"{len(vector)} values" if isinstance(vector, list) else "none"
        raise InputError(
            f"{where}: expected a vector of {dim} numbers, found {found}; "
            "name what encodes the texts: --query-model or --query-endpoint"
        )
    return _Line(text, vector, [str(one) for one in relevant or []])


def _is_vector(vector: object, dim: int) -> bool:
    return isinstance(vector, list) and len(vector) == dim and all(isinstance(number, int | float) for number in vector)


def _unit_rows(vectors: Vectors, dim: int, path: Path) -> Vectors:
    """Return query vectors of unit length, (questions, dim)."""
    if vectors.shape[1:] != (dim,):
        raise InputError(
            f"the query vectors have {vectors.shape[-1]} dimensions and the stored ones {dim}: "
            "the questions have to be encoded by the model that made the stored vectors"
        )
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not (np.isfinite(norms) & (norms > 0)).all():
        raise InputError(f"{path}: a query vector is zero or not finite")
    return np.asarray(vectors / norms, dtype=np.float32)


def embed_with_model(source: str) -> Embed:
    """Return the query side of a CARE folder or of any sentence-transformers model."""
    from care_qdrant.model.pair import CareModel

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
