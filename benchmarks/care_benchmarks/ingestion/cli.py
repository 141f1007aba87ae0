"""``care-bench ingestion``: each command measures one thing and saves it as JSON with the machine it ran on."""

import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from care_benchmarks.measured import output_option, plain, save_measured, scratch_option, shown


@click.group(name="ingestion")
def command() -> None:
    """Measure ingestion, and attack it."""


@command.command()
@click.option("--trials", type=click.IntRange(min=1), default=50, show_default=True, help="For each target.")
@click.option("--documents", type=click.IntRange(min=1), default=1_000, show_default=True)
@click.option("--dim", type=click.IntRange(min=1), default=64, show_default=True)
@click.option("--seed", default=0, show_default=True)
@scratch_option
@output_option
def kill(trials: int, documents: int, dim: int, seed: int, scratch: Path | None, output: Path) -> None:
    """Kill ingestions at random moments, embedded and over HTTP, and check that one more run makes all right.

    \b
    Example:
      care-bench ingestion kill --trials 50 --output benchmarks/results/ingestion-kill.json
    """
    from care_benchmarks.ingestion.fake import write_corpus
    from care_benchmarks.ingestion.kill_harness import Trial, make_bench, run_trials
    from care_benchmarks.ingestion.processes import standin_server

    results: list[Trial] = []
    with tempfile.TemporaryDirectory(dir=scratch) as folder, standin_server() as url:
        bench = make_bench(write_corpus(Path(folder) / "corpus.jsonl", documents), dim)
        for trial in run_trials(bench, "embedded", trials, Path(folder), seed=seed):
            results.append(shown(trial))
        for trial in run_trials(bench, "server", trials, Path(folder), url, seed=seed + 1):
            results.append(shown(trial))
    good = sum(trial.is_good for trial in results)
    save_measured(
        output, {"documents": documents, "points": len(bench.expected), "good": good, "trials": plain(results)}
    )
    if good < len(results):
        raise click.ClickException(f"{len(results) - good} of {len(results)} trials went wrong: {output}")


@command.command()
@click.option("--points", type=click.IntRange(min=1), default=2_000, show_default=True)
@click.option("--dim", type=click.IntRange(min=1), default=768, show_default=True)
@click.option("--repeats", type=click.IntRange(min=1), default=3, show_default=True)
@scratch_option
@output_option
def throughput(points: int, dim: int, repeats: int, scratch: Path | None, output: Path) -> None:
    """Compare embedded ingestion of ready vectors with the stock client's upload_points.

    \b
    Example:
      care-bench ingestion throughput --output benchmarks/results/ingestion-throughput.json
    """
    from care_benchmarks.ingestion.throughput import measure_throughput

    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        result = measure_throughput(Path(folder), points, dim, repeats)
    save_measured(output, asdict(shown(result)))


@command.command()
@click.option("--rows", type=click.IntRange(min=1), multiple=True, default=(10_000, 500_000), show_default=True)
@click.option("--dim", type=click.IntRange(min=1), default=8, show_default=True)
@scratch_option
@output_option
def memory(rows: Sequence[int], dim: int, scratch: Path | None, output: Path) -> None:
    """Compare the peak memory of ingesting few and many rows into a server.

    \b
    Example:
      care-bench ingestion memory --output benchmarks/results/ingestion-memory.json
    """
    from care_benchmarks.ingestion.memory import measure_memory

    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        results = [shown(measure_memory(Path(folder), number, dim)) for number in sorted(rows)]
    growth = round(results[-1].peak_memory_mib - results[0].peak_memory_mib, 1)
    save_measured(output, {"growth_mib": growth, "runs": plain(results)})


@command.command()
@click.option("--documents", type=click.IntRange(min=1), default=20_000, show_default=True)
@click.option("--rate", type=click.FloatRange(min=1), default=720, show_default=True, help="Documents a second.")
@click.option("--dim", type=click.IntRange(min=1), default=768, show_default=True)
@scratch_option
@output_option
def waiting(documents: int, rate: float, dim: int, scratch: Path | None, output: Path) -> None:
    """Measure how long an encoder of a given speed waits for reading and writing.

    \b
    Example:
      care-bench ingestion waiting --output benchmarks/results/ingestion-waiting.json
    """
    from care_benchmarks.ingestion.waiting import measure_waiting

    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        targets = ("server", "embedded")
        results = [shown(measure_waiting(Path(folder), target, documents, rate, dim)) for target in targets]
    save_measured(output, {"runs": plain(results)})


@command.command()
@click.option("--documents", type=click.IntRange(min=1), default=5_000, show_default=True)
@click.option("--seconds", type=click.FloatRange(min=0), default=20, show_default=True, help="How long it is gone.")
@click.option("--dim", type=click.IntRange(min=1), default=64, show_default=True)
@scratch_option
@output_option
def outage(documents: int, seconds: float, dim: int, scratch: Path | None, output: Path) -> None:
    """Let the server be gone in the middle of an ingestion, and count in the end.

    \b
    Example:
      care-bench ingestion outage --output benchmarks/results/ingestion-outage.json
    """
    from care_benchmarks.ingestion.outage import measure_outage

    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        result = shown(measure_outage(Path(folder), documents, seconds, dim))
    save_measured(output, asdict(result))
    if result.points != result.chunks:
        raise click.ClickException(f"{result.points} points of {result.chunks} are stored")
