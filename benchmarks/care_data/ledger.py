"""Every call to a judge, in one SQLite file: what was asked, what came back, what it cost.

A call is written down before it is sent. One that was sent and whose answer was never stored, because the process was
killed or the endpoint did not answer in time, may have been paid: its highest price counts as spent.
"""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from care_qdrant import CareError, InputError

_TABLE = """CREATE TABLE IF NOT EXISTS calls (
    key TEXT PRIMARY KEY, judge TEXT NOT NULL, reserved REAL NOT NULL, unanswered INTEGER NOT NULL DEFAULT 0,
    answer TEXT, refused TEXT, input_tokens INTEGER, output_tokens INTEGER, cost REAL)"""


class BudgetReached(CareError):
    """The next call could cost more than is left."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model wrote."""

    text: str
    refused: str = ""
    """Why there is no usable text: a refusal or a filter of the provider; empty otherwise."""
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0


@dataclass(frozen=True, slots=True)
class Bill:
    """Sums over the calls of one judge."""

    judge: str
    calls: int
    """Answers that are stored."""
    input_tokens: int
    output_tokens: int
    cost: float
    unanswered: int
    """Sendings whose answer was never stored."""
    at_risk: float
    """The most that those may have cost."""


class Ledger:
    """The stored calls; safe to use from several threads and after a kill at any moment."""

    def __init__(self, path: Path, max_cost: float | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock, self._max_cost = threading.Lock(), max_cost
        try:
            self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=0)
            self._database.execute("PRAGMA locking_mode=EXCLUSIVE")
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute(_TABLE)
        except sqlite3.OperationalError as error:
            raise InputError(f"{path}: cannot be opened ({error}); does another run of care-data use it?") from error
        except sqlite3.DatabaseError as error:
            raise InputError(f"{path}: is no ledger of care-data ({error})") from error

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def stored(self, key: str) -> Answer | None:
        """Return the stored answer of a call, or None."""
        with self._lock:
            row = self._database.execute(
                "SELECT answer, refused, input_tokens, output_tokens, cost FROM calls WHERE key = ?"
                " AND answer IS NOT NULL",
                (key,),
            ).fetchone()
        return Answer(*row) if row else None

    @contextmanager
    def sending(self, key: str, judge: str, price: float) -> Iterator[None]:
        """Write down one sending of a call, whose price is at most ``price``.

        Raises:
            BudgetReached: The price does not fit into what is left.
        """
        with self._lock:
            spent = self._spent()
            if self._max_cost is not None and spent + price > self._max_cost:
                raise BudgetReached(
                    f"the budget is reached: {spent:.4f} are spent and the next call could cost {price:.4f}, of "
                    f"{self._max_cost:g}; all answers are stored: raise max_cost and run the same command to go on"
                )
            self._database.execute(
                "INSERT INTO calls (key, judge, reserved, unanswered) VALUES (?, ?, ?, 1) ON CONFLICT (key) DO UPDATE"
                " SET unanswered = unanswered + 1, reserved = max(reserved, excluded.reserved)",
                (key, judge, price),
            )
        yield

    def withdraw(self, key: str) -> None:
        """Note that a sending was turned away and cost nothing."""
        with self._lock:
            self._database.execute("UPDATE calls SET unanswered = unanswered - 1 WHERE key = ?", (key,))

    def store(self, key: str, answer: Answer) -> None:
        """Store the answer of a call that was sent."""
        with self._lock:
            self._database.execute(
                "UPDATE calls SET answer = ?, refused = ?, input_tokens = ?, output_tokens = ?, cost = ?,"
                " unanswered = unanswered - 1 WHERE key = ?",
                (answer.text, answer.refused, answer.input_tokens, answer.output_tokens, answer.cost, key),
            )

    def bills(self) -> list[Bill]:
        """Return the sums of each judge."""
        with self._lock:
            rows = self._database.execute(
                "SELECT judge, count(answer), sum(coalesce(input_tokens, 0)), sum(coalesce(output_tokens, 0)),"
                " sum(coalesce(cost, 0)), sum(unanswered), sum(unanswered * reserved) FROM calls GROUP BY judge"
                " ORDER BY judge"
            ).fetchall()
        return [Bill(*row) for row in rows]

    def _spent(self) -> float:
        [row] = self._database.execute("SELECT coalesce(sum(coalesce(cost, 0) + unanswered * reserved), 0) FROM calls")
        return float(row[0])
