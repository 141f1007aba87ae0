"""``care-bench``: evaluation on CMedTEB-shaped tasks. Commands import what they run, so that `--help` opens at once."""

import re
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from typing_extensions import override

from care_qdrant.console import run as run_program
from care_qdrant.console.groups import CONTEXT, GroupedCommand, Program
from care_qdrant.console.logs import log_options
from care_qdrant.console.options import engine_options, json_option, model_option, precision, target_of, url_option
from care_qdrant.console.outputs import require_free, require_own
from care_qdrant.console.reports import show_json
from care_qdrant.console.text import echo, table
from care_qdrant.errors import InputError, needs_extra, redact

if TYPE_CHECKING:
    from mteb.abstasks import AbsTask

    from care_benchmarks.results import Result, System

_COMPARISON = re.compile(rb"<!doctype html>.*care-bench</title>", re.DOTALL)
_RUN = re.compile(rb'\{\s*"name": ".*",\s*"command": "care[- ]bench ')
DATABASE = "bench-qdrant"
"""Folder of the embedded database in that of a result: another name than `care ingest` gives its own."""
_FOLDER = click.Path(path_type=Path, file_okay=False)
_RESULT = click.Path(path_type=Path, file_okay=False, exists=True)


class _Program(Program):
    """A group that names the extra where a command imports a package that is not installed."""

    @override
    def invoke(self, ctx: click.Context) -> Any:
        with needs_extra("bench", "care-bench"):
            return super().invoke(ctx)


@click.group(cls=_Program, context_settings=CONTEXT)
@log_options
def care_bench() -> None:
    """Evaluate retrieval systems through Qdrant and LlamaIndex: accuracy, statistics and speed.

    \b
    Example:
      care bench run examples/sample --model built-in --output results/sample
    """


@care_bench.command(
    cls=GroupedCommand,
    groups={
        "Systems": ["models", "device", "engine", "endpoints", "controls"],
        "Result": ["output", "without_texts", "speed", "as_json"],
        "Qdrant": ["path", "url"],
    },
)
@click.argument("tasks", nargs=-1, required=True)
@model_option("CARE folder, hub name, built-in, or any sentence-transformers model; repeatable.", several=True)
@click.option(
    "--control",
    "controls",
    multiple=True,
    type=click.Choice(["bm25", "hybrid", "document", "query"]),
    help="Control system to add: bm25, its hybrid with the first model, or the first model with its document or query "
    "encoder on both sides; repeatable.",
)
@click.option("--output", type=_FOLDER, required=True, help="Folder of the result.")
@click.option("--without-texts", is_flag=True, help="Leave query and document texts out of the report.")
@click.option(
    "--speed",
    type=click.Choice(["full", "quick", "none"]),
    default="full",
    show_default=True,
    help="Speed measurement: full runs 1, 4 and 16 clients with 200 queries each and the cold start; quick runs 2 "
    "clients with 3 queries.",
)
@click.option(
    "--path",
    type=_FOLDER,
    help="Folder of the embedded database.  [default: OUTPUT/bench-qdrant]",
)
@url_option
@engine_options
@json_option
def run(tasks: tuple[str, ...], output: Path, as_json: bool, **options: Any) -> None:
    """Score models on TASKS: directories, or names of mteb's Chinese medical sets.

    The result folder receives result.json, per_query.json, report.md, report.html, the rankings as JSON and as TREC run
    files, and mteb's result cache. To finish a killed run, run the same command again: stored documents are not encoded
    again.

    \b
    Example:
      care bench run examples/sample --control bm25 --control hybrid \\
        --output results/sample
      care bench run CMedQAv2-reranking --model built-in \\
        --url http://localhost:6333 --output results/cmedqa
    """
    from care_benchmarks.report import HTML_FILE, MARKDOWN_FILE
    from care_benchmarks.results import PER_QUERY_FILE, RESULT_FILE

    require_own(output, RESULT_FILE, _RUN, (PER_QUERY_FILE, MARKDOWN_FILE, HTML_FILE))
    _print(_run(_create_tasks(tasks), output, _default_name(tasks), options), as_json)
    echo(f"report: {output / 'report.html'}", err=True)


