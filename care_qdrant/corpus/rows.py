"""One row of a corpus: what makes it a `Document`, and every reason why it is none."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from care_qdrant.corpus.column_types import ColumnType
from care_qdrant.errors import InputError
from care_qdrant.types import RESERVED_KEYS, Document, embedded_text, half_character

HASH_ID = ":hash"
"""Name of an id field that stands for a hash of title and text."""
MAX_DEPTH = 32
"""Levels of nested metadata. Qdrant's own JSON reader stops at 128 and would refuse the whole request."""


@dataclass(frozen=True, slots=True)
class Fields:
    """Names under which a row holds its parts, types of the cells of a table, and what of each text is left out."""

    id: str = "id"
    """Field of the id; ``_id`` where a row has no ``id``. `HASH_ID` makes the id of the row's content."""
    text: str = "text"
    """Field of the text, or several fields separated by commas: the text of a row is the first that is not empty. The
    others join the metadata, except ``text``, which is the key of the chosen one in the payload."""
    title: str = "title"
    metadata: str = "metadata"
    types: Mapping[str, ColumnType] = field(default_factory=dict)
    """Types of the columns of delimited tables; a column without one is text."""
    are_ids_whole: bool = False
    """Whether an id of a delimited table such as ``7.0`` is the whole number."""

    def __post_init__(self) -> None:
        if HASH_ID in (self.text, self.title, self.metadata):
            raise InputError(
                f"{HASH_ID!r} stands for an id, not for a text, a title or metadata; give it as --id-field"
            )

    @property
    def texts(self) -> tuple[str, ...]:
        """Names of the field of the text; a name may have a comma of its own."""
        parts = (part.strip() for part in self.text.split(","))
        return tuple(dict.fromkeys([self.text, *filter(None, parts)]))

    def of_row(self, values: Mapping[str, Any]) -> Self:
        """Return these fields with the text field chosen for one row; unchanged if only one is given."""
        if "," not in self.text:
            return self
        paths = {name: [name] if name in values else name.split(".") for name in self.texts}
        texts = {name: _taken_out(values, path)[0] for name, path in paths.items()}
        there = [name for name, text in texts.items() if text is not None and not _is_nan(text)]
        filled = (name for name in there if not isinstance(text := texts[name], str) or text.strip())
        name = next(filled, there[0] if there else None)
        return self if name is None else replace(self, text=name)


@dataclass(frozen=True, slots=True)
class Reject:
    """A row that is not ingested, and why; half a character in its id or reason is written as an escape."""

    line: int
    reason: str
    id: str = ""
    """Id of the document, where the row has one."""
    file: str = ""
    """Set where a corpus has several files."""

    def __post_init__(self) -> None:
        for name in ("reason", "id"):
            text = str(getattr(self, name)).encode("utf-8", "backslashreplace").decode()
            object.__setattr__(self, name, text)

    @classmethod
    def of(cls, document: Document, reason: str) -> Self:
        """Reject a document that was read."""
        return cls(document.line, reason, document.id, document.file)


@dataclass(frozen=True, slots=True)
class RepeatedKey:
    """A JSON object that has a key twice: which of its values counts is anybody's guess."""

    key: str


def _read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any] | RepeatedKey:
    values = dict(pairs)
    if len(values) == len(pairs):
        return values
    keys = [key for key, _ in pairs]
    return RepeatedKey(next(key for key in keys if keys.count(key) > 1))


JSON = json.JSONDecoder(object_pairs_hook=_read_object)
"""Reads an object with a repeated key as `RepeatedKey`, at any depth."""


