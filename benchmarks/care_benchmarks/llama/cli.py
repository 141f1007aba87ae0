"""``care-bench llama``: each command measures one thing and saves it as JSON with the machine it ran on."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from care_benchmarks.measured import output_option, plain, save_measured, shown

model_option = click.option(
    "--model",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="A CARE folder.  [default: one with random weights, made for this run]",
)
layers_option = click.option("--layers", default=12, show_default=True, help="Of the model with random weights.")


@click.group(name="llama")
def command() -> None:
    """Compare the LlamaIndex integration with the stock classes, and attack it."""


@command.command()
@model_option
@layers_option
@click.option("--rounds", type=click.IntRange(min=2), default=60, show_default=True)
@click.option("--clients", type=click.IntRange(min=1), multiple=True, default=(1, 4, 8, 16, 32), show_default=True)
@click.option("--cores", type=click.IntRange(min=1), default=1, show_default=True, help="Each with one query worker.")
@click.option("--seconds", default=10.0, show_default=True, help="Of each load.")
@output_option
def speed(
    model: Path | None, layers: int, rounds: int, clients: Sequence[int], cores: int, seconds: float, output: Path
) -> None:
    """Time single and concurrent queries against HuggingFaceEmbedding with the same weights.

    \b
    Example:
      care-bench llama speed --output benchmarks/results/llama-speed.json
    """
    _use_cores(cores)
    from care_benchmarks.llama.latency import measure_single
    from care_benchmarks.llama.load import measure_loads
    from care_benchmarks.llama.random_pair import sample_queries
    from care_benchmarks.llama.stacks import STACKS, STOCK, open_stack

    queries = sample_queries()
    with _model(model, layers) as folder:
        stacks = {name: open_stack(name, folder, cores) for name in STACKS}
        single = [shown(result) for result in measure_single(stacks, STOCK, queries, rounds)]
        load = [shown(result) for result in measure_loads(stacks, queries, clients, seconds)]
        gate = _gate(folder)
    save_measured(
        output, {"layers": layers, "cores": cores, "int8_gate": gate, "single": plain(single), "load": plain(load)}
    )


@command.command()
@click.option("--rounds", type=click.IntRange(min=2), default=500, show_default=True)
@output_option
def overhead(rounds: int, output: Path) -> None:
    """Measure what a query costs beside the run of the model, on a model of one layer.

    \b
    Example:
      care-bench llama overhead --output benchmarks/results/llama-overhead.json
    """
    _use_cores(1)
    from care_benchmarks.llama.overhead import measure_overhead
    from care_benchmarks.llama.random_pair import sample_queries

    with _model(None, 1) as folder:
        result = shown(measure_overhead(folder, sample_queries(), rounds))
    save_measured(output, asdict(result))


@command.command("cold-start")
@model_option
@layers_option
@click.option("--processes", type=click.IntRange(min=1), default=5, show_default=True)
@output_option
def cold_start(model: Path | None, layers: int, processes: int, output: Path) -> None:
    """Measure fresh processes up to their first vector, and up to the first answer of LlamaIndex and Qdrant.

    \b
    Example:
      care-bench llama cold-start --output benchmarks/results/llama-cold-start.json
    """
    from care_benchmarks.llama.cold_start import measure_cold_starts

    with _model(model, layers) as folder, tempfile.TemporaryDirectory() as qdrant:
        results = [shown(result) for result in measure_cold_starts(folder, Path(qdrant), processes)]
    save_measured(output, {"layers": layers, "programs": plain(results)})


@command.command()
@click.option("--queries", type=click.IntRange(min=10), default=100_000, show_default=True)
@click.option("--seed", default=0, show_default=True)
@output_option
def soak(queries: int, seed: int, output: Path) -> None:
    """Send mixed concurrent queries, many of them cancelled or wrong, and check each answer.

    \b
    Example:
      care-bench llama soak --output benchmarks/results/llama-soak.json
    """
    from care_benchmarks.llama.soak import WIDTH, run_soak

    with _model(None, 1, WIDTH) as folder:
        result = shown(run_soak(folder, queries, seed))
    save_measured(output, asdict(result))
    if result.wrong:
        raise click.ClickException(f"{result.wrong} of {queries} queries went wrong: {output}")


@command.command()
@click.argument("checkout", type=click.Path(path_type=Path, exists=True, file_okay=False))
@output_option
def upstream(checkout: Path, output: Path) -> None:
    """Run LlamaIndex's own tests with its classes and with ours; CHECKOUT is its repository, which you provide.

    \b
    Example:
      care-bench llama upstream ../llama_index --output benchmarks/results/llama-upstream.json
    """
    from care_benchmarks.llama.upstream import SUITES, run_suite

    results = [shown(run_suite(checkout, suite)) for suite in SUITES]
    save_measured(output, {"suites": plain(results)})


@contextmanager
def _model(model: Path | None, layers: int, width: int | None = None) -> Iterator[Path]:
    """Give the model of a run, made in a temporary folder where the user names none."""
    if model is not None:
        yield model
        return
    from care_benchmarks.llama.random_pair import WIDTH, write_random_pair

    with tempfile.TemporaryDirectory() as folder:
        yield write_random_pair(Path(folder) / "pair", layers, width or WIDTH)


def _use_cores(number: int) -> None:
    """Let all stacks have the same cores, and one thread a run."""
    os.environ["OMP_NUM_THREADS"] = "1"
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-number:])


def _gate(model: Path) -> dict[str, Any]:
    from care_qdrant.checkpoint.card import read_card

    card = read_card(model)
    return dict(card.onnx.gate) if card.onnx is not None else {}
