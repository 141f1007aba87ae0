"""Report of one run, as Markdown and as a self-contained HTML file; and the HTML file of a comparison of results."""

import re
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from care_benchmarks.charts import Bar, Point, bars, scatter
from care_benchmarks.comparison import TaskComparison
from care_benchmarks.measures import CONDENSED
from care_benchmarks.results import Result, TaskInfo
from care_benchmarks.statistics import RESAMPLES, Comparison
from care_qdrant.errors import redact

MARKDOWN_FILE, HTML_FILE = "report.md", "report.html"
SIGNIFICANT = 0.05


def write_report(result: Result, folder: Path) -> None:
    """Write ``report.md`` and ``report.html`` into a folder; without secrets."""
    context = _context(result)
    _render("report.md.j2", folder / MARKDOWN_FILE, context)
    _render("report.html.j2", folder / HTML_FILE, {**context, **_charts(result)})


def write_comparison(tasks: Sequence[TaskComparison], path: Path) -> None:
    """Write a comparison of saved results as one self-contained HTML file."""
    systems = list(dict.fromkeys(name for task in tasks for name in task.scores))
    shown = [
        (
            task,
            comparison_rows(task),
            bars(task.task, task.measure, [Bar(n, v, task.intervals[n]) for n, v in task.scores.items()], systems),
        )
        for task in tasks
    ]
    verdicts = {task.task: _said(task.scores, systems[0], task.comparisons) for task in tasks}
    path.parent.mkdir(parents=True, exist_ok=True)
    _render("compare.html.j2", path, {"tasks": shown, "base": systems[0], "verdicts": verdicts})


def comparison_rows(task: TaskComparison) -> list[list[str]]:
    """Return a row of text for each system: its score, and its difference from the first one."""
    compared = {comparison.other: comparison for comparison in task.comparisons}
    rows = []
    for system, score in task.scores.items():
        row = [system, f"{100 * score:.2f}", "", "", "", ""]
        if against_first := compared.get(system):
            low, high = 100 * against_first.interval.low, 100 * against_first.interval.high
            row[2:4] = [f"{100 * against_first.difference:+.2f}", f"{low:+.2f} … {high:+.2f}"]
            row[4:] = [f"{against_first.p_value:.4f}", f"{against_first.adjusted_p_value:.4f}"]
        rows.append(row)
    return rows


def _render(template: str, path: Path, context: dict[str, Any]) -> None:
    environment = Environment(
        loader=PackageLoader("care_benchmarks"),
        autoescape=lambda name: bool(name and ".html" in name),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text = environment.get_template(template).render(context)
    path.write_text(redact(_labelled(text).strip()) + "\n", encoding="utf-8")


def _labelled(page: str) -> str:
    """Write the name of its column into each cell of an HTML table, which a narrow screen shows in front of it."""

    def label(table: re.Match[str]) -> str:
        heads = cycle(re.sub("<.*?>", " ", head) for head in re.findall("<th.*?>(.*?)</th>", table[0]))
        return re.sub("<td", lambda _: f'<td data-label="{next(heads, "")}"', table[0])

    return re.sub("<table>.*?</table>", label, page, flags=re.DOTALL)


def format_parameters(count: int) -> str:
    """Return a parameter count in short form, as ``305M``."""
    for size, unit in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return str(count) if count else "–"


def _context(result: Result) -> dict[str, Any]:
    first, verdicts = result.systems[0].name, {}
    for task in result.tasks:
        if scores := {system.name: score.value for system in result.systems if (score := system.score(task.name))}:
            verdicts[task.name] = _said(scores, first, result.comparisons.get(task.name, []))
    return {
        "result": result,
        "tasks": result.tasks,
        "best": {task.name: _best(result, task) for task in result.tasks},
        "measures": list(
            dict.fromkeys(name for system in result.systems for s in system.scores for name in s.measures)
        ),
        "labels": [
            (score.task, system.name, score.measures["Judged@10"], score.measures.get(CONDENSED))
            for task in result.tasks
            for system in result.systems
            if task.kind == "retrieval" and (score := system.score(task.name)) and "Judged@10" in score.measures
        ],
        "timed": [system for system in result.systems if system.speed],
        "verdicts": verdicts,
        "parameters": format_parameters,
        "resamples": f"{RESAMPLES:,}",
    }


def _best(result: Result, task: TaskInfo) -> str:
    scored = [(score.value, system.name) for system in result.systems if (score := system.score(task.name))]
    return max(scored)[1] if scored else ""


def _charts(result: Result) -> dict[str, Any]:
    names = [system.name for system in result.systems]
    charts = []
    for task in result.tasks:
        scores = [(system.name, system.score(task.name)) for system in result.systems]
        entries = [Bar(name, score.value, score.interval) for name, score in scores if score]
        charts.append(
            {"svg": bars(task.name, task.measure, entries, names), "caption": f"{task.name}, {task.measure}."}
        )
    ranking = next((task for task in result.tasks if task.kind != "sts"), None)
    points = [
        Point(system.name, load.queries_per_second, score.value, score.interval, load.concurrency)
        for system in result.systems
        if ranking and system.speed and (score := system.score(ranking.name))
        for load in system.speed.whole
    ]
    if not ranking or not points:
        return {"charts": charts, "speed_chart": "", "speed_caption": ""}
    caption = (
        f"{ranking.name}, {ranking.measure}, against queries per second on the machine below; the larger a point, the "
        "more clients."
    )
    return {"charts": charts, "speed_chart": scatter(points, ranking.measure, names), "speed_caption": caption}


def _said(scores: Mapping[str, float], first: str, comparisons: Sequence[Comparison]) -> str:
    """Return the best system of a task, and whether it differs from the first one."""
    best = max(scores, key=lambda name: scores[name])
    said = f"{best} {100 * scores[best]:.1f}"
    row = next((row for row in comparisons if row.other == best), None)
    if row is None:
        compared = best == first and len(scores) > 1
        return f"{said}, the system that the others are compared with" if compared else said
    low, high = 100 * row.interval.low, 100 * row.interval.high
    gap = f"{100 * row.difference:+.1f} ({low:+.1f} … {high:+.1f}) against {first}"
    clear = "" if row.adjusted_p_value < SIGNIFICANT else "; by chance alone this is not rare"
    return f"{said}, {gap}, adjusted p {row.adjusted_p_value:.4f}{clear}"
