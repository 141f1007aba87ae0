"""Front matter: the YAML or TOML at the start of a Markdown note, as metadata.

YAML gives many texts a second meaning: ``02700`` is an octal number, ``NO`` is false, ``12:30`` is 750. Here a plain
scalar is a number or a boolean only where JSON writes that value in the same characters, in 64 bits; all others are
texts as they are written.
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

    Two Markdown rules around a line of text are not front matter.

    Raises:
        ValueError: The front matter is not YAML or TOML, has a key twice, or is too large; the message says which.
    """
    if (block := _TOML.match(text)) is not None:
        return _toml(_of_bounded_length(block["content"])), text[block.end() :]
    if (block := _YAML.match(text)) is not None:
        values = _yaml(_of_bounded_length(block["content"]))
        if isinstance(values, dict | None):
            return values or {}, text[block.end() :]
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


def _yaml(content: str) -> Any:
    """Return the value of a YAML text; None for an empty one."""
    import yaml  # type: ignore[import-untyped]

    try:
        loader = yaml.BaseLoader(content)
        loader.resolve = lambda *_: None  # so that a scalar with a tag is told from one without
        root = loader.get_single_node()
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    # An escape such as \UFFFFFFFF, or a version with 5,000 digits, is an error of Python's, not of the package.
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise ValueError(f"is not YAML: {' '.join(str(error).split())}") from error
    return None if root is None else _YamlValues().value(root, 0)


class _YamlValues:
    """Makes values of YAML nodes, as long as they are not too large with their aliases written out."""

    def __init__(self) -> None:
        self._size = 0

    def value(self, node: Any, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError(_TOO_DEEP)
        if node.id == "scalar":
            self._grow(len(node.value) + 1)
            return node.value if node.style or node.tag is not None else _plain_scalar(node.value)
        self._grow(1)
        if node.id == "sequence":
            return [self.value(item, depth + 1) for item in node.value]
        values: dict[str, Any] = {}
        for key, value in node.value:
            if key.id != "scalar":
                raise ValueError("has a key that is a list or a mapping; expected a text")
            self._grow(len(key.value) + 1)
            if key.value in values:
                raise ValueError(f"has the key {key.value!r} twice")
            values[key.value] = self.value(value, depth + 1)
        return values

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > _MAX_SIZE:
            raise ValueError(f"has more than {_MAX_SIZE:,} characters with its aliases written out")


def _plain_scalar(written: str) -> Any:
    """Return the value of a YAML scalar that has neither quotes nor a tag."""
    if written in _WORDS:
        return _WORDS[written]
    if _NUMBER.fullmatch(written) and json.dumps(number := json.loads(written)) == written and abs(number) < 2**63:
        return number
    return written
