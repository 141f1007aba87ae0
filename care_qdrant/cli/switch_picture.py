"""The picture of a comparison, as SVG: what readers find before and after a switch, for those who decide on it."""

import re
from collections.abc import Iterator
from xml.sax.saxutils import escape

from care_qdrant.console.text import cut, one_line
from care_qdrant.errors import counted
from care_qdrant.measures import Estimate
from care_qdrant.switch.compare import MARGIN, Comparison

_WIDTH, _HEIGHT = 720, 325
_LEFT, _RIGHT = 210, 690
_COLOURS = {"before": "#4a4f5a", "after": "#0b6e99", "worse": "#a8324a", "equal": "#d5d9de", "better": "#5b7f2b"}
_LONGEST_NAME = 26
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LEAST_APART = 6.0
"""Longest half of an axis, in margins, on which the numbers of the margin and of 0 have room."""


def draw(comparison: Comparison, collection: str, before: str, after: str) -> str:
    """Return a comparison as an SVG document.

    Args:
        comparison: By `care_qdrant.switch.compare.compare_models`.
        collection: Name of the collection.
        before: Name of the model that readers use now.
        after: Name of the new model.
    """
    about = f"{counted(comparison.questions, 'question')} about {counted(comparison.documents, 'document')}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" font-family="sans-serif" font-size="13" fill="#3a3f47">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        _text(20, 28, f"{_short(collection)}: {comparison.verdict}", "start", 'font-size="17" font-weight="bold"'),
        _text(20, 48, f"{about}, {comparison.kind}; nDCG@10 with 95 % intervals"),
        *_axis(92, 140, 0.0, 1.0, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0], "{:.1f}"),
        *_row(84, before, comparison.before, "before", 0.0, 1.0),
        *_row(116, after, comparison.after, "after", 0.0, 1.0),
        *_differences(comparison),
        *_counts(comparison),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _differences(comparison: Comparison) -> Iterator[str]:
    """Yield the difference with its interval, and the margin that it may not cross."""
    difference = comparison.difference
    reach = max(0.05, 1.2 * max(abs(difference.low), abs(difference.high)))
    near = [] if reach > _LEAST_APART * MARGIN else [-MARGIN]  # its number would cover that of 0
    yield from _axis(190, 222, -reach, reach, [-reach, *near, 0.0, reach], "{:+.2f}")
    margin = _place(-MARGIN, -reach, reach)
    yield f'<rect x="{_LEFT}" y="182" width="{margin - _LEFT:.1f}" height="40" fill="#a8324a" fill-opacity="0.12"/>'
    yield from _row(202, "after − before", difference, "after", -reach, reach, sign="+")


def _counts(comparison: Comparison) -> Iterator[str]:
    """Yield one bar: for how many documents the new model is worse, equal and better."""
    equal = comparison.documents - comparison.worse - comparison.better
    yield _text(_LEFT - 10, 284, "documents", "end")
    start = float(_LEFT)
    for name, count in (("worse", comparison.worse), ("equal", equal), ("better", comparison.better)):
        width = (_RIGHT - _LEFT) * count / comparison.documents
        yield f'<rect x="{start:.1f}" y="268" width="{width:.1f}" height="22" fill="{_COLOURS[name]}"/>'
        start += width
    said = f"worse for {comparison.worse:,}, equal for {equal:,}, better for {comparison.better:,}"
    yield _text((_LEFT + _RIGHT) / 2, 310, said, "middle")


def _row(y: float, name: str, value: Estimate, kind: str, low: float, high: float, sign: str = "") -> Iterator[str]:
    """Yield a dot with its interval, the name on the left and the number above it."""
    first, middle, last = (_place(each, low, high) for each in (value.low, value.mean, value.high))
    colour = _COLOURS[kind]
    yield _text(_LEFT - 10, y + 4, _short(name), "end")
    yield f'<line x1="{first:.1f}" x2="{last:.1f}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2"/>'
    yield f'<circle cx="{middle:.1f}" cy="{y}" r="5" fill="{colour}"/>'
    yield _text(middle, y - 9, f"{value.mean:{sign}.3f}", "middle", f'font-size="12" fill="{colour}"')


def _axis(top: float, bottom: float, low: float, high: float, ticks: list[float], form: str) -> Iterator[str]:
    for tick in ticks:
        x = _place(tick, low, high)
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top - 22}" y2="{bottom}" stroke="#e3e6ea"/>'
        yield _text(x, bottom + 16, form.format(tick), "middle", 'font-size="11"')


def _place(value: float, low: float, high: float) -> float:
    return _LEFT + (_RIGHT - _LEFT) * (value - low) / (high - low)


def _text(x: float, y: float, text: str, anchor: str = "start", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}" {more}>{escape(text)}</text>'


def _short(name: str) -> str:
    return cut(_NOT_IN_XML.sub("\ufffd", one_line(name)), _LONGEST_NAME)
