"""Types of the columns of a delimited table: what its text says they are, and the values made of it.

A CSV file has no types. A column is a number or a date only where every cell of it says so and nothing is lost:
identifiers, phone numbers and codes stay text.
"""

import datetime
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, get_args

from care_qdrant.errors import InputError

ColumnType = Literal["int", "float", "date", "text"]
COLUMN_TYPES: tuple[ColumnType, ...] = get_args(ColumnType)

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,9})")
"""Longer ones are phone numbers, barcodes and times of machines more often than quantities."""
_DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]*)\.([0-9]+)")
_WHOLE = re.compile(r"(?:0|[1-9][0-9]{0,14})(?:\.0)?")
_ANY_INTEGER = re.compile(r"[+-]?[0-9]+")
_ANY_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
# The year comes first: a file does not say whether 01/02/2024 is in January or February.
_DATE = re.compile(
    r"(?P<year>[0-9]{4})(?P<separator>[-/.年])(?P<month>[0-9]{1,2})(?P<second>[-/.月])(?P<day>[0-9]{1,2})(?P<end>日?)"
    r"(?P<time>[T ][0-9]{1,2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?)?(?P<zone>Z|[+-][0-9]{2}:[0-9]{2})?"
)
_SECOND_OF = {"-": "-", "/": "/", ".": ".", "年": "月"}
_IDENTIFIER = re.compile(
    r"(?i:(?:^|[\W_])(?:id|no|nr|code|zip|zipcode|postcode|phone|tel|mobile|fax|isbn|issn|pmid|mrn)$)"
    r"|(?<=[a-z])(?:Id|ID|Code)$|号$|编号|编码|代码|代號|編號|電話|號碼|号码|电话|手机|邮编"
)
"""Names of columns whose digits identify something and are not a quantity."""
_NOTHING: frozenset[str] = frozenset()


class ColumnGuess:
    """The type of one column, narrowed by each of its cells; its size does not depend on how many there are."""

    def __init__(self, name: str) -> None:
        self._possible: frozenset[str] | None = _NOTHING if _IDENTIFIER.search(name) else None
        self.odd = ""
        """The only value so far that is neither a number nor a date, such as ``n/a``; empty without one."""

    @property
    def is_text(self) -> bool:
        """Whether no further cell can change the answer."""
        return self._possible is not None and not self._possible

    def add(self, cell: str) -> None:
        """Take one cell that is not empty."""
        possible = _readings(cell)
        if not possible and self.odd in ("", cell):
            self.odd = cell
        else:
            self._possible = possible if self._possible is None else self._possible & possible

    @property
    def type(self) -> ColumnType:
        """The type of all the cells so far."""
        return "text" if self.odd else self.but_for_odd

    @property
    def but_for_odd(self) -> ColumnType:
        """The type of all the cells so far except `odd`."""
        possible = self._possible or _NOTHING
        if "int" in possible:
            return "int"
        if any(reading.startswith("float") for reading in possible):
            return "float"
        return "date" if possible else "text"


class IdGuess:
    """Whether the ids of all tables of a corpus are whole numbers, some of them with ``.0`` behind.

    pandas and Excel write a column of numbers so once a cell of it was empty: the ids of one night are ``7``, and those
    of the next are ``7.0``.
    """

    def __init__(self) -> None:
        self.is_text = False
        """Whether no further cell can change the answer."""
        self._has_point = False

    def add(self, cell: str) -> None:
        """Take one cell that is not empty."""
        self.is_text = self.is_text or _WHOLE.fullmatch(cell) is None
        self._has_point = self._has_point or cell.endswith(".0")

    @property
    def are_whole(self) -> bool:
        """Whether the point and the zero are to be left out."""
        return self._has_point and not self.is_text


def convert(cell: str, kind: ColumnType) -> str | int | float:
    """Return the value of a cell; a date as ISO 8601, which Qdrant compares as a time.

    Raises:
        ValueError: The cell has no such value.
    """
    if kind == "int" and _ANY_INTEGER.fullmatch(cell) and -(2**63) <= int(cell) < 2**63:
        return int(cell)
    if kind == "float" and _ANY_DECIMAL.fullmatch(cell):
        return float(cell)
    if kind == "date" and (date := _date(cell)) is not None:
        return date[1]
    if kind == "text":
        return cell
    raise ValueError(
        f"is {cell!r}, which is not a valid {'date that starts with the year' if kind == 'date' else kind}"
    )


def parse_types(option: str) -> dict[str, ColumnType]:
    """Read ``name=int,date=date``."""
    types: dict[str, ColumnType] = {}
    for item in filter(None, (part.strip() for part in option.split(","))):
        name, _, kind = item.rpartition("=")
        if not name or kind not in COLUMN_TYPES:
            raise InputError(
                f"--types: {item!r} is not a column with a type; expected NAME=TYPE, the type one of "
                f"{', '.join(COLUMN_TYPES)}, for example year=int,day=date"
            )
        types[name] = kind
    return types


def require_columns(types: Mapping[str, ColumnType], columns: set[str], where: str) -> None:
    """Refuse a type for a column that no table has."""
    if unknown := sorted(types.keys() - columns):
        known = f"columns: {', '.join(sorted(columns))}" if columns else "it has no CSV or TSV table"
        raise InputError(f"{where}: has no column {unknown[0]!r}, which --types names ({known})")


@lru_cache(maxsize=4_096)
def _readings(cell: str) -> frozenset[str]:
    """Return all that a cell can be read as without loss, in each of the forms that a column must share."""
    if _INTEGER.fullmatch(cell) and cell != "-0":
        return frozenset(("int", "float"))
    if decimal := _DECIMAL.fullmatch(cell):
        # With as many decimals in each cell, 1.10 and 1.1 cannot both be there: of versions they are two.
        fixed = f"float with {len(decimal[1])} decimals"
        return frozenset((fixed, "float") if repr(float(cell)) == cell else (fixed,) if len(cell) < 17 else ())
    date = _date(cell)
    return _NOTHING if date is None else frozenset((f"date {date[0]}",))


def _date(cell: str) -> tuple[str, str] | None:
    """Return the form of a date and the date as ISO 8601, or None if the cell is not a date."""
    parts = _DATE.fullmatch(cell)
    if parts is None or _SECOND_OF[parts["separator"]] != parts["second"]:
        return None
    if (parts["separator"] == "年") != bool(parts["end"]) or (parts["zone"] and not parts["time"]):
        return None
    try:
        day = datetime.date(int(parts["year"]), int(parts["month"]), int(parts["day"])).isoformat()
        if not parts["time"]:
            return parts["separator"], day
        hour, _, rest = parts["time"][1:].partition(":")
        time = datetime.datetime.fromisoformat(f"{day}T{hour:0>2}:{rest}{parts['zone'] or ''}")
    except ValueError:
        return None
    return f"{parts['separator']} with time{' and zone' if parts['zone'] else ''}", time.isoformat()
