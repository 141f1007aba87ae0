"""The process that loads the models, holds the port, and forks the workers.

A fork shares memory pages: any number of workers hold the weights of the query encoders once. A reload opens the models
again, forks a new generation of workers, and ends the old one when the new one is ready. The listening socket stays the
same, so a worker accepts connections at every moment; if the new models cannot be loaded, the old generation stays.

SIGTERM and SIGINT end the service (the second one at once), SIGHUP reloads, and a worker that dies is replaced.
"""

import gc
import logging
import os
import select
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from care_qdrant.errors import CareError, InputError, counted, needs_extra
from care_qdrant.serve.settings import DIRECTORY_VARIABLE, READY, ServeSettings

if TYPE_CHECKING:
    from care_qdrant.model.care_model import CareModel

logger = logging.getLogger(__name__)

BACKLOG = 2_048
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
_ENDING = (signal.SIGTERM, signal.SIGINT)
_SHORT_LIFE_SECONDS = 5.0
"""A worker that dies sooner is replaced only after a pause of `_PAUSE_SECONDS`."""
_PAUSE_SECONDS = 1.0
_SHARED_MEMORY = "/dev/shm"
"""Folder of the counters, if it exists: workers map their files into memory, and a full disk would kill them."""


def serve(settings: ServeSettings, announce: Callable[[str], None]) -> None:
    """Run a service until it is told to end."""
    place = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else None
    with (
        tempfile.TemporaryDirectory(prefix="care-serve-", dir=place) as folder,
        _ports(settings) as ports,
        _signals() as inbox,
    ):
        os.environ[DIRECTORY_VARIABLE] = folder
        try:
            # Not before: prometheus-client chooses at its import how it counts. Once here, and not in every worker.
            with needs_extra("serve", "care serve"):
                import care_qdrant.serve.worker  # noqa: F401
            _Supervisor(settings, ports, inbox).run(announce)
        finally:
            del os.environ[DIRECTORY_VARIABLE]


@dataclass
class _Worker:
    pid: int
    verdict: int | None
    """File descriptor: reads as an exit code, and `READY` or the reason why the worker ended; None once it was read."""
    started: float = field(default_factory=time.monotonic)

    def read_verdict(self) -> CareError | None:
        """Wait for the verdict and close the descriptor; return why the worker ended, or None if it is ready."""
        assert self.verdict is not None, "a verdict is read once"
        try:
            said = b"".join(iter(partial(os.read, self.verdict, 4096), b"")).decode()
        finally:
            self.close()
        exit_code, _, verdict = said.partition(" ")
        if verdict == READY:
            return None
        error = CareError(verdict or f"worker {self.pid} died while it started")
        error.exit_code = int(exit_code or CareError.exit_code)
        return error

    def close(self) -> None:
        """Close a verdict that will not be read."""
        if self.verdict is not None:
            os.close(self.verdict)
        self.verdict = None


class ShutdownDuringStartup(Exception):
    """The service was told to end while it started."""


