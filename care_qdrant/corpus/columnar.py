"""Tables of Parquet and Arrow, whose columns have types."""

import datetime
import io
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import numpy as np

from care_qdrant.corpus.rows import Fields, Reject, parse_values
from care_qdrant.corpus.streams import Unreadable
from care_qdrant.corpus.tables import require_columns
from care_qdrant.errors import InputError
from care_qdrant.types import Document

_BATCH_ROWS = 1_024


def read_columns(
    file: io.BufferedReader, form: Literal["parquet", "arrow"], name: str, fields: Fields
) -> Iterator[Document | Reject]:
    """Return the rows of a Parquet or Arrow file.

    Raises:
        InputError: Its columns are not those of a corpus.
        Unreadable: A stream of Arrow is followed by something else.
    """
    import pyarrow.ipc  # type: ignore[import-untyped]
    import pyarrow.parquet  # type: ignore[import-untyped]

    is_stream = False
    if form == "parquet":
        table = pyarrow.parquet.ParquetFile(file)
        schema, batches = table.schema_arrow, table.iter_batches(batch_size=_BATCH_ROWS)
    elif file.peek(6).startswith(b"ARROW1"):
        table = pyarrow.ipc.open_file(file)
        schema, batches = table.schema, map(table.get_batch, range(table.num_record_batches))
    else:
        batches, is_stream = pyarrow.ipc.open_stream(file), True
        schema = batches.schema
    require_columns(schema.names, name, fields)
    for field in schema:
        _require_keys(field.type, field.name, name)
    schema = pyarrow.schema([field.with_type(_to_microseconds(field.type)) for field in schema])
    number = 0
    for batch in batches:
        for values in _rows(batch, schema):
            number += 1
            yield Reject(number, values) if isinstance(values, str) else parse_values(values, number, fields)
    if is_stream and file.read(1):
        raise Unreadable("another stream or other bytes follow the end of this one; make a file of each")


def is_arrow_folder(entries: set[str]) -> bool:
    """Return whether a folder, by the names in it, is what ``datasets`` saved to disk."""
    return {"state.json", "dataset_info.json"} <= entries


def arrow_files(state: str) -> list[str]:
    """Return the files of a saved data set in order, from the content of its ``state.json``."""
    return [str(file["filename"]) for file in json.loads(state)["_data_files"]]


def _rows(batch: Any, schema: Any) -> Iterator[dict[str, Any] | str]:
    """Return the rows of a batch, or why Python has no value for a cell of a row."""
    import pyarrow

    if batch.schema != schema:
        columns = [
            column if column.type == kind else column.cast(kind, safe=False)
            for column, kind in zip(batch.columns, schema.types, strict=True)
        ]
        batch = pyarrow.RecordBatch.from_arrays(columns, schema=schema)
    try:
        rows: list[dict[str, Any]] = batch.to_pylist(maps_as_pydicts="strict")
    except (ValueError, OverflowError, ArithmeticError, LookupError, pyarrow.ArrowException):
        for number in range(batch.num_rows):
            yield _row(batch, number)
        return
    yield from (_present(row, batch.schema) for row in rows)


def _row(batch: Any, number: int) -> dict[str, Any] | str:
    import pyarrow

    values: dict[str, Any] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            values[name] = column[number].as_py(maps_as_pydicts="strict")
        except (ValueError, OverflowError, ArithmeticError, LookupError, pyarrow.ArrowException) as error:
            return f"{name!r} is a {column.type} that cannot be read: {error} (a date is of the years 1 to 9999)"
    return _present(values, batch.schema)


def _present(values: dict[str, Any], schema: Any) -> dict[str, Any]:
    import pyarrow

    short = {
        field.name for field in schema if pyarrow.types.is_float32(field.type) or pyarrow.types.is_float16(field.type)
    }
    present = {key: value for key, value in values.items() if value is not None}
    # Written with the digits of a double, 0.1 of 32 bits would be 0.10000000149011612, and no filter would find it.
    return {key: float(str(np.float32(value))) if key in short else _as_json(value) for key, value in present.items()}


def _as_json(value: Any) -> Any:
    """Return a value as JSON has it, at any depth: dates as ISO 8601, which Qdrant can filter, and exact numbers."""
    if isinstance(value, dict):
        return {key: _as_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(inner) for inner in value]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, Decimal) and value.is_finite():
        return int(value) if value == value.to_integral_value() else float(value)
    return str(value) if isinstance(value, UUID) else value


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
    if pyarrow.types.is_struct(kind):
        return pyarrow.struct([field.with_type(_to_microseconds(field.type)) for field in kind])
    if pyarrow.types.is_list(kind):
        return pyarrow.list_(kind.value_field.with_type(_to_microseconds(kind.value_type)))
    if pyarrow.types.is_large_list(kind):
        return pyarrow.large_list(kind.value_field.with_type(_to_microseconds(kind.value_type)))
    return kind
