"""The formats of a corpus file: how each is told by its name and content, and which reader it has.

Lines of JSON and whole texts are read here, all others by a module of their own.
"""

import io
import json
import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any, Literal

from care_qdrant.corpus.columnar import read_columns
from care_qdrant.corpus.json_values import read_values
from care_qdrant.corpus.rows import JSON, Fields, Reject, parse_line, parse_values
from care_qdrant.corpus.streams import BYTE_ORDER_MARK, MAX_LINE_BYTES
from care_qdrant.corpus.tables import TABLES, TEXTS, read_header, read_table
from care_qdrant.types import Document

Format = Literal["JSON lines", "JSON objects", "JSON array", "CSV", "Parquet", "Arrow", "text"]

_MARKDOWN = (".md", ".markdown")
ENDINGS = (".jsonl", ".ndjson", ".json", ".parquet", ".arrow", *TABLES, *TEXTS)
"""Endings of the files that are read in a folder; a file that is given alone may have any name."""
NO_TABLES = (".parquet", ".arrow", *_MARKDOWN)
"""Endings of files that are no delimited tables, whatever they hold."""
READABLE = "JSON lines, a JSON array, CSV or TSV, Parquet, text (.txt, .md)"
"""The formats in the words of a message."""
_ARRAY = re.compile(rb"\s*\[\s*(?:\{|\Z|\])")
_FRONT_MATTER = re.compile(r"---[ \t]*\r?\n(?P<yaml>.*?)^(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"\s*#\s+(?P<title>[^\n]+?)\s*#*\s*(?:\n|\Z)")


def tell_format(name: str, head: bytes, fields: Fields) -> Format:
    """Return the format of a file."""
    text = head.removeprefix(BYTE_ORDER_MARK).lstrip()
    if head.startswith(b"PAR1") or name.endswith(".parquet"):
        return "Parquet"
    if name.endswith(".arrow"):
        return "Arrow"
    if text.startswith(b"{") and not name.endswith(_MARKDOWN):
        return "JSON objects" if _spans_lines(text) else "JSON lines"
    if _ARRAY.match(text):
        return "JSON array"
    if name.endswith(_MARKDOWN):
        return "text"
    if name.endswith(TABLES) or fields.text in read_header(head, name, fields).columns:
        return "CSV"
    return "text" if name.endswith(TEXTS) else "JSON lines"


def read_rows(
    form: Format, file: io.BufferedReader, fields: Fields, *, name: str, plain_name: str
) -> Iterator[Document | Reject]:
    """Return the rows of a file by the reader of its format.

    Args:
        form: Format of the file.
        file: Its content, decompressed, and as UTF-8 where it is text.
        fields: Names of the parts of a row.
        name: Name of the file, which is the id of a text.
        plain_name: The name without the ending of a compression.
    """
    match form:
        case "Parquet" | "Arrow":
            return read_columns(file, form, name, fields)
        case "JSON array" | "JSON objects":
            return read_values(file, fields)
        case "CSV":
            return read_table(file, plain_name, fields)
        case "text":
            return read_text(file, name, fields)
        case "JSON lines":
            return read_lines(file, fields)


def looks_like_table(head: bytes) -> bool:
    """Return whether each line of a text has the same number of tabs, two or more of these lines: no prose has that."""
    lines = [line for line in head.split(b"\n")[:20] if line.strip()]
    return len(lines) > 2 and len({line.count(b"\t") for line in lines[:-1]}) == 1 and b"\t" in lines[0]


def _spans_lines(text: bytes) -> bool:
    """Return whether the first JSON object goes on in the next line, as a program writes it for people."""
    first, _, rest = text.partition(b"\n")
    if not rest.lstrip().startswith((b'"', b"}")):
        return False
    try:
        JSON.decode(first.decode())
    except (ValueError, RecursionError):
        return True
    return False


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


def read_text(file: io.BufferedReader, name: str, fields: Fields) -> Iterator[Document | Reject]:
    """Return a whole text file as one row, whose id is its name.

    The YAML in front of Markdown is metadata; its title, or else a first heading, is the row's.
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
    if PurePath(name).suffix in _MARKDOWN:
        try:
            front, text = _split_front_matter(text)
        except ValueError as error:
            yield Reject(1, f"its front matter is not YAML: {error}", name)
            return
        if "title" in front:
            values[fields.title] = str(front.pop("title") or "")
        elif (heading := _HEADING.match(text)) is not None and text[heading.end() :].strip():
            values[fields.title], text = heading["title"], text[heading.end() :]
        values[fields.metadata] = front
    yield parse_values({**values, fields.text: text}, 1, fields)


def _split_front_matter(text: str) -> tuple[dict[str, Any], str]:
    """Return what the YAML in front of a text says, and the text behind it."""
    import yaml  # type: ignore[import-untyped]

    found = _FRONT_MATTER.match(text)
    if found is None:
        return {}, text
    try:
        values = yaml.safe_load(found["yaml"])
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
    if not isinstance(values, dict):  # two rules of Markdown around a line of text
        return {}, text
    return json.loads(json.dumps(values, default=str, ensure_ascii=False)), text[found.end() :]