def parse_line(raw: bytes, line: int, fields: Fields) -> Document | Reject:
    """Read one line of JSON."""
    try:
        # A byte order mark also stands where two files were put together.
        values = JSON.decode(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        return Reject(line, f"is not UTF-8: byte 0x{raw[error.start]:02x} at position {error.start}")
    except RecursionError:
        return Reject(line, "is nested too deeply")
    except ValueError as error:
        return Reject(line, f"is not JSON: {error}")
    return parse_json(values, line, fields)


def parse_json(values: Any, line: int, fields: Fields) -> Document | Reject:
    """Read one row that `JSON` decoded."""
    if isinstance(values, RepeatedKey):
        return Reject(line, f"has the key {values.key!r} twice")
    if not isinstance(values, dict):
        return Reject(line, f"is a {_kind(values)}; expected an object with {fields.id!r} and {fields.text!r}")
    chosen = fields.of_row(values)
    values = _with_named(values, chosen)
    if chosen.text not in values and (inner := _rows_inside(values)) is not None:
        return Reject(line, f"is an object around the rows, which are in its {inner!r}: give that array alone")
    return parse_values(values, line, fields)


def _rows_inside(values: Mapping[str, Any]) -> str | None:
    """Return the key of an array of objects in an object that is not a row, as in the answers of many services."""
    return next(
        (key for key, value in values.items() if isinstance(value, list) and value[:1] and isinstance(value[0], dict)),
        None,
    )


def parse_values(values: Mapping[str, Any], line: int, fields: Fields) -> Document | Reject:
    """Read one row that is decoded already. Fields that have no role join the metadata, but for those that are NaN."""
    alternatives, fields = fields.texts, fields.of_row(values)
    values = {name: value for name, value in _with_named(values, fields).items() if not _is_nan(value)}
    if fields.id == HASH_ID:
        if problem := _field_problem({**values, HASH_ID: HASH_ID}, fields, values):
            return Reject(line, problem)
        values = {**values, HASH_ID: hash_id(values.get(fields.title) or "", values[fields.text])}
    elif fields.id == "id" and values.get("id") is None and "_id" in values:
        values = {name: value for name, value in values.items() if name != "id"}
        fields = replace(fields, id="_id")
    document_id = values.get(fields.id)
    if isinstance(document_id, int) and not isinstance(document_id, bool):
        document_id = str(document_id)
    named = document_id if isinstance(document_id, str) else ""
    roles = (fields.id, fields.text, fields.title, fields.metadata)
    # The payload has the text and the title under these keys: an alternative that was not chosen, or one without a
    # value, is left out, and any other is refused.
    left_out = {key for key in ("text", "title") if key in alternatives or values.get(key) in (None, "")}
    extra = {key: value for key, value in values.items() if key not in roles and key not in left_out}
    if problem := _field_problem(values, fields, values) or _metadata_problem(values, fields, extra):
        return Reject(line, problem, named)
    metadata = {**extra, **(values.get(fields.metadata) or {})}
    return check_document(Document(named, values[fields.text], values.get(fields.title) or "", metadata, line=line))


def hash_id(title: str, text: str) -> str:
    """Return the id of a document that has none: 128 bits of the SHA-256 of what an encoder reads of it."""
    return hashlib.sha256(embedded_text(title, text).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def check_document(document: Document) -> Document | Reject:
    """Let a document pass, or say what Qdrant, a tokenizer or a payload could not hold of it.

    Metadata become plain dictionaries and lists, without the fields that are NaN, as tables write a missing number; in
    a list, null takes its place. A blank title is none.
    """
    if not isinstance(document.metadata, Mapping | None):
        return Reject.of(document, f"metadata is a {_kind(document.metadata)}; expected an object")
    title = document.title
    if title is None or (isinstance(title, str) and not title.strip()):
        title = ""
    try:
        document = replace(document, title=title, metadata=_plain(document.metadata or {}))
    except RecursionError:
        return Reject.of(document, f"metadata is nested deeper than {MAX_DEPTH} levels")
    problem = (
        _text_problem("id", document.id)
        or _text_problem("text", document.text)
        or (title != "" and _text_problem("title", title))
        or _value_problem(document.metadata)
    )
    reserved = sorted(RESERVED_KEYS & document.metadata.keys())
    if not problem and reserved:
        problem = f"metadata uses the reserved key {reserved[0]!r}; rename it"
    return Reject.of(document, problem) if problem else document


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items() if not _is_nan(inner)}
    if isinstance(value, list | tuple):
        return [None if _is_nan(inner) else _plain(inner) for inner in value]
    return value


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _with_named(values: Mapping[str, Any], fields: Fields) -> Mapping[str, Any]:
    """Return a row with the parts of a document that stand inside an object, as ``content.body``, at the top."""
    for name in (fields.id, fields.text, fields.title):
        if "." in name and name not in values:
            value, rest = _taken_out(values, name.split("."))
            if value is not None:
                values = {**rest, name: value}
    return values


def _taken_out(values: Mapping[str, Any], path: Sequence[str]) -> tuple[Any, dict[str, Any]]:
    """Return the value at a path, None for none, and the values without it; an object that it leaves empty goes too."""
    first, *others = path
    inner = values.get(first)
    rest = {name: value for name, value in values.items() if name != first}
    if not others or inner is None:
        return inner, rest
    if not isinstance(inner, Mapping):
        return None, rest
    value, left = _taken_out(inner, others)
    return value, {**rest, first: left} if left else rest


def _field_problem(values: Mapping[str, Any], fields: Fields, shown: Mapping[str, Any]) -> str:
    """Return which part of a row is missing or wrong; ``shown`` is the row as the user wrote it."""
    for name in (fields.id, fields.text):
        if values.get(name) is None:
            names = fields.texts[1:] if name == fields.text and "," in name else (name,)
            return f"document has no {' or '.join(map(repr, names))} (keys: {', '.join(map(str, shown)) or 'none'})"
    if not isinstance(values[fields.id], str | int) or isinstance(values[fields.id], bool):
        return f"{fields.id!r} is a {_kind(values[fields.id])}; expected a string or a whole number"
    for name in (fields.text, fields.title):
        if not isinstance(values.get(name), str | None):
            return f"{name!r} is a {_kind(values[name])}; expected a string"
    return ""


def _metadata_problem(values: Mapping[str, Any], fields: Fields, extra: Mapping[str, Any]) -> str:
    """Return what is wrong with the metadata of a row; ``extra`` is its fields without a role, which join them."""
    metadata = values.get(fields.metadata)
    if isinstance(metadata, RepeatedKey):
        return f"{fields.metadata!r} has the key {metadata.key!r} twice"
    if not isinstance(metadata, dict | None):
        return f"{fields.metadata!r} is a {_kind(metadata)}; expected an object"
    for role, name in (("text", fields.text), ("title", fields.title)):
        if role in extra:
            advice = f"rename it, or leave it out by --text-field {name},text" if role == "text" else "rename it"
            return f"has {role!r} besides {name!r}, which is stored as its {role}: {advice}"
    twice = sorted((metadata or {}).keys() & extra.keys())
    return f"{twice[0]!r} is both a field of the row and a key of its metadata" if twice else ""


def _text_problem(name: str, text: Any) -> str:
    if not isinstance(text, str):
        return f"{name!r} is a {type(text).__name__}; expected a string"
    return f"{name!r} is empty" if not text.strip() else _string_problem(name, text)


def _string_problem(name: str, text: str) -> str:
    if "\0" in text:
        return f"{name!r} holds a NUL character"
    half = half_character(text)
    return f"{name!r} holds an unpaired surrogate ({half}), which is not a character" if half else ""


def _value_problem(value: Any, name: str = "metadata", depth: int = 0) -> str:
    """Return why a metadata value is not JSON, or not JSON that every reader accepts; empty if it is."""
    if depth > MAX_DEPTH:
        return f"metadata is nested deeper than {MAX_DEPTH} levels"
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if problem := _text_problem("metadata key", key) or _value_problem(inner, str(key), depth + 1):
                return problem
        return ""
    if isinstance(value, list | tuple):
        return next(filter(None, (_value_problem(inner, name, depth + 1) for inner in value)), "")
    return _scalar_problem(value, name)


def _scalar_problem(value: Any, name: str) -> str:
    match value:
        case str():
            return _string_problem(name, value)
        case float() if not math.isfinite(value):
            return f"{name!r} is {value}, which JSON cannot hold"
        case int() if not -(2**63) <= value < 2**63:
            return f"{name!r} is an integer of more than 64 bits"
        case None | bool() | int() | float():
            return ""
        case bytes():
            return f"{name!r} is a {_kind(value)}"
        case RepeatedKey():
            return f"{name!r} has the key {value.key!r} twice"
    return f"{name!r} is a {type(value).__name__}, which JSON cannot hold"


def _kind(value: Any) -> str:
    """Return what a value is called in JSON; or in Python, if JSON has no such thing."""
    names = {dict: "object", list: "array", str: "string", bool: "boolean", int: "number", float: "number"}
    if value is None:
        return "JSON null"
    if isinstance(value, bytes):
        return "column of bytes (a Parquet writer stores strings so; write it as strings)"
    return f"JSON {names[type(value)]}" if type(value) in names else type(value).__name__
