"""Lines that the programs print: harmless on a terminal, and broken between words only."""

import io
import json
import logging
import os
import re
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from care_qdrant.console import logs
from care_qdrant.console.reports import show_json, show_report
from care_qdrant.console.text import beginning, display_width, echo, harmless, table

HOSTILE = "a\x1b[2Jb\x07\r\x9b31m\u202e\u2028\u2066c"
CONTROLS = {"Cc", "Zl", "Zp"}
DIRECTIONS = {"LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"}
WORDS = st.lists(
    st.sampled_from(
        ["care", "HbA1c", "糖尿病", "vector_name", "的", "7,102", "--path", "头痛，", "（见", "“药”。", "f" * 90]
    ),
    max_size=60,
)


class _Terminal(io.StringIO):
    @override
    def isatty(self) -> bool:
        return True


@contextmanager
def terminal() -> Iterator[_Terminal]:
    """Make both streams a terminal of 80 columns."""
    shown = _Terminal()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", shown)
        patch.setattr("sys.stderr", shown)
        patch.setattr("shutil.get_terminal_size", lambda *_: os.terminal_size((80, 24)))
        yield shown


def is_harmless(text: str) -> bool:
    return not any(
        (unicodedata.category(each) in CONTROLS and each not in "\n\t") or unicodedata.bidirectional(each) in DIRECTIONS
        for each in text
    )


@given(st.text())
def test_no_character_that_controls_a_terminal_is_left(text: str) -> None:
    assert is_harmless(harmless(text))
    assert is_harmless("\n".join(beginning(text, width=30)))
    assert is_harmless(table(["a", "b"], [[text, text]], width=40))


@given(st.text())
def test_an_escape_is_one_of_json(text: str) -> None:
    assert json.loads(harmless(json.dumps(text, ensure_ascii=False))) == text


@given(
    st.recursive(st.floats() | st.text(max_size=3), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
)
def test_a_report_in_json_is_one_to_every_reader(value: object) -> None:
    """Python writes NaN and Infinity, which JSON does not have, and a payload may hold them."""
    with terminal() as stream:
        show_json({"payload": value})
    read = json.loads(stream.getvalue(), parse_constant=pytest.fail)
    assert read == json.loads(json.dumps({"payload": value}), parse_constant=lambda _: None)


def test_texts_of_others_are_harmless_wherever_they_are_printed() -> None:
    logs.set_up_logs()
    with terminal() as stream:
        echo(HOSTILE)
        show_report({"text": HOSTILE, "list": [HOSTILE]})
        show_json({"text": HOSTILE})
        logging.getLogger("care_qdrant").warning("%s: a new line\nerror: forged", HOSTILE)
        logs.log_error(HOSTILE)
    shown = stream.getvalue()
    assert shown.count("\\u001b[2J") == 6 and is_harmless(shown)
    assert "\nerror: forged" not in shown


@given(WORDS)
def test_a_terminal_breaks_no_word(words: list[str]) -> None:
    with terminal() as shown:
        echo("report                       " + " ".join(words))
    lines = [line.strip() for line in shown.getvalue().splitlines()]
    assert all(display_width(line) <= 80 or " " not in line for line in lines)
    # A Chinese text breaks between any two characters, but for punctuation.
    assert "".join(" ".join(lines).split()) == "".join(["report", *words])
    latin = [word for word in words if word.isascii()]
    assert re.findall(r"[!-~]+", " ".join(lines))[1:] == latin
    assert not any(line[0] in "，”。" or line[-1] in "（“" for line in lines)


@given(st.lists(st.tuples(WORDS, WORDS, WORDS), max_size=4))
def test_a_table_breaks_and_cuts_no_name(rows: list[tuple[list[str], ...]]) -> None:
    cells = [[" ".join(words[:count]) for words, count in zip(row, (2, 2, 60), strict=True)] for row in rows]
    with terminal() as shown:
        echo(table(["collection", "vector", "made by"], cells))
    lines = [line.strip() for line in shown.getvalue().splitlines()]
    assert all(display_width(line) <= 80 or "  " not in line for line in lines)
    printed, row_words = " ".join(lines), [word for row in cells for cell in row for word in cell.split()]
    assert re.findall(r"[!-~]+", printed)[4:] == [part for word in row_words for part in re.findall(r"[!-~]+", word)]
    assert "".join(printed.split())[len("collectionvectormadeby") :] == "".join(row_words)


def test_a_pipe_gets_whole_lines(capsys: pytest.CaptureFixture[str]) -> None:
    echo("word " * 100)
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_a_command_in_a_message_can_be_copied() -> None:
    command = "care attach articles --vector-name care-nano --url http://localhost:6333"
    with terminal() as shown:
        echo(f"collection 'articles' has no vector 'care-nano'; add it, with: {command}")
    assert command in [line.strip() for line in shown.getvalue().splitlines()]
