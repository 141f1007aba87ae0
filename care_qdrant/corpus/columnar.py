"""Tables of Parquet, whose columns have types."""

import io
import json
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np

from care_qdrant.corpus.rows import Fields, Reject, parse_values
from care_qdrant.corpus.tables import id_column, require_columns
from care_qdrant.errors import InputError
from care_qdrant.types import Document

Convert = Callable[[Any], Any]
_BATCH_ROWS = 1_024
_EXACT_IN_FLOAT = 2**53
_UNREADABLE = (ValueError, OverflowError, ArithmeticError, LookupError)
"""Errors of pyarrow for a cell that Python has no value for, besides its own."""


def read_columns(file: io.BufferedReader, name: str, fields: Fields) -> Iterator[Document | Reject]:
    """Return the rows of a Parquet file.

    Raises:
        InputError: Its columns are not those of a corpus.
    """
    import pyarrow.parquet  # type: ignore[import-untyped]

    table = pyarrow.parquet.ParquetFile(file)
    schema = table.schema_arrow
    require_columns(schema.names, name, fields, [path for field in schema for path in _paths(field.type, field.name)])
    for field in schema:
        _require_keys(field.type, field.name, name)
    schema = pyarrow.schema([field.with_type(_to_microseconds(field.type)) for field in schema])
    converters = {field.name: convert for field in schema if (convert := _converter(field.type)) is not None}
    for field in schema:
        if pyarrow.types.is_floating(field.type) and field.name == id_column(schema.names, fields):
            converters[field.name] = _whole
    number = 0
    for batch in table.iter_batches(batch_size=_BATCH_ROWS):
        for values in _rows(batch, schema, converters):
            number += 1
            yield Reject(number, values) if isinstance(values, str) else parse_values(values, number, fields)


def _rows(batch: Any, schema: Any, converters: Mapping[str, Convert]) -> Iterator[dict[str, Any] | str]:
    """Return the rows of a batch, or why Python has no value for a cell of a row."""
    import pyarrow

    if batch.schema != schema:
        columns = [
            column if column.type == kind else column.cast(kind, safe=False)
            for column, kind in zip(batch.columns, schema.types, strict=True)
        ]
        batch = pyarrow.RecordBatch.from_arrays(columns, schema=schema)
    try:
        rows: list[dict[str, Any]] = batch.to_pylist()
    except (*_UNREADABLE, pyarrow.ArrowException):
        for number in range(batch.num_rows):
            yield _row(batch, number, converters)
        return
    for row in rows:
        try:
            yield _present(row, converters)
        except ValueError as error:
            yield str(error)


def _row(batch: Any, number: int, converters: Mapping[str, Convert]) -> dict[str, Any] | str:
    import pyarrow

    values: dict[str, Any] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            values[name] = column[number].as_py()
        except (*_UNREADABLE, pyarrow.ArrowException) as error:
            return f"{name!r} is a {column.type} that cannot be read: {error} (a date is of the years 1 to 9999)"
    try:
        return _present(values, converters)
    except ValueError as error:
        return str(error)


def _present(row: dict[str, Any], converters: Mapping[str, Convert]) -> dict[str, Any]:
    return {
        name: converters[name](value) if name in converters else value
        for name, value in row.items()
        if value is not None
    }


