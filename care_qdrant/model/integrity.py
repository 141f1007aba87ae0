"""Whether the files of a CARE folder are those that its card lists, before and while they are loaded."""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from care_qdrant.errors import AlteredModel, IncompleteModel
from care_qdrant.model.card import Card


@contextmanager
def verified(folder: Path, card: Card, side: str, paths: Iterable[str]) -> Iterator[None]:
    """Check one side of a CARE folder before the block that loads it, and that nothing changed meanwhile after it."""
    paths = list(paths)
    refuse_unlisted(folder, card, side)
    before = [_state(folder / path) for path in paths]
    verify_files(folder, card, paths)
    yield
    for path, state in zip(paths, before, strict=True):
        if _state(folder / path) != state:
            raise AlteredModel(f"{folder}: {path} changed while it was loaded; load the model again")


def verify_files(folder: Path, card: Card, paths: Iterable[str]) -> None:
    """Check single files of a CARE folder against its card."""
    for path in paths:
        expected, file = card.files[path], folder / path
        if not file.is_file():
            raise IncompleteModel(f"{folder}: {path} is missing; copy the folder again, or export it again")
        size = file.stat().st_size
        if size != expected.bytes or sha256(file) != expected.sha256:
            raise AlteredModel(
                f"{folder}: {path} is not the file that was saved ({size} bytes, expected {expected.bytes}, "
                f"SHA-256 {expected.sha256[:12]}); restore it, or export the model again"
            )


def refuse_unlisted(folder: Path, card: Card, side: str) -> None:
    """Refuse files of a side that the card does not list: a stray ``adapter_config.json`` changes vectors by itself.

    Hidden files and texts for people are no part of a model.
    """
    for path in list_files(folder / side, folder):
        is_hidden = any(part.startswith(".") for part in Path(path).parts)
        if path not in card.files and not is_hidden and not path.endswith(".md"):
            raise AlteredModel(
                f"{folder}: {path} was added after the model was saved, and could change its vectors; remove it, or "
                "export the model again"
            )


def list_files(side: Path, root: Path) -> list[str]:
    """Return the files of a side in order, as paths relative to the CARE folder."""
    if not side.is_dir():
        raise IncompleteModel(f"{root}: the folder {side.name}/ is missing")
    return sorted(file.relative_to(root).as_posix() for file in side.rglob("*") if file.is_file())


def sha256(file: Path) -> str:
    """Return the SHA-256 of a file, as hexadecimal digits."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _state(file: Path) -> tuple[int, ...] | None:
    """Return what changes when a file is written or replaced; None for one that is not there."""
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
