"""``python -m care_benchmarks.deployment``: attack the commands that live with collections that exist."""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click


@click.group()
def command() -> None:
    """Attack attaching, promoting and publishing."""


@command.command()
@click.option("--trials", type=click.IntRange(min=1), default=50, show_default=True, help="For each case.")
@click.option("--points", type=click.IntRange(min=8), default=1_000, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="JSON file.")
def kill_promote(trials: int, points: int, seed: int, output: Path) -> None:
    """Kill promotions and publications at random moments, and check that one more run makes all right.

    \b
    Example:
      python -m care_benchmarks.deployment kill-promote --output benchmarks/results/deployment-kill-promote.json
    """
    from care_benchmarks.deployment.kill_promote import CASES, Trial, run_trials
    from care_benchmarks.ingestion.processes import standin_server

    results: list[Trial] = []
    with tempfile.TemporaryDirectory() as scratch, standin_server() as url:
        for number, case in enumerate(CASES):
            for trial in run_trials(case, trials, points, Path(scratch), url, seed + number):
                click.echo(trial, err=True)
                results.append(trial)
    _save(output, points, seed, results)


@command.command()
@click.option("--trials", type=click.IntRange(min=1), default=50, show_default=True, help="For each kind of Qdrant.")
@click.option("--points", type=click.IntRange(min=8), default=1_000, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="JSON file.")
def kill_attach(trials: int, points: int, seed: int, output: Path) -> None:
    """Kill attach and detach at random moments, and check that one more run makes all right.

    \b
    Example:
      python -m care_benchmarks.deployment kill-attach --output benchmarks/results/deployment-kill-attach.json
    """
    from care_benchmarks.deployment.kill_attach import TargetKind, Trial, run_trials
    from care_benchmarks.ingestion.processes import standin_server

    results: list[Trial] = []
    kinds: tuple[TargetKind, ...] = ("embedded", "server")
    with tempfile.TemporaryDirectory() as scratch, standin_server() as url:
        for number, kind in enumerate(kinds):
            for trial in run_trials(kind, trials, points, Path(scratch), url, seed + number):
                click.echo(trial, err=True)
                results.append(trial)
    _save(output, points, seed, results)


@command.command()
@click.option("--points", type=click.IntRange(min=1), multiple=True, default=(5_000, 20_000), show_default=True)
@click.option("--rate", type=click.FloatRange(min=1), default=300, show_default=True, help="Of the encoder, a second.")
@click.option("--dim", type=click.IntRange(min=1), default=256, show_default=True)
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="JSON file.")
def attach_speed(points: Sequence[int], rate: float, dim: int, output: Path) -> None:
    """Measure how long the encoder of an attach waits, and its memory at different numbers of points.

    \b
    Example:
      python -m care_benchmarks.deployment attach-speed --output benchmarks/results/deployment-attach-speed.json
    """
    from care_benchmarks.deployment.attach_speed import measure_attach
    from care_benchmarks.ingestion.processes import standin_server

    with standin_server() as url:
        results = [measure_attach(url, number, rate, dim) for number in points]
    _write(output, {}, results)


def _save(output: Path, points: int, seed: int, results: Sequence[Any]) -> None:
    """Write all trials with the machine they ran on, and fail if one went wrong."""
    good = sum(trial.is_good for trial in results)
    summary = {"points": points, "seed": seed, "trials": len(results), "good": good}
    _write(output, summary, results)
    if good < len(results):
        raise click.ClickException(f"{len(results) - good} of {len(results)} trials went wrong: {output}")


def _write(output: Path, summary: dict[str, Any], results: Sequence[Any]) -> None:
    from care_benchmarks.machine import describe_machine

    whole = {"machine": asdict(describe_machine()), **summary, "results": [asdict(result) for result in results]}
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(whole, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    click.echo(json.dumps(summary or whole["results"]))


if __name__ == "__main__":
    command()