def _converter(kind: Any) -> Convert | None:
    """Return what makes JSON of the values of a type, at any depth; None where they are JSON already."""
    import pyarrow

    types = pyarrow.types
    if isinstance(kind, pyarrow.BaseExtensionType):
        return lambda value: str(value) if isinstance(value, UUID) else value
    if types.is_dictionary(kind):
        return _converter(kind.value_type)
    if types.is_float16(kind) or types.is_float32(kind):
        # Written with the digits of a double, 0.1 of 32 bits would be 0.10000000149011612, and no filter would find it.
        short = np.float16 if types.is_float16(kind) else np.float32
        return lambda value: float(str(short(value)))
    if types.is_decimal(kind):
        return _number
    if types.is_date(kind) or types.is_time(kind) or types.is_timestamp(kind):
        return lambda value: value.isoformat()  # ISO 8601, which Qdrant can filter
    if types.is_map(kind):
        return _map_converter(kind)
    if types.is_struct(kind):
        inner = {field.name: convert for field in kind if (convert := _converter(field.type)) is not None}
        return None if not inner else lambda value: {**value, **_present({k: value[k] for k in inner}, inner)}
    # A list of any kind: dictionaries, whose values have a type as well, are above.
    if hasattr(kind, "value_type") and (convert := _converter(kind.value_type)) is not None:
        return lambda value: [None if item is None else convert(item) for item in value]
    return None


def _map_converter(kind: Any) -> Convert:
    """Return the converter of a map, whose pairs become an object; its keys become texts, as in JSON."""
    of_key, of_item = _converter(kind.key_type), _converter(kind.item_type)

    def convert(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, item in pairs:
            written = of_key(key) if of_key is not None else key
            name = written if isinstance(written, str) else json.dumps(written, default=str)
            if name in values:
                raise ValueError(f"a map has the key {name!r} twice")
            values[name] = item if item is None or of_item is None else of_item(item)
        return values

    return convert


def _number(value: Decimal) -> int | float | str:
    """Return an exact number as the same number of JSON; as a text where a float would lose digits."""
    if value == value.to_integral_value():
        return int(value)
    return float(value) if Decimal(repr(float(value))) == value else str(value)


def _whole(value: float) -> int | float:
    """Return an id as a whole number where pandas made it a float because others are missing: 7.0 is 7."""
    return int(value) if value.is_integer() and abs(value) < _EXACT_IN_FLOAT else value


def _paths(kind: Any, path: str) -> Iterator[str]:
    """Return the paths of the fields below a column of structs: ``content.body``."""
    import pyarrow

    if pyarrow.types.is_struct(kind):
        for field in kind:
            yield f"{path}.{field.name}"
            yield from _paths(field.type, f"{path}.{field.name}")


def _require_keys(kind: Any, column: str, name: str) -> None:
    """Refuse a struct with two fields of one name, at any depth: which value counts is anybody's guess."""
    import pyarrow

    fields = [kind.field(number) for number in range(kind.num_fields)]
    names = [field.name for field in fields]
    if (
        pyarrow.types.is_struct(kind)
        and (twice := next((key for key in names if names.count(key) > 1), None)) is not None
    ):
        raise InputError(f"{name}: column {column!r} has the key {twice!r} twice; rename one")
    for field in fields:
        _require_keys(field.type, column, name)


def _to_microseconds(kind: Any) -> Any:
    """Return a type whose times have microseconds: Python's and Qdrant's times have no nanoseconds."""
    import pyarrow

    if pyarrow.types.is_timestamp(kind) and kind.unit == "ns":
        return pyarrow.timestamp("us", kind.tz)
    if pyarrow.types.is_time64(kind) and kind.unit == "ns":
        return pyarrow.time64("us")
    if pyarrow.types.is_duration(kind) and kind.unit == "ns":
        return pyarrow.duration("us")
    types = pyarrow.types
    if types.is_struct(kind):
        return pyarrow.struct([field.with_type(_to_microseconds(field.type)) for field in kind])
    if types.is_map(kind):
        return pyarrow.map_(_to_microseconds(kind.key_type), _to_microseconds(kind.item_type))
    if types.is_list(kind):
        return pyarrow.list_(kind.value_field.with_type(_to_microseconds(kind.value_type)))
    if types.is_large_list(kind):
        return pyarrow.large_list(kind.value_field.with_type(_to_microseconds(kind.value_type)))
    if types.is_fixed_size_list(kind):
        return pyarrow.list_(kind.value_field.with_type(_to_microseconds(kind.value_type)), kind.list_size)
    return kind
