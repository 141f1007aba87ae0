"""Delimited tables: comma, tab, semicolon or bar separated values below a header."""

import csv
import io
import logging
import re
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from care_qdrant.corpus.column_types import ColumnGuess, ColumnType, IdGuess, convert
from care_qdrant.corpus.rows import HASH_ID, Fields, Reject, parse_values
from care_qdrant.corpus.streams import BYTE_ORDER_MARK, MAX_LINE_BYTES, as_text
from care_qdrant.errors import InputError, counted
from care_qdrant.types import Document

logger = logging.getLogger(__name__)

Table = Literal["csv", "tsv"]
_DELIMITERS: dict[Table, str] = {"csv": ",;\t|", "tsv": "\t"}
"""Separators that a table may have, the likeliest first."""
_NAMES = {",": "comma", "\t": "tab", ";": "semicolon", "|": "bar"}
_LINE_END = re.compile(r"\r*\n|\r")
_EXCEL_HINT = re.compile(r"sep=(?P<delimiter>[^\r\n\"])")
"""First line by which Excel is told the separator."""
_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")


class Header(NamedTuple):
    """The columns and the dialect that the start of a table shows."""

    delimiter: str
    columns: list[str]
    has_hint: bool
    """Whether Excel's line with the separator stands in front."""
    line_end: str
    """Last character of the first line end: a line feed, or a carriage return in files of old Macintosh programs."""


def read_header(head: bytes, form: Table, fields: Fields) -> Header:
    """Return the delimiter and the columns of a table: the one that shows the text field, or else most columns."""
    start = head.removeprefix(BYTE_ORDER_MARK).decode("utf-8", "replace")
    lines, first_end = _LINE_END.split(start, 2), _LINE_END.search(start)
    hint = _EXCEL_HINT.fullmatch(lines[0])
    first = lines[1] if hint and len(lines) > 1 else lines[0]
    headers = {mark: _cells(first, mark) for mark in (_DELIMITERS[form] if hint is None else hint["delimiter"])}
    best = max(
        headers, key=lambda delimiter: (_text_column(headers[delimiter], fields) is not None, len(headers[delimiter]))
    )
    return Header(best, headers[best], hint is not None, first_end[0][-1] if first_end is not None else "\n")


def describe_table(head: bytes, form: Table, fields: Fields) -> str:
    """Return what a table looks like, for people: its separator and its columns."""
    delimiter, columns, *_ = read_header(head, form, fields)
    return f"table, {_NAMES.get(delimiter, repr(delimiter))} separated, columns {', '.join(columns)}"


def read_table(file: io.BufferedReader, form: Table, name: str, fields: Fields) -> Iterator[Document | Reject]:
    """Return the rows of a table; empty cells are left out.

    Raises:
        InputError: The header is not one of a corpus, or a second table follows.
    """
    header = read_header(file.peek(), form, fields)
    with as_text(file, "surrogateescape", header.line_end) as text:
        records = _records(text, header)
        columns = _columns(records, name, fields)
        types = [fields.types.get(column, "text") for column in columns]
        for line, cells in records:
            if isinstance(cells, Reject):
                yield cells
            elif not any(cells) or _is_header_again(cells, columns, line, name, fields):
                continue
            elif len(cells) != len(columns):
                yield Reject(line, f"has {counted(len(cells), 'cell')}; the header has {len(columns)}")
            else:
                yield _row(columns, cells, types, line, fields)


def guess_types(
    file: io.BufferedReader,
    form: Table,
    name: str,
    fields: Fields,
    guesses: dict[str, ColumnGuess],
    ids: IdGuess,
) -> None:
    """Narrow the types of the columns by the cells of one more table; roles and columns of known type are left out."""
    header = read_header(file.peek(), form, fields)
    with as_text(file, "surrogateescape", header.line_end) as text:
        records = _records(text, header)
        columns = _columns(records, name, fields)
        for column in columns:
            if column not in fields.types and column not in _roles(fields):
                guesses.setdefault(column, ColumnGuess(column))
        open_ones: list[tuple[int, ColumnGuess | IdGuess]] = [
            (at, guesses[column]) for at, column in enumerate(columns) if column in guesses
        ]
        if (of_ids := id_column(columns, fields)) in columns:
            open_ones.append((columns.index(of_ids), ids))
        for line, cells in records:
            open_ones = [(at, guess) for at, guess in open_ones if not guess.is_text]
            if not open_ones:
                return
            if isinstance(cells, Reject) or len(cells) != len(columns):
                continue
            if _is_header_again(cells, columns, line, name, fields):
                continue
            for at, guess in open_ones:
                if cells[at]:
                    guess.add(cells[at])


