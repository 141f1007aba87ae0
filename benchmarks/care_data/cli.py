"""``care-data``: a benchmark and training data from a collection. Commands import what they run: `--help` is fast."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from typing_extensions import override

from care_qdrant.console import run as run_program
from care_qdrant.console.groups import CONTEXT, Command, Program
from care_qdrant.console.logs import log_options
from care_qdrant.console.options import Target, json_option, model_options, target_options
from care_qdrant.console.outputs import require_free
from care_qdrant.console.reports import show_report
from care_qdrant.console.text import echo
from care_qdrant.errors import counted, needs_extra

if TYPE_CHECKING:
    from care_trainer.config import Side

    from care_data.config import Config
    from care_qdrant import CareModel

_FILE = click.Path(path_type=Path, dir_okay=False)
output_option = click.option("--output", type=_FILE, required=True, help="File to write; it must not exist yet.")


class _Command(Command):
    """A command that prints the report that its function returns."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        json_option(self)

    @override
    def invoke(self, ctx: click.Context) -> None:
        as_json = ctx.params.pop("as_json")
        show_report(super().invoke(ctx), as_json=as_json)


class _Program(Program):
    """A group that names the extra where a command imports a package that is not installed."""

    command_class = _Command

    @override
    def invoke(self, ctx: click.Context) -> Any:
        with needs_extra("data", "care-data"):
            return super().invoke(ctx)


@click.group(cls=_Program, context_settings=CONTEXT)
@log_options
@click.option(
    "--replay", is_flag=True, help="Take every answer from the ledger, without a network; a missing answer is an error."
)
@click.pass_context
def care_data(context: click.Context, replay: bool) -> None:
    """Make a benchmark and training data from a collection, with language models as judges and experts.

    \b
    Example:
      care data judge clinic.toml --dry-run
      care data run clinic.toml
      care bench run clinic/benchmark --control bm25 --control hybrid \\
        --output results/clinic
    """
    context.obj = replay


def _load(_: click.Context, __: click.Parameter, config: Path | None) -> "Config | None":
    from care_data.config import load_config

    return load_config(config) if config else None


config_argument = click.argument("config", metavar="CONFIG", type=_FILE, callback=_load)


@care_data.command("run")
@config_argument
@click.pass_obj
def run_all(replay: bool, config: "Config") -> Any:
    """Run all steps of CONFIG that are not done yet: pool, judge, vote, sts, build.

    The same command resumes a killed run; no stored answer is requested again.

    \b
    Example:
      care data run clinic.toml
    """
    from care_data.chain import run_chain

    return run_chain(config, replay=replay)


def _step(name: str, text: str, *options: click.Option) -> None:
    @care_data.command(name, params=[*options], help=f"{text}\n\n\b\nExample:\n  care data {name} clinic.toml")
    @config_argument
    @click.pass_obj
    def step(replay: bool, config: "Config", dry_run: bool = False, again: tuple[str, ...] = ()) -> Any:
        from care_data.chain import run_step
        from care_data.config import ask_again
        from care_data.judging import estimate

        return estimate(config) if dry_run else run_step(ask_again(config, again), name, replay=replay)


def _again(of: str) -> click.Option:
    text = f"{of} to ask again, at its price, for the answers that could not be read; repeatable."
    return click.Option(["--again"], metavar="NAME", multiple=True, help=text)


_step("pool", "Search the collection of CONFIG with every retriever, and fuse what they find for each question.")
_step(
    "judge",
    "Let the judges of CONFIG rate the pool. Answers are stored, and no stored answer is requested again.",
    click.Option(
        ["--dry-run"], is_flag=True, help="Print the number of calls and their highest cost; nothing is sent."
    ),
    _again("Judge"),
)
_step("vote", "Label the pool of CONFIG by the votes of its judges and experts, and report their agreement.")
_step(
    "sts",
    "Write sentence pairs from the questions and synonyms of CONFIG, without those that its judges do not confirm.",
    _again("Writer or judge"),
)
_step("build", "Write the benchmark of CONFIG: a task directory with a data card, for care-bench, BEIR and mteb.")


