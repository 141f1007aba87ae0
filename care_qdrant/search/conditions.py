"""Conditions on metadata, as a person writes them and as Qdrant takes them.

Filters of LlamaIndex, ``--filter`` and the conditions of the service all become `Comparison`s, so they compare alike;
`Keys` says where a key is in the payloads.
"""

import json
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import product
from typing import Any

from qdrant_client import models
from qdrant_client.local.payload_value_extractor import value_by_key

from care_qdrant.contracts.layouts import METADATA_PREFIXES, guess_layout, lookup, read_hit
from care_qdrant.contracts.paths import as_stored, quoted, readings
from care_qdrant.errors import InputError
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.filters import field_conditions
from care_qdrant.qdrant.schema import CollectionSchema

Value = str | int | float | bool
BOUNDS = {">=": "gte", "<=": "lte", ">": "gt", "<": "lt"}
ORDERED = "a number or a date (2024-03-01, 2024-03-01T08:00:00Z): Qdrant orders no others"
"""Values that a comparison by order takes, in the words of its refusals."""

_CONDITION = re.compile(
    # Possessive: else a text of many quotes would be read in very many ways.
    r"""(?P<key>(?>"[^"]*"|[^=<>!])++)(?P<operator>>=|<=|!=|=|>|<)(?P<value>.*)""",
    re.DOTALL,
)
_NOT_AN_OPERATOR = re.compile(r"[=<>!]+")
_QUOTED = re.compile(r"'.*'|‘.*’|“.*”|`.*`|「.*」", re.DOTALL)
"""Quotes of other languages than JSON, which are part of the value."""
_BOOLEANS = {"true": True, "false": False}
_SPELLINGS = (str.lower, str.capitalize, str.upper)
MAX_CONDITIONS = 64
"""Largest number of conditions of a search."""
_MAX_CHARACTERS = 4_096
_SAMPLE_POINTS = 100
_LAYOUT_POINTS = 32
"""Number of points, those with the smallest ids, that show below which key other tools keep the metadata."""
_EXACT_IN_FLOAT, _INTEGERS = 2**53, 2**63
"""Below the first, no two whole numbers are the same float, which is what Qdrant compares ranges by; from the second
on, Qdrant has no integer."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys in the payloads of one collection."""

    prefixes: tuple[str, ...] = ("",)
    """Payload keys below which points may have the metadata, in the order in which they count; ``""`` is none."""
    indexes: Mapping[str, models.PayloadIndexInfo] = field(default_factory=dict)
    only_indexed: bool = False
    """Whether the server refuses a filter on a key without an index (strict mode)."""
    is_sampled: bool = True
    """Whether there were payloads to read; an empty collection may soon be filled by any tool."""
    is_embedded: bool = False
    """Whether the database is the embedded one, which splits words at spaces only and has no text index."""
    sample: tuple[Mapping[str, Any], ...] = ()
    """Some payloads, which show the paths of a key that have no index."""
    is_exact: bool = False
    """Whether every path is looked at, however long that takes: a deletion takes what a filter misses."""
    _there: set[str] = field(default_factory=set)
    """Keys that some point was seen to have."""

    @classmethod
    def indexed(cls, schema: CollectionSchema) -> "Keys":
        """Return the keys as the payload indexes of a collection show them; no payload is read."""
        strict = schema.strict_mode
        return cls(
            indexes={as_stored(path): index for path, index in schema.payload_schema.items()},
            only_indexed=strict is not None and strict.unindexed_filtering_retrieve is False,
            is_embedded=schema.embedded,
        )

    @classmethod
    def of(cls, collection: Collection, *, is_exact: bool = False) -> "Keys":
        """Read the schema and a few payloads of a collection."""
        [records] = collection.scroll("reading a sample", limit=min(_LAYOUT_POINTS, collection.limits.page))
        shown: dict[str, None] = {}
        for record in records:
            with suppress(InputError):  # a point without a text
                shown[guess_layout([record.payload or {}]).metadata_prefix] = None
        first = [prefix for prefix in shown if prefix]
        others = [prefix for prefix in METADATA_PREFIXES if prefix not in first]
        return replace(
            cls.indexed(collection.schema),
            prefixes=(*first, "", *(prefix for prefix in others if is_exact or _may_hold(collection, prefix))),
            is_sampled=bool(records),
            sample=tuple(record.payload or {} for record in records),
            is_exact=is_exact,
        )

    def paths(self, key: str) -> tuple[str, ...]:
        """Return the paths of Qdrant under which a point may have a key; the first that it has counts.

        Where a path has a payload index with points in it, the others are left out unless a sampled payload has them: a
        condition on a path without an index makes the server look at every payload.

        Raises:
            InputError: No path of Qdrant can name the key, or strict mode forbids filters on it.
        """
        ways = readings(key)
        paths = tuple(dict.fromkeys(_below(prefix, way) for prefix in self.prefixes for way in ways))
        indexed = tuple(path for path in paths if path in self.indexes)
        filled = tuple(path for path in indexed if self.indexes[path].points)
        if self.only_indexed and not indexed:
            raise InputError(
                f"key {key!r} has no payload index, and the server's strict mode allows no filter on such a key: make "
                f"one with care-ingest --index {key} (--index {key}=integer, float or datetime for numbers and dates), "
                "or with create_payload_index of the client"
            )
        if self.only_indexed:
            return filled or indexed
        if self.is_exact or not filled:
            return paths
        return tuple(
            path for path in paths if path in filled or any(_has_value(payload, path) for payload in self.sample)
        )

    def kind(self, path: str) -> str | None:
        """Return the type of the payload index of a path; None where it has none."""
        return self.indexes[path].data_type.value if path in self.indexes else None

    def type_of_all(self, path: str) -> str | None:
        """Return the type of a path's payload index; None where points, as far as known, have values that it lacks.

        An index of texts holds no number, but Qdrant finds the number in the payload, unless strict mode forbids that.
        """
        kind = self.kind(path)
        if kind is None or self.only_indexed:
            return kind
        if self.is_sampled and not self.indexes[path].points:
            return None
        stored = (value for payload in self.sample for value in value_by_key(dict(payload), path) or [])
        return kind if all(_fits(value, kind) for value in stored if isinstance(value, Value)) else None

    def has(self, collection: Collection, key: str) -> bool:
        """Return whether some point of the collection has a key; that it has is asked once."""
        if key not in self._there:
            conditions: list[models.Condition] = []
            for path in self.paths(key):
                is_null = models.IsNullCondition(is_null=models.PayloadField(key=path))
                conditions += [models.Filter(must_not=[is_absent(path)]), is_null]
            where = models.Filter(should=conditions)
            if not any(collection.scroll("looking for a key", where=where, limit=1, payload=False, as_seen=True)):
                return False
        self._there.add(key)
        return True


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison with the values under a key, which all filters become: `within` puts it into Qdrant's words."""

    key: str
    operator: str
    """``any`` or ``all`` of the values, ``>``, ``>=``, ``<`` or ``<=``, ``part`` or ``part in any case`` of a text, or
    ``empty``."""
    values: Sequence[Sequence[Value]]
    """The values, each with the other forms in which it may be stored, as 2020 and ``"2020"``."""
    written: str
    """The comparison as the caller wrote it, for messages."""

    def within(self, keys: Keys) -> models.Condition:
        """Return the condition on the first path under which a point has the key.

        Raises:
            InputError: No path of Qdrant can name the key, or Qdrant has no order for the value.
        """
        paths = keys.paths(self.key)
        if self.operator == "empty":
            no_value = models.Filter(must=list(map(is_absent, paths)))
            return models.Filter(should=[no_value, at_first(paths, _is_empty_text)])
        return at_first(paths, partial(self._at, keys))

    def _at(self, keys: Keys, path: str) -> models.Condition:
        """Return the condition on one path."""
        kind = keys.kind(path)
        if self.operator in BOUNDS:
            [[value]] = self.values
            if (bounded := ordered(path, BOUNDS[self.operator], value, kind)) is None:
                raise InputError(f"{self.written}: {self.operator} takes {ORDERED}")
            return bounded
        if self.operator.startswith("part"):
            [[text]] = self.values
            any_case = self.operator == "part in any case"
            return holds(path, str(text), kind, any_case=any_case, is_embedded=keys.is_embedded)
        stored = keys.type_of_all(path)
        fitting = [[form for form in forms if _fits(form, stored)] or forms[:1] for forms in self.values]
        if self.operator == "all":
            return models.Filter(must=[_any_of(path, forms, kind) for forms in fitting])
        return _any_of(path, [form for forms in fitting for form in forms], kind)


