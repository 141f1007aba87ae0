"""Memory and CPU of the planner and of a worker of a bulk job, over corpora of growing size."""

import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import click

from care_qdrant.bulk.encode import encode_unit
from care_qdrant.bulk.plan import plan
from care_qdrant.bulk.work import Manifest, Work
from tests.reliability.ready_model import ReadyModel, write_corpus

from .measured import output_option, save_measured, scratch_option


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--documents",
    "sizes",
    type=click.IntRange(1),
    multiple=True,
    default=[10_000, 100_000, 1_000_000],
    show_default=True,
    help="Size of a corpus; give it once for each.",
)
@click.option("--dim", type=click.IntRange(1), default=256, show_default=True, help="Length of the vectors.")
@scratch_option
@output_option
def bulk_memory(sizes: tuple[int, ...], dim: int, scratch: Path | None, output: Path) -> None:
    """Plan and encode corpora with ready vectors, each step in a process of its own.

    \b
    Example:
      python -m benchmarks.perf.bulk_memory --output benchmarks/results/bulk-memory.json
    """
    found = []
    for size in sizes:
        with tempfile.TemporaryDirectory(dir=scratch) as name:
            corpus, job = write_corpus(Path(name) / "corpus.jsonl", size, sentences=2), f"{name}/job"
            planned, encoded = (_alone(step, str(corpus), job, dim) for step in (_plan, _encode))
            found.append({"documents": size, "plan": planned, "encode": encoded})
            click.echo(found[-1], err=True)
    save_measured(output, {"dim": dim, "sizes": found})


def _alone(step: Callable[[str, str, int], None], corpus: str, job: str, dim: int) -> dict[str, float]:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_measured, step, corpus, job, dim).result()


def _measured(step: Callable[[str, str, int], None], corpus: str, job: str, dim: int) -> dict[str, float]:
    cpu = time.process_time()
    step(corpus, job, dim)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024
    return {"peak_mib": round(peak, 1), "cpu_seconds": round(time.process_time() - cpu, 2)}


def _plan(corpus: str, job: str, dim: int) -> None:
    model = ReadyModel(dim)
    draft = Manifest("ready", model.name, model.contract().fingerprint, dim, "Cosine", model.name)
    plan([corpus], Work(job), draft, model.document_tokenizer, sparse=False)


def _encode(_corpus: str, job: str, dim: int) -> None:
    work, model = Work(job), ReadyModel(dim)
    manifest = work.manifest()
    for unit in manifest.units:
        encode_unit(work, manifest, unit, model, 16_384)


if __name__ == "__main__":
    bulk_memory()
