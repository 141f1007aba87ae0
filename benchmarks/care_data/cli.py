"""``care-data``: a benchmark and training data from a collection. Commands import what they run when they run."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from typing_extensions import override

from care_qdrant import __version__, needs_extra
from care_qdrant.console import run as run_program
from care_qdrant.console.groups import CONTEXT, Program
from care_qdrant.console.logs import log_options

_CONFIG = click.Path(path_type=Path, dir_okay=False)


class _Program(Program):
    """Names the extra where a command imports a package that is not installed."""

    @override
    def invoke(self, ctx: click.Context) -> Any:
        with needs_extra("data", "care-data"):
            return super().invoke(ctx)


@click.group(cls=_Program, context_settings=CONTEXT)
@click.version_option(__version__, prog_name="care-data")
@log_options
def care_data() -> None:
    """Make a benchmark and training data from a collection, with language models as judges and experts.

    \b
    Example:
      care-data judge clinic.toml --dry-run
      care-data run clinic.toml
      care-bench run clinic/benchmark --control bm25 --control hybrid --output results/clinic
    """


def _show(report: Any) -> None:
    click.echo(json.dumps(report, ensure_ascii=False, indent=2, default=float))


replay_option = click.option(
    "--replay", is_flag=True, help="Answer every call from the ledger, without a network; a missing answer is an error."
)


@care_data.command("run")
@click.argument("config", type=_CONFIG)
@replay_option
def run_all(config: Path, replay: bool) -> None:
    """Do all steps of CONFIG that are not done yet: pool, judge, vote, build.

    A run that was killed goes on where it was; no stored answer is asked again.

    \b
    Example:
      care-data run clinic.toml
    """
    from care_data.chain import run_chain
    from care_data.config import load_plan

    _show(run_chain(load_plan(config), replay=replay))


def _step(name: str, text: str) -> Callable[..., None]:
    @care_data.command(name, help=f"{text}\n\n\b\nExample:\n  care-data {name} clinic.toml")
    @click.argument("config", type=_CONFIG)
    def command(config: Path) -> None:
        from care_data.chain import run_step
        from care_data.config import load_plan

        _show(run_step(load_plan(config), name))

    return command


pool = _step("pool", "Search the collection of CONFIG with every retriever, and fuse what they find for each question.")


@care_data.command("judge")
@click.argument("config", type=_CONFIG)
@click.option("--dry-run", is_flag=True, help="Count the calls and their highest cost; nothing is sent.")
@replay_option
def judge(config: Path, dry_run: bool, replay: bool) -> None:
    """Let the judges of CONFIG rate the pool. Answers are stored, and no stored answer is asked again.

    \b
    Example:
      care-data judge clinic.toml --dry-run
      care-data judge clinic.toml
    """
    from care_data.chain import run_step
    from care_data.config import load_plan
    from care_data.judging import estimate

    plan = load_plan(config)
    _show(estimate(plan) if dry_run else run_step(plan, "judge", replay=replay))


vote = _step("vote", "Label the pool of CONFIG by the votes of its judges and experts, and report their agreement.")
build = _step(
    "build", "Write the benchmark of CONFIG: a task directory with a data card, for care-bench, BEIR and mteb."
)


@care_data.command("export")
@click.argument("config", type=_CONFIG)
@click.option("--format", "form", type=click.Choice(["trec", "umbrela"]), required=True, help="Format of the file.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="File to write.")
def export(config: Path, form: str, output: Path) -> None:
    """Write the labels of CONFIG as TREC qrels, or its pool as requests for umbrela.

    \b
    Example:
      care-data export clinic.toml --format trec --output clinic.qrels
      care-data export clinic.toml --format umbrela --output requests.jsonl
    """
    from care_data.config import load_plan
    from care_data.exchange import qrels_lines, umbrela_requests
    from care_data.files import read_rows, write_rows, write_text
    from care_data.vote import LABELS

    plan = load_plan(config)
    if form == "umbrela":
        count = write_rows(output, umbrela_requests(plan))
    else:
        lines = list(qrels_lines(read_rows(plan.folder / LABELS, "care-data vote")))
        write_text(output, "\n".join(lines) + "\n")
        count = len(lines)
    _show({"file": str(output), "rows": count})


@care_data.command("review")
@click.argument("config", type=_CONFIG)
@click.option("--expert", required=True, help="Name of the expert who will fill the sheet in.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="Spreadsheet, .xlsx.")
@click.option("--pairs", type=click.IntRange(1), default=60, show_default=True, help="Pairs to rate.")
@click.option("--seed", type=int, default=0, show_default=True, help="Decides the sample; experts share one.")
def review(config: Path, expert: str, output: Path, pairs: int, seed: int) -> None:
    """Write a sample of CONFIG's pairs for an expert, blind and in random order.

    Name the filled-in sheet in vote.sheets and run care-data vote: it compares judges and experts.

    \b
    Example:
      care-data review clinic.toml --expert li --output li.xlsx
    """
    from care_data.config import load_plan
    from care_data.sheets import sample_tasks, write_sheet

    tasks = sample_tasks(load_plan(config), pairs, seed)
    write_sheet(output, tasks, expert)
    _show({"file": str(output), "pairs": len(tasks)})


@care_data.command("pairs")
@click.argument("config", type=_CONFIG)
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="JSON Lines to write.")
@click.option("--negatives", type=click.IntRange(0), default=5, show_default=True, help="Most negatives of a pair.")
def pairs(config: Path, output: Path, negatives: int) -> None:
    """Write the labels of CONFIG as training pairs for care-train: disputed documents are in none.

    \b
    Example:
      care-data pairs train.toml --output pairs.jsonl
    """
    from care_data.config import load_plan
    from care_data.pairs import write_pairs

    _show(write_pairs(load_plan(config), output, negatives))


def main() -> None:
    """Run `care-data`."""
    run_program(care_data)


if __name__ == "__main__":
    main()
