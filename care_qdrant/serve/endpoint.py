"""One endpoint: reads a body of a declared shape within the limits, runs a handler, answers JSON."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import to_json
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from care_qdrant.serve.gateway import ClientGone, Exchange
from care_qdrant.serve.refusal import Refusal, invalid_body
from care_qdrant.serve.settings import BodyLimits

Body = TypeVar("Body", bound=BaseModel)
_LARGE_BODY = 64 * 2**10
"""Bytes from which on a body is parsed in a thread."""


@dataclass(frozen=True, slots=True)
class Post(Generic[Body]):
    """An endpoint that takes a JSON body."""

    path: str
    summary: str
    request: type[Body]
    answer: Any
    """Type of the answer, for the OpenAPI description."""
    handle: Callable[[Body, Exchange], Awaitable[Any]]
    limits: BodyLimits
    errors: tuple[int, ...] = (400, 401, 403, 404, 408, 413, 415, 421, 429, 503)
    check_body: Callable[[bytes, Exchange], None] | None = None
    """Refuses a body before it is parsed."""
    method: str = "post"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; a client that leaves cancels its work."""
        exchange = enter(self.path, scope, ("POST",))
        body = await read_body(Headers(scope=scope), receive, self.limits)
        if self.check_body is not None:
            self.check_body(body, exchange)
        request = self._parsed(body) if len(body) < _LARGE_BODY else await asyncio.to_thread(self._parsed, body)
        answer = await while_connected(self.handle(request, exchange), receive)
        await Response(to_json(answer), media_type="application/json")(scope, receive, send)

    def _parsed(self, body: bytes) -> Body:
        try:
            return self.request.model_validate_json(body)
        except ValidationError as error:
            raise invalid_body(error, self.request.model_fields) from error


@dataclass(frozen=True, slots=True)
class Get:
    """An endpoint without a body."""

    path: str
    summary: str
    answer: Any
    """Type of the answer, for the OpenAPI description; None for one that is not JSON."""
    handle: Callable[[Exchange], Any]
    """Returns the answer, or an awaitable of it; a `Response` goes as it is."""
    errors: tuple[int, ...] = (401, 421)
    method: str = "get"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        answer = self.handle(enter(self.path, scope, ("GET", "HEAD")))
        if inspect.isawaitable(answer):
            answer = await answer
        if not isinstance(answer, Response):
            answer = Response(to_json(answer), media_type="application/json")
        await answer(scope, receive, send)


def enter(path: str, scope: Scope, methods: tuple[str, ...]) -> Exchange:
    """Return the exchange of a request, after noting its route."""
    exchange: Exchange = scope["exchange"]
    exchange.route = path
    if scope["method"] not in methods:
        allowed = ", ".join(methods)
        raise Refusal(405, "wrong_method", f"{path} takes {allowed}, not {scope['method']}", param=allowed)
    return exchange


async def read_body(headers: Headers, receive: Receive, limits: BodyLimits) -> bytes:
    """Return the body of a request, within the limits of size and time."""
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        # Also what keeps pages of other origins out: a browser sends this type only after asking.
        raise Refusal(
            415, "not_json", f"the body is of type {media_type or 'unknown'}; send Content-Type: application/json"
        )
    too_large = Refusal(413, "body_too_large", f"the body has more than {limits.max_bytes} bytes; split the request")
    if int(headers.get("content-length", "").lstrip("0") or 0) > limits.max_bytes:  # Python reads 4,300 digits
        raise too_large
    parts, size = [], 0
    try:
        async with asyncio.timeout(limits.seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > limits.max_bytes:
                    raise too_large
                if not message.get("more_body", False):
                    break
    except TimeoutError:
        raise Refusal(
            408, "body_too_slow", f"the body did not arrive within {limits.seconds:g} seconds; send it again"
        ) from None
    body = b"".join(parts)
    if sum(map(body.count, (b",", b"[", b"{"))) > limits.max_values:
        raise Refusal(
            413,
            "body_too_large",
            f"the body has more than {limits.max_values} commas and opening brackets; split the request",
        )
    return body


async def while_connected(work: Awaitable[Any], receive: Receive) -> Any:
    """Return the result of the work; cancel it if the client disconnects."""
    working = asyncio.ensure_future(work)
    leaving: asyncio.Future[Message] = asyncio.ensure_future(receive())
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        leaving.cancel()
        if working.cancel():
            await asyncio.wait((working,))  # until it has left its queue
