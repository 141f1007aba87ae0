"""The charts of a report, as SVG for an HTML page."""

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec

from care_benchmarks.statistics import Interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

P = ParamSpec("P")

_COLOURS = ("#0b6e99", "#c2571a", "#5b7f2b", "#7d4fa3", "#a8324a", "#3d7c78", "#8a6d1f", "#4a4f5a")
_STYLE: Any = {
    # Text stays selectable, and the browser chooses a font with Chinese characters.
    "svg.fonttype": "none",
    # Without it element ids are random, and the same result yields another file.
    "svg.hashsalt": "care",
    "font.family": "sans-serif",
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#8a9099",
    "axes.labelcolor": "#3a3f47",
    "xtick.color": "#3a3f47",
    "ytick.color": "#3a3f47",
    "grid.color": "#e3e6ea",
    "axes.axisbelow": True,
}


@dataclass(frozen=True, slots=True)
class Point:
    """One system under one load."""

    system: str
    queries_per_second: float
    value: float
    interval: Interval
    concurrency: int


@dataclass(frozen=True, slots=True)
class Bar:
    """One system on one task."""

    system: str
    value: float
    interval: Interval


def _styled(draw: Callable[P, str]) -> Callable[P, str]:
    """Run a drawing function with `_STYLE`, which matplotlib reads when axes are made and again when it saves."""

    @wraps(draw)
    def drawn(*args: P.args, **options: P.kwargs) -> str:
        import matplotlib as mpl

        with mpl.rc_context(_STYLE):
            return draw(*args, **options)

    return drawn


@_styled
def scatter(points: Sequence[Point], measure: str, systems: Sequence[str]) -> str:
    """Draw accuracy against queries per second, with a log x-axis as in the paper's Figure 1.

    The larger a point, the more clients; the table below the chart has their numbers.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator

    figure = _figure(5.6, 5.2)
    axes = figure.subplots()
    for system in dict.fromkeys(point.system for point in points):
        own = sorted((p for p in points if p.system == system), key=lambda p: p.queries_per_second)
        x, y = [p.queries_per_second for p in own], [100 * p.value for p in own]
        colour = _colour(system, systems)
        axes.errorbar(x, y, _arms(own), color=colour, marker="o", markersize=4, linewidth=1, capsize=2, label=system)
        axes.scatter(x, y, [20 * (1 + math.log2(p.concurrency)) for p in own], color=colour, alpha=0.6)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))
    axes.margins(x=0.08, y=0.12)
    figure.legend(frameon=False, loc="outside lower left")
    axes.set_xlabel("queries per second (log scale)")
    axes.set_ylabel(f"{measure} × 100")
    axes.grid(visible=True, which="major")
    return _svg(figure, f"{measure} against queries per second")


@_styled
def bars(task: str, measure: str, entries: Sequence[Bar], systems: Sequence[str]) -> str:
    """Draw one task: one bar with its 95 % interval per system."""
    figure = _figure(5.6, 0.8 + 0.36 * len(entries))
    axes = figure.subplots()
    places = range(len(entries))
    colours = [_colour(entry.system, systems) for entry in entries]
    values = [100 * entry.value for entry in entries]
    axes.barh(places, values, xerr=_arms(entries), color=colours, height=0.62, ecolor="#22262b", capsize=2)
    for place, entry, value in zip(places, entries, values, strict=True):
        axes.annotate(
            f"{value:.1f}",
            (max(100 * entry.interval.high, value, 0), place),
            (5, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
        )
    axes.set_yticks(places, [entry.system for entry in entries])
    axes.invert_yaxis()
    axes.margins(x=0.08)
    axes.set_xlabel(f"{measure} × 100, 95 % interval")
    axes.grid(visible=True, axis="x")
    return _svg(figure, f"{task}: {measure} per system")


def _colour(system: str, systems: Sequence[str]) -> str:
    """Return the colour of a system, the same in all charts of a report with these ``systems``."""
    return _COLOURS[systems.index(system) % len(_COLOURS)]


def _figure(width: float, height: float) -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _arms(entries: Sequence[Point | Bar]) -> list[list[float]]:
    """Return the lengths of the error bars to both sides, at least 0: rounding may move an interval past its value."""
    low = [max(0.0, 100 * (entry.value - entry.interval.low)) for entry in entries]
    return [low, [max(0.0, 100 * (entry.interval.high - entry.value)) for entry in entries]]


def _svg(figure: "Figure", title: str) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Title": title}, transparent=True)
    svg = text.getvalue()
    return svg[svg.index("<svg") :]
