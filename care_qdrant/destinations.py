"""Checks that a file or a folder can be written, before any work for it is done."""

import os
from pathlib import Path

from care_qdrant.errors import InputError


def require_writable(path: Path) -> None:
    """Refuse a path that cannot be written, or made with the folders that are missing.

    Raises:
        InputError: The user has no right to write there, or a file is where a folder has to be.
    """
    target = Path(os.path.realpath(path))
    there = target
    while not os.path.lexists(there):
        there = there.parent
    if there != target and not there.is_dir():
        raise InputError(f"{path}: cannot be made, since {there} is not a folder; give another path")
    needed = os.W_OK | os.X_OK if there.is_dir() else os.W_OK
    if not os.access(there, needed):
        raise InputError(f"{path}: cannot be written, since {there} is read-only for this user; give another path")


def require_new_folder(folder: Path) -> None:
    """Refuse a folder that cannot be moved into its place whole: missing, or there to be replaced.

    Raises:
        InputError: It has no name of its own, is a file or a mount point, or the folder around it cannot be written.
    """
    if folder.name in ("", ".."):
        raise InputError(f"{folder}: cannot be replaced as a whole; give a folder with a name of its own")
    if os.path.lexists(folder) and not folder.is_dir():
        raise InputError(f"{folder}: is not a folder; give a new one, or one to replace")
    if os.path.ismount(folder):
        raise InputError(
            f"{folder}: is a mount point, which cannot be replaced; give a folder in it: {folder / 'model'}"
        )
    require_writable(folder.parent if folder.is_dir() else folder)