@dataclass(frozen=True, slots=True)
class Condition:
    """Condition on a payload value, as a person writes it: ``year>=2020``."""

    key: str
    operator: str
    written: str
    """The value, not yet read."""

    @classmethod
    def parse(cls, text: str) -> "Condition":
        """Read ``key=value``, ``key!=value`` or ``key>=value``, also with ``<=``, ``>`` and ``<``.

        Raises:
            InputError: The text is none of these, or says something that no comparison means.
        """
        if len(text) > _MAX_CHARACTERS:
            raise InputError(
                f"condition {text[:40] + '…'!r}: has {len(text):,} characters; expected at most {_MAX_CHARACTERS:,}"
            )
        match = _CONDITION.fullmatch(text)
        if match is None or not match["key"].strip():
            raise InputError(
                f"condition {text!r}: expected key=value, key!=value or key>=value; put a key that holds =, <, > or ! "
                "in double quotes"
            )
        condition = cls(match["key"].strip(), match["operator"], match["value"].strip())
        if (more := _NOT_AN_OPERATOR.match(condition.written)) is not None:
            raise InputError(
                f"condition {text!r}: {condition.operator + more[0]!r} is not an operator; expected =, !=, >=, <=, > "
                "or <. Put a value that begins with =, <, > or ! in double quotes"
            )
        if condition.written.lower() == "null":
            raise InputError(
                f"condition {text!r}: null is not a value that points are compared with; for the text, write "
                f'{condition.key}{condition.operator}"{condition.written}"'
            )
        return condition

    @property
    def value(self) -> Value:
        """The number, boolean or quoted text that is written in JSON; else the text as it is written."""
        return _parsed(self.written)

    def within(self, keys: Keys) -> models.Condition:
        """Return the condition as Qdrant takes it; one with ``!=`` as the ``=`` that it rules out."""
        value: Value = self.value
        forms: tuple[Value, ...] = (self.written,)
        if self.operator in BOUNDS:
            return Comparison(self.key, self.operator, [(value,)], f"condition {str(self)!r}").within(keys)
        # A table may hold a number as a text, and a boolean in the spelling of the program that wrote it.
        if isinstance(value, bool):
            forms = tuple(dict.fromkeys([self.written, *(change(str(value)) for change in _SPELLINGS)]))
        forms = (value,) if isinstance(value, str) else (value, *forms)
        return Comparison(self.key, "any", [forms], f"condition {str(self)!r}").within(keys)

    def __str__(self) -> str:
        return f"{self.key}{self.operator}{self.written}"