@care_data.command("export")
@config_argument
@output_option
def export(config: "Config", output: Path) -> Any:
    """Write the labels of CONFIG as TREC qrels, or, to a file that ends in .jsonl, its pool as requests for umbrela.

    \b
    Example:
      care data export clinic.toml --output clinic.qrels
      care data export clinic.toml --output requests.jsonl
    """
    from care_data.chain import require_done
    from care_data.exchange import umbrela_requests, write_qrels
    from care_data.files import LABELS, write_rows
    from care_data.pool import POOL

    require_free(output)
    is_pool = output.suffix == ".jsonl"
    require_done(config, [POOL] if is_pool else [POOL, LABELS])
    rows = write_rows(output, umbrela_requests(config)) if is_pool else write_qrels(config, output)
    return {"file": str(output), "rows": rows}


@care_data.command("review")
@config_argument
@click.option("--output", type=_FILE, help="Spreadsheet to write, EXPERT.xlsx.  [default: serve a local page]")
@click.option("--pairs", type=click.IntRange(1), default=60, show_default=True, help="Number of pairs to rate.")
def review(config: "Config", output: Path | None, pairs: int) -> Any:
    """Let experts rate a sample of CONFIG's pairs, blind and in random order: on a local page, or in a spreadsheet.

    The page stores each grade at once; name a filled-in sheet in vote.sheets. Then care data vote compares judges and
    experts.

    \b
    Example:
      care data review clinic.toml
      care data review clinic.toml --output li.xlsx
    """
    from care_data.sheets import OPINIONS, sample_tasks, write_sheet

    if output is not None:
        require_free(output)
    tasks = sample_tasks(config, pairs)
    if output is not None:
        write_sheet(output, tasks, output.stem)
        return {"file": str(output), "pairs": len(tasks)}
    import socket

    import uvicorn

    from care_data.review import review_app

    try:
        listening = socket.create_server(("127.0.0.1", 8090))
    except OSError:
        listening = socket.create_server(("127.0.0.1", 0))
    with listening:
        echo(
            f"http://127.0.0.1:{listening.getsockname()[1]} shows {counted(len(tasks), 'pair')}; stop it with Ctrl-C",
            err=True,
        )
        uvicorn.Server(uvicorn.Config(review_app(config, tasks), log_level="warning")).run([listening])
    return {"file": str(config.folder / OPINIONS), "pairs": len(tasks)}


@care_data.command("pairs")
@config_argument
@output_option
def pairs(config: "Config", output: Path) -> Any:
    """Write the labels of CONFIG as training pairs for care train, without disputed documents.

    \b
    Example:
      care data pairs train.toml --output pairs.jsonl
    """
    from care_data.chain import require_done
    from care_data.exchange import write_pairs
    from care_data.files import LABELS
    from care_data.pool import POOL

    require_free(output)
    require_done(config, [POOL, LABELS])
    return write_pairs(config, output)


@care_data.command("diversify")
@click.argument("source", metavar="INPUT", type=_FILE)
@output_option
@click.option(
    "--side",
    type=click.Choice(["query", "document"]),
    required=True,
    help="Text of a row that is compared, and its encoder.",
)
@click.option(
    "-k", type=click.IntRange(1), default=5, show_default=True, help="Number of nearest kept texts to compare with."
)
@click.option(
    "--threshold",
    type=float,
    help="Cosine above which texts are similar, from -1 to 1.  [default: query 0.88, document 0.9]",
)
@click.option(
    "--neighbours",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="Number of similar kept texts a row may have; below k.",
)
@click.option(
    "--seed-rows",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Number of first texts that are always kept.",
)
@model_options(documents=True)
@target_options
def diversify(
    source: Path,
    output: Path,
    side: "Side",
    k: int,
    threshold: float | None,
    neighbours: int,
    seed_rows: int,
    load_model: "Callable[[], CareModel]",
    target: Target,
) -> Any:
    """Leave out rows of INPUT whose text is too similar to earlier ones: the paper's dynamic index filter [C.1].

    The vectors are kept in a collection of their own, which is deleted at the end. The same command resumes a killed
    run.

    \b
    Example:
      care data diversify questions.jsonl --side query --output diverse.jsonl
      care data diversify corpus.jsonl --side document \\
        --output diverse.jsonl --url http://localhost:6333
    """
    from care_data.diversify import THRESHOLDS, Filter, diversify_file
    from care_qdrant import Collection

    require_free(output)
    cosine = THRESHOLDS[side] if threshold is None else threshold
    settings = Filter(side=side, threshold=cosine, k=k, neighbours=neighbours, seed_rows=seed_rows)
    with target.open(create=True) as client:
        return diversify_file(source, output, settings, load_model(), Collection(client, f"care-data-{output.stem}"))


def main() -> None:
    """Run `care-data`."""
    run_program(care_data)


if __name__ == "__main__":
    main()
