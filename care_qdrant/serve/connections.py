"""The connections of a worker: bounded in number, and closed where no request arrives on them."""

import asyncio
import re
import resource
from typing import Any

from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_SECONDS = 10.0
"""Time in which the head of a request must have arrived, from its first byte or from the opening of the connection."""
HEAD_BYTES = 64 * 2**10
"""Largest head of a request: reading it keeps others waiting, before any key is looked at."""
MOST_PIPELINED = 16
"""Requests that may wait on a connection for the answer to an earlier one: each takes forty times its own size."""
_OTHER_FILES = 64
"""File descriptors that a worker needs for other things than connections of clients."""
_UPGRADE, _IGNORED = re.compile(rb"\nupgrade(?=[ \t]*:)", re.IGNORECASE), b"\nignored"


def most_connections(limit: int) -> int:
    """Return how many connections a worker may hold: the lower of its limit and what its file descriptors allow."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit if files == resource.RLIM_INFINITY else max(1, min(limit, files - _OTHER_FILES))


class WithoutUpgrade:
    """Renames the header ``Upgrade`` in heads of requests, which arrive in packets.

    Java's clients offer HTTP/2 in it. It need not be accepted, and the parser would drop the body.
    """

    def __init__(self) -> None:
        self._held = b""
        """Bytes that may be a part of the name, which goes on in the next packet."""
        self._given = b""
        """Last bytes of the unfinished head before them: the end of a line, or a part of the blank line behind it."""

    def __call__(self, data: bytes) -> bytes:
        """Return the bytes to parse, the held ones first."""
        head, blank, rest = (self._given + self._held + data).partition(b"\r\n\r\n")
        _, line_end, line = head.rpartition(b"\n")
        may_be_name = line_end and not blank and b"upgrade".startswith(line.rstrip(b" \t").lower())
        self._held = line if may_be_name else b""
        head = _UPGRADE.sub(_IGNORED, head.removesuffix(self._held))
        given = len(self._given)
        self._given = b"" if blank else head[-3:]
        return (head + blank + rest)[given:]


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with a deadline and a largest size for heads, and a largest number of connections.

    Beyond that number, the connection that has waited longest for its client is closed; connections with a request in
    progress stay open.
    """

    most: int
    waiting: dict[Any, None]
    """Connections whose client sends no request, or does not read its answer, the oldest first."""
    _deadline: asyncio.TimerHandle | None = None
    _head_bytes = 0

    @override
    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._renamed = WithoutUpgrade()
        self.waiting[self] = None
        self._expect_head()
        if len(self.connections) > self.most:
            next(iter(self.waiting)).transport.abort()

    @override
    def data_received(self, data: bytes) -> None:
        before = self.cycle
        if before is None or before.response_complete:
            data = self._renamed(data)
        super().data_received(data)
        if self.cycle is not before:
            self._head_bytes = 0
            self.waiting.pop(self, None)
            self._forget_deadline()
        elif before is None or before.response_complete:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES:
                if not self.transport.is_closing():
                    self.send_400_response(f"The head of the request has more than {HEAD_BYTES} bytes.")
            elif self._deadline is None:
                self._expect_head()

    @override
    def on_headers_complete(self) -> None:
        if len(self.pipeline) == MOST_PIPELINED:  # stops the parser, and closes the connection
            raise ValueError(f"more than {MOST_PIPELINED} requests before the first answer")
        super().on_headers_complete()

    @override
    def pause_writing(self) -> None:
        super().pause_writing()
        self.waiting[self] = None

    @override
    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.cycle.response_complete:
            self.waiting.pop(self, None)

    @override
    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete and not self.transport.is_closing():
            self.waiting[self] = None

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self.waiting.pop(self, None)
        self._forget_deadline()
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        self._deadline = asyncio.get_running_loop().call_later(HEAD_SECONDS, self.transport.abort)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def bounded_protocol(most: int) -> type[BoundedProtocol]:
    """Return the protocol of one worker, which holds at most `most` connections."""
    return type("WorkerProtocol", (BoundedProtocol,), {"most": most, "waiting": {}})
