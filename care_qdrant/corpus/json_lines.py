"""Files of JSON lines, plain or gzipped, whose rows are read as they are: questions, training data."""

import gzip
import json
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from care_qdrant.corpus.streams import HEAD_BYTES, wide_encoding
from care_qdrant.errors import InputError
from care_qdrant.types import half_character


def open_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the numbered, non-empty lines of a plain or gzipped text file."""
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    opener = gzip.open if path.suffix == ".gz" else open
    # Windows editors put a byte order mark in front, which does not belong to the first row.
    with opener(path, "rt", encoding="utf-8-sig") as stream:
        lines = enumerate(stream, start=1)
        while True:
            try:
                number, line = next(lines)
            except StopIteration:
                return
            except UnicodeDecodeError as error:
                with opener(path, "rb") as content:
                    guess = wide_encoding(content.read(HEAD_BYTES))
                reads_as = f"; it reads as {guess}" if guess else ""
                raise InputError(f"{path}: is not UTF-8 ({error}){reads_as}: save it as UTF-8") from error
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise InputError(f"{path}: is cut off, or not what its name says ({error})") from error
            if line.strip():
                yield number, line


def read_rows(path: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the objects of a JSONL file, each with ``file:line`` for messages."""
    return parsed(path.name, open_lines(path))


def parsed(name: str, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the objects of numbered lines of a file, each with ``file:line`` for messages."""
    for number, line in lines:
        where = f"{name}:{number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}: not JSON ({error}); expected JSON lines, one object a line") from error
        if not isinstance(row, dict):
            raise InputError(f"{where}: expected an object, found {type(row).__name__}")
        if "\\ud" in line.lower() and half_character(json.dumps(row, ensure_ascii=False)):
            raise InputError(f"{where}: holds an unpaired surrogate, which is not a character")
        yield row, where


def is_number(value: Any) -> bool:
    """Return whether a value of JSON is a number that is finite, as an integer of hundreds of digits is not here."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