def require_columns(columns: Sequence[str], name: str, fields: Fields, paths: Sequence[str] = ()) -> None:
    """Refuse a table whose columns no document can be made of, before any of its rows is rejected for that.

    Args:
        columns: Names of the columns.
        name: Name of the file.
        fields: Names of the parts of a row.
        paths: Names of the fields inside columns, such as ``content.body``.
    """
    if twice := sorted({column for column in columns if columns.count(column) > 1 and column}):
        raise InputError(f"{name}: column {twice[0]!r} occurs twice; rename one")
    has_id = id_column([*columns, *paths], fields) is not None
    required = (
        (fields.text, "--text-field NAME", _text_column([*columns, *paths], fields) is not None),
        (fields.id, "--id-field NAME (or :hash)", has_id),
    )
    missing = [(repr(field), option) for field, option, is_there in required if not is_there]
    if columns and missing:
        fields_missing, options = (" and ".join(part) for part in zip(*missing, strict=True))
        title = "" if fields.title in columns else "; --title-field NAME where one is a title"
        raise InputError(
            f"{name}: has no column {fields_missing} (columns: {', '.join(columns)}); give {options}{title}"
        )
    nameless = [number for number, column in enumerate(columns, 1) if not column.strip()]
    if nameless:
        raise InputError(
            f"{name}: column {nameless[0]} has no name; name or remove it (an index of pandas: to_csv(index=False))"
        )


def _columns(records: Iterator[tuple[int, list[str] | Reject]], name: str, fields: Fields) -> list[str]:
    _, columns = next(records, (0, []))
    if isinstance(columns, Reject):
        raise InputError(f"{name}: the header {columns.reason}")
    require_columns(columns, name, fields)
    if wrong := sorted(fields.types.keys() & _roles(fields) & set(columns)):
        raise InputError(f"--types: column {wrong[0]!r} is the id, the text, the title or the metadata of a row")
    return columns


def _roles(fields: Fields) -> set[str]:
    return {fields.id, *fields.texts, fields.title, fields.metadata, *(("_id",) if fields.id == "id" else ())}


def _text_column(columns: Sequence[str], fields: Fields) -> str | None:
    return next((name for name in fields.texts if name in columns), None)


def id_column(columns: Sequence[str], fields: Fields) -> str | None:
    """Return the name of the column with the ids, `HASH_ID` if a hash is the id, or None if no column has ids."""
    names = (fields.id, "_id") if fields.id == "id" else (fields.id,)
    return HASH_ID if fields.id == HASH_ID else next((name for name in names if name in columns), None)


def _row(
    columns: Sequence[str], cells: Sequence[str], types: Sequence[ColumnType], line: int, fields: Fields
) -> Document | Reject:
    values: dict[str, object] = {}
    of_ids = id_column(columns, fields)
    for column, cell, kind in zip(columns, cells, types, strict=True):
        try:
            if cell and column == of_ids and fields.are_ids_whole:
                values[column] = cell.removesuffix(".0")
            elif cell:
                values[column] = cell if kind == "text" else convert(cell, kind)
        except ValueError as error:
            named = dict(zip(columns, cells, strict=True)).get(of_ids or "", "")
            return Reject(line, f"{column!r} {error}; fix it, or give --types {column}=text", named)
    return parse_values(values, line, fields)


def _is_header_again(cells: Sequence[str], columns: Sequence[str], line: int, name: str, fields: Fields) -> bool:
    """Return whether a row is the header of an equal table that was appended; refuse another header."""
    text = _text_column(columns, fields)
    if text not in cells:  # the quick answer for almost every row
        return False
    if cells == list(columns):
        logger.info("%s: line %s is the header again, and no row", name, f"{line:,}")
        return True
    # A row of a data dictionary also names columns; a header names each in its place, or all of them.
    row, of_ids = dict(zip(columns, cells, strict=False)), id_column(columns, fields)
    is_in_place = row.get(text or "") == text and row.get(of_ids or "") == of_ids
    if is_in_place or sorted(cells) == sorted(columns):
        raise InputError(
            f"{name}: line {line:,} is a header with other columns ({', '.join(cells)}): a second table begins there. "
            "Rows before it were read; make a file of each table"
        )
    return False


