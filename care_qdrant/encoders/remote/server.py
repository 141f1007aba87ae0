"""The document encoder on OpenAI-compatible embeddings servers (vLLM, TEI, infinity), checked in every request.

A server can be wrong without an error: another checkpoint, another pooling, a missing end marker. It therefore receives
token ids of the model's own tokenizer, and its vectors of a few known texts are compared with reference vectors by the
model itself: all of them before the first document, then one in every request. So a server that is restarted with
other weights is refused with the request that shows it: nothing of it was written since the last good check, its texts
are sent to another server, and it is asked again later. A server without token ids (Ollama) receives the texts, cut to
the model's length; the reference vectors then also check its tokenizer.
"""

import logging
import math
import random
import sys
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any

import numpy as np
from tokenizers import Encoding, Tokenizer

from care_qdrant.encoders.agreement import LEAST_HALF_PRECISION, projections
from care_qdrant.encoders.ahead import Meter, run_ahead
from care_qdrant.encoders.batching import token_batches, tokenised
from care_qdrant.encoders.engine import Engine
from care_qdrant.encoders.references import Reference
from care_qdrant.encoders.remote.wire import PERHAPS_TOO_MUCH, embeddings_client, read_vectors, request_body
from care_qdrant.encoders.side import Geometry, Side
from care_qdrant.encoders.usable import as_encoded, encodable
from care_qdrant.errors import EncodingError, ModelError, Unreachable, counted, redact
from care_qdrant.http_client import Client, Response, TransportError
from care_qdrant.patience import START_PATIENCE_SECONDS
from care_qdrant.types import Vectors

logger = logging.getLogger(__name__)

REQUEST_TIMEOUT_SECONDS = 120.0
MOST_REQUESTS = 16
"""Most requests to one endpoint at a time; fewer where its answers take longer for it, or where it answers 429."""
_ADVICE = ". None of its vectors was written; start it with the model's own weights, and run the same command again"
_PASSING_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
_COUNTS_TEXTS = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)
"""Status codes with which a server that answers the halves of a request has refused the number of its texts: later
requests have no more. 413 may be for the bytes."""
_FAILURES_BEFORE_HALVES = 2
"""Times that a request gets the answer 500, which may pass, before it is sent in halves."""
_UNUSABLE_ANSWERS = 3
"""Unusable answers after which a batch fails."""
_SLOWER = 2.0
"""Time per token, as a multiple of the shortest one, from which on an endpoint gets fewer requests at a time."""
FIRST_DELAY_SECONDS, LONGEST_DELAY_SECONDS = 0.5, 20.0
"""Pause after the first failure of an endpoint, which doubles with each more, and the longest one."""
PROBATION_SECONDS = 60.0
"""Pause of an endpoint that gave other vectors, before it is asked again; the others continue meanwhile."""