def parse_filter(conditions: Sequence[str], keys: Keys | None = None) -> models.Filter | None:
    """Return the filter that all conditions make together; None for no condition.

    A condition is ``key=value``, ``key!=value`` or ``key>=value`` (also ``<=``, ``>``, ``<``, with a number or a date).
    A value that reads as a JSON number or boolean is that or the same text, as a table holds it (``year=2020``), unless
    a payload index of the key says which; a boolean may be in any case (``True``).
    Quoted, as ``code="017"``, it is a text. Without ``keys``, a key is looked for where this package keeps it.
    """
    if len(conditions) > MAX_CONDITIONS:
        raise InputError(f"{len(conditions):,} conditions are given; expected at most {MAX_CONDITIONS}")
    keys = keys or Keys()
    must: list[models.Condition] = []
    must_not: list[models.Condition] = []
    for text in conditions:
        condition = Condition.parse(text)
        (must_not if condition.operator == "!=" else must).append(condition.within(keys))
    return models.Filter(must=must or None, must_not=must_not or None) if conditions else None


@dataclass(frozen=True, slots=True)
class MandatoryConditions:
    """Conditions that every reading of a collection gets, such as those of a tenant (`Collection`).

    They fail closed. A key stands for the path that is written, whatever the payloads look like; a point without it, or
    with a value of another type, does not pass. ``!=`` is refused, since it would let such a point pass, and so are
    numbers whose neighbours Qdrant takes for the same.

    Raises:
        InputError: No condition is given, or one does not say which points may be read.
    """

    written: tuple[str, ...]

    def __post_init__(self) -> None:
        conditions = set(map(Condition.parse, self.written))
        if not conditions or any(each.operator == "!=" or not each.written for each in conditions):
            raise InputError("mandatory conditions: expected at least one, such as key=value or key>=value, and no !=")
        if not all(map(_is_exact, conditions)):
            raise InputError("mandatory conditions: a number is so large that Qdrant compares it as a float")
        object.__setattr__(self, "written", tuple(sorted(map(str, conditions))))
        parse_filter(self.written)

    def __call__(self, schema: CollectionSchema) -> models.Filter:
        """Return the filter for the payload indexes of a collection."""
        mandatory = parse_filter(self.written, Keys.indexed(schema))
        assert mandatory is not None, "there is a condition"
        return mandatory


