"""Rows of JSONL and TSV files with their line numbers; every invalid field is an error that names its line.

Corpora and queries are read by `care_qdrant.corpus.files`, as ingestion reads them.
"""

import gzip
import json
import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from care_qdrant.errors import InputError, counted


@dataclass(frozen=True, slots=True)
class Row:
    """One parsed line of a file. Every method raises an InputError that names the line."""

    where: str
    """``dev/corpus.jsonl:8812``"""
    fields: Mapping[str, Any]

    def identity(self, *keys: str) -> str:
        """Return the id under the first of ``keys`` that is present; a number becomes its digits."""
        value = self._first(keys)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        return self._filled(keys[0], value)

    def text(self, key: str) -> str:
        """Return a string that is not empty."""
        return self._filled(key, self._first((key,)))

    def texts(self, key: str) -> list[str]:
        """Return a list of at least one string, without repetitions."""
        values = self.fields.get(key)
        if not isinstance(values, list) or not values:
            raise InputError(f"{self.where}: {key!r} is {values!r}; expected a list with at least one text")
        return list(dict.fromkeys(self._filled(key, value) for value in values))

    def number(self, key: str) -> float:
        """Return a finite number; a string of digits is accepted."""
        value = self.fields.get(key)
        try:
            number = math.nan if isinstance(value, bool) or value is None else float(value)
        except (OverflowError, TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise InputError(f"{self.where}: {key!r} is {value!r}; expected a finite number")
        return number

    def grade(self, key: str) -> int:
        """Return a relevance grade, an integer from 0."""
        grade = self.number(key)
        if grade < 0 or grade != int(grade):
            raise InputError(f"{self.where}: {key!r} is {self.fields[key]!r}; expected a grade 0, 1, 2, …")
        return int(grade)

    def _first(self, keys: tuple[str, ...]) -> object:
        value = next((self.fields[key] for key in keys if key in self.fields), None)
        if value is None:
            raise InputError(f"{self.where}: has no {keys[0]!r} (keys: {', '.join(self.fields)})")
        return value

    def _filled(self, key: str, value: object) -> str:
        if not isinstance(value, str) or not value.strip():
            raise InputError(f"{self.where}: {key!r} holds {value!r}; expected a non-empty string")
        return value


def read_jsonl(path: Path) -> Iterator[Row]:
    """Yield one row per line that is not blank."""
    for number, line in _numbered_lines(path):
        if line.strip():
            yield _parse(f"{path}:{number}", line)


def read_tsv(path: Path) -> Iterator[Row]:
    """Yield one row per line after the header."""
    header: list[str] = []
    for number, line in _numbered_lines(path):
        values = line.rstrip("\n").split("\t")
        if number == 1:
            header = values
        elif len(values) != len(header):
            raise InputError(f"{path}:{number}: has {counted(len(values), 'field')}; the header has {len(header)}")
        else:
            yield Row(f"{path}:{number}", dict(zip(header, values, strict=True)))


def _parse(where: str, line: str) -> Row:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits, or brackets
        raise InputError(f"{where}: is not JSON ({error})") from error
    if not isinstance(fields, dict):
        raise InputError(f"{where}: is a JSON {type(fields).__name__}; expected an object")
    return Row(where, fields)


def _numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    number = 0
    try:
        with _open(path) as lines:
            for number, line in enumerate(lines, start=1):
                yield number, line
    except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError) as error:
        raise InputError(f"{path}:{number + 1}: cannot be read from here on ({error})") from error


def _open(path: Path) -> TextIO:
    # Windows editors put a byte order mark in front, which does not belong to the first row.
    return gzip.open(path, "rt", encoding="utf-8-sig") if path.suffix == ".gz" else path.open(encoding="utf-8-sig")
