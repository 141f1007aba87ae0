"""Files that a command writes where a person said: one that the command did not write is never touched."""

import re
from pathlib import Path

from care_qdrant.errors import InputError

_HEAD_BYTES = 1_024


def require_free(path: Path, written: re.Pattern[bytes] | None = None) -> None:
    """Refuse to write over a file that is there, before any work for it is done.

    Args:
        path: Where the command is to write. An empty file, a pipe and a device lose nothing.
        written: How files begin that the same command wrote, which it may replace; None where a person works on in
            what it writes, or where its files look like those of people.

    Raises:
        InputError: The file is somebody else's, or somebody's work.
    """
    if not path.is_file() or not path.stat().st_size:
        return
    with path.open("rb") as file:
        if written is not None and written.match(file.read(_HEAD_BYTES)):
            return
    raise InputError(f"{path}: is there, and would be lost; move it away, or give another --output")


def require_other(path: Path, source: Path) -> None:
    """Refuse to replace a file by what is made of it."""
    if path.exists() and source.exists() and path.samefile(source):
        raise InputError(f"{path}: is the file that is read, and would be lost; give another --output")
