"""Files that a command writes where a person said: one that the command did not write is never touched."""

import re
from collections.abc import Iterable
from pathlib import Path

from care_qdrant.destinations import require_writable
from care_qdrant.errors import InputError

_HEAD_BYTES = 1_024


def require_free(path: Path, written: re.Pattern[bytes] | None = None) -> None:
    """Refuse to write over a file that is there, or where none can be written, before any work for it is done.

    Args:
        path: Where the command is to write. An empty file, a pipe and a device lose nothing.
        written: How files begin that the same command wrote, which it may replace; None where a person works on in
            what it writes, or where its files look like files of other programs.

    Raises:
        InputError: The file is somebody else's, or somebody's work, or nothing can be written there.
    """
    require_writable(path)
    if path.is_file() or not path.exists():
        require_writable(path.parent)  # the file is written under another name, and renamed
    if not path.is_file() or not path.stat().st_size:
        return
    with path.open("rb") as file:
        if written is not None and written.match(file.read(_HEAD_BYTES)):
            return
    raise InputError(f"{path}: already exists and would be overwritten; move it, or give another path")


def require_own(folder: Path, mark: str, written: re.Pattern[bytes], names: Iterable[str]) -> None:
    """Refuse a folder that cannot be written, or with files of other people that a command would write over.

    Args:
        folder: Where the command is to write.
        mark: Name of the file that says that the command wrote what is there.
        written: How that file begins where the command wrote it.
        names: Of the other files that the command writes there.

    Raises:
        InputError: A file is somebody else's, or the folder cannot be written.
    """
    require_writable(folder)
    require_free(folder / mark, written)
    if not (folder / mark).is_file():
        for name in names:
            require_free(folder / name)