def _is_exact(condition: Condition) -> bool:
    """Return whether no other number than the one that is written meets a condition, or its bound, on a server."""
    value = condition.value
    if isinstance(value, str) and condition.operator in BOUNDS:
        value = _parsed(value)
    by_match = condition.operator == "=" and isinstance(value, int)
    # An integer index of a server keeps larger numbers as the largest integer.
    return isinstance(value, str) or abs(value) < (_INTEGERS - 1 if by_match else _EXACT_IN_FLOAT)


def written_key(key: str) -> str:
    """Return a payload key as a condition has to write it.

    Raises:
        InputError: No path of Qdrant can name the key.
    """
    path = quoted(key)
    return path if path != key and (key != key.strip() or not key or re.search("[=<>!]", key)) else key


# Comparisons


def at_first(paths: Sequence[str], condition: Callable[[str], models.Condition]) -> models.Condition:
    """Return a condition on the first of several paths under which a point has a value."""
    if len(paths) == 1:
        return condition(paths[0])
    return models.Filter(
        should=[
            models.Filter(must=[condition(path), *map(is_absent, paths[:number])]) for number, path in enumerate(paths)
        ]
    )


def is_absent(path: str) -> models.IsEmptyCondition:
    """Match points that have no value, null or an empty array under a path."""
    return models.IsEmptyCondition(is_empty=models.PayloadField(key=path))


def _is_empty_text(path: str) -> models.Filter:
    """Match points whose only value under a path is an empty text."""
    is_only = models.FieldCondition(key=path, values_count=models.ValuesCount(lte=1))
    return models.Filter(must=[equals(path, ""), is_only])


def equals(path: str, value: Value, kind: str | None = None) -> models.FieldCondition:
    """Match points that have the value, or an array with it, under a path; 2 equals 2.0.

    ``kind`` is the type of the payload index of the path, where it has one.
    """
    if kind == "datetime" and isinstance(value, str) and (date := _date(value)) is not None:
        return models.FieldCondition(key=path, range=models.DatetimeRange(gte=date, lte=date))
    least = 0 if kind == "integer" else _EXACT_IN_FLOAT
    by_match = isinstance(value, int) and least <= abs(value) < _INTEGERS
    if not isinstance(value, float) and (by_match or isinstance(value, str | bool)):
        return models.FieldCondition(key=path, match=models.MatchValue(value=value))
    return models.FieldCondition(key=path, range=models.Range(gte=value, lte=value))


