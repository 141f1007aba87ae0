"""Payload keys as the filters and the payload indexes of Qdrant write them.

Qdrant reads a key as a path: ``patient.age`` is ``age`` inside ``patient``, and ``visits[].year`` looks into an array.
A name with characters other than letters, digits, ``_`` and ``-`` is in double quotes: ``"source.system"``. People
write a key as the payload has it, and the same characters may be a name or a path: `readings` returns both.
"""

import re
from itertools import product

from care_qdrant.errors import InputError

_PLAIN = re.compile(r"[\w-]+")
_BRACKETS = r"(?:\[[0-9]*\])"
_NAME = rf'(?:"[^"\\]*"|[\w-]+){_BRACKETS}*'
_PATH = re.compile(rf"{_NAME}(?:\.{_NAME})*")
_STEP = re.compile(_BRACKETS)
_MAX_DOTS = 3
"""Most dots of a key for which all readings are tried; their number doubles with each dot."""
_MAX_CHARACTERS = 1_000
_MAX_STEPS = 16
"""Steps into arrays and objects that a key may have; databases read a path by recursion."""


def quoted(name: str) -> str:
    """Return a name of a payload as a step of a path, in quotes if it needs them.

    Raises:
        InputError: The name holds a double quote or a backslash, which no path of Qdrant can express.
    """
    if _PLAIN.fullmatch(name):
        return name
    if '"' in name or "\\" in name:
        raise InputError(
            f"key {name!r} holds a double quote or a backslash, and no filter of Qdrant can name such a key: store the "
            'value under another one (a path is written as "source.system" or patient."date of birth")'
        )
    return f'"{name}"'


def readings(key: str) -> tuple[str, ...]:
    """Return the paths that a key may mean, the literal name first.

    ``source.system`` is the name ``"source.system"``, or ``system`` inside ``source``. A key with double quotes is a
    path already and has one reading.

    Raises:
        InputError: No path of Qdrant can name the key, or it is too long or too deep.
    """
    steps = len(_STEP.findall(key))
    if len(key) > _MAX_CHARACTERS or steps > _MAX_STEPS:
        raise InputError(
            f"key {key[:40] + '…'!r} has {len(key):,} characters and {steps:,} steps into arrays; expected at most "
            f"{_MAX_CHARACTERS:,} and {_MAX_STEPS}"
        )
    if '"' in key and _PATH.fullmatch(key):
        return (as_stored(key),)
    whole, parts = quoted(key), key.split(".")
    if len(parts) > _MAX_DOTS + 1:
        splits = [(False,) * (len(parts) - 1), (True,) * (len(parts) - 1)]
    else:
        splits = list(product((False, True), repeat=len(parts) - 1))
    paths = [whole]
    for split in splits:
        names = [parts[0]]
        for part, is_inside in zip(parts[1:], split, strict=True):
            if is_inside:
                names.append(part)
            else:
                names[-1] += f".{part}"
        paths += [".".join(map(quoted, names)), ".".join(map(_as_array, names))]
    return tuple(dict.fromkeys(paths))


def as_stored(path: str) -> str:
    """Return a path as a server lists it among its payload indexes, with quotes only around names that need them."""
    return re.sub(r'"([^"\\]*)"', lambda match: quoted(match[1]), path)


def _as_array(name: str) -> str:
    """Return the name with brackets at its end as a step into an array, any other name as it is."""
    end = len(name)
    while end and name[end - 1] == "]" and (start := name.rfind("[", 0, end)) > 0 and _STEP.fullmatch(name, start, end):
        end = start
    return quoted(name[:end]) + name[end:]
