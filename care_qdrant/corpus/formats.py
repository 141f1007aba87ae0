"""The reader of each format of a corpus file.

Lines of JSON and whole texts are read here, all others by a module of their own.
"""

import io
import json
import re
from collections.abc import Iterator
from typing import Any, Literal

from care_qdrant.corpus.columnar import read_columns
from care_qdrant.corpus.endings import Format
from care_qdrant.corpus.front_matter import split_front_matter
from care_qdrant.corpus.json_values import read_values
from care_qdrant.corpus.rows import JSON, Fields, Reject, parse_line, parse_values
from care_qdrant.corpus.streams import BYTE_ORDER_MARK, HEAD_BYTES, MAX_LINE_BYTES
from care_qdrant.corpus.tables import read_table
from care_qdrant.types import Document

# One way to read each line end, and so one way to read many of them. A possessive group would say so, too, but takes
# blanks of the next line along in Python before 3.11.5.
_BLANK_LINES = r"(?:[ \t]*(?:\r\n|\r(?!\n)|\n))*"
_HEADING = re.compile(rf"{_BLANK_LINES} {{0,3}}#[ \t](?P<title>[^\r\n]*){_BLANK_LINES}")
"""A first-level heading at the start of a text, as CommonMark has it, and the blank lines below it."""


def read_rows(form: Format, file: io.BufferedReader, fields: Fields, *, name: str) -> Iterator[Document | Reject]:
    """Return the rows of a file by the reader of its format.

    Args:
        form: Format of the file.
        file: Its content, decompressed, and as UTF-8 where it is text.
        fields: Names of the parts of a row.
        name: Name of the file, which is the id of a text.
    """
    match form:
        case "parquet":
            return read_columns(file, name, fields)
        case "json":
            return read_lines(file, fields) if _is_one_object_a_line(file) else read_values(file, fields)
        case "csv" | "tsv":
            return read_table(file, form, name, fields)
        case "md" | "txt":
            return read_text(file, form, name, fields)
        case "jsonl":
            return read_lines(file, fields)


def _is_one_object_a_line(file: io.BufferedReader) -> bool:
    """Return whether a JSON file begins with an object that ends with its line, as pandas and others write rows."""
    first, line_end, _ = file.peek(HEAD_BYTES).removeprefix(BYTE_ORDER_MARK).lstrip().partition(b"\n")
    if not first.startswith(b"{"):
        return False
    try:
        JSON.decode(first.decode())
    except json.JSONDecodeError as error:
        return not line_end or error.pos < len(error.doc.rstrip())  # a mistake in the line, not behind it
    except (ValueError, RecursionError):
        return True
    return True


def read_lines(file: io.BufferedReader, fields: Fields) -> Iterator[Document | Reject]:
    """Return the rows of JSON lines; blank lines are skipped."""
    for number, raw in numbered_lines(file):
        if isinstance(raw, Reject):
            yield raw
        elif raw.strip():
            yield parse_line(raw, number, fields)


def numbered_lines(file: io.BufferedReader) -> Iterator[tuple[int, bytes | Reject]]:
    """Return the lines with their numbers; never more than `MAX_LINE_BYTES` are in memory."""
    number = 0
    while raw := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if number == 1:
            raw = raw.removeprefix(BYTE_ORDER_MARK)
        if len(raw) > MAX_LINE_BYTES:
            while raw and not raw.endswith(b"\n"):
                raw = file.readline(MAX_LINE_BYTES)
            yield number, Reject(number, f"is longer than {MAX_LINE_BYTES:,} bytes")
        else:
            yield number, raw


def read_text(
    file: io.BufferedReader, form: Literal["md", "txt"], name: str, fields: Fields
) -> Iterator[Document | Reject]:
    """Return a whole text file as one row, whose id is its name.

    The YAML or TOML in front of Markdown is metadata; its title, or else a first heading, is the row's.
    """
    raw = file.read(MAX_LINE_BYTES + 1)
    if len(raw) > MAX_LINE_BYTES:
        yield Reject(1, f"is longer than {MAX_LINE_BYTES:,} bytes", name)
        return
    try:
        text = raw.removeprefix(BYTE_ORDER_MARK).decode("utf-8")
    except UnicodeDecodeError as error:
        yield Reject(1, f"is not UTF-8: byte 0x{raw[error.start]:02x} at position {error.start}", name)
        return
    values: dict[str, Any] = {fields.id: name}
    if form == "md":
        try:
            front, text = split_front_matter(text)
        except ValueError as error:
            yield Reject(1, f"its front matter {error}", name)
            return
        title = front.pop("title", None)
        if title is not None and not isinstance(title, str | int | float):
            yield Reject(1, f"its front matter has a {type(title).__name__} as title; expected a text", name)
            return
        written = "" if title is None else title if isinstance(title, str) else json.dumps(title)
        if not written.strip():
            written, text = _split_heading(text)
        values |= {fields.title: written, fields.metadata: front}
    yield parse_values({**values, fields.text: text}, 1, fields)


def _split_heading(text: str) -> tuple[str, str]:
    """Return the first heading of a text and what follows it; no heading where nothing would follow."""
    heading = _HEADING.match(text)
    if heading is None:
        return "", text
    title = heading["title"].strip(" \t")
    opening = title.rstrip("#")
    if opening[-1:] in ("", " ", "\t"):  # "# C #" is headed C, and "# C#" is headed C#
        title = opening
    title, rest = title.strip(), text[heading.end() :]
    return (title, rest) if title and rest.strip() else ("", text)
