"""The searches that a service keeps if its operator asks for it, from which `care learn --queries` learns.

Each collection has a folder of its own with a file of JSON lines for each day, next to the judgements of
`care_qdrant.serve.labels`.
"""

import fcntl
import json
import logging
import os
import re
import threading
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from care_qdrant.search.judged import SEARCHES

logger = logging.getLogger(__name__)

REDACTED = r"[\w.+-]{1,64}+@[\w-]+(?:\.[\w-]+)+|\d{6,}"
"""Default of what is not kept: mail addresses, and numbers of six digits or more, such as those of phones and people.

No address has more than 64 characters before its @. Without that limit, a query of one long word would take half a
second, in which the worker answers nobody.
"""
_FILE = re.compile(SEARCHES.format(day=r"(\d{4}-\d{2}-\d{2})"))
_DIGITS = 7
"""Decimal places of a vector's numbers, which float32 holds for values below 1."""


class Record:
    """Keeps searches for some days.

    A folder that cannot be written, such as on a full disk, costs no search its answer: the log says it once.
    """

    def __init__(self, folder: Path, *, days: int, redacted: str = REDACTED) -> None:
        """Set up; nothing is written before the first search.

        Args:
            folder: Folder of the collections' folders.
            days: Days for which a search is kept, the present one included; 0 keeps none.
            redacted: Regular expression: what it matches is kept as ``*``; empty for nothing.
        """
        self.folder, self._days, self._redacted = folder, days, re.compile(redacted)
        self._lock, self._cleaned = threading.Lock(), date.min
        self._is_failing = False

    def redact(self, text: str) -> str:
        """Return a text as it is kept."""
        return self._redacted.sub(lambda match: "*" if match[0] else "", text)

    def keep(
        self,
        folder_name: str,
        text: str,
        hits: Sequence[str],
        fingerprint: str | None,
        encoded: tuple[Sequence[float], str] | None = None,
    ) -> None:
        """Add a search to the file of the day; the first one of a day removes the files of the days that are over.

        Args:
            folder_name: Folder of the view that was searched.
            text: The query.
            hits: Ids of the documents that it found, best first.
            fingerprint: Model that encoded the query; None without one.
            encoded: The old model's vector of the query, where it was asked, and the origin of the stored vectors that
                it made (`CollectionSchema.origin`). Left out if a part of the text is redacted, since the vector tells
                of that part.
        """
        now, kept = datetime.now(UTC), self.redact(text)
        with self._lock:
            if self._cleaned != now.date():
                self._remove_before(now.date() - timedelta(days=self._days - 1))
                self._cleaned = now.date()
        if not self._days:
            return
        row: dict[str, object] = {
            "time": now.isoformat(timespec="seconds"),
            "text": kept,
            "hits": list(hits),
            "model": fingerprint,
        }
        if encoded is not None and kept == text:
            vector, row["origin"] = encoded
            row["vector"] = [round(value, _DIGITS) for value in vector]
        folder = self.folder / folder_name
        try:
            file = folder / SEARCHES.format(day=now.date())
            with self._lock:
                if not file.exists():
                    folder.mkdir(parents=True, exist_ok=True)
                _append(file, (json.dumps(row, ensure_ascii=False) + "\n").encode(errors="replace"))
            self._is_failing = False
        except OSError as error:
            if not self._is_failing:
                logger.warning("searches are not recorded (%s: %s)", error.filename or folder, error.strerror)
            self._is_failing = True

    def _remove_before(self, first: date) -> None:
        """Remove the files of the days before, also those of collections and tenants that nobody has searched since."""
        for depth in ("*", "*/*"):
            for file in self.folder.glob(f"{depth}/{SEARCHES.format(day='*')}"):
                if (match := _FILE.fullmatch(file.name)) and match[1] < first.isoformat():
                    try:
                        file.unlink(missing_ok=True)  # another worker removes the same files
                    except OSError as error:
                        logger.warning("%s: searches of a day that is over are not removed (%s)", file, error.strerror)


def _append(file: Path, line: bytes) -> None:
    """Add a line that is whole or not there; only the owner may read the file, since people's questions are in it."""
    descriptor = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX)  # the workers share it
        size = os.fstat(descriptor).st_size
        try:
            if os.write(descriptor, line) < len(line):
                raise OSError(28, os.strerror(28), str(file))
        except OSError:
            os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)
