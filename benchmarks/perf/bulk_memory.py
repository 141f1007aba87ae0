"""Memory and CPU of the planner and of the workers of a bulk job, over corpora of growing size and each format."""

import csv
import gzip
import json
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import click
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from care_qdrant.bulk.encode import encode_unit
from care_qdrant.bulk.job import Job, Manifest
from care_qdrant.bulk.units import plan
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
@click.option(
    "--format",
    "formats",
    type=click.Choice(["jsonl", "csv", "gz", "parquet"]),
    multiple=True,
    default=["jsonl"],
    show_default=True,
    help="Format of the corpus; give it once for each.",
)
@click.option("--unit-rows", type=click.IntRange(1), default=8_192, show_default=True, help="Rows of a unit.")
@click.option("--dim", type=click.IntRange(1), default=256, show_default=True, help="Length of the vectors.")
@scratch_option
@output_option
def bulk_memory(
    sizes: tuple[int, ...],
    formats: tuple[str, ...],
    unit_rows: int,
    dim: int,
    scratch: Path | None,
    output: Path,
) -> None:
    """Plan and encode corpora with ready vectors, each step in a process of its own.

    \b
    Example:
      python -m benchmarks.perf.bulk_memory --output benchmarks/results/bulk-memory.json
    """
    found = []
    for form in formats:
        for size in sizes:
            with tempfile.TemporaryDirectory(dir=scratch) as name:
                corpus, job = _write(Path(name), size, form), f"{name}/job"
                planned, encoded = (_alone(step, str(corpus), job, dim, unit_rows) for step in (_plan, _encode))
                work = Job(job)
                found.append(
                    {
                        "format": form,
                        "documents": size,
                        "units": len(work.manifest().units),
                        "corpus_bytes": corpus.stat().st_size,
                        "copied_bytes": sum(file.stat().st_size for file in Path(job).glob("rows/*")),
                        "plan": planned,
                        "encode": encoded,
                    }
                )
                click.echo(found[-1], err=True)
    save_measured(output, {"dim": dim, "unit_rows": unit_rows, "sizes": found})


def _write(folder: Path, size: int, form: str) -> Path:
    lines, corpus = write_corpus(folder / "corpus.jsonl", size, sentences=2), folder / f"corpus.{form}"
    if form == "jsonl":
        return lines
    rows = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
    rows = [{"id": row["id"], "text": row["text"], **row["metadata"]} for row in rows]
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), corpus)
    elif form == "csv":
        with corpus.open("w", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, [*rows[0]])
            table.writeheader()
            table.writerows(rows)
    else:
        corpus.write_bytes(gzip.compress(lines.read_bytes()))
    lines.unlink()
    return corpus


def _alone(
    step: Callable[[str, str, int, int], None], corpus: str, job: str, dim: int, unit_rows: int
) -> dict[str, float]:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_measured, step, corpus, job, dim, unit_rows).result()


def _measured(
    step: Callable[[str, str, int, int], None], corpus: str, job: str, dim: int, unit_rows: int
) -> dict[str, float]:
    cpu = time.process_time()
    step(corpus, job, dim, unit_rows)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024
    return {"peak_mib": round(peak, 1), "cpu_seconds": round(time.process_time() - cpu, 2)}


def _plan(corpus: str, job: str, dim: int, unit_rows: int) -> None:
    model = ReadyModel(dim)
    draft = Manifest("ready", model.name, model.contract().fingerprint, dim, "Cosine", model.name, unit_rows=unit_rows)
    plan([corpus], Job(job), draft, model.document_tokenizer, sparse=False)


def _encode(_corpus: str, job: str, dim: int, _unit_rows: int) -> None:
    work, model = Job(job), ReadyModel(dim)
    manifest = work.manifest()
    for unit in manifest.units:
        encode_unit(work, manifest, unit, model, 16_384)


if __name__ == "__main__":
    bulk_memory()
