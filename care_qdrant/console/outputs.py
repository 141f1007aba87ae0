"""Checks of the paths that a command is to write: a file that the command did not write is never replaced."""

import re
from collections.abc import Iterable
from pathlib import Path

from care_qdrant.destinations import require_writable
from care_qdrant.errors import InputError

_HEAD_BYTES = 1_024


def require_free(path: Path, written: re.Pattern[bytes] | None = None) -> None:
    """Refuse a path that holds another file, or cannot be written, before any work for it is done.

    Args:
        path: Where the command is to write. Empty files, pipes and devices are accepted.
        written: Beginning of the files of this command, which it may replace; None if people edit its files, or if
            they look like files of other programs.

    Raises:
        InputError: The file would be lost, or nothing can be written there.
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
    """Refuse a folder that cannot be written, or in which a command would replace files that it did not write.

    Args:
        folder: Where the command is to write.
        mark: Name of the file that shows that the command wrote the folder.
        written: Beginning of that file if the command wrote it.
        names: Names of the other files that the command writes there.

    Raises:
        InputError: The command did not write one of the files, or the folder cannot be written.
    """
    require_writable(folder)
    require_free(folder / mark, written)
    if not (folder / mark).is_file():
        for name in names:
            require_free(folder / name)