def _any_of(path: str, chosen: Sequence[Value], kind: str | None) -> models.Condition:
    """Match points that have one of the values; ``kind`` is the type of the payload index of the path."""
    if inexact := [form for form in chosen if isinstance(form, int) and not -_INTEGERS <= form < _INTEGERS]:
        raise InputError(
            f"Qdrant has no integer {inexact[0]}, and would take its neighbours for it; for the text, write it in "
            "double quotes"
        )
    texts = [form for form in chosen if isinstance(form, str)]
    if len(chosen) != 1 and len(texts) == len(chosen) and kind != "datetime":
        return models.FieldCondition(key=path, match=models.MatchAny(any=texts))
    conditions = [equals(path, form, kind) for form in chosen]
    return conditions[0] if len(conditions) == 1 else models.Filter(should=list(conditions))


def _fits(value: Value, kind: str | None) -> bool:
    """Return whether a point may hold a value, and a payload index of this type may hold it."""
    if isinstance(value, int) and not -_INTEGERS <= value < 2 * _INTEGERS:
        return False
    if kind is None:
        return True
    if kind in ("integer", "float", "bool"):
        return not isinstance(value, str) and isinstance(value, bool) == (kind == "bool")
    return isinstance(value, str)


def holds(
    path: str, text: str, kind: str | None = None, *, any_case: bool = False, is_embedded: bool = False
) -> models.Condition:
    """Match points whose text under a path holds this one: its words if there is a text index, else a part of it.

    Args:
        path: Payload path of the text.
        text: Text to look for.
        kind: Type of the payload index of the path, where it has one. A text index knows no case.
        any_case: Without one, look also for the text in lower case, in upper case, and with capitals in front.
        is_embedded: Whether the database is the embedded one.
    """
    spelled = [text, text.lower(), text.upper(), text.capitalize(), text.title()] if any_case else [text]
    part = getattr(models, "MatchSubstring", None)
    matches: list[Any]
    if is_embedded and part is not None:
        # A Chinese clause is one word to the embedded database; before client 1.20 it looked for a part by itself.
        words = [models.MatchText(text=text)] if any_case else []
        matches = [part(substring=spelling) for spelling in dict.fromkeys(spelled)] + words
    else:
        matches = [models.MatchText(text=spelling) for spelling in dict.fromkeys(spelled if kind != "text" else [text])]
    return models.Filter(should=[models.FieldCondition(key=path, match=match) for match in matches])


def ordered(path: str, bound: str, value: str | int | float, kind: str | None = None) -> models.Condition | None:
    """Match points whose value is on one side of a number or a date; None for a text that is neither.

    Args:
        path: Payload path of the value.
        bound: ``gt``, ``gte``, ``lt`` or ``lte``.
        value: A text may hold a number, as language models write it, or a date; ``20240301`` holds both.
        kind: Type of the payload index of the path, where it has one. An index of numbers would answer for a date by
            its microseconds since 1970, and one of dates for a number: no value passes then.

    Raises:
        InputError: The value is a whole number and no float, by which Qdrant compares.
    """
    number = _parsed(value) if isinstance(value, str) else value
    most = sys.float_info.max
    if isinstance(number, int) and (rounded := int(float(max(-most, min(number, most))))) != number:
        raise InputError(f"{number} would be {rounded} to Qdrant, which compares floats: write that, or less than 2^53")
    date = _date(value) if isinstance(value, str) else None
    ranges: list[models.Range | models.DatetimeRange] = []
    if isinstance(number, int | float) and not isinstance(number, bool):
        ranges.append(models.Range(**{bound: number}))
    if date is not None:
        ranges.append(models.DatetimeRange(**{bound: date}))
    if ranges and kind in ("integer", "float", "datetime"):
        indexed = models.DatetimeRange if kind == "datetime" else models.Range
        ranges = [bounds for bounds in ranges if isinstance(bounds, indexed)]
        if not ranges:
            return models.HasIdCondition(has_id=[])
    conditions = [models.FieldCondition(key=path, range=bounds) for bounds in ranges]
    return None if not conditions else conditions[0] if len(conditions) == 1 else models.Filter(should=list(conditions))


