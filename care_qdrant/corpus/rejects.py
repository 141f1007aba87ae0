"""The file of rejected rows."""

import json
import re
from itertools import count
from pathlib import Path
from typing import IO, Literal, Self

from care_qdrant.corpus.rows import Reject
from care_qdrant.errors import InputError

_NAME = re.compile(r".+\.rejects(?:-\d+-of-\d+)?(?:-\d+)?\.jsonl")


class RejectsFile:
    """Writes rejected rows to a file that this run makes when the first one comes; no file that is there is touched."""

    def __init__(self, path: Path) -> None:
        """Take a path that is free, or an empty file, a pipe or a device, which is written to.

        Raises:
            InputError: There is a file with content.
        """
        if path.is_file() and path.stat().st_size:
            raise InputError(f"{path}: exists, and no file is written over: name another one with --rejects")
        self.path = path
        self._file: IO[str] | None = None
        # Two runs may find the same name free; one of them makes the file.
        self._mode: Literal["w", "x"] = "w" if path.exists() else "x"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, reject: Reject) -> None:
        """Append one row as JSON: ``line``, ``file`` and ``id`` where there are any, ``reason``."""
        if self._file is None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self.path.open(self._mode, encoding="utf-8")
            except OSError as error:
                raise InputError(
                    f"{self.path}: cannot be written ({error.strerror}), and row {reject.line:,} is rejected "
                    f"({reject.reason}); name another file with --rejects"
                ) from error
        named = {"file": reject.file} if reject.file else {}
        named |= {"id": reject.id} if reject.id else {}
        row = {"line": reject.line, **named, "reason": reject.reason}
        self._file.write(json.dumps(row, ensure_ascii=False) + "\n")
        self._file.flush()


def is_rejects_name(name: str) -> bool:
    """Return whether a file has the name of a list of rejected rows, which a folder is read without."""
    return _NAME.fullmatch(name) is not None


def rejects_path(collection: str, shard: tuple[int, int] = (1, 1)) -> Path:
    """Return a free name in the current folder: ``COLLECTION.rejects.jsonl``, then ``COLLECTION.rejects-2.jsonl``.

    Each shard of a corpus has a file of its own.
    """
    number, of = shard
    # File systems take names of 255 bytes.
    named = re.sub(r"[/\\\0]", "-", collection).encode()[:200].decode(errors="ignore")
    stem = named + ".rejects" + (f"-{number}-of-{of}" if of > 1 else "")
    names = (f"{stem}{f'-{at}' if at > 1 else ''}.jsonl" for at in count(1))
    return next(path for path in map(Path, names) if not path.exists())
