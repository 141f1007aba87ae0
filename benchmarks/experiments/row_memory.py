"""Memory of the rows of a training run: mapped from disk, as the trainer has them, against rows held in lists.

    python -m benchmarks.experiments.row_memory --output benchmarks/results/row-memory.json

Each case is a process of its own that reads the same synthetic JSONL in FlagEmbedding's shape (a query, a document, two
hard negatives) and goes through one epoch of batches. Private memory is counted (``RssAnon``): the pages of a
mapped file belong to the page cache, which releases them when the memory is needed.
"""

import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from care_benchmarks.machine import describe_machine

BATCH = 64
SAMPLE_SECONDS = 0.02
CASES = ("mapped", "held")


def write_synthetic(path: Path, rows: int) -> int:
    """Write rows of about 2 kB in FlagEmbedding's shape, one in twenty a repetition, and return the bytes written."""
    draw = random.Random(0)
    marks = [chr(draw.randint(0x4E00, 0x9FA5)) for _ in range(4000)]
    passages = ["".join(draw.choices(marks, k=240)) for _ in range(500)]
    with path.open("w", encoding="utf-8") as stream:
        for at in range(rows):
            number = at - 1 if at % 20 == 19 else at
            texts = [f"{number}-{part}{passages[(number * 7 + part * 13) % len(passages)]}" for part in range(3)]
            row = {"query": f"问题{number}", "pos": texts[:1], "neg": texts[1:], "source": "ab"[number % 2]}
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")
    return path.stat().st_size


def measure(case: str, file: Path) -> dict[str, Any]:
    """Read a file and go through an epoch in this process; return rows trained, peak private bytes and seconds."""
    from care_trainer.config import Data
    from care_trainer.data.read import iter_pairs
    from care_trainer.data.sampling import EpochSampler
    from care_trainer.data.table import pair_rows
    from datasets import Dataset

    data = Data(files=(file.name,), weights={"b": 0.5})
    peak = _Peak()
    started = time.process_time()
    if case == "mapped":
        rows = pair_rows(data, file.parent, file.parent / "rows")
        columns, weights = rows.columns.select_columns(["query", "positive", "negatives"]), rows.weights
    else:
        pairs = list(iter_pairs(data, file.parent))
        held: dict[str, list[str]] = {"query": [pair.query for pair in pairs]}
        held["positive"] = [pair.positive for pair in pairs]
        for number in range(2):
            held[f"negative_{number + 1}"] = [pair.negatives[number] for pair in pairs]
        columns = Dataset.from_dict(held)
        weights = [data.weights.get(pair.source, 1.0) for pair in pairs]  # type: ignore[assignment]
    trained = sum(len(columns.__getitems__(batch)) for batch in EpochSampler(columns, BATCH, False, weights=weights))
    return {"rows_trained": trained, "peak_bytes": peak.stop(), "cpu_seconds": round(time.process_time() - started, 1)}


class _Peak:
    """Samples the private memory of this process in a thread, and knows its peak above the start."""

    def __init__(self) -> None:
        self.start = self.peak = _private_bytes()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._sample, daemon=True)
        self.thread.start()

    def _sample(self) -> None:
        while not self.over.wait(SAMPLE_SECONDS):
            self.peak = max(self.peak, _private_bytes())

    def stop(self) -> int:
        """Stop, and return the peak growth in bytes."""
        self.over.set()
        self.thread.join()
        return max(self.peak, _private_bytes()) - self.start


def _private_bytes() -> int:
    with Path("/proc/self/status").open(encoding="ascii") as status:
        line = next(line for line in status if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


@click.command()
@click.option(
    "--rows", multiple=True, type=int, default=(100_000, 1_000_000), show_default=True, help="Numbers of rows."
)
@click.option("--output", required=True, type=click.Path(path_type=Path, dir_okay=False), help="JSON to write.")
@click.option("--measure", "inner", nargs=2, hidden=True, help="One case on one file, in this process.")
def main(rows: tuple[int, ...], output: Path, inner: tuple[str, str] | None) -> None:
    """Measure the memory of training rows, mapped and held.

    \b
    Example:
      python -m benchmarks.experiments.row_memory --output benchmarks/results/row-memory.json
    """
    if inner is not None:
        click.echo(json.dumps(measure(inner[0], Path(inner[1]))))
        return
    results = []
    for count in rows:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "rows.jsonl"
            size = write_synthetic(file, count)
            for case in CASES:
                command = [
                    sys.executable,
                    "-m",
                    "benchmarks.experiments.row_memory",
                    "--output",
                    "-",
                    "--measure",
                    case,
                ]
                found = subprocess.run([*command, str(file)], check=True, capture_output=True, text=True).stdout
                results.append({"rows": count, "case": case, "jsonl_bytes": size, **json.loads(found)})
                click.echo(json.dumps(results[-1]), err=True)
    document = {"machine": asdict(describe_machine()), "seed": 0, "cases": results}
    output.write_text(json.dumps(document, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
