"""Programs and commands in processes of their own, forked from one that has imported what they need.

torch and sentence-transformers are imported in 8 seconds of CPU time, a command without them in 1.5: most of what a
tiny run takes. `Forks.python` and `Forks.commands` are run as those of the environment are, and begin in milliseconds.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import NoReturn

ROOT = Path(__file__).parents[1]
PRELOADED = (
    "care_benchmarks.cli",
    "care_qdrant.cli.ingest",
    "care_trainer.cli",
    "care_trainer.recipe",
    "onnxruntime",
    "peft",
    "tests.trainer.bases",
)
LOOK_SECONDS = 0.02
"""Pause between two looks at whether a process has ended, or who asked for it."""
CLIENT = """#!/bin/sh
'''exec' "{python}" -IS "$0" "$@"
' '''
import json, os, signal, socket, sys

def forward(number, _):
    try:
        os.kill(process, number)
    except ProcessLookupError:  # it has just ended
        pass

request = json.dumps([sys.argv, os.getcwd(), dict(os.environ)]).encode()
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGINT, signal.SIGTERM}})
    socket.send_fds(server, [len(request).to_bytes(8, "big")], [0, 1, 2])
    server.sendall(request)
    answers = server.makefile()
    process = int(answers.readline())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {{signal.SIGINT, signal.SIGTERM}})
    code = int(answers.readline())
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
    os.kill(os.getpid(), -code)
sys.exit(code)
"""
"""A program that asks for a process, lends it its own streams, folder and variables, and ends as it does.

Its first lines are of a shell, for an interpreter whose path is long or has spaces.
"""


class Forks:
    """A process that forks itself for each program, from the first one on."""

    def __init__(self) -> None:
        """Start nothing."""
        self._server: subprocess.Popen[bytes] | None = None
        self._folder = ""

    @property
    def python(self) -> str:
        """Return a command that runs a program after ``-c``, as an interpreter does."""
        return f"{self._start()}/python"

    @property
    def commands(self) -> Path:
        """Return the folder of the commands, for the variable PATH."""
        return Path(self._start(), "commands")

    def end(self) -> None:
        """End it; its programs go on."""
        if self._server is not None:
            self._server.kill()
            self._server.wait()
            shutil.rmtree(self._folder)
            self._server = None

    def _start(self) -> str:
        """Start it unless it runs, and return its folder, once all is imported: no program's time limit counts that."""
        if self._server is None:
            self._folder = folder = tempfile.mkdtemp()
            Path(folder, "commands").mkdir()
            for name in ("python", *(f"commands/{name}" for name in _commands())):
                client = CLIENT.format(python=sys.executable, address=f"{folder}/socket")
                Path(folder, name).write_text(client, encoding="utf-8")
                Path(folder, name).chmod(0o755)
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(f"{folder}/socket")
                listener.listen(100)
                self._server = subprocess.Popen(
                    [sys.executable, "-m", "tests.forks", str(listener.fileno())],
                    cwd=ROOT,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                    pass_fds=[listener.fileno()],
                    stdout=subprocess.PIPE,
                )
            assert self._server.stdout is not None
            with self._server.stdout as told:
                told.readline()
        return self._folder


FORKS = Forks()
"""The one of this process."""


def _commands() -> dict[str, str]:
    """Return the commands of this package and where they begin."""
    return {entry.name: entry.value for entry in entry_points(group="console_scripts") if entry.name.startswith("care")}


def _serve(listener: socket.socket) -> None:
    """Attend each client in a process of its own, until the process that started this one is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those processes
    parent = os.getppid()
    while os.getppid() == parent:
        if not select.select([listener], [], [], 1.0)[0]:
            continue
        client, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _attend(client)
        client.close()


def _attend(client: socket.socket) -> NoReturn:
    """Fork the process that a client asks for, and tell it how it ended; kill it when the client is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, streams, _, _ = socket.recv_fds(client, 8, 3)
    with client.makefile("rb") as request:
        argv, folder, variables = json.loads(request.read(int.from_bytes(size, "big")))
    process = os.fork()
    if process == 0:
        client.close()
        _become(argv, folder, variables, streams)
    for stream in streams:
        os.close(stream)
    with contextlib.suppress(OSError):
        client.sendall(f"{process}\n".encode())
    ended, status = 0, 0
    while not ended:
        if select.select([client], [], [], LOOK_SECONDS)[0]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            time.sleep(LOOK_SECONDS)
        ended, status = os.waitpid(process, os.WNOHANG)
    with contextlib.suppress(OSError):
        client.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _become(argv: list[str], folder: str, variables: dict[str, str], streams: list[int]) -> NoReturn:
    """Be the program, and never come back."""
    code = 1
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(variables)
        name, main = Path(argv[0]).name, ModuleType("__main__")
        sys.modules["__main__"] = main  # by which click tells what the program is called
        if name == "python":
            sys.argv = argv[1:2] + argv[3:]
            exec(compile(argv[2], "<string>", "exec"), vars(main))
        else:
            sys.argv = argv
            module, _, function = _commands()[name].partition(":")
            getattr(importlib.import_module(module), function)()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:  # what an interpreter does at its end, but for taking everything down
        with contextlib.suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
        for output in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                output.flush()
        os._exit(code)


if __name__ == "__main__":
    for name in PRELOADED:
        importlib.import_module(name)
    gc.collect()
    print("imported", flush=True)
    gc.freeze()  # training asks for collections, and each would walk through all that is imported
    _serve(socket.socket(fileno=int(sys.argv[1])))
