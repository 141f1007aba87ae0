"""The document encoder of a pair behind an OpenAI-compatible embeddings server (vLLM, TEI), checked before it is used.

A server can be wrong without an error: another checkpoint, another pooling, a missing end marker. It therefore receives
token ids of the pair's own tokenizer, and before the first document its vectors of a few texts are compared with the
reference vectors that the pair itself made (``care-bench reference-vectors``). A server without token ids (Ollama)
receives the texts, cut to the pair's length; the reference vectors then also check its tokenizer.
"""

import json
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal

import httpx
import numpy as np
from pydantic import TypeAdapter, ValidationError
from tokenizers import Encoding, Tokenizer

from care_qdrant.encoders.batching import token_batches
from care_qdrant.errors import EncodingError, InputError, ModelError, Unreachable, redact, remember_secret
from care_qdrant.model.pair import CareModel
from care_qdrant.qdrant.retry import RetryPolicy
from care_qdrant.types import Vectors

logger = logging.getLogger(__name__)

Sent = Literal["tokens", "text", "text-without-prompt"]
"""Input format: token ids; prompt and text; or the text alone, for a server that adds its own prompt."""

BATCH_TOKENS = 16_384
REQUEST_TIMEOUT_SECONDS = 120.0
LEAST_COSINE = 0.999
"""Cosine between reference and server vectors: bfloat16 kernels stay above it, another model does not."""
REFERENCE_TEXTS = (
    "高血压患者饮食上要注意什么？",
    "二甲双胍的常见不良反应是恶心和腹泻，饭后服用可以减轻。",
    "糖化血红蛋白 HbA1c 6.5% 说明近两三个月的血糖偏高，需要复查并咨询内分泌科医生。",
    "EGFR",
)
_PASSING_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class ReferenceVectors:
    """Vectors of known texts, made by the pair itself."""

    fingerprint: str
    texts: list[str]
    vectors: list[list[float]]

    def save(self, path: Path) -> None:
        """Write a JSON file."""
        path.write_bytes(_REFERENCE.dump_json(self, indent=1) + b"\n")


_REFERENCE = TypeAdapter(ReferenceVectors)


class RemoteEncoder:
    """A document encoder on a server. Its vectors are cut to the pair's dimension, then normalised."""

    def __init__(
        self,
        client: httpx.Client,
        model: str,
        tokenizer: Tokenizer,
        *,
        dim: int,
        max_tokens: int,
        prompt: str = "",
        sent: Sent = "tokens",
        batch_tokens: int = BATCH_TOKENS,
        retries: RetryPolicy | None = None,
    ) -> None:
        """Store an open connection; nothing is sent yet.

        Args:
            client: HTTP client whose base URL has the route ``embeddings``, as ``http://localhost:8000/v1``.
            model: Name of the model on the server.
            tokenizer: The pair's own tokenizer, without truncation and padding.
            dim: Dimension of the pair; the server may return longer vectors (Matryoshka).
            max_tokens: Maximal input length, special tokens and prompt included; the rest is cut off.
            prompt: Prepended to each text.
            sent: Input format.
            batch_tokens: Tokens per request.
            retries: Number and delays of the attempts.
        """
        self.dim, self.max_tokens, self.prompt = dim, max_tokens, prompt
        self._client, self._model, self._tokenizer = client, model, tokenizer
        self._sent, self._batch_tokens, self._retries = sent, batch_tokens, retries or RetryPolicy(attempts=12)
        # A tokenizer's truncation leaves room for the markers that it appends: a long text keeps its last one.
        self._cutter = Tokenizer.from_str(tokenizer.to_str())
        self._cutter.enable_truncation(max_tokens)

    def encode(self, texts: Sequence[str], *, prompt: str | None = None) -> Vectors:
        """Encode texts.

        Returns:
            Unit vectors in the order of the texts, float32 of shape (len(texts), dim).

        Raises:
            Unreachable: All attempts failed.
            EncodingError: The server refused the request, or returned unusable vectors.
        """
        prompt = self.prompt if prompt is None else prompt
        encodings = self._cutter.encode_batch([prompt + text for text in texts])
        vectors = np.empty((len(texts), self.dim), dtype=np.float32)
        for batch in token_batches([len(encoding.ids) for encoding in encodings], self._batch_tokens):
            vectors[batch] = self._embed([self._input(prompt, texts[index], encodings[index]) for index in batch])
        return vectors

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return the uncut length of each text in tokens, special tokens and prompt included."""
        return [len(self._tokenizer.encode(self.prompt + text).ids) for text in texts]

    def _input(self, prompt: str, text: str, encoding: Encoding) -> list[int] | str:
        """Return the input of one text in the format of the server."""
        if self._sent == "tokens":
            return list(encoding.ids)
        end = max(end for _, end in encoding.offsets) if encoding.overflowing else None
        return (prompt + text)[len(prompt) if self._sent == "text-without-prompt" else 0 : end]

    def _embed(self, inputs: Sequence[list[int] | str]) -> Vectors:
        """Send one batch, or its halves if the server refuses it as too large."""
        answer = self._post({"model": self._model, "input": inputs, "encoding_format": "float"})
        if answer.status_code == 413 and len(inputs) > 1:
            half = len(inputs) // 2
            return np.concatenate([self._embed(inputs[:half]), self._embed(inputs[half:])])
        if answer.is_error:
            raise EncodingError(f"{answer.url}: {answer.status_code}, {answer.text[:200]}")
        return self._vectors(answer.json(), len(inputs))

    def _post(self, body: dict[str, Any]) -> httpx.Response:
        start = time.monotonic()
        for attempt in count(1):
            try:
                answer = self._client.post("embeddings", json=body)
            except httpx.TransportError as error:
                problem, at_least = f"{type(error).__name__}: {error}", 0.0
            else:
                if answer.status_code not in _PASSING_STATUS:
                    return answer
                problem, at_least = f"{answer.status_code}", _seconds(answer.headers.get("Retry-After", "0"))
            if self._retries.is_over(attempt, time.monotonic() - start):
                break
            logger.warning("%s: attempt %d failed (%s)", redact(str(self._client.base_url)), attempt, problem)
            time.sleep(max(self._retries.delay(attempt - 1), at_least))
        raise Unreachable(f"{self._client.base_url}: gave up after {attempt} attempts ({problem})")

    def _vectors(self, body: Any, count: int) -> Vectors:
        """Parse the answer, whose rows may have any order."""
        try:
            rows = sorted(body["data"], key=lambda row: row["index"])
            raw = np.asarray([row["embedding"] for row in rows], dtype=np.float32)
        except (KeyError, TypeError, ValueError) as error:
            raise EncodingError(f"{self._client.base_url}: the answer is no list of embeddings ({error})") from error
        if raw.ndim != 2 or len(raw) != count or raw.shape[1] < self.dim:
            raise EncodingError(
                f"{self._client.base_url}: gave vectors of shape {raw.shape}; expected ({count}, {self.dim} or more)"
            )
        lengths = np.linalg.norm(raw[:, : self.dim], axis=1, keepdims=True)
        if not np.isfinite(lengths).all() or (lengths == 0).any():
            raise EncodingError(f"{self._client.base_url}: gave a vector that is not finite or has no length")
        return np.asarray(raw[:, : self.dim] / lengths, dtype=np.float32)


def make_reference(model: CareModel, texts: Sequence[str] = REFERENCE_TEXTS) -> ReferenceVectors:
    """Encode known texts with the pair's own document encoder."""
    return ReferenceVectors(model.fingerprint, list(texts), model.encode_document(texts).tolist())