def _date(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _parsed(text: str) -> Value:
    if (boolean := _BOOLEANS.get(text.lower())) is not None:
        return boolean
    if text[:1] not in {*'"-0123456789'}:
        return text
    try:
        value: Value = json.loads(text)
        is_usable = isinstance(value, str) or math.isfinite(value)
    except (ValueError, OverflowError):  # a whole number may be larger than any float
        return text
    return value if is_usable else text


def _below(prefix: str, path: str) -> str:
    """Return a path below a payload key; one that names the key itself stays."""
    return path if not prefix or path.startswith(f"{prefix}.") else f"{prefix}.{path}"


def _may_hold(collection: Collection, prefix: str) -> bool:
    """Return whether a point may have metadata below a payload key that no sampled point has.

    Each path of a filter costs the embedded database time, so it is asked. A server would look at every payload; there
    the path is left out only where the conditions of a filter are limited.
    """
    if not collection.is_embedded:
        return math.isinf(collection.limits.conditions)
    where = models.Filter(must_not=[is_absent(prefix)])
    return any(collection.scroll("looking for metadata", where=where, limit=1, payload=False, as_seen=True))


def _has_value(payload: Mapping[str, Any], path: str) -> bool:
    """Return whether a payload has a value under a path of Qdrant."""
    return any(value not in (None, []) for value in value_by_key(dict(payload), path) or [])


# Notes on conditions


def keys_of(conditions: models.Filter) -> set[str]:
    """Return the payload keys of a filter, including nested ones."""
    return {key for key, _ in field_conditions(conditions)}


def tenant_conditions(conditions: models.Filter, tenant_keys: Set[str]) -> list[models.Condition]:
    """Return the conditions on tenant keys that every matching point meets."""
    must = conditions.must if isinstance(conditions.must, list) else [conditions.must] if conditions.must else []
    of_tenants: list[models.Condition] = []
    for condition in must:
        keys = keys_of(models.Filter(must=[condition]))
        if keys and keys <= tenant_keys:
            of_tenants.append(condition)
        elif isinstance(condition, models.Filter):
            of_tenants += tenant_conditions(condition, tenant_keys)
    return of_tenants


def no_such_key(collection: Collection, key: str) -> str:
    """Say that no point of a collection has a key, and which keys some points have."""
    sample = [read_hit(record).metadata for record in collection.sample(_SAMPLE_POINTS)]
    names = {name for metadata in sample for name in metadata}
    said = f"no point of {collection.name!r} has {key!r} (some keys: {', '.join(sorted(names)) or 'none'})"
    through = next((path for metadata in sample if (path := _through_lists(metadata, key)) not in (None, key)), None)
    return said if through is None else f"{said}; {key.partition('.')[0]!r} holds a list: write {through!r}"


def _through_lists(value: Any, key: str) -> str | None:
    """Return a dotted key with ``[]`` behind each name that holds a list; None where no value is below it."""
    name, _, rest = key.partition(".")
    if not isinstance(value, Mapping) or name not in value:
        return None
    inner, step = value[name], name
    while isinstance(inner, list) and rest:
        inner, step = next((item for item in inner if isinstance(item, Mapping | list)), None), f"{step}[]"
    if not rest:
        return step
    below = _through_lists(inner, rest)
    return None if below is None else f"{step}.{below}"


def notice(collection: Collection, conditions: Sequence[str], keys: Keys, *, found: bool) -> str | None:
    """Return why conditions let no point of a collection pass, or rule none out; None where nothing says so.

    A key that no point has lets nothing pass, and with ``!=`` everything; so do quotes that the values do not have. No
    text compares with a number, and no condition finds a value that an index of another type leaves out. ``found`` says
    whether points passed.
    """
    for condition in map(Condition.parse, conditions):
        if (left_out := _left_out(keys, condition)) is not None:
            return left_out
        is_negative, reason = condition.operator == "!=", None
        if found and not is_negative:
            continue
        if not keys.has(collection, condition.key):
            reason = no_such_key(collection, condition.key)
        elif _QUOTED.fullmatch(condition.written) and not any(
            collection.scroll(
                "looking for quotes",
                where=models.Filter(must=[condition.within(keys)]),
                limit=1,
                payload=False,
                as_seen=True,
            )
        ):
            reason = (
                f"no {condition.key!r} of {collection.name!r} has the quotes of {condition.written!r}: leave them out, "
                'or write double quotes "…", which are not part of the value'
            )
        if reason is not None:
            return f"{reason}, so {str(condition)!r} rules nothing out" if is_negative else reason
    if not found:
        reasons = map(partial(_incomparable, collection, keys), map(Condition.parse, conditions))
        return next((reason for reason in reasons if reason is not None), None)
    return None


def _left_out(keys: Keys, condition: Condition) -> str | None:
    """Say that the payload index of a key lacks sampled values, which a server then finds by no number and no date."""
    by_order = condition.operator in BOUNDS
    if isinstance(condition.value, str) and not by_order:
        return None
    for path, payload in product(keys.paths(condition.key), keys.sample):
        kind = keys.kind(path)
        for value in value_by_key(dict(payload), path) or []:
            is_float, is_number = (
                isinstance(value, float),
                isinstance(value, int | float) and not isinstance(value, bool),
            )
            fitting = "float" if is_number and (kind == "datetime" or (kind == "integer" and is_float)) else None
            if by_order and kind in ("integer", "float") and isinstance(value, str) and _date(value) is not None:
                fitting = "datetime"
            if fitting is not None:
                return (
                    f"{condition.key!r} holds {value!r}, which its payload index, of type {kind}, leaves out, and no "
                    f"condition finds it: make the index again as {fitting}, with create_payload_index of the client"
                )
    return None


def _incomparable(collection: Collection, keys: Keys, condition: Condition) -> str | None:
    """Say that the values of a key are of a type that a condition does not compare with; None where some are not."""
    stored: list[Any] = [
        item
        for record in collection.sample(_SAMPLE_POINTS)
        if (value := lookup(read_hit(record).metadata, condition.key)) is not None
        for item in (value if isinstance(value, list) else [value])
    ]
    by_order, value = condition.operator in BOUNDS, condition.value
    is_date = by_order and isinstance(value, str) and _date(value) is not None
    is_indexed = not {keys.kind(path) for path in keys.paths(condition.key)}.isdisjoint(("integer", "float", "bool"))
    if not stored or any(_is_comparable(item, value, by_order, is_date, is_indexed) for item in stored):
        return None
    first = stored[0]
    if isinstance(first, Mapping):
        inner = f"{condition.key}[].{next(iter(first), 'name')}"
        return f"{condition.key!r} holds objects; name a key inside them, such as {inner}"
    what = "dates, such as 2024-03-01" if is_date else "numbers" if by_order else _TYPES[type(value)]
    advice = ": JSON Lines and Parquet keep numbers, a CSV may hold them as texts" if isinstance(first, str) else ""
    shown = json.dumps(first) if isinstance(first, bool) else repr(first)
    held = _TYPES.get(type(first), "other values")
    return f"{condition.key!r} holds {held}, such as {shown}, and the condition compares {what}{advice}"


_TYPES: Mapping[type, str] = {str: "texts", bool: "booleans", int: "numbers", float: "numbers"}


def _is_comparable(stored: Any, value: Value, by_order: bool, is_date: bool, is_indexed: bool) -> bool:
    """Return whether a condition with this value may match a stored value, by their types."""
    if isinstance(stored, Mapping | list):
        return False
    if isinstance(stored, str):
        if by_order:
            return is_date and _date(stored) is not None
        # A number or a boolean is the same text as well, unless an index answers for one of them.
        return isinstance(value, str) or not is_indexed
    if by_order:
        return not isinstance(stored, bool) and not (is_date and isinstance(_parsed(str(value)), str))
    return not isinstance(value, str) and isinstance(stored, bool) == isinstance(value, bool)
