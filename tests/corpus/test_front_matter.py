import datetime
import json
import re
import time
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from care_qdrant.corpus.front_matter import MAX_CHARACTERS, split_front_matter

KEYS = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), min_size=1, max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | KEYS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
# Pieces that YAML or TOML gives a meaning.
PIECES = st.sampled_from(
    [
        "a: ",
        "b: 02700",
        "- ",
        "\n",
        "\r\n",
        "  ",
        "&x ",
        "*x",
        "[",
        "]",
        "{",
        "}",
        "? ",
        ": ",
        ", ",
        "!!set ",
        "!t ",
        "'",
        '"',
        '"\\x00"',
        '"\\UFFFFFFFF"',
        '"\\ud800"',
        "2026-01-02: ",
        ">\n",
        "|\n",
        "#",
        "%YAML 9\n",
        "---",
        "...",
        "\t",
        "<<: ",
        "~",
        "NO",
        "a = 1\n",
        "a.b = [1, {}]\n",
        "[[a]]\n",
        "2024-02-30",
        "糖尿病",
        "\u2028",
        "\x85",
        "\ufeff",
    ]
)


def read(yaml_text: str) -> dict[str, Any]:
    front, text = split_front_matter(f"---\n{yaml_text}\n---\nbody")
    assert text == "body"
    return front


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("02700", "02700"),
        ("NO", "NO"),
        ("off", "off"),
        ("True", "True"),
        ("12:30", "12:30"),
        ("1.10", "1.10"),
        ("1e5", "1e5"),
        ("0x1F", "0x1F"),
        ("0o17", "0o17"),
        ("1_000", "1_000"),
        (".nan", ".nan"),
        ("-.inf", "-.inf"),
        ("-0", "-0"),
        ("2024-01-02", "2024-01-02"),
        ("2024-02-30", "2024-02-30"),
        ("2001-12-14t21:59:43.10-05:00", "2001-12-14t21:59:43.10-05:00"),
        ("=", "="),
        ("2020", 2020),
        ("-7", -7),
        ("4.5", 4.5),
        ("true", True),
        ("false", False),
        ("null", None),
        ("~", None),
        ("", None),
        ('"2020"', "2020"),
        ("'true'", "true"),
        ("!!str 2020", "2020"),
        ("|\n  first\n  second", "first\nsecond\n"),
        ("{a, b}", {"a": None, "b": None}),
        ("!!set {b, a}", {"b": None, "a": None}),
    ],
)
def test_yaml_keeps_what_is_written(written: str, value: object) -> None:
    front = read(f"key: {written}")
    assert front == {"key": value}
    assert type(front["key"]) is type(value)


@pytest.mark.parametrize(
    ("front", "values"),
    [
        ("2026-01-02: visit\n2026-02-03: home", {"2026-01-02": "visit", "2026-02-03": "home"}),
        ("on: x\n1: y\nnull: z", {"on": "x", "1": "y", "null": "z"}),
        ("a: &a [x]\nb: *a", {"a": ["x"], "b": ["x"]}),
        ("# nothing but a comment", {}),
        ("", {}),
    ],
)
def test_keys_are_texts_and_aliases_are_written_out(front: str, values: dict[str, Any]) -> None:
    assert read(front) == values


@pytest.mark.parametrize(
    ("front", "reason"),
    [
        ("a: 1\na: 2", "has the key 'a' twice"),
        ("m: {a: 1, a: 2}", "has the key 'a' twice"),
        ("? [a]\n: b", "has a key that is a list"),
        ("a: " + "[" * 3_000, "nested deeper than 32 levels"),
        ("a: *b", "is not YAML: found undefined alias 'b'"),
        ("a: &a [*a]", "nested deeper than 32 levels"),
        ("title: [", "is not YAML: while parsing"),
        ("title: a: b", "is not YAML: mapping values are not allowed here"),
        ('a: "\\UFFFFFFFF"', "is not YAML: "),
        ("%YAML " + "9" * 5_000 + ".1\n--- a", "is not YAML: "),
        ("a: " + "x" * MAX_CHARACTERS, "at most 65,536 are read"),
    ],
)
def test_what_is_wrong_with_yaml_is_said(front: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        read(front)


def test_aliases_do_not_multiply_without_end() -> None:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 30)]
    start = time.monotonic()
    with pytest.raises(ValueError, match="more than 1,000,000 characters with its aliases written out"):
        read("\n".join(rows))
    assert time.monotonic() - start < 10


def test_toml_stands_between_plus_signs() -> None:
    note = '+++\r\ntitle = "水果"\r\nday = 2024-01-02\r\nat = 08:30:00\r\n[more]\r\ndays = [2024-01-02]\r\n+++\r\n正文'
    front, text = split_front_matter(note)
    assert front == {"title": "水果", "day": "2024-01-02", "at": "08:30:00", "more": {"days": ["2024-01-02"]}}
    assert text == "正文"
    for wrong in ("a = 1\na = 2", "a = ", "a = " + "[" * 50_000, ".".join("a" * 20_000) + " = 1"):
        with pytest.raises(ValueError, match=r"^is (not TOML|nested deeper)"):
            split_front_matter(f"+++\n{wrong}\n+++\nbody")


@pytest.mark.parametrize(
    "text", ["---\na line\n---\ntext", "---\na: 1\ntext", "----\na: 1\n---\n", "+++\na = 1", "a\n---"]
)
def test_a_text_without_front_matter_is_left_alone(text: str) -> None:
    assert split_front_matter(text) == ({}, text)


@given(st.dictionaries(KEYS, VALUES, max_size=4), st.sampled_from(["\n", "\r\n", "\r"]))
def test_json_in_front_is_read_as_json(values: dict[str, Any], line_end: str) -> None:
    # YAML has no escape for half of a character, and JSON no writing of a key above 1,024 characters that it reads.
    note = f"---\n{json.dumps(values, ensure_ascii=False)}\n---\nbody".replace("\n", line_end)
    assert split_front_matter(note) == (values, "body")


@given(st.dictionaries(KEYS, KEYS | st.lists(KEYS), min_size=1, max_size=4), st.booleans())
def test_texts_that_a_library_wrote_come_back(values: dict[str, Any], flow: bool) -> None:
    note = f"---\n{yaml.safe_dump(values, allow_unicode=True, default_flow_style=flow)}---\nbody"
    assert split_front_matter(note) == (values, "body")


@given(st.sampled_from(["---", "+++"]), st.lists(PIECES | st.text(max_size=4), max_size=12))
def test_nothing_in_front_is_a_traceback(mark: str, pieces: list[str]) -> None:
    try:
        front, _ = split_front_matter(f"{mark}\n{''.join(pieces)}\n{mark}\nbody")
    except ValueError as error:
        assert str(error).startswith(("is ", "has "))
    else:
        json.dumps(front)
        assert all(not isinstance(value, datetime.date) for value in front.values())


@given(st.integers(-(10**20), 10**20) | st.integers(-3, 3).map(lambda near: 2**63 + near))
def test_digits_of_more_than_64_bits_are_text(number: int) -> None:
    """As a number they would reject the whole note."""
    [value] = split_front_matter(f"---\nisbn: {number}\n---\n")[0].values()
    assert value == (number if abs(number) < 2**63 else str(number))
