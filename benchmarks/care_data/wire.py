"""Calls of one model over HTTP: rate limit, bounded retries, and a ledger of all calls.

A call is written down before it is sent. One that was sent and whose answer was never stored, because the process was
killed or the endpoint did not answer in time, may have been paid: its highest price counts as spent.
"""

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from itertools import count, takewhile
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from care_data.config import Judge, secret
from care_data.files import Rows, digest
from care_qdrant import CareError, __version__
from care_qdrant.errors import InputError
from care_qdrant.http_client import Client, ConnectError, Limits, Response, TransportError

logger = logging.getLogger(__name__)

T = TypeVar("T")
_BUSY = {408, 409, 425, 429, 500, 502, 503, 504, 529}
_MOST_TOKENS = 10**9
"""Token count that no single call can reach; larger numbers are not believed."""
_TABLE = """CREATE TABLE IF NOT EXISTS calls (
    key TEXT PRIMARY KEY, judge TEXT NOT NULL, reserved REAL NOT NULL, unanswered INTEGER NOT NULL DEFAULT 0,
    answer TEXT, refused TEXT, input_tokens INTEGER, output_tokens INTEGER, cost REAL)"""


class BudgetReached(CareError):
    """The next call could cost more than is left."""


class JudgeUnreachable(CareError):
    """A judge did not answer within its bounded retries, or rejected the request; in a replay, has no stored answer."""


@dataclass
class _Busy(Exception):
    """A failure after which the same call is sent again; ``paid`` where it may have been paid all the same."""

    reason: str
    wait_seconds: float | None = None
    paid: bool = False


class Answer(NamedTuple):
    """Answer of a model; ``refused`` holds the reason if the text is not usable."""

    text: str
    refused: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0


