"""Formats tables for a terminal; columns with Chinese and Latin text are aligned."""

import shutil
import unicodedata
from collections.abc import Sequence

_GAP = "  "


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, width: int | None = None) -> str:
    """Return rows laid out in columns; the last column is cut to the rest of the width."""
    width = width or shutil.get_terminal_size().columns
    lines = [[" ".join(cell.split()) for cell in row] for row in (header, *rows)]
    widths = [max(map(display_width, column)) for column in zip(*lines, strict=True)]
    left = width - sum(widths[:-1]) - len(_GAP) * (len(widths) - 1)
    widths[-1] = min(widths[-1], max(left, 10))
    return "\n".join(_line(cells, widths) for cells in lines)


def wrap(text: str, *, indent: int = 0, max_lines: int = 3, width: int | None = None) -> list[str]:
    """Return the beginning of a text in lines of a terminal, with an ellipsis where something is left out."""
    room = (width or shutil.get_terminal_size().columns) - indent
    left = " ".join(text.split())
    lines: list[str] = []
    while left and len(lines) < max_lines - 1 and display_width(left) > room:
        kept = cut(left, room + 1).removesuffix("…")
        lines.append(kept.rstrip())
        left = left[len(kept) :].lstrip()
    return [*lines, cut(left, room)] if left else lines


def display_width(text: str) -> int:
    """Return the columns that a text takes: two for a Chinese character, none for a combining mark."""
    return sum(map(_columns, text))


def cut(text: str, width: int) -> str:
    """Return as much of a text as fits, with an ellipsis where something is left out."""
    if display_width(text) <= width:
        return text
    kept, used = "", 1
    for character in text:
        used += _columns(character)
        if used > width:
            break
        kept += character
    return kept + "…"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    fitted = (cut(cell, width) for cell, width in zip(cells, widths, strict=True))
    return _GAP.join(_padded(cell, width) for cell, width in zip(fitted, widths, strict=True)).rstrip()


def _padded(text: str, width: int) -> str:
    return text + " " * (width - display_width(text))


def _columns(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in {"Cf", "Cc"}:
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1
