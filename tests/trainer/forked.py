"""Programs that train in processes of their own: forks of one that has imported what training needs.

To import it takes 8 seconds of CPU time in each process that begins by itself, several times what a tiny run takes.
"""

import contextlib
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NoReturn, Self

from tests.trainer.tiny_run import environment

Done = subprocess.CompletedProcess[str]
PRELOADED = ("care_trainer.cli", "care_trainer.pipeline", "peft", "tests.trainer.bases")


class Forks:
    """A process that starts programs as `python -c` does, without the imports; use it in a ``with`` block."""

    def __init__(self) -> None:
        """Start it; the first program waits until all is imported."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._server = subprocess.Popen(
            [sys.executable, "-m", __name__],
            env=environment(),
            cwd=Path(__file__).parents[2],
            text=True,
            start_new_session=True,
            **pipes,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.communicate()

    def run(self, program: str, *arguments: str) -> Done:
        """Run a program in a process of its own until it ends."""
        [done] = self.run_each(program, *arguments, environments=[{}])
        return done

    def run_each(self, program: str, *arguments: str, environments: list[Mapping[str, str]]) -> list[Done]:
        """Run a program at once in as many processes as there are environments, and return how each ended."""
        assert self._server.stdin is not None and self._server.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            outputs = [str(Path(folder) / str(rank)) for rank in range(len(environments))]
            request = {
                "program": program,
                "arguments": arguments,
                "environments": [{**environment(), **own} for own in environments],
                "outputs": outputs,
            }
            print(json.dumps(request), file=self._server.stdin, flush=True)
            try:
                codes = json.loads(self._server.stdout.readline())
            except BaseException:  # a timeout; without its programs, which may wait for each other
                os.killpg(self._server.pid, signal.SIGKILL)
                raise
            printed = [
                [Path(f"{output}.{stream}").read_text(encoding="utf-8") for stream in ("out", "err")]
                for output in outputs
            ]
        return [Done([program, *arguments], code, *both) for code, both in zip(codes, printed, strict=True)]

    def run_ranks(self, count: int, port: int, program: str, *arguments: str) -> list[Done]:
        """Run a program in as many processes of one run, as torchrun does."""
        shared = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
        shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        own = [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
        return self.run_each(program, *arguments, environments=own)


def _serve(requests: Iterator[str]) -> None:
    """Answer each request with the exit codes of its processes."""
    answers = os.fdopen(os.dup(1), "w")
    for line in requests:
        request = json.loads(line)
        started = []
        for own, output in zip(request["environments"], request["outputs"], strict=True):
            child = os.fork()
            if child == 0:
                _become(request["program"], request["arguments"], own, output)
            started.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in started]
        print(json.dumps(codes), file=answers, flush=True)


def _become(program: str, arguments: list[str], own: dict[str, str], output: str) -> NoReturn:
    code = 1
    try:
        for number, name in ((0, os.devnull), (1, f"{output}.out"), (2, f"{output}.err")):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
        os.environ.clear()
        os.environ.update(own)
        sys.argv = ["-c", *arguments]
        exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(code)


if __name__ == "__main__":
    for name in PRELOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # training asks for collections, and each would walk through all that is imported
    _serve(iter(sys.stdin.readline, ""))
