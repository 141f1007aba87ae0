"""An on-disk map from id to line or row number: a corpus may have more ids than memory should hold."""

import sqlite3
import weakref
from collections.abc import Iterator, Mapping
from contextlib import closing


class Places(Mapping[str, int]):
    """Map from id to its line or row number; the first number of an id stays."""

    def __init__(self) -> None:
        """Create an empty map."""
        # An empty name is a private file that SQLite spills to and removes. Any thread may be the one that collects it.
        self._database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        weakref.finalize(self, self._database.close)
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute("CREATE TABLE places (id TEXT PRIMARY KEY, place INT) WITHOUT ROWID")
        # Never committed, so that a page is written only where the cache has no room for it.
        self._database.execute("BEGIN")

    def add(self, identity: str, place: int) -> bool:
        """Store the number of an id. Return False if the id already has one."""
        with closing(self._database.execute("INSERT OR IGNORE INTO places VALUES (?, ?)", (identity, place))) as done:
            return done.rowcount == 1

    def __getitem__(self, identity: str) -> int:
        with closing(self._database.execute("SELECT place FROM places WHERE id = ?", (identity,))) as rows:
            row = rows.fetchone()
        if row is None:
            raise KeyError(identity)
        return int(row[0])

    def __iter__(self) -> Iterator[str]:
        with closing(self._database.execute("SELECT id FROM places ORDER BY place")) as rows:
            for (identity,) in rows:
                yield identity

    def __len__(self) -> int:
        with closing(self._database.execute("SELECT COUNT(*) FROM places")) as rows:
            return int(rows.fetchone()[0])
