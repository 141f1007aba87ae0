"""What stands in front of Markdown: values as they are written, one note one row, never more than metadata may be."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from care_qdrant.corpus.files import Corpus
from care_qdrant.corpus.front_matter import MAX_VALUES, split_front_matter
from care_qdrant.corpus.rows import Reject
from care_qdrant.types import Document


def metadata(yaml: str) -> dict[str, Any]:
    values, text = split_front_matter(f"---\n{yaml}\n---\nbody")
    assert text == "body"
    return values


@pytest.mark.parametrize(
    ("written", "value"),
    [
        *[
            (word, word)
            for word in ("02700", "NO", "off", "12:30", "1.10", "2024-01-02", "1e5", "0x1F", "1_000", "yes")
        ],
        ("2024", 2024),
        ("-3.5", -3.5),
        ("true", True),
        ("null", None),
        ("", None),
        ("'12'", "12"),
        ('"true"', "true"),
        ("[a, 2]", ["a", 2]),
        ("1234567890123456789", "1234567890123456789"),
    ],
)
def test_values_are_as_they_are_written(written: str, value: Any) -> None:
    assert metadata(f"key: {written}") == {"key": value}


def test_a_date_may_be_a_key_and_toml_is_read() -> None:
    assert metadata("2024-01-02: visit") == {"2024-01-02": "visit"}
    values, text = split_front_matter('+++\ntitle = "T"\nday = 2024-01-02\n[a]\nb = [1, 2]\n+++\nbody')
    assert (values, text) == ({"title": "T", "day": "2024-01-02", "a": {"b": [1, 2]}}, "body")
    assert split_front_matter("---\nno mapping\n---\nbody") == ({}, "---\nno mapping\n---\nbody")


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("yaml", "reason"),
    [
        ("a: 1\nb: 2\na: 3", "has the key 'a' twice"),
        ("x:\n  a: 1\n  a: 1", "has the key 'a' twice"),
        ("title: a: b", "is not YAML"),
        ("title: {{title}}", "has a mapping as a key"),
        ("a: " + "[" * 3_000, "deeper|not YAML"),
        ("a: " + "[" * 50 + "]" * 50, "is nested deeper than 16 levels"),
        (BOMB, f"has more than {MAX_VALUES:,} values"),
        ("a: &a [*a]", "is nested deeper|not YAML"),
        ("x: " + "y" * 70_000, "is longer than 64,000 characters"),
    ],
)
def test_a_note_that_cannot_be_read_is_one_rejected_row(tmp_path: Path, yaml: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        metadata(yaml)
    (tmp_path / "a.md").write_text(f"---\n{yaml}\n---\nbody", encoding="utf-8")
    (tmp_path / "b.MD").write_text("---\ntitle:\n---\n# Heading\n\nbody", encoding="utf-8")
    bad, good = list(Corpus(tmp_path))
    assert isinstance(bad, Reject)
    assert (bad.id, bad.file) == ("a.md", "a.md")
    assert isinstance(good, Document)
    assert (good.id, good.title, good.text) == ("b.MD", "Heading", "body")


def test_a_title_is_one_line_of_text(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("---\ntitle: [甲, 乙]\n---\nbody", encoding="utf-8")
    (tmp_path / "b.md").write_text("#\nfirst paragraph\n\nsecond", encoding="utf-8")
    (tmp_path / "c.md.gz").write_text("plain bytes in spite of the name")
    listed, alone = list(Corpus([tmp_path / "a.md", tmp_path / "b.md"]))
    assert isinstance(listed, Reject) and "has a list as title" in listed.reason
    assert isinstance(alone, Document) and (alone.title, alone.text) == ("", "#\nfirst paragraph\n\nsecond")


WORDS = st.text(st.sampled_from("ab:-[]{}#&*!|>'\"%@`,?~ \t\n01.é题"), max_size=40)


@given(inside=WORDS, fence=st.sampled_from(["---", "+++"]))
@settings(max_examples=150)
def test_no_front_matter_stops_a_run(inside: str, fence: str) -> None:
    """Whatever stands there, it is metadata that JSON holds, no front matter at all, or a reason."""
    whole = f"{fence}\n{inside}\n{fence}\nbody"
    try:
        values, text = split_front_matter(whole)
    except ValueError:
        return
    assert json.loads(json.dumps(values)) == values
    assert whole.endswith(text)
