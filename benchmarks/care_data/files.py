"""Reading and writing JSON Lines. Files are replaced whole, so that a killed step leaves the old one or none."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from care_benchmarks.rows import read_jsonl

from care_qdrant.errors import InputError, redact

Rows = list[dict[str, Any]]
LABELS = "labels.jsonl"


def read_rows(path: Path, made_by: str = "") -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSON Lines file, plain or gzip; ``made_by`` is the command that writes it."""
    if not path.is_file():
        raise InputError(f"{path}: does not exist{f'; run {made_by} first' if made_by else ''}")
    for row in read_jsonl(path):
        yield dict(row.fields)


def line(row: Mapping[str, Any]) -> str:
    """Return a row as a line of JSON."""
    return json.dumps(row, ensure_ascii=False) + "\n"


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write rows as JSON Lines, and return their number."""
    count = 0
    with _replaced(path).open("w", encoding="utf-8") as file:
        for count, row in enumerate(rows, start=1):  # noqa: B007
            file.write(line(row))
    _replaced(path).replace(path)
    return count


def write_text(path: Path, text: str) -> None:
    """Write a text file without secrets."""
    _replaced(path).write_text(redact(text), encoding="utf-8")
    _replaced(path).replace(path)


def write_json(path: Path, value: Any) -> None:
    """Write one JSON value, indented."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=2, default=float) + "\n")


def read_json(path: Path) -> Any:
    """Read one JSON value."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as JSON ({error})") from error


def digest(*parts: object) -> str:
    """Return the SHA-256 of values as JSON."""
    return hashlib.sha256(json.dumps(parts, ensure_ascii=False, sort_keys=True, default=str).encode()).hexdigest()


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, or an empty string if it does not exist."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _replaced(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_name(f".{path.name}.{os.getpid()}")
