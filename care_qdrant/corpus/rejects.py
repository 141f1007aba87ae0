"""The file of rejected rows."""

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

from care_qdrant.corpus.rows import Reject
from care_qdrant.corpus.streams import STDIN
from care_qdrant.errors import InputError

if TYPE_CHECKING:
    from care_qdrant.corpus.files import CorpusPath

_FIRST_ROW = re.compile(rb'\{"line": \d+, "(?:file|id|reason)": "')
"""Start of every file that `RejectsFile` wrote, and of hardly any other."""


class RejectsFile:
    """Writes rejected rows; the file is made when the first one comes, and there is none where no row was rejected.

    That of an earlier run is replaced by the first row, or removed at the end of a run that finished without any. A
    file that no run wrote is refused, and never touched.
    """

    def __init__(self, path: Path) -> None:
        """Take a path that is free, or that of an earlier run; a pipe or a device is written to.

        Raises:
            InputError: The file is somebody else's.
        """
        if path.is_file() and path.stat().st_size and not is_rejects_file(path):
            raise InputError(
                f"{path}: is there, and is no list of rejected rows: nothing is written over it; name another file "
                "with --rejects"
            )
        self.path = path
        self._file: IO[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._file is not None:
            self._file.close()
        elif kind is None and is_rejects_file(self.path):
            with suppress(OSError):  # a folder that cannot be written holds none of ours
                self.path.unlink()

    def write(self, reject: Reject) -> None:
        """Append one row as JSON: ``line``, ``file`` and ``id`` where there are any, ``reason``."""
        if self._file is None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self.path.open("w", encoding="utf-8", errors="backslashreplace")
            except OSError as error:
                raise InputError(
                    f"{self.path}: cannot be written ({error.strerror}), and row {reject.line:,} is rejected "
                    f"({reject.reason}); name another file with --rejects"
                ) from error
        named = {"file": reject.file} if reject.file else {}
        named |= {"id": reject.id} if reject.id else {}
        # A rejected id may hold what UTF-8 cannot; the file writes that as JSON escapes it.
        row = {"line": reject.line, **named, "reason": reject.reason}
        self._file.write(json.dumps(row, ensure_ascii=False) + "\n")
        self._file.flush()


def is_rejects_file(path: Path) -> bool:
    """Return whether a file is a list of rejected rows that an ingestion wrote, by its content."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return _FIRST_ROW.match(file.read(64)) is not None
    except OSError:
        return False


def rejects_path(path: "CorpusPath", shard: tuple[int, int] = (1, 1)) -> Path:
    """Return where the rejected rows of a corpus go: ``corpus.jsonl.rejects.jsonl`` beside it.

    Each shard of a corpus has a file of its own.
    """
    first = path if isinstance(path, str | Path) else path[0]
    number, of = shard
    share = f"-{number}-of-{of}" if of > 1 else ""
    if str(first) == STDIN or Path(first).is_fifo():
        return Path(f"stdin.rejects{share}.jsonl")
    return Path(f"{str(first).rstrip('/')}.rejects{share}.jsonl")
