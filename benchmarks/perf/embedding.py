"""Speed of `CareEmbedding` against LlamaIndex's stock class with the same weights."""

import os
from collections.abc import Sequence
from pathlib import Path

import click

from care_qdrant.model.card import read_card

from .measured import output_option, plain, save_measured, shown

model_option = click.option(
    "--model",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="A CARE folder.  [default: random weights]",
)
layers_option = click.option("--layers", default=12, show_default=True, help="Layers of the random model.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def embedding() -> None:
    """Measure `CareEmbedding`.

    \b
    Example:
      python -m benchmarks.perf.embedding speed --output benchmarks/results/llama-speed.json
    """


@embedding.command()
@model_option
@layers_option
@click.option("--rounds", type=click.IntRange(2), default=60, show_default=True, help="Single queries per stack.")
@click.option(
    "--clients",
    type=click.IntRange(1),
    multiple=True,
    default=(1, 4, 8, 16, 32),
    show_default=True,
    help="Number of concurrent clients; repeatable.",
)
@click.option("--cores", type=click.IntRange(1), default=1, show_default=True, help="Cores, with one worker on each.")
@click.option("--seconds", default=10.0, show_default=True, help="Duration of each load.")
@output_option
def speed(
    model: Path | None, layers: int, rounds: int, clients: Sequence[int], cores: int, seconds: float, output: Path
) -> None:
    """Time single and concurrent queries against HuggingFaceEmbedding.

    \b
    Example:
      python -m benchmarks.perf.embedding speed --output benchmarks/results/llama-speed.json
    """
    _use_cores(cores)
    from .latency import measure_single
    from .load import measure_loads
    from .random_pair import named_or_random_pair, sample_queries
    from .stacks import STACKS, STOCK, open_stack

    queries = sample_queries()
    with named_or_random_pair(model, layers) as folder:
        stacks = {name: open_stack(name, folder, cores) for name in STACKS}
        single = [shown(result) for result in measure_single(stacks, STOCK, queries, rounds)]
        load = [shown(result) for result in measure_loads(stacks, queries, clients, seconds)]
        onnx = read_card(folder).onnx
    gate = dict(onnx.gate) if onnx is not None else {}
    save_measured(
        output, {"layers": layers, "cores": cores, "int8_gate": gate, "single": plain(single), "load": plain(load)}
    )


def _use_cores(number: int) -> None:
    """Restrict all stacks to the same cores, with one thread per run."""
    os.environ["OMP_NUM_THREADS"] = "1"
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-number:])


if __name__ == "__main__":
    embedding()
