"""Starts the processes that a benchmark needs: the stand-in server and an ingestion of its own."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from care_qdrant.errors import InputError


@contextmanager
def standin_server(
    engine: Literal["local", "counting", "synthetic", "edge"] = "local", *, path: Path | None = None
) -> Iterator[str]:
    """Run the tests' stand-in for a Qdrant server, and give its URL.

    Args:
        engine: qdrant-client's local mode; or one that remembers the ids of points and nothing else of them; one that
            computes points from their ids, as many as a collection's metadata say; Qdrant's own engine.
        path: Where the engine keeps its points; None keeps them in memory.

    Raises:
        InputError: the process does not run in a checkout of the repository, where the stand-in is.
    """
    options = ["--engine", engine, *([] if path is None else ["--path", str(path)])]
    command = [sys.executable, "-W", "ignore", "-m", "tests.standin", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        url = (process.stdout.readline() if process.stdout else "").strip()
        if not url:
            raise InputError("the stand-in server did not start; run this in the root of a care-qdrant checkout")
        try:
            yield url
        finally:
            process.kill()


def start_worker(
    corpus: Path, collection: str, target: str, *, dim: int, log: Path | None = None
) -> "subprocess.Popen[str]":
    """Start an ingestion in a process of its own; it prints ``ready`` when it begins, and its report at the end.

    Args:
        corpus: What to ingest.
        collection: Where to.
        target: URL of a server, or folder of the embedded database.
        dim: Of its ready vectors.
        log: Gets the id of each point that Qdrant acknowledged, one a line.
    """
    logged = ["--log", str(log)] if log is not None else []
    command = [sys.executable, "-W", "ignore", "-m", "care_benchmarks.ingestion.worker"]
    arguments = [str(corpus), collection, target, "--dim", str(dim), *logged]
    return subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
