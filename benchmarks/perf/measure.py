"""All speeds that the pages state, measured one after the other at one commit, alone on the machine.

Each measurement is a program of its own with one result. Results wait under ``build/measured/COMMIT/`` until the end,
so that the tree stays as it was committed, and a run that was stopped goes on with what is left.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
import psutil
from care_benchmarks.machine import commit_of

from tests.reliability.processes import QdrantServer

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
QUIET_PERCENT = 10.0
"""Largest share of the machine's CPU time that other work may take when a measurement starts."""
_WATCHED_SECONDS = 5
WAIT_SECONDS = 600
"""Longest wait for the machine to become quiet."""


@dataclass(frozen=True, slots=True)
class Step:
    """One measurement: the result, the program under ``benchmarks.perf`` and its arguments, and what it takes."""

    result: str
    command: str
    minutes: int
    """Rough time on two cores."""
    needs: str = ""
    """``server``: the program of a Qdrant server. ``vectors``: that, and vectors of real sentences. ``dev``: a folder
    of tasks with real questions."""


SAMPLE = "examples/sample"
_INDEX = "server_index --vectors {vectors}/documents.npy --queries {vectors}/queries.npy"
_MILLION = "--points 1000000 --way float32 --way 'int8, originals on disk' --way 'float32 on disk' --memory-mib 600"
STEPS = (
    Step("command-start.json", f"command_start {SAMPLE}/corpus.jsonl", 2),
    Step("pair-speed.json", f"pair_speed {SAMPLE}", 1),
    Step("embedded-bm25.json", "embedded_bm25", 1),
    Step("llama-vector-check.json", "vector_check", 1),
    Step("ingestion-throughput.json", "ingestion throughput", 2),
    Step("server-ingestion.json", "server_ingestion", 3, "server"),
    Step("server-search-10000.json", "server_search --points 10000", 3, "server"),
    Step("serve-latency.json", "serve_latency", 3, "server"),
    Step("serve-latency-grpc.json", "serve_latency --grpc", 3, "server"),
    Step("dev", "", 5, "dev"),
    Step("first-minute.json", "first_minute", 4),
    Step("training.json", f"training_cost {SAMPLE}/corpus.jsonl", 6),
    Step("ingestion-memory.json", "ingestion memory", 8),
    Step("llama-speed.json", "embedding speed", 12),
    Step("bulk-overhead.json", "bulk", 8),
    Step("bulk-load.json", "bulk --loaders 1 --loaders 2 --loaders 4", 10, "server"),
    Step("bulk-slices.json", "bulk_slices --points 1000000 --repeats 1", 15, "server"),
    Step("deployment-attach-speed.json", "attach speed", 3, "server"),
    Step("deployment-memory.json", "attach memory", 15, "server"),
    Step("server-search-100000.json", "server_search --points 100000", 5, "server"),
    Step("server-search-1000000.json", "server_search --points 1000000", 40, "server"),
    Step("server-index-10000.json", f"{_INDEX} --points 10000 --asked 100 --stage ways", 5, "vectors"),
    Step("server-index-100000.json", f"{_INDEX} --points 100000 --asked 300", 30, "vectors"),
    Step("server-index-1000000.json", f"{_INDEX} {_MILLION} --asked 300 --stage ways", 60, "vectors"),
)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--binary", envvar="QDRANT_BINARY", show_envvar=True, help="Qdrant server, for what needs one.")
@click.option("--dev", type=click.Path(exists=True, file_okay=False), help="Folder of tasks with real questions.")
@click.option(
    "--vectors",
    type=click.Path(exists=True, file_okay=False),
    help="Folder with vectors of a million sentences, as benchmarks.perf.text_vectors writes it.",
)
@click.option("--within", type=click.IntRange(1), help="Leave out what takes more minutes.")
@click.option("--only", multiple=True, type=click.Choice([step.result for step in STEPS]), help="Repeatable.")
@click.option("--busy", is_flag=True, help="Measure beside other work, too; the results say the load.")
def main(
    binary: str | None, dev: str | None, vectors: str | None, within: int | None, only: tuple[str, ...], busy: bool
) -> None:
    """Measure all speeds that the pages state, and write them into the pages.

    Commit first. The machine has to be quiet. Stop it when you like: the same command goes on with what is left.

    \b
    Example:
      QDRANT_BINARY=./qdrant python -m benchmarks.perf.measure --within 10
    """
    commit = commit_of(ROOT)
    if commit.endswith("+changes"):
        raise click.ClickException("the tree has uncommitted changes, so that no commit would name what was measured")
    folder = ROOT / "build" / "measured" / commit
    folder.mkdir(parents=True, exist_ok=True)
    have = {"server": binary, "dev": dev, "vectors": binary and vectors, "": "nothing"}
    chosen = [step for step in STEPS if (not only or step.result in only) and (not within or step.minutes <= within)]
    left_out = [step.result for step in chosen if not have[step.needs]]
    steps = [step for step in chosen if have[step.needs] and not (folder / step.result).exists()]
    for number, step in enumerate(steps, 1):
        if not busy:
            _wait_until_quiet()
        click.echo(f"{number} of {len(steps)}: {step.result}, about {step.minutes} minutes")
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / step.result
            with _server(binary if step.needs in ("server", "vectors") else None, Path(scratch)) as environment:
                arguments = _arguments(step, dev, vectors, made)
                subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, check=True)
            made.rename(folder / step.result)
    for result in folder.iterdir():  # of a folder its files; its database and rankings stay
        for file in result.iterdir() if result.is_dir() else [result]:
            if file.is_file():
                shutil.copy(file, RESULTS / file.relative_to(folder))
    subprocess.run([sys.executable, "docs/generate_measured.py"], cwd=ROOT, check=True)
    if left_out:
        click.echo(f"left out, for want of --binary, --dev or --vectors: {', '.join(left_out)}")


