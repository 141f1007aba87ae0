"""Tells the format of a file by its content and reads its rows; a row is a mapping, as a line of JSON is."""

import csv
import datetime
import io
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any, Literal

from care_qdrant.corpus.rows import HASH_ID, JSON, Fields, Reject, parse_json, parse_line, parse_values
from care_qdrant.corpus.streams import as_text
from care_qdrant.errors import InputError
from care_qdrant.types import Document

Format = Literal["JSON lines", "JSON array", "CSV", "Parquet", "Arrow", "text"]

MAX_LINE_BYTES = 5_000_000
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
TABLES = (".csv", ".tsv", ".tab")
TEXTS = (".txt", ".md", ".markdown")
_DELIMITERS = ",\t;|"
_BATCH_ROWS = 1_024
_ARRAY = re.compile(rb"\s*\[\s*(?:\{|\Z|\])")
_END: Any = object()
_FRONT_MATTER = re.compile(r"---[ \t]*\r?\n(?P<yaml>.*?)^(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"\s*#\s+(?P<title>[^\n]+?)\s*#*\s*(?:\n|\Z)")


def tell_format(name: str, head: bytes, fields: Fields) -> Format:
    """Return the format of a file."""
    text = head.removeprefix(BYTE_ORDER_MARK).lstrip()
    if head.startswith(b"PAR1") or name.endswith(".parquet"):
        return "Parquet"
    if name.endswith(".arrow"):
        return "Arrow"
    if text.startswith(b"{") and not name.endswith((".md", ".markdown")):
        return "JSON lines"
    if _ARRAY.match(text):
        return "JSON array"
    if name.endswith(TEXTS):
        return "text"
    if name.endswith(TABLES) or fields.text in _header(head, name, fields)[1]:
        return "CSV"
    return "JSON lines"


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


def read_array(file: io.BufferedReader, fields: Fields) -> Iterator[Document | Reject]:
    """Return the elements of one JSON array; their numbers count from 1."""
    number = 0
    with as_text(file) as stream:
        buffer = stream.read(_BATCH_ROWS).lstrip()[1:]
        while True:
            values, buffer = _next_element(buffer, stream)
            if values is _END:
                return
            number += 1
            yield parse_json(values, number, fields)


def _next_element(buffer: str, stream: io.TextIOWrapper) -> tuple[Any, str]:
    """Return the next element of an array, or `_END`, and the rest of the text that was read."""
    while True:
        buffer = buffer.lstrip(" \t\r\n,")
        if buffer.startswith("]"):
            return _END, buffer
        try:
            values, end = JSON.raw_decode(buffer)
            return values, buffer[end:]
        except ValueError as error:
            more = stream.read(max(_BATCH_ROWS, len(buffer)))
            if not more or len(buffer) > MAX_LINE_BYTES:
                raise EOFError(f"the next element of the array is cut off, or no JSON: {error}") from error
            buffer += more


def read_table(file: io.BufferedReader, name: str, fields: Fields) -> Iterator[Document | Reject]:
    """Return the rows of comma, tab or semicolon separated values with a header; empty cells are left out."""
    delimiter, _ = _header(file.peek(), name, fields)
    csv.field_size_limit(MAX_LINE_BYTES)
    with as_text(file) as text:
        reader = csv.reader(text, delimiter=delimiter, strict=True)
        columns = next(reader, [])
        if twice := sorted({column for column in columns if columns.count(column) > 1}):
            raise InputError(f"{name}: column {twice[0]!r} is there twice; rename one")
        _require_columns(columns, name, fields)
        for cells in reader:
            line = reader.line_num
            if not any(cells):
                continue
            if len(cells) == len(columns):
                yield parse_values({key: cell for key, cell in zip(columns, cells, strict=True) if cell}, line, fields)
            else:
                yield Reject(line, f"has {len(cells)} cells; the header has {len(columns)}")


def _require_columns(columns: Sequence[str], name: str, fields: Fields) -> None:
    """Refuse a table without the columns that a document needs, before any of its rows is rejected for that."""
    has_id = fields.id in columns or fields.id == HASH_ID or (fields.id == "id" and "_id" in columns)
    wanted = (
        (fields.text, "--text-field NAME", fields.text in columns),
        (fields.id, "--id-field NAME (or :hash)", has_id),
    )
    missing = [(repr(field), option) for field, option, is_there in wanted if not is_there]
    if not columns or not missing:
        return
    fields_missing, options = (" and ".join(each) for each in zip(*missing, strict=True))
    title = "" if fields.title in columns else "; --title-field NAME where one is a title"
    raise InputError(f"{name}: has no column {fields_missing} (columns: {', '.join(columns)}); give {options}{title}")


def describe_table(head: bytes, name: str, fields: Fields) -> str:
    """Return what a table looks like, for people: its separator and its columns."""
    delimiter, columns = _header(head, name, fields)
    names = {",": "comma", "\t": "tab", ";": "semicolon", "|": "bar"}
    return f"table, {names[delimiter]} separated, columns {', '.join(columns)}"


def read_columns(file: io.BufferedReader, form: Format, name: str, fields: Fields) -> Iterator[Document | Reject]:
    """Return the rows of a Parquet or Arrow file."""
    import pyarrow.ipc  # type: ignore[import-untyped]
    import pyarrow.parquet  # type: ignore[import-untyped]

    if form == "Parquet":
        table = pyarrow.parquet.ParquetFile(file)
        columns, batches = table.schema_arrow.names, table.iter_batches(batch_size=_BATCH_ROWS)
    elif file.peek(6).startswith(b"ARROW1"):
        table = pyarrow.ipc.open_file(file)
        columns, batches = table.schema.names, map(table.get_batch, range(table.num_record_batches))
    else:
        batches = pyarrow.ipc.open_stream(file)
        columns = batches.schema.names
    _require_columns(columns, name, fields)
    number = 0
    for batch in batches:
        for values in batch.to_pylist():
            number += 1
            # Dates as ISO 8601: the one common type of Parquet that JSON lacks and that Qdrant can filter.
            present = {
                key: value.isoformat() if isinstance(value, datetime.date | datetime.time) else value
                for key, value in values.items()
                if value is not None
            }
            yield parse_values(present, number, fields)


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
    if PurePath(name).suffix in (".md", ".markdown"):
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


def _header(head: bytes, name: str, fields: Fields) -> tuple[str, list[str]]:
    """Return the delimiter and the columns of a table: the one that shows the text field, or else most columns."""
    first = head.removeprefix(BYTE_ORDER_MARK).decode("utf-8", "replace").partition("\n")[0].rstrip("\r")
    order = _DELIMITERS if not name.endswith((".tsv", ".tab")) else "\t,;|"
    headers = {delimiter: next(csv.reader([first], delimiter=delimiter), []) for delimiter in order}
    best = max(order, key=lambda delimiter: (fields.text in headers[delimiter], len(headers[delimiter])))
    is_alone = len(headers[best]) < 2 and not name.endswith(TABLES)
    return best, [] if is_alone else headers[best]


def is_arrow_folder(entries: set[str]) -> bool:
    """Return whether a folder, by the names in it, is what ``datasets`` saved to disk."""
    return {"state.json", "dataset_info.json"} <= entries


def arrow_files(state: str) -> list[str]:
    """Return the files of a saved data set in order, from the content of its ``state.json``."""
    return [str(file["filename"]) for file in json.loads(state)["_data_files"]]