class ServerEncoder:
    """A document encoder on one or several servers; each request goes to a free one.

    Used by several threads: tokenizers do not change after ``__init__``, httpx clients are made for threads, and what
    is known of an endpoint changes under the lock of `_Endpoints`. The most texts of a request and the lowest cosine
    only ever go down, so a race costs one request more.
    """

    def __init__(
        self,
        engine: Engine,
        model: str,
        tokenizer: Tokenizer,
        side: Side,
        references: Sequence[Reference],
        *,
        dim: int,
        geometry: Geometry = "unit",
    ) -> None:
        """Open the connections; no request is sent yet.

        Args:
            engine: The servers, what they get, and how long they may be silent.
            model: Name of the model on the servers, unless the engine has one.
            tokenizer: Tokenizer of the model.
            side: How the model reads a text.
            references: Vectors that the servers have to give; without them nothing is checked.
            dim: Length of a vector; what a server gives beyond it is cut off.
            geometry: Whether vectors have length 1 after they were cut, or before.
        """
        self.dim, self.max_tokens, self.prompt = dim, side.max_tokens, side.prompt
        self.calls, self.meter = MOST_REQUESTS * len(engine.endpoints), Meter()
        self._lowest_cosine, self._most_texts = 1.0, sys.maxsize
        self._model, self._geometry = engine.served_model or model, geometry
        self._references, self._expected = references, [reference.numbers for reference in references]
        self._sent, self._batch_tokens = engine.sent, engine.request_tokens
        clients = [embeddings_client(url, engine.api_key, REQUEST_TIMEOUT_SECONDS) for url in engine.endpoints]
        self._endpoints = _Endpoints(clients, engine.patience_seconds)
        self.close = weakref.finalize(self, _close, clients)
        """Closes the connections; called at the latest when the encoder is not used any more."""
        self._tokenizer = Tokenizer.from_str(tokenizer.to_str())
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        # A tokenizer's truncation leaves room for the markers that it appends: a long text keeps its last one.
        self._cutter = Tokenizer.from_str(self._tokenizer.to_str())
        self._cutter.enable_truncation(side.max_tokens)
        self._markers = side.special_tokens

    def encode(self, texts: Sequence[str], *, prompt: str | None = None) -> Vectors:
        """Encode texts into unit vectors, in order: ``(len(texts), dim)`` float32. None is the model's own prompt."""
        texts = encodable(texts)
        prompt = self.prompt if prompt is None else prompt
        encodings = tokenised(texts, lambda text: self._cut(prompt + text))
        vectors = np.empty((len(texts), self.dim), dtype=np.float32)

        def run(batch: list[int]) -> Vectors:
            inputs = [self._input(prompt, texts[index], encodings[index]) for index in batch]
            with self.meter.running([len(encodings[index].ids) for index in batch]):
                return self._embed(inputs, sum(len(encodings[index].ids) for index in batch))[0]

        batches = list(token_batches([len(encoding.ids) for encoding in encodings], self._batch_tokens))
        for batch, rows in run_ahead(batches, run, lambda: min(len(batches), self.calls)):
            vectors[batch] = rows
        return vectors

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return the uncut length of each text in tokens, special tokens and prompt included."""
        encode = partial(self._tokenizer.encode, add_special_tokens=self._markers)
        return tokenised(as_encoded(texts), lambda text: len(encode(self.prompt + text).ids))

    def check(self) -> float:
        """Compare a server with all reference vectors, and return the smallest cosine.

        It also sends a text several times in a request: text-embeddings-inference 1.9.3 without flash-attention gives a
        Qwen3 no causal mask where a batch needs no padding (its issue 882), and lengths that differ would not show it.
        """
        texts = [reference.text for reference in self._references]
        every = range(len(texts))
        longest = sorted(every, key=lambda number: len(texts[number]))[-1:]
        return min(self._embed([], 0, asked)[1] for asked in (every, longest * len(texts)))

    def report(self) -> dict[str, Any]:
        """Return what each endpoint did, and the lowest cosine of a vector that was used with its reference.

        ``refused_texts`` were in answers that a wrong reference vector refused; all of them were sent again.
        """
        endpoints = [
            {
                "url": endpoint.name,
                **{key: round(value, 3) for key, value in endpoint.usage.items()},
                "refused": endpoint.refused or None,
            }
            for endpoint in self._endpoints.all
        ]
        return {"engine": "server", "lowest_cosine": round(self._lowest_cosine, 5), "endpoints": endpoints}

    def _cut(self, text: str) -> Encoding:
        return self._cutter.encode(text, add_special_tokens=self._markers)

    def _input(self, prompt: str, text: str, encoding: Encoding) -> list[int] | str:
        """Return the input of one text in the format of the server."""
        if self._sent == "tokens":
            return list(encoding.ids)
        end = max(end for _, end in encoding.offsets) if encoding.overflowing else None
        return (prompt + text)[len(prompt) if self._sent == "text-without-prompt" else 0 : end]

    def _reference_input(self, number: int) -> list[int] | str:
        text = self._references[number].text
        return self._input(self.prompt, text, self._cut(self.prompt + text))

    def _embed(
        self, inputs: list[list[int] | str], tokens: int, references: Sequence[int] | None = None
    ) -> tuple[Vectors, float]:
        """Return the vectors of one batch, and the least cosine of the reference texts that went with it."""
        if references is None:
            references = [random.randrange(len(self._references))] if self._references else []
        if len(inputs) + len(references) > self._most_texts:
            return self._embed_halves(inputs, tokens, references)
        sent = [*inputs, *map(self._reference_input, references)]
        body = request_body(self._model, sent)
        unusable = 0
        while sent:
            endpoint, answer = self._endpoints.post(body, len(inputs), tokens)
            if answer.status_code in PERHAPS_TOO_MUCH and len(sent) > 1:
                halves = self._embed_halves(inputs, tokens, references)
                if answer.status_code in _COUNTS_TEXTS:  # the halves were few enough
                    halved = -(-len(inputs) // 2) + len(references) if len(inputs) > 1 else -(-len(sent) // 2)
                    self._most_texts = min(self._most_texts, halved)
                return halves
            try:
                rows = self._vectors(answer, len(sent), endpoint.name)
            except EncodingError as error:
                if not answer.is_success:
                    raise
                unusable += 1
                self._endpoints.note_unusable(endpoint)
                if unusable == _UNUSABLE_ANSWERS:
                    raise
                logger.warning("%s; it is asked again", error)
                continue
            known = list(zip(rows[len(inputs) :], references, strict=True))
            if all(self._agrees(endpoint, row, number, len(inputs)) for row, number in known):
                self._endpoints.trust(endpoint)
                lowest = min((self._cosine(row, number) for row, number in known), default=1.0)
                self._lowest_cosine = min(self._lowest_cosine, lowest)
                return rows[: len(inputs)], lowest
        return np.empty((0, self.dim), dtype=np.float32), 1.0

    def _embed_halves(
        self, inputs: list[list[int] | str], tokens: int, references: Sequence[int]
    ) -> tuple[Vectors, float]:
        """Send a request in two; reference texts go with the texts while there are two of these, else by themselves."""
        half, middle = len(inputs) // 2, len(references) // 2
        if len(inputs) > 1:
            parts = [self._embed(part, tokens // 2) for part in (inputs[:half], inputs[half:])]
        elif inputs:
            parts = [self._embed([], 0, references), self._embed(inputs, tokens, [])]
        else:
            parts = [self._embed([], 0, part) for part in (references[:middle], references[middle:])]
        return np.concatenate([rows for rows, _ in parts]), min(cosine for _, cosine in parts)

    def _cosine(self, row: Vectors, number: int) -> float:
        """Return the cosine of a vector with a reference; for vectors that were cut, the length counts as well."""
        return float(projections(row[None], self._expected[number][None])[0])

    def _agrees(self, endpoint: "_Endpoint", row: Vectors, number: int, texts: int) -> bool:
        """Return whether a server gave a reference vector; one that did not is paused."""
        cosine = self._cosine(row, number)
        if abs(1 - cosine) <= 1 - LEAST_HALF_PRECISION:
            return True
        self._endpoints.refuse(
            endpoint,
            f"{endpoint.name}: the server's vector of {self._references[number].text!r} has a cosine of {cosine:.4f} "
            f"to the reference, expected {LEAST_HALF_PRECISION} or more: it serves other weights, pools differently, "
            "or changes the tokens",
            texts,
        )
        return False

    def _vectors(self, answer: Response, count: int, name: str) -> Vectors:
        """Return the unit vectors of an answer, (count, dim), or raise if it holds none."""
        raw = read_vectors(answer, count)
        if raw.shape[1] < self.dim:
            raise EncodingError(f"{name}: gave vectors of shape {raw.shape}; expected ({count}, {self.dim} or more)")
        lengths = np.linalg.norm(raw if self._geometry == "cut" else raw[:, : self.dim], axis=1, keepdims=True)
        if not np.isfinite(lengths).all() or (lengths == 0).any():
            raise EncodingError(f"{name}: gave a vector whose first {self.dim} numbers have no length")
        return np.asarray(raw[:, : self.dim] / lengths, dtype=np.float32)


@dataclass(eq=False)
class _Endpoint:
    """One server: what it is doing, and how much it takes."""

    client: Client
    running: int = 0
    limit: float = 1.0
    """Requests at a time."""
    failures: int = 0
    """Failures since the last answer."""
    resumes_at: float = 0.0
    shortest: float = float("inf")
    """Seconds per token."""
    refused: str = ""
    """Reason why it is paused; empty while it is used."""
    usage: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def name(self) -> str:
        return redact(str(self.client.base_url))


class _Endpoints:
    """Chooses a server for each request; additive increase and multiplicative decrease of requests at a time."""

    def __init__(self, clients: Sequence[Client], patience_seconds: float) -> None:
        self.all = [_Endpoint(client) for client in clients]
        self._patience_seconds = patience_seconds
        self._start_seconds, self._has_answered = min(START_PATIENCE_SECONDS, patience_seconds), False
        self._condition = threading.Condition()
        self._failing_since: float | None = None
        self._problem = ""

    def post(self, body: dict[str, Any], texts: int, tokens: int) -> tuple[_Endpoint, Response]:
        """Send a request until a server answers it, and return that server and its answer."""
        internal_errors = 0
        while True:
            endpoint, start = self._acquire(), time.monotonic()
            answer, least_delay = None, 0.0
            try:
                answer = endpoint.client.post("embeddings", json=body)
                problem = f"{answer.status_code}" if answer.status_code in _PASSING_STATUS else ""
                least_delay = _seconds(answer.headers.get("Retry-After", "0"))
            except TransportError as error:
                problem = f"{type(error).__name__}: {error}"
            finally:
                with self._condition:
                    endpoint.running -= 1
                    self._condition.notify_all()
            seconds = time.monotonic() - start
            with self._condition:
                if answer is not None and not problem:
                    for count, value in (("requests", 1), ("texts", texts), ("tokens", tokens), ("seconds", seconds)):
                        endpoint.usage[count] += value
                    self._succeeded(endpoint, seconds / max(tokens, 1))
                    return endpoint, answer
                self._failed(endpoint, problem, start, least_delay)
            if answer is not None and answer.status_code == HTTPStatus.INTERNAL_SERVER_ERROR:
                internal_errors += 1
                if internal_errors == _FAILURES_BEFORE_HALVES and len(body["input"]) > 1:
                    return endpoint, answer

    def note_unusable(self, endpoint: _Endpoint) -> None:
        """Count an answer without usable vectors."""
        with self._condition:
            endpoint.usage["unusable"] += 1

    def refuse(self, endpoint: _Endpoint, reason: str, texts: int) -> None:
        """Send a server no requests until `PROBATION_SECONDS` are over, then one."""
        with self._condition:
            endpoint.refused, endpoint.limit = reason, 1.0
            endpoint.resumes_at = time.monotonic() + PROBATION_SECONDS
            endpoint.usage["refused_texts"] += texts
            self._condition.notify_all()
            if all(other.refused for other in self.all):
                raise ModelError(reason + _ADVICE)
        logger.warning("%s; its %s sent to another endpoint", reason, counted(texts, "text", "are"))

    def trust(self, endpoint: _Endpoint) -> None:
        """Note that a server gave the right vectors."""
        if endpoint.refused:
            with self._condition:
                endpoint.refused = ""
            logger.warning("%s: gives the model's vectors again", endpoint.name)

    def _acquire(self) -> _Endpoint:
        with self._condition:
            while True:
                now = time.monotonic()
                if all(endpoint.refused for endpoint in self.all):
                    raise ModelError(self.all[-1].refused + _ADVICE)
                usable = [server for server in self.all if not server.refused or now >= server.resumes_at]
                patience = self._patience_seconds if self._has_answered else self._start_seconds
                if self._failing_since is not None and now - self._failing_since >= patience:
                    names = ", ".join(endpoint.name for endpoint in usable)
                    advice = "" if self._has_answered else "; start the server, or give its URL: --endpoint http://…/v1"
                    waited = f"{now - self._failing_since:.0f} s"
                    raise Unreachable(f"{names}: no answer for {waited} ({self._problem}){advice}")
                free = [server for server in usable if now >= server.resumes_at and server.running < int(server.limit)]
                if free:
                    chosen = min(free, key=lambda server: server.running / server.limit)
                    chosen.running += 1
                    return chosen
                pause = min((server.resumes_at - now for server in usable if server.resumes_at > now), default=1.0)
                self._condition.wait(min(pause, 1.0))

    def _succeeded(self, endpoint: _Endpoint, per_token: float) -> None:
        self._failing_since, endpoint.failures, self._has_answered = None, 0, True
        endpoint.shortest = min(endpoint.shortest, per_token)
        if per_token <= _SLOWER * endpoint.shortest:
            endpoint.limit = min(float(MOST_REQUESTS), endpoint.limit + 1 / endpoint.limit)
        else:
            endpoint.limit = max(1.0, endpoint.limit * 0.9)

    def _failed(self, endpoint: _Endpoint, problem: str, start: float, least_delay: float) -> None:
        self._failing_since = self._failing_since or start
        self._problem = problem
        endpoint.failures += 1
        endpoint.usage["failed"] += 1
        endpoint.limit = max(1.0, endpoint.limit / 2)
        delay = random.uniform(0, min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2 ** min(endpoint.failures, 30)))
        endpoint.resumes_at = time.monotonic() + max(delay, least_delay)
        logger.warning("%s: attempt %d failed (%s)", endpoint.name, endpoint.failures, problem)


def _close(clients: Sequence[Client]) -> None:
    for client in clients:
        client.close()


def _seconds(value: str) -> float:
    """Return the seconds of a Retry-After header; 0 for a date, and for what is not a number of seconds."""
    try:
        seconds = float(value)
    except ValueError:
        return 0.0
    return seconds if 0 <= seconds < math.inf else 0.0
