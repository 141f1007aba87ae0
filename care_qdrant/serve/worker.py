"""One worker process: an event loop that answers on the shared port until it is told to end."""

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import uvicorn
from typing_extensions import override

from care_qdrant.errors import CareError
from care_qdrant.serve.app import Service
from care_qdrant.serve.connections import bounded_protocol, most_connections
from care_qdrant.serve.settings import READY, ServeSettings

if TYPE_CHECKING:
    from care_qdrant.model.care_model import CareModel

logger = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 120
"""Longer than clients keep an idle connection (Qdrant: 90), so that the client closes it, not the service."""
DRAIN_SECONDS = 3.0
"""Time that a worker which ends leaves its clients to move their connections."""
GRACE_SECONDS = 60
"""Longest time that a worker which ends gives to the requests that it accepted."""
_STEP_SECONDS = 0.02


class _Server(uvicorn.Server):
    """A server that lets its clients move before it closes their connections."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    @override
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, answer requests on open connections and close each after its answer, then end."""
        for server in self.servers:
            server.close()
        self._service.app.draining = True
        until = time.monotonic() + DRAIN_SECONDS
        while self.server_state.connections and time.monotonic() < until and not self.force_exit:
            await asyncio.sleep(_STEP_SECONDS)
        await super().shutdown(sockets)


def work(
    settings: ServeSettings, models: "Sequence[CareModel]", ports: Sequence[socket.socket], *, parent: int, report: int
) -> int:
    """Serve until SIGTERM, or until the parent process is gone; return the exit code."""
    try:
        service = Service(settings, models)
    except CareError as error:
        _say(report, str(error), error.exit_code)
        return 1
    config = uvicorn.Config(
        service.app,
        http=bounded_protocol(most_connections(settings.limits.connections)),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    server = _Server(config, service)
    # Until here a signal ends the process at once. From here on it is kept for the server, which takes over the
    # handlers when it starts, and raises the signal once more when it has ended.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: setattr(server, "should_exit", True))
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        failed = runner.run(_serve(server, service, ports, parent, report))
    service.close()
    return int(failed)


async def _serve(server: _Server, service: Service, ports: Sequence[socket.socket], parent: int, report: int) -> bool:
    def end() -> None:
        server.should_exit = True

    asyncio.get_running_loop().add_reader(parent, end)
    failed = False
    async with service.running():
        serving = asyncio.create_task(server.serve(list(ports)))
        try:
            await service.load()
            _say(report, READY)
        except Exception as error:
            exit_code = CareError.exit_code
            if isinstance(error, CareError):
                exit_code = error.exit_code
            else:  # a CareError's message says all; the supervisor logs it
                logger.error("a worker cannot start", exc_info=error)
            _say(report, str(error), exit_code)
            failed = True
            end()
        await serving
    return failed


def _say(report: int, verdict: str, exit_code: int = 0) -> None:
    """Report to the supervisor how the start went: the exit code, a blank, and `READY` or the reason."""
    with suppress(BrokenPipeError):  # the service was stopped meanwhile, and the verdict is not read
        os.write(report, f"{exit_code} {verdict}".encode())
    os.close(report)