class Ledger:
    """Every call in one SQLite file; safe to use from several threads and after a kill at any moment."""

    def __init__(self, path: Path, max_cost: float | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._lock, self._max_cost = path, threading.RLock(), max_cost
        try:
            self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=0)
            # Not WAL, which drops all that follows a damaged part of the log in silence: here only the answer that is
            # being written is not in the checked file.
            for statement in ("PRAGMA locking_mode=EXCLUSIVE", "PRAGMA journal_mode=TRUNCATE", _TABLE):
                self._database.execute(statement)
            [(state,)], [(page,)] = self._do("PRAGMA quick_check(1)"), self._do("PRAGMA page_size")
        except sqlite3.OperationalError as error:
            raise InputError(f"{path}: cannot be opened ({error}); does another run of care-data use it?") from error
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: is not a ledger of care-data ({error})") from error
        if path.is_file() and path.stat().st_size % page:  # SQLite reads the rest of the last page as zeros
            state = "its end is cut off"
        if state != "ok":
            raise self._damaged(state)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def stored(self, key: str) -> Answer | None:
        """Return the stored answer of a call, or None."""
        row = self._do(
            "SELECT answer, refused, input_tokens, output_tokens, cost FROM calls WHERE key = ? AND answer IS NOT NULL",
            key,
        )
        return Answer(*row[0]) if row else None

    def reserve(self, key: str, judge: str, price: float) -> None:
        """Record that a call of at most ``price`` is sent; `BudgetReached` if the budget does not allow it."""
        with self._lock:
            sums = "SELECT coalesce(sum(coalesce(cost, 0) + unanswered * reserved), 0) FROM calls"
            spent = float(self._do(sums)[0][0])
            if self._max_cost is not None and spent + price > self._max_cost:
                raise BudgetReached(
                    f"the budget is reached: {spent:.4f} are spent and the next call could cost {price:.4f}, of "
                    f"{self._max_cost:g}; all answers are stored: raise max_cost and run the same command to continue"
                )
            self._do(
                "INSERT INTO calls (key, judge, reserved, unanswered) VALUES (?, ?, ?, 1) ON CONFLICT (key) DO UPDATE"
                " SET unanswered = unanswered + 1, reserved = max(reserved, excluded.reserved)",
                key,
                judge,
                price,
            )

    def withdraw(self, key: str) -> None:
        """Record that a request was rejected and cost nothing."""
        self._do("UPDATE calls SET unanswered = unanswered - 1 WHERE key = ?", key)

    def store(self, key: str, answer: Answer) -> None:
        """Store the answer of a call that was sent."""
        columns = "answer = ?, refused = ?, input_tokens = ?, output_tokens = ?, cost = ?, unanswered = unanswered - 1"
        self._do(f"UPDATE calls SET {columns} WHERE key = ?", *answer, key)

    def bills(self) -> Rows:
        """Return the sums of each judge: ``at_risk`` is the most that unanswered requests may have cost."""
        names = ("judge", "calls", "input_tokens", "output_tokens", "cost", "unanswered", "at_risk")
        rows = self._do(
            "SELECT judge, count(answer), sum(coalesce(input_tokens, 0)), sum(coalesce(output_tokens, 0)),"
            " sum(coalesce(cost, 0)), sum(unanswered), sum(unanswered * reserved) FROM calls GROUP BY judge"
        )
        return [dict(zip(names, row, strict=True)) for row in sorted(rows)]

    def _do(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        try:
            with self._lock:
                return self._database.execute(statement, values).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:  # a damaged file, or a full disk
            raise self._damaged(error) from error

    def _damaged(self, reason: object) -> InputError:
        return InputError(
            f"{self._path}: cannot be read or written ({reason}); free some space or restore a copy. Without this "
            "file all questions are asked again, at their price"
        )


class Caller:
    """Asks one model, never the same thing twice; a replay answers from the ledger alone, without a network."""

    def __init__(self, judge: Judge, ledger: Ledger, *, replay: bool = False, again: bool = False) -> None:
        self.judge, self._ledger, self._replay, self._again = judge, ledger, replay, again
        key = None if replay else secret(judge.key_env, f"judge {judge.name}")
        headers = {"User-Agent": f"care-data/{__version__}"} | ({"Authorization": f"Bearer {key}"} if key else {})
        limits = Limits(max_connections=judge.concurrency)
        self._client = Client(timeout=judge.timeout_seconds, headers=headers, limits=limits)
        self._lock, self._next = threading.Lock(), 0.0
        self.down: JudgeUnreachable | None = None  # why it is no longer asked
        self.pool = ThreadPoolExecutor(judge.concurrency)

    def close(self) -> None:
        """Close the connections; calls that were sent are paid, so their answers are waited for and stored."""
        self.pool.shutdown(cancel_futures=True)
        self._client.close()

    def ask(self, prompt: str, attempt: int = 0) -> Answer:
        """Return the answer to a prompt, from the ledger if it is stored; ``attempt`` counts earlier unusable ones."""
        key = self._key(prompt, attempt)
        if (answer := self._ledger.stored(key)) is not None:
            return answer
        if self._replay:  # as in the run that is replayed, if that went on without a judge that was down
            self.down = JudgeUnreachable(
                f"judge {self.judge.name}: an answer is not in the ledger; run without --replay first, or set "
                "allow_missing = true"
            )
        if self.down is not None:
            raise self.down
        stop, wait = stop_after_attempt(1 + self.judge.retries), self._wait
        try:
            retrying = Retrying(stop=stop, wait=wait, retry=retry_if_exception_type(_Busy), reraise=True)
            return retrying(self._send, key, prompt)
        except _Busy as error:
            self.down = JudgeUnreachable(
                f"judge {self.judge.name} at {self.judge.url}: {error.reason}, {1 + self.judge.retries} times; "
                "stored answers are kept: run the same command again when it answers, or set allow_missing = true"
            )
        except JudgeUnreachable as error:
            self.down = error
        raise self.down

    def answers(self, attempts: int) -> Callable[[str, int], Answer | None]:
        """Return a function that asks for one thing up to the allowed number of times, and then returns None.

        ``attempts`` answers are allowed, including stored ones. A judge that is asked again may give as many new
        answers in addition to the stored ones; later runs and replays read them like the others.
        """
        asked = new = 0

        def next_answer(prompt: str, attempt: int) -> Answer | None:
            nonlocal asked, new
            answer = self._ledger.stored(self._key(prompt, attempt))
            if answer is None and (asked < attempts or (self._again and new < attempts)):
                answer, new = self.ask(prompt, attempt), new + 1
            asked += 1
            return answer

        return next_answer

    def _key(self, prompt: str, attempt: int) -> str:
        return digest(self.judge.name, self._url, self._body(prompt), attempt)

    @property
    def _url(self) -> str:
        return f"{self.judge.url.rstrip('/')}/chat/completions"

    def _body(self, prompt: str) -> dict[str, Any]:
        return {
            "model": self.judge.model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0,
            "max_tokens": self.judge.max_tokens,
            "response_format": {"type": "json_object"},
        }

    def ask_all(self, prompts: Sequence[str], read: Callable[[int, str], T | None], attempts: int) -> list[T | None]:
        """Ask concurrently, and again while ``read`` (prompt number, answer) returns None; return what it read."""

        def ask_one(number: int) -> T | None:
            ask = self.answers(attempts)
            answers = takewhile(lambda answer: answer is not None, (ask(prompts[number], n) for n in count()))
            results = (None if answer is None or answer.refused else read(number, answer.text) for answer in answers)
            return next((result for result in results if result is not None), None)

        return list(self.pool.map(ask_one, range(len(prompts))))

    def _send(self, key: str, prompt: str) -> Answer:
        with self._lock:  # the turn that the rate limit gives
            turn = max(time.monotonic(), self._next)
            self._next = turn + 60 / self.judge.requests_per_minute
        time.sleep(max(0.0, turn - time.monotonic()))
        self._ledger.reserve(key, self.judge.name, highest_price(self.judge, prompt))
        try:
            # Endpoints that know the header answer a repeated call from what was paid already.
            headers = {"Idempotency-Key": key}
            answer = self._read(self._client.post(self._url, json=self._body(prompt), headers=headers), prompt)
        except ConnectError as error:
            self._ledger.withdraw(key)
            raise _Busy(f"cannot be reached ({error})") from error
        except TransportError as error:
            raise _Busy(f"did not answer ({type(error).__name__})", paid=True) from error
        except (_Busy, JudgeUnreachable) as error:
            if not getattr(error, "paid", False):
                self._ledger.withdraw(key)
            raise
        self._ledger.store(key, answer)
        return answer

    def _read(self, response: Response, prompt: str) -> Answer:
        if response.status_code in _BUSY:
            after = response.headers.get("Retry-After", "")
            wait = float(after) if after.replace(".", "", 1).isdecimal() else None
            raise _Busy(f"answered {response.status_code}", wait)
        if response.status_code != HTTPStatus.OK:
            raise JudgeUnreachable(
                f"judge {self.judge.name} at {self.judge.url}: answered {response.status_code}: "
                f"{response.text[:200]!r}; check url, model and key_env"
            )
        try:
            payload: dict[str, Any] = response.json()
            choice = payload["choices"][0]
            message = choice["message"]
            text = _text_of(message.get("content"))
            filtered = "filtered" if choice.get("finish_reason") == "content_filter" else ""
            refused = _text_of(message.get("refusal")) or filtered
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise _Busy(f"sent no chat completion ({type(error).__name__})", paid=True) from error
        tokens = _tokens_of(payload.get("usage"))
        if tokens is None:  # the call may have cost its highest price
            return Answer(text, refused, cost=highest_price(self.judge, prompt))
        return Answer(text, refused, *tokens, _cost(self.judge, *tokens))

    def _wait(self, state: RetryCallState) -> float:
        error, longest = state.outcome.exception() if state.outcome else None, self.judge.max_wait_seconds
        if isinstance(error, _Busy) and error.wait_seconds is not None:
            return min(error.wait_seconds, longest)
        return wait_random_exponential(multiplier=min(0.5, longest), max=longest)(state)


@contextmanager
def calling(
    path: Path, max_cost: float | None, judges: Sequence[Judge], replay: bool, again: Sequence[str] = ()
) -> Iterator[tuple[Ledger, list[Caller]]]:
    """Open the ledger and a connection to each judge; ``again`` names those that are asked again."""
    without_price(() if replay else judges)
    with closing(Ledger(path, max_cost)) as ledger:
        callers = [Caller(judge, ledger, replay=replay, again=judge.name in again) for judge in judges]
        try:
            yield ledger, callers
        finally:
            for caller in callers:
                caller.close()


def _text_of(content: object) -> str:
    """Return the text of a message, a string or a list of parts; TypeError for anything else."""
    if isinstance(content, list):
        return "".join(_text_of(part["text"]) for part in content if part.get("type", "text") == "text")
    if content is not None and not isinstance(content, str):
        raise TypeError(f"found {type(content).__name__}, expected a text")
    return content or ""


def _tokens_of(usage: object) -> tuple[int, int] | None:
    """Return the input and output tokens that an endpoint reports, or None if it reports nothing usable."""
    if not isinstance(usage, dict):
        return None
    read, written = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if not (_is_count(read) and _is_count(written)):
        return None
    return read, written


def _is_count(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < _MOST_TOKENS


def highest_price(judge: Judge, prompt: str) -> float:
    """Return the most that a call can cost: a token for two bytes of UTF-8, and the longest answer."""
    return _cost(judge, len(prompt.encode()) // 2 + 8, judge.max_tokens)


def _cost(judge: Judge, input_tokens: int, output_tokens: int) -> float:
    return (input_tokens * (judge.input_price or 0) + output_tokens * (judge.output_price or 0)) / 1e6


def without_price(judges: Sequence[Judge]) -> list[str]:
    """Return the names of the judges whose price is not set, and log that their calls count as free."""
    names = [judge.name for judge in judges if judge.input_price is judge.output_price is None]
    if names:
        logger.warning(
            "no price is set for %s: their calls count as free, and max_cost does not limit them; set input_price and "
            "output_price, 0 for a model that costs nothing",
            ", ".join(names),
        )
    return names
