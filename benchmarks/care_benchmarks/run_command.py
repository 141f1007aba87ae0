"""``care-bench run``: options, and the call of `care_benchmarks.run.run`."""

import logging
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from care_qdrant.console.options import Target, engine_options
from care_qdrant.errors import InputError, redact, remember_secret

if TYPE_CHECKING:
    from mteb.abstasks import AbsTask

    from care_benchmarks.results import Result

_FOLDER = click.Path(path_type=Path, file_okay=False)
_GROUPS = {
    "Systems": ("--model", "--control", "--precision", "--device"),
    "Result": ("--output", "--name", "--without-texts", "--mteb-reference"),
    "Speed": ("--no-speed", "--no-cold-start", "--clients", "--samples"),
    "Qdrant": ("--path", "--url", "--api-key", "--grpc", "--through"),
    "Documents of the first model": ("--engine", "--endpoint", "--reference-vectors", "--dtype"),
}
"""Groups of `--help` → prefixes of their options, the everyday ones first."""


class _GroupedCommand(click.Command):
    """A command whose `--help` lists the options in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        grouped: dict[str, list[tuple[str, str]]] = {title: [] for title in [*_GROUPS, "Other"]}
        for option in self.get_params(ctx):
            if isinstance(option, click.Option) and (record := option.get_help_record(ctx)):
                titles = (title for title, prefixes in _GROUPS.items() if record[0].startswith(prefixes))
                grouped[next(titles, "Other")].append(record)
        for title, records in grouped.items():
            with formatter.section(title):
                formatter.write_dl(records)


@click.command(cls=_GroupedCommand)
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
@click.option(
    "--precision",
    type=click.Choice(["auto", "int8", "fp32"]),
    default="auto",
    show_default=True,
    help="Precision of ONNX query encoders.",
)
@click.option("--output", type=_FOLDER, required=True, help="Folder of the result.")
@click.option("--name", help="Name of the run in its report.  [default: the first task directory]")
@click.option("--without-texts", is_flag=True, help="Keep the texts of the tasks out of the report.")
@click.option("--mteb-reference", is_flag=True, help="Evaluate dense systems with mteb's own runner as well.")
@click.option("--no-speed", is_flag=True, help="Measure no speed.")
@click.option("--no-cold-start", is_flag=True, help="Start no fresh processes to measure the cold start.")
@click.option(
    "--clients",
    multiple=True,
    type=click.IntRange(1),
    help="Number of concurrent clients of a load; repeatable.  [default: 1 4 16]",
)
@click.option("--samples", type=click.IntRange(1), default=200, show_default=True, help="Queries per load.")
@click.option(
    "--path",
    type=_FOLDER,
    help="Folder of the embedded database, which is unpickled when it is opened.  [default: OUTPUT/qdrant]",
)
@click.option("--url", envvar="QDRANT_URL", show_envvar=True, help="URL of a Qdrant server, instead of a folder.")
@click.option("--api-key", envvar="QDRANT_API_KEY", show_envvar=True, help="API key of the server.")
@click.option("--grpc", is_flag=True, help="Send points over gRPC.")
@click.option(
    "--through",
    type=click.Choice(["llama-index", "core"]),
    default="llama-index",
    show_default=True,
    help="Code path of dense queries: LlamaIndex's retriever, or care_qdrant.Retriever.",
)
@engine_options
def run(tasks: tuple[str, ...], output: Path, name: str | None, **options: Any) -> None:
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
    created = _create_tasks(tasks, name)
    _print(_run(created, output, name or _default_name(tasks), options))
    click.echo(f"report: {output / 'report.html'}", err=True)


def _create_tasks(tasks: tuple[str, ...], name: str | None) -> "list[AbsTask]":
    from care_benchmarks.tasks import HUB_TASKS, directory_tasks, hub_task

    directories = [task for task in tasks if task not in HUB_TASKS]
    prefix = name if len(directories) == 1 else None
    found = [task for directory in directories for task in directory_tasks(Path(directory), prefix)]
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

    speed = SpeedSettings(options["clients"] or (1, 4, 16), options["samples"], not options["no_cold_start"])
    settings = RunSettings(
        through=options["through"],
        speed=None if options["no_speed"] else speed,
        mteb_reference=options["mteb_reference"],
        texts=not options["without_texts"],
    )
    models = options["models"] or ("built-in",)
    systems = load_systems(
        models, options["controls"], options["engine"], precision=options["precision"], device=options["device"]
    )
    store = None if options["url"] and options["path"] is None else options["path"] or output / "qdrant"
    remember_secret(options["api_key"])
    target = Target(store, options["url"] if store is None else None, options["api_key"], options["grpc"])
    with target.open(create=True) as client:
        return run(
            name,
            systems,
            tasks,
            client,
            output,
            settings=settings,
            command=_command_line(),
            store=store,
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
