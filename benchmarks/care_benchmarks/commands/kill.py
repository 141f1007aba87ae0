"""``care-bench kill``."""

import tempfile
from pathlib import Path

import click

from care_benchmarks.measured import output_option, plain, save_measured, scratch_option, shown


@click.command()
@click.argument("task", type=click.Path(exists=True, file_okay=False))
@click.option("--model", default="built-in", show_default=True, help="As in care-bench run.")
@click.option("--trials", type=click.IntRange(1), default=20, show_default=True, help="Runs to kill.")
@click.option("--seed", default=0, show_default=True, help="Of the moments.")
@scratch_option
@output_option
def command(task: str, model: str, trials: int, seed: int, scratch: Path | None, output: Path) -> None:
    """Kill runs over TASK at random moments, and check that the same command finishes each of them.

    Each run scores the pair, BM25 and the query encoder on both sides, in a folder of its own.

    \b
    Example:
      care-bench kill examples/sample --trials 20 --output benchmarks/results/run-kill.json
    """
    from care_benchmarks.kill_run import run_trials

    arguments = [task, "--model", model, "--control", "bm25", "--control", "query", "--no-speed"]
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        results = [shown(trial) for trial in run_trials(arguments, trials, Path(folder), seed)]
    killed, good = sum(trial.was_killed for trial in results), sum(trial.is_good for trial in results)
    save_measured(output, {"killed": killed, "good": good, "trials": plain(results)})
    if good < len(results):
        raise click.ClickException(f"{len(results) - good} of {len(results)} trials went wrong: {output}")
