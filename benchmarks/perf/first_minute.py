"""Seconds and bytes from a fresh environment to the first answer, and what installing torch with it would add.

Packages come from the index that pip is configured with, so that the seconds depend on the network. The embedded
models come with the clone and are not counted as a download.
"""

import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import urllib.request
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from .measured import output_option, plain, save_measured, shown

REPOSITORY = Path(__file__).parents[2]
QUESTION = "心梗发作的时候家里人该怎么办"
ENCODE_QUERY = f"from care_qdrant import CareModel; CareModel.load().encode_query(['{QUESTION}'])"
TAIL_BYTES = 4_000_000
"""Bytes at the end of a wheel that are read: they hold the list of its files, at most 2 MB, that of torch."""
# Wheels of a local folder would take the place of the index's own build of torch.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("PIP_FIND_LINKS", "PYTHONPATH")}


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a new user."""

    command: str
    seconds: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Wheels:
    """Wheels that pip chooses for an installation in an empty environment, without this package."""

    installation: str
    wheels: int
    downloaded_mb: float
    unpacked_mb: float
    largest: str


@click.command()
@output_option
def main(output: Path) -> None:
    """Install into a fresh environment, ingest the sample, search it, and compare with an installation with torch.

    \b
    Example:
      python -m benchmarks.perf.first_minute --output benchmarks/results/first-minute.json
    """
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        python = scratch / "venv" / "bin" / "python"
        install = [str(python), "-m", "pip", "install", "--quiet", "--no-cache-dir"]
        install += ["--constraint", str(REPOSITORY / "constraints.txt")]
        steps = [
            _step("python -m venv", [sys.executable, "-m", "venv", str(scratch / "venv")], scratch),
            _step("pip install .", [*install, str(REPOSITORY)], scratch),
        ]
        corpus, bin_ = str(REPOSITORY / "examples" / "sample" / "corpus.jsonl"), python.parent
        ingest = [str(bin_ / "care-ingest"), corpus, "--collection", "sample"]
        search = [str(bin_ / "care"), "search", QUESTION, "--collection", "sample", "--top-k", "3"]
        steps += [
            _step("CareModel.load().encode_query", [str(python), "-c", ENCODE_QUERY], scratch),
            _step("care-ingest examples/sample/corpus.jsonl", ingest, scratch),
            _step("care search", search, scratch),
        ]
        on_disk = sum(file.lstat().st_size for file in (scratch / "venv").rglob("*") if file.is_file())
        wheels = [
            shown(_wheels("now: pip install .", install, str(REPOSITORY))),
            shown(_wheels("before: pip install '.[ingest]'", install, f"{REPOSITORY}[ingest]")),
        ]
    created, installed, encoded, *demo = (step.seconds for step in steps)
    save_measured(
        output,
        {
            "seconds_to_the_first_answer": round(created + installed + sum(demo), 1),
            "seconds_to_the_first_query_vector": round(created + installed + encoded, 1),
            "environment_mb": round(on_disk / 1e6, 1),
            "steps": plain(steps),
            "wheels": [asdict(each) for each in wheels],
        },
    )


def _step(name: str, command: Sequence[str], folder: Path) -> Step:
    """Run a command in a folder, and measure it with all the processes that it starts."""
    used, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    seconds, now = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise click.ClickException(f"{name}: {done.stderr[-2000:]}")
    cpu = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    return shown(Step(name, round(seconds, 1), round(cpu, 1)))


def _wheels(name: str, install: Sequence[str], target: str) -> Wheels:
    """Let pip resolve an installation, and read the sizes of its wheels from the index."""
    dry_run = [*install, "--dry-run", "--ignore-installed", "--report", "-", target]
    done = subprocess.run(dry_run, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"{name}: {done.stderr[-2000:]}")
    chosen = [each for each in json.loads(done.stdout)["install"] if "dir_info" not in each["download_info"]]
    with ThreadPoolExecutor(8) as pool:
        sizes = list(pool.map(lambda each: _sizes(each["download_info"]["url"]), chosen))
    (downloaded, _), largest = max(zip(sizes, chosen, strict=True), key=lambda each: each[0])
    metadata = largest["metadata"]
    return Wheels(
        installation=name,
        wheels=len(chosen),
        downloaded_mb=round(sum(size for size, _ in sizes) / 1e6, 1),
        unpacked_mb=round(sum(size for _, size in sizes) / 1e6, 1),
        largest=f"{metadata['name']} {metadata['version']}, {downloaded / 1e6:.0f} MB",
    )


def _sizes(url: str) -> tuple[int, int]:
    """Return the bytes of a wheel, and those of its files when they are unpacked; only its end is downloaded."""
    request = urllib.request.Request(url, headers={"Range": f"bytes=-{TAIL_BYTES}"})
    with urllib.request.urlopen(request) as answer:
        end = answer.read()
        size = int(answer.headers.get("Content-Range", f"/{len(end)}").rpartition("/")[2])
    return size, sum(file.file_size for file in zipfile.ZipFile(io.BytesIO(end)).infolist())


if __name__ == "__main__":
    main()