def _arguments(step: Step, dev: str | None, vectors: str | None, made: Path) -> list[str]:
    if step.needs == "dev":
        tasks = ROOT / "build" / "measured" / "dev"  # results name their command, and no folder of this machine
        tasks.unlink(missing_ok=True)
        tasks.symlink_to(Path(dev or "").resolve())
        folders = [str(tasks.relative_to(ROOT)), "--output", str(made.relative_to(ROOT))]
        controls = [word for name in ("bm25", "hybrid", "document", "query") for word in ("--control", name)]
        return ["-m", "care_benchmarks.cli", "run", *folders, "--model", "built-in", *controls, "--without-texts"]
    program, *arguments = shlex.split(step.command.format(vectors=Path(vectors or "").resolve()))
    return ["-m", f"benchmarks.perf.{program}", *arguments, "--output", str(made)]


@contextmanager
def _server(binary: str | None, folder: Path) -> Iterator[dict[str, str]]:
    """The environment of a measurement, with a server of its own where it needs one."""
    plain = {name: value for name, value in os.environ.items() if name not in ("QDRANT_BINARY", "QDRANT_URL")}
    environment = {**plain, "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
    if binary is None:
        yield environment
        return
    with QdrantServer(binary, folder) as server:
        yield {
            **environment,
            "QDRANT_BINARY": binary,
            "QDRANT_URL": server.url,
            "QDRANT_GRPC_PORT": str(server.grpc_port),
        }


def _wait_until_quiet() -> None:
    """Wait until nothing else runs; the load of the last minute would count the measurement before."""
    deadline = time.monotonic() + WAIT_SECONDS
    while (busy := psutil.cpu_percent(_WATCHED_SECONDS)) > QUIET_PERCENT:
        if time.monotonic() > deadline:
            raise click.ClickException(f"other work takes {busy:.0f} % of this machine: stop it, or give --busy")


if __name__ == "__main__":
    main()
