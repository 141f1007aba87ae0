"""``care-bench run``."""

import logging
import sys
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from care_qdrant.cli.options import Target
from care_qdrant.errors import InputError

if TYPE_CHECKING:
    from mteb.abstasks import AbsTask

    from care_benchmarks.contestants import Contestant
    from care_benchmarks.results import Result


@click.command()
@click.argument("tasks", nargs=-1, required=True)
@click.option("--output", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder of the result.")
@click.option("--name", help="Of the run, in its report.  [default: the first task directory]")
@click.option(
    "--model",
    "models",
    multiple=True,
    envvar="CARE_MODEL",
    show_envvar=True,
    help="CARE folder, hub name, built-in, or any sentence-transformers model; may be repeated.  [default: built-in]",
)
@click.option(
    "--control",
    "controls",
    multiple=True,
    type=click.Choice(["bm25", "hybrid", "document", "query"]),
    help="Controls of the first model; document and query are one of its encoders on both sides. May be repeated.",
)
@click.option(
    "--path", type=click.Path(path_type=Path, file_okay=False), help="Embedded database.  [default: OUTPUT/qdrant]"
)
@click.option("--url", envvar="QDRANT_URL", show_envvar=True, help="Qdrant server, instead of a folder.")
@click.option("--api-key", envvar="QDRANT_API_KEY", show_envvar=True, help="Key of the server.")
@click.option("--grpc", is_flag=True, help="Send points over gRPC.")
@click.option(
    "--document-server", metavar="URL", help="Embeddings server (OpenAI's protocol) for the first model's documents."
)
@click.option("--document-server-model", metavar="NAME", help="Its name there.  [default: the model's own]")
@click.option(
    "--document-server-input",
    type=click.Choice(["tokens", "text", "text-without-prompt"]),
    default="tokens",
    show_default=True,
    help="What it gets: token ids; or texts, where it takes no ids; without the prompt, where it adds its own.",
)
@click.option(
    "--document-server-batch-tokens",
    type=click.IntRange(1),
    default=16_384,
    show_default=True,
    help="Of one request; fewer for a server on a CPU, which has two minutes for it.",
)
@click.option("--document-server-key", envvar="CARE_DOCUMENT_SERVER_KEY", show_envvar=True, help="Bearer token.")
@click.option(
    "--golden",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Vectors that the server must give (care-bench golden).  [default: made here, by the document encoder itself]",
)
@click.option(
    "--through",
    type=click.Choice(["llama-index", "core"]),
    default="llama-index",
    show_default=True,
    help="Path of dense queries.",
)
@click.option("--device", help="Of torch encoders: cpu, cuda, …  [default: the best that is there]")
@click.option(
    "--precision",
    type=click.Choice(["auto", "int8", "fp32"]),
    default="auto",
    show_default=True,
    help="Of ONNX query encoders.",
)
@click.option(
    "--instructions",
    type=click.Choice(["none", "query", "document", "both"]),
    default="none",
    show_default=True,
    help="Sides that get the paper's instructions (table 8).",
)
@click.option(
    "--instruction-template", help="Words around an instruction, with {instruction} in them.  [default: Qwen3's]"
)
@click.option(
    "--clients", multiple=True, type=click.IntRange(1), help="Loads for the speed; may be repeated.  [default: 1 4 16]"
)
@click.option("--samples", type=click.IntRange(1), default=200, show_default=True, help="Queries of each load.")
@click.option("--no-speed", is_flag=True, help="Measure no speed.")
@click.option("--no-cold-start", is_flag=True, help="Start no fresh processes for the speed.")
@click.option(
    "--variants", is_flag=True, help="Measure HNSW, int8, float16 and fewer dimensions as well (first model)."
)
@click.option("--peers", is_flag=True, help="Run dense systems by mteb's own runner as well.")
@click.option("--without-texts", is_flag=True, help="Keep the texts of the tasks out of the report.")
def command(tasks: tuple[str, ...], output: Path, name: str | None, **options: Any) -> None:
    """Score models on TASKS: directories, or names of mteb's Chinese medical sets.

    The result folder gets result.json, per_query.json, report.md, report.html, the rankings, and mteb's result cache.
    A run that was killed is finished by running it again: documents that are stored are not encoded again.

    \b
    Example:
      care-bench run examples/sample --control bm25 --control hybrid --output results/sample
      care-bench run CMedQAv2-reranking --model built-in --url http://localhost:6333 --output results/cmedqa
    """
    _show_log()
    loaded = _load_tasks(tasks, name)
    result = _run(loaded, output, name or _default_name(tasks), options)
    _print(result)
    click.echo(f"report: {output / 'report.html'}", err=True)


def _load_tasks(tasks: tuple[str, ...], name: str | None) -> "list[AbsTask]":
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
    from care_benchmarks.contestants import load_contestants
    from care_benchmarks.instructions import QWEN3_TEMPLATE, Instructions
    from care_benchmarks.run import RunSettings, run
    from care_benchmarks.serving import SpeedSettings
    from care_qdrant.progress import progress_bar

    sides, template = options["instructions"], options["instruction_template"] or QWEN3_TEMPLATE
    if options["instruction_template"] and sides == "none":
        raise click.UsageError("--instruction-template is of no use without --instructions")
    settings = RunSettings(
        through=options["through"],
        instructions=Instructions(sides in ("query", "both"), sides in ("document", "both"), template),
        speed=None
        if options["no_speed"]
        else SpeedSettings(options["clients"] or (1, 4, 16), options["samples"], not options["no_cold_start"]),
        variants=options["variants"],
        peers=options["peers"],
        texts=not options["without_texts"],
    )
    contestants = load_contestants(
        options["models"] or ("built-in",),
        options["controls"],
        precision=options["precision"],
        device=options["device"],
    )
    store = None if options["url"] and options["path"] is None else options["path"] or output / "qdrant"
    target = Target(store, options["url"] if store is None else None, options["api_key"], options["grpc"])
    with ExitStack() as stack:
        if options["document_server"]:
            contestants = _let_server_encode(contestants, options, stack)
        client = stack.enter_context(target.open(create=True))
        return run(
            name,
            contestants,
            tasks,
            client,
            output,
            settings=settings,
            command=_command_line(),
            store=store,
            progress=progress_bar,
        )


def _let_server_encode(
    contestants: "list[Contestant]", options: dict[str, Any], stack: ExitStack
) -> "list[Contestant]":
    """Replace the document encoder of the first model, and of the controls that share it."""
    from care_benchmarks.remote import load_golden, make_golden, served_documents
    from care_qdrant.checkpoint.hub import fetch_document_side

    model, source = contestants[0].model, contestants[0].source
    served = stack.enter_context(
        served_documents(
            model,
            fetch_document_side(source) / "document" / "tokenizer.json",
            options["document_server"],
            options["document_server_model"] or model.name,
            load_golden(options["golden"]) if options["golden"] else make_golden(model),
            sent=options["document_server_input"],
            batch_tokens=options["document_server_batch_tokens"],
            api_key=options["document_server_key"],
        )
    )
    return [
        replace(contestant, model=served) if contestant.model is model else contestant for contestant in contestants
    ]


def _command_line() -> str:
    """Give the command as it was typed; of absolute paths only the last part, since results are published."""
    parts = (f"…/{Path(part).name}" if part.startswith(("/", "~")) else part for part in sys.argv[1:])
    return " ".join(["care-bench", *parts])


def _print(result: "Result") -> None:
    from care_qdrant.cli.table import table

    header = ["system", *(f"{task.name} {task.measure}" for task in result.tasks)]
    rows = [
        [
            system.name,
            *(f"{100 * score.value:.2f}" if (score := system.score(task.name)) else "–" for task in result.tasks),
        ]
        for system in result.systems
    ]
    click.echo(table(header, rows, width=1_000))


def _default_name(tasks: tuple[str, ...]) -> str:
    first = Path(tasks[0])
    return first.resolve().name if first.is_dir() else tasks[0]


def _show_log() -> None:
    """Show what the harness says on stderr; of the libraries only warnings."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("care_benchmarks").setLevel(logging.INFO)
