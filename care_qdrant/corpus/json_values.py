"""Rows that are JSON values one after the other: arrays of rows, and objects that span lines."""

import io
from collections.abc import Iterator
from typing import Any

from care_qdrant.corpus.rows import JSON, Fields, Reject, parse_json
from care_qdrant.corpus.streams import MAX_LINE_BYTES, Unreadable, as_text
from care_qdrant.types import Document

_CHARACTERS = 65_536
"""Characters that are read at once; more where a row is longer."""
_BLANK = " \t\r\n"


def read_values(file: io.BufferedReader, fields: Fields) -> Iterator[Document | Reject]:
    """Return the elements of all arrays and the objects between them; their numbers count from 1.

    Raises:
        Unreadable: Something else stands where a row should, or the last array has no end.
    """
    number, in_array = 0, False
    with as_text(file) as stream:
        text = _Text(stream)
        while True:
            # A byte order mark stands where two files were put together.
            first = text.first_behind(f"{_BLANK}," if in_array else f"{_BLANK}\ufeff")
            if not first and not in_array:
                return
            if first == ("]" if in_array else "["):
                text.skip(1)
                in_array = not in_array
            elif in_array or first == "{":
                number += 1
                yield parse_json(text.value(), number, fields)
            else:
                raise Unreadable(f"{text.place}: {text.sample!r} is not a row; expected another array or object")


class _Text:
    """The part of a text that is not decoded yet, and its place in the whole."""

    def __init__(self, stream: io.TextIOWrapper) -> None:
        self._stream = stream
        self._buffer, self._at = "", 0
        self._line, self._characters = 1, 0

    @property
    def place(self) -> str:
        """The place of the next value, for people; an array of a program may be one line."""
        return f"line {self._line:,}, character {self._characters + 1:,} of the file"

    @property
    def sample(self) -> str:
        """The start of the next value."""
        return self._buffer[self._at : self._at + 20]

    def first_behind(self, skipped: str) -> str:
        """Return the next character that is none of these; an empty string at the end."""
        while True:
            end = self._at
            while end < len(self._buffer) and self._buffer[end] in skipped:
                end += 1
            self.skip(end - self._at)
            if end < len(self._buffer):
                return self._buffer[end]
            if not self._more():
                return ""

    def skip(self, characters: int) -> None:
        """Leave a part behind."""
        end = self._at + characters
        self._line += self._buffer.count("\n", self._at, end)
        self._characters += characters
        self._at = end

    def value(self) -> Any:
        """Return the next JSON value."""
        while True:
            try:
                value, end = JSON.raw_decode(self._buffer, self._at)
                # A number at the end of what was read may go on.
                if end < len(self._buffer) or isinstance(value, dict | list | str) or not self._more():
                    self.skip(end - self._at)
                    return value
            except RecursionError as error:
                raise Unreadable(f"{self.place}: the row is nested too deeply") from error
            except ValueError as error:
                if len(self._buffer) - self._at > MAX_LINE_BYTES:
                    raise Unreadable(
                        f"{self.place}: the row is longer than {MAX_LINE_BYTES:,} characters, or no JSON"
                    ) from error
                if not self._more():
                    raise Unreadable(
                        f"{self.place}: the next element of the array is cut off, or no JSON: {error}"
                    ) from error

    def _more(self) -> bool:
        """Read on; False at the end."""
        left = self._buffer[self._at :]
        more = self._stream.read(max(_CHARACTERS, len(left)))
        self._buffer, self._at = left + more, 0
        return bool(more)
