"""``care-bench run``: options, and the call of `care_benchmarks.run.run`."""

import logging
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from care_qdrant.console.groups import GroupedCommand
from care_qdrant.console.options import engine_options, precision, target_of, url_option
from care_qdrant.errors import InputError, redact

if TYPE_CHECKING:
    from mteb.abstasks import AbsTask

    from care_benchmarks.results import Result

_FOLDER = click.Path(path_type=Path, file_okay=False)


@click.command(
    cls=GroupedCommand,
    groups={
        "Systems": ["models", "engine_words", "controls"],
        "Result": ["output", "without_texts", "mteb_reference", "speed"],
        "Qdrant": ["path", "url", "through"],
    },
)
@click.argument("tasks", nargs=-1, required=True)
@click.option(
    "--model",
    "models",
    multiple=True,
    envvar="CARE_MODEL",
    show_envvar=True,
    help="CARE folder, hub name, built-in, or any sentence-transformers model; repeatable.  [default: built-in]",
)
@click.option(
    "--control",
    "controls",
    multiple=True,
    type=click.Choice(["bm25", "hybrid", "document", "query"]),
    help="Control of the first model; document and query use one of its encoders on both sides; repeatable.",
)
@click.option("--output", type=_FOLDER, required=True, help="Folder of the result.")
@click.option("--without-texts", is_flag=True, help="Keep the texts of the tasks out of the report.")
@click.option("--mteb-reference", is_flag=True, help="Evaluate dense systems with mteb's own runner as well.")
@click.option(
    "--speed",
    type=click.Choice(["full", "quick", "none"]),
    default="full",
    show_default=True,
    help="Measure loads of 1, 4 and 16 clients with 200 queries each and the cold start; or a load of 2 clients alone.",
)
@click.option(
    "--path",
    type=_FOLDER,
    help="Folder of the embedded database, which is unpickled when it is opened.  [default: OUTPUT/qdrant]",
)
@url_option
@click.option(
    "--through",
    type=click.Choice(["llama-index", "core"]),
    default="llama-index",
    show_default=True,
    help="Code path of dense queries: LlamaIndex's retriever, or care_qdrant.Retriever.",
)
@engine_options
def run(tasks: tuple[str, ...], output: Path, **options: Any) -> None:
    """Score models on TASKS: directories, or names of mteb's Chinese medical sets.

    The result folder receives result.json, per_query.json, report.md, report.html, the rankings, and mteb's result
    cache. A killed run is finished by running it again: stored documents are not encoded again.

    \b
    Example:
      care-bench run examples/sample --control bm25 --control hybrid --output results/sample
      care-bench run CMedQAv2-reranking --model built-in --url http://localhost:6333 --output results/cmedqa
    """
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("care_benchmarks").setLevel(logging.INFO)
    _print(_run(_create_tasks(tasks), output, _default_name(tasks), options))
    click.echo(f"report: {output / 'report.html'}", err=True)


def _create_tasks(tasks: tuple[str, ...]) -> "list[AbsTask]":
    from care_benchmarks.tasks import HUB_TASKS, directory_tasks, hub_task

    directories = [task for task in tasks if task not in HUB_TASKS]
    found = [task for directory in directories for task in directory_tasks(Path(directory))]
    found += [hub_task(task) for task in tasks if task in HUB_TASKS]
    (twice, times), *_ = Counter(task.metadata.name for task in found).most_common(1) or [("", 0)]
    if times > 1:
        raise InputError(f"{times} of the tasks are called {twice}, after their folders; rename one, or run them apart")
    return found


def _run(tasks: "list[AbsTask]", output: Path, name: str, options: dict[str, Any]) -> "Result":
    from care_benchmarks.run import RunSettings, run
    from care_benchmarks.speed import SpeedSettings
    from care_benchmarks.systems import load_systems
    from care_qdrant.progress import progress_bar

    speeds = {"full": SpeedSettings(), "quick": SpeedSettings((2,), 3, cold_start=False), "none": None}
    settings = RunSettings(
        through=options["through"],
        speed=speeds[options["speed"]],
        mteb_reference=options["mteb_reference"],
        texts=not options["without_texts"],
    )
    models = options["models"] or ("built-in",)
    systems = load_systems(
        models, options["controls"], options["engine"], precision=precision(), device=options["device"]
    )
    target = target_of(options["path"], options["url"], output / "qdrant")
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
    """Return the command as it was typed, since results are published: without secrets, absolute paths cut short."""
    parts = (f"…/{Path(part).name}" if part.startswith(("/", "~")) else part for part in sys.argv[1:])
    return redact(" ".join(["care-bench", *parts]))


def _print(result: "Result") -> None:
    from care_qdrant.console.table import table

    header = ["system", *(f"{task.name} {task.measure}" for task in result.tasks)]
    rows = []
    for system in result.systems:
        scores = [system.score(task.name) for task in result.tasks]
        rows.append([system.name, *(f"{100 * score.value:.2f}" if score else "–" for score in scores)])
    click.echo(table(header, rows, width=1_000))


def _default_name(tasks: tuple[str, ...]) -> str:
    first = Path(tasks[0])
    return first.resolve().name if first.is_dir() else tasks[0]