class _Supervisor:
    def __init__(self, settings: ServeSettings, ports: Sequence[socket.socket], inbox: int) -> None:
        self._settings, self._ports, self._inbox = settings, ports, inbox
        self._models: Sequence[CareModel] = ()
        self._workers: dict[int, _Worker] = {}
        """The generation that serves now."""
        self._running: set[int] = set()
        """All child processes, including earlier generations that still answer."""
        self._postponed: list[int] = []
        self._life = os.pipe()
        """Nothing is written to it. Its writing end closes with this process, and the workers notice."""
        from care_qdrant.serve.metrics import Metrics  # not before the folder of the counters exists: see `serve`

        self._metrics = Metrics()

    def run(self, announce: Callable[[str], None]) -> None:
        try:
            models = self._load()
            for port in self._ports:
                port.listen(BACKLOG)
            self._replace_generation(models)
            announce(_address(self._ports[0]))
            while not set(received := self._receive()) & set(_ENDING):
                self._reap()
                if signal.SIGHUP in received:
                    self._reload()
        except ShutdownDuringStartup:
            pass
        finally:
            for port in self._ports:
                port.close()
            self._end(self._running)

    def _load(self) -> "Sequence[CareModel]":
        models = self._settings.load_models()
        for model in models:
            # A torch encoder starts threads, which a fork would lose: each worker loads its own.
            if model.card is not None and model.card.onnx is not None:
                model.encode_query(model.probe_texts)
        return models

    def _reload(self) -> None:
        try:
            models = self._load()
            before = set(self._running)
            self._replace_generation(models)
        except (CareError, OSError) as error:
            logger.error("not reloaded, the former models are still served: %s", error)
            self._metrics.reloaded(is_done=False)
            return
        for pid in before:
            _send(pid, signal.SIGTERM)
        self._metrics.reloaded(is_done=True)
        logger.info("reloaded: %s", ", ".join(f"{model.name}@{model.fingerprint[:12]}" for model in models))

    def _replace_generation(self, models: "Sequence[CareModel]") -> None:
        """Fork a generation of workers, and switch to it when all of them are ready."""
        gc.freeze()
        workers: dict[int, _Worker] = {}
        try:
            for _ in range(self._settings.workers):
                worker = self._fork(models)
                workers[worker.pid] = worker
            for worker in workers.values():
                self._await(worker)
        except (CareError, OSError) as error:
            self._end(set(workers))  # half a generation must not serve together with the old one
            if isinstance(error, OSError):  # no process or file descriptor is available
                raise CareError(
                    f"{counted(len(workers), 'worker', of=self._settings.workers)} could be started ({error})"
                ) from error
            raise
        finally:
            for worker in workers.values():
                worker.close()
        self._workers, self._models = workers, models

    def _fork(self, models: "Sequence[CareModel]") -> _Worker:
        verdict, report = os.pipe()
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            pid = os.fork()
            if pid == 0:
                os.close(self._life[1])
                os.close(verdict)
                _become_worker(self._settings, models, self._ports, self._life[0], report)
        except OSError:
            os.close(verdict)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            os.close(report)
        self._running.add(pid)
        return _Worker(pid, verdict)

    def _await(self, worker: _Worker) -> None:
        """Wait until a worker is ready."""
        assert worker.verdict is not None, "a verdict is read once"
        while worker.verdict not in select.select([worker.verdict, self._inbox], [], [])[0]:
            received = os.read(self._inbox, 64)
            if set(received) & set(_ENDING):
                raise ShutdownDuringStartup
            self._postponed += received
        if (error := worker.read_verdict()) is not None:
            raise error

    def _receive(self) -> Sequence[int]:
        """Wait for signals and return them, in order; return none when a worker reports or has to be replaced."""
        if not self._postponed:
            starting = {worker.verdict: worker for worker in self._workers.values() if worker.verdict is not None}
            pause = _PAUSE_SECONDS if self._missing else None
            said = select.select([self._inbox, *starting], [], [], pause)[0]
            for verdict in said:
                if verdict != self._inbox:
                    self._hear(starting[verdict])
            return tuple(os.read(self._inbox, 64)) if self._inbox in said else ()
        postponed, self._postponed = self._postponed, []
        return postponed

    def _hear(self, worker: _Worker) -> None:
        """Read the verdict of a successor, and log its failure."""
        if (error := worker.read_verdict()) is not None:
            logger.error("worker %d could not start: %s", worker.pid, error)

    @property
    def _missing(self) -> int:
        """Number of workers of this generation that have no successor yet."""
        return self._settings.workers - len(self._workers) if self._models else 0

    def _reap(self) -> None:
        """Remove processes that ended, and replace those of the serving generation."""
        from prometheus_client.multiprocess import mark_process_dead

        pause = False
        for pid in _ended():
            self._running.discard(pid)
            mark_process_dead(pid)  # type: ignore[no-untyped-call]
            worker = self._workers.pop(pid, None)
            if worker is None:
                continue
            if worker.verdict is not None:
                self._hear(worker)
            logger.error("worker %d died; another one takes its place", pid)
            self._metrics.died.inc()
            pause |= time.monotonic() - worker.started < _SHORT_LIFE_SECONDS
        if pause:
            time.sleep(_PAUSE_SECONDS)
        try:
            for _ in range(self._missing):
                successor = self._fork(self._models)
                self._workers[successor.pid] = successor
        except OSError as error:
            lacking = counted(self._missing, "worker", "have")
            logger.error("%s no successor yet (%s); trying again", lacking, error)

    def _end(self, pids: Iterable[int]) -> None:
        """Tell processes to end and wait for them; a second signal ends them at once."""
        waiting = set(pids) & self._running
        for pid in waiting:
            _send(pid, signal.SIGTERM)
        while waiting:
            received = self._receive()
            if set(received) & set(_ENDING):
                for pid in waiting:
                    _send(pid, signal.SIGKILL)
            for pid in _ended():
                self._running.discard(pid)
                waiting.discard(pid)
                if (worker := self._workers.pop(pid, None)) is not None:  # it served, and gets a successor
                    worker.close()


def _become_worker(
    settings: ServeSettings, models: "Sequence[CareModel]", ports: Sequence[socket.socket], parent: int, report: int
) -> NoReturn:
    """Run a worker in a process that was just forked; end the process with its exit code."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        from care_qdrant.serve.worker import work

        code = work(settings, models, ports, parent=parent, report=report)
    except BaseException:
        logger.exception("a worker failed")
    finally:
        logging.shutdown()
        os._exit(code)


def _ended() -> Iterator[int]:
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


@contextmanager
def _ports(settings: ServeSettings) -> Iterator[list[socket.socket]]:
    """Reserve the addresses of the service and of its counters; clients can connect when the models are loaded."""
    with ExitStack() as stack:
        numbers = [(settings.port, "--port"), (settings.metrics_port, "--metrics-port")]
        yield [stack.enter_context(_bind(settings.host, at, option)) for at, option in numbers if at is not None]


def free_port(number: int) -> int:
    """Return a port number, or 0, which takes any free port, if another program listens on it."""
    with suppress(InputError), _bind("127.0.0.1", number, ""):
        return number
    return 0


def _bind(host: str, number: int, option: str) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        port = socket.socket(family, kind, protocol)
        port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            port.bind(address)
        except OSError:
            port.close()
            raise
    except OSError as error:
        raise InputError(
            f"{host}:{number}: cannot listen there ({error.strerror or error}); give another --host or {option}"
        ) from error
    return port


def _address(port: socket.socket) -> str:
    host, number = port.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{number}"


@contextmanager
def _signals() -> Iterator[int]:
    """Collect the signals of a service; the file descriptor reads as their numbers, one byte each."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    previous_fd = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    previous = {number: signal.signal(number, lambda *_: None) for number in _SIGNALS}
    try:
        yield reading
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(previous_fd)
        os.close(reading)
        os.close(writing)