def _cells(line: str, delimiter: str) -> list[str]:
    """Return the cells of one line; its quotes may be no quotes, as in prose."""
    return next(csv.reader([line], delimiter=delimiter), [])


class _BadLine(Exception):
    """A line that no record can have; the message says why."""


def _records(text: io.TextIOWrapper, header: Header) -> Iterator[tuple[int, list[str] | Reject]]:
    """Return the records, each with the number of its last line.

    Where quotes or bytes of a record are wrong, its first line is rejected, and the next one begins a record: an open
    quote takes one row, not the rest of the file. Between tabs, such quotes are part of the text. A line end of another
    kind than the first line's is part of a cell in quotes, and a mistake elsewhere: it would begin a row of its own.
    """
    csv.field_size_limit(MAX_LINE_BYTES)
    width = 0
    if header.has_hint:
        text.readline()
    lines = _Lines(text)
    reader = csv.reader(lines, delimiter=header.delimiter, strict=True)
    number = int(header.has_hint)
    while True:
        try:
            cells = next(reader, None)
        except (csv.Error, _BadLine) as error:
            number += 1
            reason = _mistake(error) if isinstance(error, csv.Error) else str(error)
            literal = _literal_cells(lines.taken[:1], header.delimiter, width) if isinstance(error, csv.Error) else None
            lines.return_all_but_first()
            yield number, Reject(number, reason) if literal is None else literal
            reader = csv.reader(lines, delimiter=header.delimiter, strict=True)
            continue
        if cells is None:
            return
        if len(lines.taken) > 1 and (literal := _literal_cells(lines.taken, header.delimiter, width)) is not None:
            cells = literal
            lines.return_all_but_first()
            reader = csv.reader(lines, delimiter=header.delimiter, strict=True)
            number += 1
        else:
            number += len(lines.taken)
            lines.taken.clear()
        width = width or len(cells)
        yield number, cells


def _literal_cells(lines: Sequence[str], delimiter: str, width: int) -> list[str] | None:
    """Return the cells of the first line with their quotes; None if the quotes enclose cells.

    Programs that write tabs often write no quotes around a cell, so a quote is part of the text: where each line alone
    has the cells of a row. A quoted cell of several lines would hardly have as many tabs in each of them.
    """
    rows = [line.rstrip("\r\n").split(delimiter) for line in lines]
    return rows[0] if delimiter == "\t" and width > 1 and all(len(row) == width for row in rows) else None


def _mistake(error: csv.Error) -> str:
    """Return what is wrong with the quotes or the line ends of a record."""
    reason = str(error)
    if "new-line" in reason:
        return "has a line end of another kind outside quotes; put the cell in quotes, or give the file one line end"
    is_open = "end of data" in reason or "limit" in reason
    what = "an opening quote without an end" if is_open else f"wrong quotes ({reason})"
    return f"has {what}; write a quote inside a quoted cell twice"


class _Lines(Iterator[str]):
    """Lines of a text; the lines of the current record can be read again."""

    def __init__(self, text: io.TextIOWrapper) -> None:
        self._text = text
        self._again: deque[str] = deque()
        self.taken: list[str] = []
        """Lines of the record that is being read."""

    def __next__(self) -> str:
        line = self._again.popleft() if self._again else self._text.readline(MAX_LINE_BYTES + 1)
        if not self.taken:  # a byte order mark stands where two files were put together
            line = line.removeprefix("\ufeff")
        if not line:
            raise StopIteration
        self.taken.append(line)
        if len(line) > MAX_LINE_BYTES:
            while line and not line.endswith(("\n", "\r")):
                line = self._text.readline(MAX_LINE_BYTES)
            raise _BadLine(f"is longer than {MAX_LINE_BYTES:,} characters")
        if (wrong := _ESCAPED_BYTE.search(line)) is not None:
            position = len(line[: wrong.start()].encode())
            raise _BadLine(f"is not UTF-8: byte 0x{ord(wrong[0]) - 0xDC00:02x} at position {position}")
        return line

    def return_all_but_first(self) -> None:
        """Forget the first line of the record, and let the others be read again."""
        self._again.extendleft(reversed(self.taken[1:]))
        self.taken.clear()