def load_reference(path: Path) -> ReferenceVectors:
    """Read reference vectors.

    Raises:
        InputError: The file is missing or holds something else.
    """
    try:
        return _REFERENCE.validate_json(path.read_bytes())
    except (OSError, ValidationError, json.JSONDecodeError) as error:
        raise InputError(
            f"{path}: holds no reference vectors; make them with care-bench reference-vectors ({error})"
        ) from error


def check_reference(encoder: RemoteEncoder, model: CareModel, reference: ReferenceVectors) -> float:
    """Compare a server with reference vectors, and return the smallest cosine.

    Raises:
        ModelError: The reference vectors or those of the server belong to another pair.
    """
    if reference.fingerprint != model.fingerprint:
        raise ModelError(
            f"the reference vectors are of {reference.fingerprint[:12]}, the model is {model.fingerprint[:12]}; "
            "make them again with care-bench reference-vectors"
        )
    cosines = (encoder.encode(reference.texts) * np.asarray(reference.vectors, dtype=np.float32)).sum(axis=1)
    worst = int(cosines.argmin())
    if cosines[worst] < LEAST_COSINE:
        raise ModelError(
            f"the server's vector of {reference.texts[worst]!r} has a cosine of {cosines[worst]:.4f} to the reference, "
            f"expected {LEAST_COSINE} or more: it serves other weights, pools otherwise, or changes the tokens"
        )
    return float(cosines[worst])


@contextmanager
def served_documents(
    model: CareModel,
    tokenizer_file: Path,
    url: str,
    name: str,
    reference: ReferenceVectors,
    *,
    sent: Sent = "tokens",
    batch_tokens: int = BATCH_TOKENS,
    api_key: str | None = None,
) -> Iterator[CareModel]:
    """Yield the pair with its documents encoded by a server that has passed the reference check.

    Args:
        model: The pair; its own document encoder is not loaded.
        tokenizer_file: Tokenizer of its document encoder.
        url: Base URL, as ``http://localhost:8000/v1``.
        name: Name of the model on the server.
        reference: Vectors that the server must reproduce.
        sent: Input format.
        batch_tokens: Tokens per request.
        api_key: Bearer token.

    Raises:
        InputError: The model is not a pair.
        ModelError: The server returns other vectors.
    """
    if model.card is None:
        raise InputError(f"{model.name}: only a pair can have its documents encoded by a server")
    remember_secret(api_key)
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    with httpx.Client(base_url=url, headers=headers, timeout=REQUEST_TIMEOUT_SECONDS) as client:
        tokenizer = Tokenizer.from_file(str(tokenizer_file))
        tokenizer.no_padding()
        tokenizer.no_truncation()
        side = model.card.document
        encoder = RemoteEncoder(
            client,
            name,
            tokenizer,
            dim=model.dim,
            max_tokens=side.max_tokens,
            prompt=side.prompt,
            sent=sent,
            batch_tokens=batch_tokens,
        )
        logger.info(
            "%s: reference vectors agree, smallest cosine %.5f", redact(url), check_reference(encoder, model, reference)
        )
        yield CareModel(
            name=model.name,
            dim=model.dim,
            fingerprint=model.fingerprint,
            temperature=model.temperature,
            load_query_encoder=lambda: model.query_encoder,
            load_document_encoder=lambda: encoder,
            card=model.card,
        )


def _seconds(value: str) -> float:
    return float(value) if value.replace(".", "", 1).isdigit() else 0.0
