"""One judge over HTTP: rate limit, bounded retries, the ledger before and after each call."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from care_data.config import Judge, secret
from care_data.files import digest
from care_data.ledger import Answer, Ledger
from care_qdrant import CareError, __version__

Messages = Sequence[dict[str, str]]
_BUSY = {408, 409, 425, 429, 500, 502, 503, 504, 529}


class JudgeUnreachable(CareError):
    """A judge did not answer within its bounded retries, or turned the request away."""


class NotStored(CareError):
    """A replay needs an answer that is not in the ledger."""


@dataclass
class _Busy(Exception):
    """A failure after which the same call is sent again."""

    reason: str
    wait_seconds: float | None = None
    paid: bool = False
    """Whether the call may have been paid all the same."""


class Caller:
    """Asks one judge, and never twice the same thing."""

    def __init__(self, judge: Judge, ledger: Ledger, *, replay: bool = False) -> None:
        """Set up the connection; nothing is sent.

        Args:
            judge: Whom to ask.
            ledger: Stored calls.
            replay: Answer from the ledger alone, without a network.
        """
        self.judge, self._ledger, self._replay = judge, ledger, replay
        key = None if replay else secret(judge.key_env, f"judge {judge.name}")
        headers = {"User-Agent": f"care-data/{__version__}"} | ({"Authorization": f"Bearer {key}"} if key else {})
        limits = httpx.Limits(max_connections=judge.concurrency)
        self._client = httpx.Client(timeout=judge.timeout_seconds, headers=headers, limits=limits)
        self._lock, self._next = threading.Lock(), 0.0
        self._down: JudgeUnreachable | None = None

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def ask(self, messages: Messages, attempt: int = 0) -> Answer:
        """Return the answer to a chat, from the ledger where it is there.

        Args:
            messages: As OpenAI's API has them.
            attempt: Number of earlier answers to the same messages that were not usable.

        Raises:
            JudgeUnreachable: There was no answer; the judge is not asked again in this run.
            BudgetReached: The call does not fit into the budget.
            NotStored: It is a replay, and the answer is not there.
        """
        key = digest(self.judge.model, list(messages), attempt)
        if (answer := self._ledger.stored(key)) is not None:
            return answer
        if self._replay:
            raise NotStored(f"judge {self.judge.name}: an answer is not in the ledger; run without --replay first")
        if self._down is not None:
            raise self._down
        retrying = Retrying(
            stop=stop_after_attempt(1 + self.judge.retries),
            wait=self._wait,
            retry=retry_if_exception_type(_Busy),
            reraise=True,
        )
        try:
            return retrying(self._send, key, messages)
        except _Busy as error:
            self._down = JudgeUnreachable(
                f"judge {self.judge.name} at {self.judge.url}: {error.reason}, {1 + self.judge.retries} times; "
                "stored answers are kept: run the same command again when it answers, or set allow_missing = true"
            )
        except JudgeUnreachable as error:
            self._down = error
        raise self._down

    def _send(self, key: str, messages: Messages) -> Answer:
        self._pace()
        body = {
            "model": self.judge.model,
            "messages": list(messages),
            "temperature": 0,
            "max_tokens": self.judge.max_tokens,
            "response_format": {"type": "json_object"},
        }
        with self._ledger.sending(key, self.judge.name, highest_price(self.judge, messages)):
            try:
                # Endpoints that know the header answer a repeated call from what was paid already.
                response = self._client.post(
                    f"{self.judge.url.rstrip('/')}/chat/completions", json=body, headers={"Idempotency-Key": key}
                )
                answer = self._read(response)
            except httpx.ConnectError as error:
                self._ledger.withdraw(key)
                raise _Busy(f"cannot be reached ({error})") from error
            except httpx.TransportError as error:
                raise _Busy(f"did not answer ({type(error).__name__})", paid=True) from error
            except (_Busy, JudgeUnreachable) as error:
                if not getattr(error, "paid", False):
                    self._ledger.withdraw(key)
                raise
            self._ledger.store(key, answer)
        return answer

    def _read(self, response: httpx.Response) -> Answer:
        if response.status_code in _BUSY:
            after = response.headers.get("Retry-After", "")
            wait = float(after) if after.replace(".", "", 1).isdigit() else None
            raise _Busy(f"answered {response.status_code}", wait)
        if response.status_code != httpx.codes.OK:
            raise JudgeUnreachable(
                f"judge {self.judge.name} at {self.judge.url}: answered {response.status_code}: "
                f"{response.text[:200]!r}; check url, model and key_env"
            )
        try:
            payload: dict[str, Any] = response.json()
            choice = payload["choices"][0]
            message, usage = choice["message"], payload.get("usage") or {}
            text = message.get("content") or ""
            refused = message.get("refusal") or ("filtered" if choice.get("finish_reason") == "content_filter" else "")
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise _Busy(f"sent no chat completion ({type(error).__name__})", paid=True) from error
        tokens = int(usage.get("prompt_tokens", 0)), int(usage.get("completion_tokens", 0))
        return Answer(text, refused, *tokens, _cost(self.judge, *tokens))

    def _pace(self) -> None:
        """Wait for the turn that the rate limit gives."""
        with self._lock:
            now = time.monotonic()
            turn = max(now, self._next)
            self._next = turn + 60 / self.judge.requests_per_minute
        time.sleep(turn - now)

    def _wait(self, state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        asked = error.wait_seconds if isinstance(error, _Busy) else None
        longest = self.judge.max_wait_seconds
        random = wait_random_exponential(multiplier=min(0.5, longest), max=longest)(state)
        return random if asked is None else min(asked, longest)


def highest_price(judge: Judge, messages: Messages) -> float:
    """Return the most that a call can cost: a token for two bytes of UTF-8, and the longest answer."""
    tokens = sum(len(message["content"].encode()) // 2 + 8 for message in messages)
    return _cost(judge, tokens, judge.max_tokens)


def _cost(judge: Judge, input_tokens: int, output_tokens: int) -> float:
    return (input_tokens * judge.input_price + output_tokens * judge.output_price) / 1e6