@care_bench.command()
@click.argument("results", nargs=-1, required=True, type=click.Path(path_type=Path, file_okay=False))
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="HTML file of the comparison.")
@json_option
def compare(results: tuple[Path, ...], output: Path | None, as_json: bool) -> None:
    """Compare every system of saved RESULTS with the first system of the first result, on their common tasks.

    Scores are paired query by query; a task whose data differ between results is refused.

    \b
    Example:
      care bench compare results/before results/after
      care bench compare results/before results/after --output before-after.html
    """
    from care_benchmarks.comparison import compare_results
    from care_benchmarks.report import comparison_rows, write_comparison

    if output is not None:
        require_free(output, _COMPARISON)
    comparisons = compare_results(results)
    if output is not None:
        write_comparison(comparisons, output)
        echo(f"comparison: {output}", err=True)
    if as_json:
        show_json([asdict(task) for task in comparisons])
        return
    header = ["task", "measure", "system", "score", "difference", "95 % interval", "p", "adjusted p"]
    rows = [[task.task, task.measure, *row] for task in comparisons for row in comparison_rows(task)]
    echo(table(header, rows, width=1_000))


@care_bench.command()
@click.argument("result", type=_RESULT)
def report(result: Path) -> None:
    """Regenerate report.md and report.html of a saved RESULT in the layout of this version.

    \b
    Example:
      care bench report benchmarks/results/dev
    """
    from care_benchmarks.report import HTML_FILE, write_report
    from care_benchmarks.results import load_result

    write_report(load_result(result), result)
    echo(str(result / HTML_FILE))


def _create_tasks(tasks: tuple[str, ...]) -> "list[AbsTask]":
    from care_benchmarks.tasks import HUB_TASKS, directory_tasks, hub_task

    directories = [task for task in tasks if task not in HUB_TASKS]
    created = [task for directory in directories for task in directory_tasks(Path(directory))]
    created += [hub_task(task) for task in tasks if task in HUB_TASKS]
    (twice, times), *_ = Counter(task.metadata.name for task in created).most_common(1) or [("", 0)]
    if times > 1:
        raise InputError(f"{times} tasks are named {twice}, after their folders; rename one, or run them separately")
    return created


def _run(tasks: "list[AbsTask]", output: Path, name: str, options: dict[str, Any]) -> "Result":
    from care_benchmarks.run import RunSettings, run
    from care_benchmarks.speed import SpeedSettings
    from care_benchmarks.systems import load_systems
    from care_qdrant.progress import progress_bar

    speeds = {"full": SpeedSettings(), "quick": SpeedSettings((2,), 3, cold_start=False), "none": None}
    settings = RunSettings(
        speed=speeds[options["speed"]],
        texts=not options["without_texts"],
    )
    systems = load_systems(
        options["models"], options["controls"], options["engine"], precision=precision(), device=options["device"]
    )
    target = target_of(options["path"], options["url"], output / DATABASE)
    with target.open(create=True) as client:
        return run(
            name,
            systems,
            tasks,
            client,
            output,
            settings=settings,
            command=_command_line(),
            store=target.path,
            progress=progress_bar,
        )


def _command_line() -> str:
    """Return the command line for a published result: without secrets, absolute paths cut to their last part."""
    typed = sys.argv[1:]
    typed = (
        typed[typed.index("bench") + 1 :] if "bench" in typed[:3] else typed
    )  # `care bench` and `care-bench` are one
    parts = (f"…/{Path(part).name}" if part.startswith(("/", "~")) else part for part in typed)
    return redact(" ".join(["care bench", *parts]))


def _print(result: "Result", as_json: bool) -> None:
    if as_json:
        show_json({system.name: _scores(result, system) for system in result.systems})
        return
    header = ["system", *(f"{task.name} {task.measure}" for task in result.tasks)]
    rows = []
    for system in result.systems:
        scores = [system.score(task.name) for task in result.tasks]
        rows.append([system.name, *(f"{100 * score.value:.2f}" if score else "–" for score in scores)])
    echo(table(header, rows, width=1_000))


def _scores(result: "Result", system: "System") -> dict[str, float]:
    """Return the score of a system on each task that it was measured on, from 0 to 1."""
    scored = {task.name: system.score(task.name) for task in result.tasks}
    return {name: score.value for name, score in scored.items() if score}


def _default_name(tasks: tuple[str, ...]) -> str:
    first = Path(tasks[0])
    return first.resolve().name if first.is_dir() else tasks[0]


def main() -> None:
    """Run `care-bench`."""
    run_program(care_bench)


if __name__ == "__main__":
    main()
