"""The YAML or TOML in front of a Markdown file, as metadata: bounded, and with values as they are written.

YAML 1.1 reads ``02700`` as 1472, ``NO`` as false and ``12:30`` as 750. Here a plain word is a number, true, false or
null only where it is written as JSON writes one; everything else, dates among it, stays text.
"""

import datetime
import re
import tomllib
from typing import Any

MAX_CHARACTERS = 64_000
MAX_VALUES = 2_000
"""Values of one file; an alias counts as all that it stands for."""
MAX_DEPTH = 16
_FENCED = re.compile(
    r"(?P<fence>---|\+\+\+)[ \t]*\r?\n(?P<inside>.*?)^(?:(?P=fence)|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE
)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,14})(?:\.[0-9]*[1-9]|\.0)?")
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None, "~": None, "": None}


def split_front_matter(text: str) -> tuple[dict[str, Any], str]:
    """Return what stands in front of a text, and the text behind it; nothing where two rules enclose a line of text.

    Raises:
        ValueError: It is no YAML or TOML, has a key twice, or is larger than metadata may be; the message says which.
    """
    match = _FENCED.match(text)
    if match is None:
        return {}, text
    inside = match["inside"]
    if len(inside) > MAX_CHARACTERS:
        raise ValueError(f"is longer than {MAX_CHARACTERS:,} characters")
    values = _toml(inside) if match["fence"] == "+++" else _yaml(inside)
    return ({}, text) if values is None else (values, text[match.end() :])


def _toml(text: str) -> dict[str, Any]:
    try:
        values = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"is not TOML: {error}") from error
    plain = _Bounded().plain(values, 0)
    assert isinstance(plain, dict)
    return plain


def _yaml(text: str) -> dict[str, Any] | None:
    import yaml  # type: ignore[import-untyped]

    try:
        node = yaml.compose(text, Loader=yaml.BaseLoader)
    except yaml.YAMLError as error:
        raise ValueError(f"is not YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise ValueError(f"is nested deeper than {MAX_DEPTH} levels") from error
    if not isinstance(node, yaml.MappingNode):
        return None
    values = _Bounded().of_node(node, 0)
    assert isinstance(values, dict)
    return values


class _Bounded:
    """Makes plain values, and counts them."""

    def __init__(self) -> None:
        self._count = 0

    def of_node(self, node: Any, depth: int) -> Any:
        """Return the value of a YAML node."""
        self._take(depth)
        if node.id == "scalar":
            return _scalar(node.value) if node.style is None else node.value
        if node.id == "sequence":
            return [self.of_node(inner, depth + 1) for inner in node.value]
        values: dict[str, Any] = {}
        for key, inner in node.value:
            if key.id != "scalar":
                raise ValueError(f"has a {key.id} as a key")
            if key.value in values:
                raise ValueError(f"has the key {key.value!r} twice")
            values[key.value] = self.of_node(inner, depth + 1)
        return values

    def plain(self, value: Any, depth: int) -> Any:
        """Return a value of TOML, with dates as text."""
        self._take(depth)
        if isinstance(value, dict):
            return {key: self.plain(inner, depth + 1) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.plain(inner, depth + 1) for inner in value]
        return value.isoformat() if isinstance(value, datetime.date | datetime.time) else value

    def _take(self, depth: int) -> None:
        self._count += 1
        if depth > MAX_DEPTH:
            raise ValueError(f"is nested deeper than {MAX_DEPTH} levels")
        if self._count > MAX_VALUES:
            raise ValueError(f"has more than {MAX_VALUES:,} values")


def _scalar(written: str) -> str | int | float | bool | None:
    """Return what a word without quotes says."""
    if written in _WORDS:
        return _WORDS[written]
    if _NUMBER.fullmatch(written) is None:
        return written
    return float(written) if "." in written else int(written)
