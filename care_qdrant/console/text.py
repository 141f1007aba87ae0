"""Text on a terminal: made harmless, broken between words, and laid out by the columns that it takes.

Stored texts, names and answers of servers are written by others. `echo` is the one way by which the programs print,
and it replaces the characters by which a text could change the terminal or the order in which it is read.
"""

import re
import shutil
import sys
from collections.abc import Iterator, Sequence

import click

_HARMFUL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Controls of a terminal, separators of lines, and controls of the direction of writing."""
_WIDE = "\u1100-\u115f\u2e80-\ua4cf\ua960-\ua97c\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6"
_OPENING = "\uff08\u3008\u300a\u300c\u300e\u3010\u3014\uff3b\uff5b\u201c\u2018"
_CLOSING = "\u3001\u3002\uff0c\uff1a\uff1b\uff1f\uff01\uff09\u3009\u300b\u300d\u300f\u3011\u201d\u2019\u2026"
_PIECE = re.compile(rf"\s+|[{_OPENING}]{{0,3}}(?:[{_WIDE}]|[^\s{_WIDE}]+)[{_CLOSING}]{{0,3}}")
"""Piece of a text that is not broken: a Latin word, or one Chinese character, with its punctuation."""
_LABEL = re.compile(r"\s*(?:\S+(?: \S+)*\s{2,})?")
"""Beginning of a line under which its continuation is aligned: blanks, or a label with a gap behind it."""
_COMMAND = re.compile(r"(?<=: )care(?:-[a-z]+)? [a-z].*$")
"""Command at the end of a message. It stays on one line, so that it can be copied."""
_GAP = "  "
_LAST_COLUMN = 30
"""Least room for the last column of a table whose cells are longer; `echo` breaks them between words."""


def harmless(text: str) -> str:
    r"""Return a text with JSON's escapes, such as ``\u001b``, in place of characters that control a terminal."""
    return _HARMFUL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def one_line(text: str) -> str:
    """Return a text, made harmless, with blanks in place of its line breaks: it cannot pass for another line."""
    return " ".join(harmless(text).split())


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a text, made harmless; a terminal gets its long lines broken between words.

    Args:
        text: Lines to print.
        err: Print to stderr, not to stdout.
        nl: End with a line break.
    """
    shown = harmless(text)
    if (sys.stderr if err else sys.stdout).isatty():
        columns = shutil.get_terminal_size().columns
        shown = "\n".join(part for line in shown.split("\n") for part in _fitted(line, columns))
    click.echo(shown, err=err, nl=nl)


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, width: int | None = None) -> str:
    """Return rows laid out in columns; if long names leave no room for the last column, join the cells instead."""
    from wcwidth import ljust

    lines = [[one_line(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(display_width, column)) for column in zip(*lines, strict=True)]
    room = (width or shutil.get_terminal_size().columns) - sum(widths[:-1]) - len(_GAP) * (len(widths) - 1)
    if room < min(widths[-1], _LAST_COLUMN):  # no name is cut, so that it can be copied
        return "\n".join(_GAP.join([cells[0], *filter(None, cells[1:])]) for cells in lines)
    return "\n".join(_GAP.join(map(ljust, cells, widths)).rstrip() for cells in lines)


def beginning(text: str, *, indent: int = 0, max_lines: int = 3, width: int | None = None) -> list[str]:
    """Return the beginning of a text in lines of a terminal, with an ellipsis where something is left out."""
    room = (width or shutil.get_terminal_size().columns) - indent
    lines = [cut(line, room) for line in _broken(one_line(text), room, room)]
    if len(lines) > max_lines:
        last = cut(lines[max_lines - 1], room - 1)
        lines[max_lines - 1 :] = [last if last.endswith("…") else f"{last}…"]
    return lines


def display_width(text: str) -> int:
    """Return the columns that a text takes: two for a Chinese character, none for a combining mark."""
    from wcwidth import width

    return int(width(text))


def cut(text: str, width: int) -> str:
    """Return as much of a text as fits, with an ellipsis where something is left out."""
    from wcwidth import clip

    return text if display_width(text) <= width else clip(text, 0, width - 1).rstrip() + "…"


def _fitted(line: str, columns: int) -> Iterator[str]:
    """Yield a line in parts that fit, later ones under its label; a command at its end is a part of its own."""
    if display_width(line) <= columns:
        yield line
        return
    start = _LABEL.match(line)
    label = display_width(start[0]) if start is not None else 0
    hanging = label if 0 < label <= columns // 2 else 2
    command = _COMMAND.search(line)
    if command is not None:
        line = line[: command.start()].rstrip()
    first, *others = list(_broken(line, columns, columns - hanging)) or [""]
    yield first
    yield from (" " * hanging + other for other in others)
    if command is not None:
        yield " " * hanging + command[0]


def _broken(text: str, first: int, later: int) -> Iterator[str]:
    """Yield the lines of a text, broken between words or Chinese characters; a longer word (a path) stays whole."""
    line, used, room = "", 0, first
    for piece in _PIECE.findall(text):
        columns = display_width(piece)
        if used and used + columns > room:
            yield line.rstrip()
            line, used, room = "", 0, later
            if piece.isspace():
                continue
        line, used = line + piece, used + columns
    if line.strip():
        yield line.rstrip()
