"""``care-bench deployment``: each command attacks or measures one of those that live with collections that exist."""

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from care_benchmarks.measured import output_option, plain, save_measured, shown

trials_option = click.option(
    "--trials", type=click.IntRange(min=1), default=50, show_default=True, help="Runs to kill, for each case."
)
seed_option = click.option("--seed", default=0, show_default=True)


@click.group(name="deployment")
def command() -> None:
    """Attack attaching, promoting and publishing, and measure what attaching costs."""


@command.command()
@trials_option
@click.option("--points", type=click.IntRange(min=8), default=600, show_default=True)
@seed_option
@output_option
def kill_promote(trials: int, points: int, seed: int, output: Path) -> None:
    """Kill promotions and publications at random moments, and check that one more run makes all right.

    \b
    Example:
      care-bench deployment kill-promote --output benchmarks/results/deployment-kill-promote.json
    """
    from care_benchmarks.deployment.kill_promote import CASES, run_trials
    from care_benchmarks.ingestion.processes import standin_server

    with tempfile.TemporaryDirectory() as scratch, standin_server() as url:
        results = [
            shown(trial)
            for number, case in enumerate(CASES)
            for trial in run_trials(case, trials, points, Path(scratch), url, seed + number)
        ]
    killed = {case: sum(trial.was_killed for trial in results if trial.case == case) for case in CASES}
    _save(output, {"points": points, "seed": seed, "killed": killed}, results)


@command.command()
@trials_option
@click.option("--points", type=click.IntRange(min=8), default=300, show_default=True)
@seed_option
@output_option
def kill_attach(trials: int, points: int, seed: int, output: Path) -> None:
    """Kill attach and detach at random moments, and check that one more run makes all right.

    \b
    Example:
      care-bench deployment kill-attach --output benchmarks/results/deployment-kill-attach.json
    """
    from care_benchmarks.deployment.kill_attach import KINDS, run_trials
    from care_benchmarks.ingestion.processes import standin_server

    with tempfile.TemporaryDirectory() as scratch, standin_server() as url:
        results = [
            shown(trial)
            for number, kind in enumerate(KINDS)
            for trial in run_trials(kind, trials, points, Path(scratch), url, seed + number)
        ]
    killed = {kind: sum(trial.attach_was_killed for trial in results if trial.target == kind) for kind in KINDS}
    _save(output, {"points": points, "seed": seed, "killed": killed}, results)


@command.command()
@trials_option
@click.option("--points", type=click.IntRange(min=8), default=300, show_default=True)
@seed_option
@output_option
def crowd(trials: int, points: int, seed: int, output: Path) -> None:
    """Kill attach while others add, edit, replace and delete points, and check that nothing of theirs is lost.

    \b
    Example:
      care-bench deployment crowd --output benchmarks/results/deployment-crowd.json
    """
    from care_benchmarks.deployment.crowd import run_trials
    from care_benchmarks.ingestion.processes import standin_server

    with standin_server() as url:
        results = [shown(trial) for trial in run_trials(trials, points, url, seed)]
    killed = sum(trial.attach_was_killed for trial in results)
    _save(output, {"points": points, "seed": seed, "killed": killed}, results)


@command.command()
@click.option("--points", type=click.IntRange(min=1), multiple=True, default=(5_000, 20_000), show_default=True)
@click.option("--rate", type=click.FloatRange(min=1), default=300, show_default=True, help="Of the encoder, a second.")
@click.option("--dim", type=click.IntRange(min=1), default=256, show_default=True)
@output_option
def attach_speed(points: Sequence[int], rate: float, dim: int, output: Path) -> None:
    """Compare the time of an attach with that of the encoding alone.

    \b
    Example:
      care-bench deployment attach-speed --output benchmarks/results/deployment-attach-speed.json
    """
    from care_benchmarks.deployment.attach_cost import measure_attach
    from care_benchmarks.ingestion.processes import standin_server

    with standin_server() as url:
        results = [shown(measure_attach(url, number, dim, rate)) for number in points]
    save_measured(output, {"results": plain(results)})


@command.command()
@click.option("--points", type=click.IntRange(min=1), multiple=True, default=(50_000, 1_000_000), show_default=True)
@click.option("--dim", type=click.IntRange(min=1), default=8, show_default=True)
@output_option
def memory(points: Sequence[int], dim: int, output: Path) -> None:
    """Compare the peak memory of attaching to a small and to a large collection on a server.

    \b
    Example:
      care-bench deployment memory --output benchmarks/results/deployment-memory.json
    """
    from care_benchmarks.deployment.attach_cost import measure_attach
    from care_benchmarks.ingestion.processes import standin_server

    with standin_server("synthetic") as url:
        results = [shown(measure_attach(url, number, dim)) for number in sorted(points)]
    growth = round(results[-1].peak_memory_mib - results[0].peak_memory_mib, 1)
    save_measured(output, {"growth_mib": growth, "results": plain(results)})


def _save(output: Path, summary: dict[str, Any], trials: Iterable[Any]) -> None:
    """Write all trials, and fail if one went wrong."""
    rows = list(trials)
    good = sum(trial.is_good for trial in rows)
    save_measured(output, {**summary, "trials": len(rows), "good": good, "results": plain(rows)})
    if good < len(rows):
        raise click.ClickException(f"{len(rows) - good} of {len(rows)} trials went wrong: {output}")
