"""Front matter: the YAML or TOML at the start of a Markdown note, as metadata.

YAML gives many texts a second meaning: ``02700`` is an octal number, ``NO`` is false, ``12:30`` is 750. Here a plain
scalar is a number or a boolean only where JSON writes that value in the same characters; all others are texts as they
are written.
"""

import datetime
import json
import re
import tomllib
from typing import Any

from care_qdrant.corpus.rows import MAX_DEPTH

MAX_CHARACTERS = 65_536
"""Longest front matter that is read; notes have a few hundred characters."""
_MAX_SIZE = 1_000_000
"""Most characters of the keys and values of YAML, where each alias counts with all that it repeats."""
_TOO_DEEP = f"is nested deeper than {MAX_DEPTH} levels"
_LINE_END = r"(?>\r\n|\r|\n)"
_YAML = re.compile(
    rf"---[ \t]*{_LINE_END}(?P<content>(?:.*?{_LINE_END})??)(?:---|\.\.\.)[ \t]*(?:{_LINE_END}|\Z)", re.DOTALL
)
_TOML = re.compile(
    rf"\+\+\+[ \t]*{_LINE_END}(?P<content>(?:.*?{_LINE_END})??)\+\+\+[ \t]*(?:{_LINE_END}|\Z)", re.DOTALL
)
_DEEP_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{MAX_DEPTH + 1}}}", re.ASCII)
"""A dotted key of TOML that is nested too deeply: the time to parse one grows with the square of its parts."""
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,18})(?:\.[0-9]{1,17})?")
_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}


def split_front_matter(text: str) -> tuple[dict[str, Any], str]:
    """Return the values of the front matter of a note, and the text after it.

    Two rules of Markdown around a line of text are no front matter.

    Raises:
        ValueError: The front matter is not YAML or TOML, has a key twice, or is too large; the message says which.
    """
    if (found := _TOML.match(text)) is not None:
        return _toml(_of_bounded_length(found["content"])), text[found.end() :]
    if (found := _YAML.match(text)) is not None:
        values = _YamlReader(_of_bounded_length(found["content"])).read()
        if isinstance(values, dict | None):
            return values or {}, text[found.end() :]
    return {}, text


def _of_bounded_length(content: str) -> str:
    if len(content) > MAX_CHARACTERS:
        raise ValueError(f"has {len(content):,} characters; at most {MAX_CHARACTERS:,} are read")
    return content


def _toml(content: str) -> dict[str, Any]:
    if _DEEP_KEY.search(content):
        raise ValueError(_TOO_DEEP)
    try:
        values = tomllib.loads(re.sub(_LINE_END, "\n", content))
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise ValueError(f"is not TOML: {reason}") from error
    plain: dict[str, Any] = _plain(values, 0)
    return plain


def _plain(value: Any, depth: int) -> Any:
    """Return a value of TOML with its dates and times as ISO 8601."""
    if depth > MAX_DEPTH:
        raise ValueError(_TOO_DEEP)
    if isinstance(value, dict):
        return {key: _plain(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner, depth + 1) for inner in value]
    return value.isoformat() if isinstance(value, datetime.date | datetime.time) else value


class _YamlReader:
    """Builds the value of a YAML text from its events.

    The parser of events neither recurses nor expands aliases, so what is too deep or too large is refused early.
    """

    def __init__(self, content: str) -> None:
        import yaml  # type: ignore[import-untyped]

        self._yaml = yaml
        self._events = yaml.parse(content, Loader=yaml.BaseLoader)
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._size = 0

    def read(self) -> Any:
        """Return the value; None for an empty text."""
        value = None
        documents = 0
        while not isinstance(event := self._next(), self._yaml.StreamEndEvent):
            if isinstance(event, self._yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise ValueError("holds two YAML documents")
                value = self._value(self._next(), 0)
        return value

    def _next(self) -> Any:
        try:
            return next(self._events)
        # An escape such as \UFFFFFFFF, or a version with 5,000 digits, is an error of Python's, not of the package.
        except (self._yaml.YAMLError, ValueError, OverflowError) as error:
            raise ValueError(f"is not YAML: {' '.join(str(error).split())}") from error

    def _value(self, event: Any, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError(_TOO_DEEP)
        if isinstance(event, self._yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise ValueError(f"repeats {event.anchor!r}, which stands nowhere before")
            value, size = self._anchors[event.anchor]
            self._grow(size)
            return value
        before = self._size
        if isinstance(event, self._yaml.ScalarEvent):
            self._grow(len(event.value) + 1)
            value = event.value if event.style or event.tag is not None else _plain_scalar(event.value)
        elif isinstance(event, self._yaml.SequenceStartEvent):
            self._grow(1)
            value = []
            while not isinstance(inner := self._next(), self._yaml.SequenceEndEvent):
                value.append(self._value(inner, depth + 1))
        else:
            self._grow(1)
            value = self._mapping(depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = value, self._size - before
        return value

    def _mapping(self, depth: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        while not isinstance(event := self._next(), self._yaml.MappingEndEvent):
            if not isinstance(event, self._yaml.ScalarEvent):
                raise ValueError("has a key that is a list, a mapping or an alias; expected a text")
            self._grow(len(event.value) + 1)
            if event.value in values:
                raise ValueError(f"has the key {event.value!r} twice")
            values[event.value] = self._value(self._next(), depth + 1)
        return values

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > _MAX_SIZE:
            raise ValueError(f"has more than {_MAX_SIZE:,} characters with its aliases written out")


def _plain_scalar(written: str) -> Any:
    """Return the value of a YAML scalar that has neither quotes nor a tag."""
    if written in _WORDS:
        return _WORDS[written]
    if _NUMBER.fullmatch(written) and json.dumps(number := json.loads(written)) == written:
        return number
    return written
