"""The stand-in for a Qdrant server as a process of its own."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal


@contextmanager
def standin_server(
    engine: Literal["local", "counting", "synthetic", "edge"] = "local", *, path: Path | None = None
) -> Iterator[str]:
    """Run the stand-in for a Qdrant server, and yield its URL.

    Args:
        engine: ``local`` is qdrant-client's local mode; ``counting`` stores only the ids of points; ``synthetic``
            computes points from their ids, as many as the collection's metadata say; ``edge`` is Qdrant's own engine.
        path: Folder of the engine's points; None keeps them in memory.

    Raises:
        RuntimeError: The server does not start.
    """
    options = ["--engine", engine, *([] if path is None else ["--path", str(path)])]
    command = [sys.executable, "-W", "ignore", "-m", "tests.standin", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        url = (process.stdout.readline() if process.stdout else "").strip()
        if not url:
            raise RuntimeError("the stand-in server did not start; run this in the root of a care-qdrant checkout")
        try:
            yield url
        finally:
            process.kill()
