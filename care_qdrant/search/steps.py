"""Requests to Qdrant written once and made by a sync or an async client.

An operation is a function of the client. Steps are a generator that yields operations, is sent their answers and
returns a result; `run` and `arun` make the calls. An error of a call is raised where its operation was yielded. Written
twice, the two ways drift apart: the stock LlamaIndex store's ``aquery`` turns ``alpha=0.0`` into 0.5, its ``query``
does not.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar, cast

from qdrant_client import AsyncQdrantClient, QdrantClient

from care_qdrant.qdrant.connection import client_lock

T = TypeVar("T")
Operation = Callable[[QdrantClient], Any]
"""One request; `AsyncQdrantClient` has the same methods, whose answers are awaited."""
Steps = Generator[Operation, Any, T]


def ask(operation: Callable[[QdrantClient], T]) -> Steps[T]:
    """Yield one operation and return its answer.

    Example::

        answer = yield from ask(lambda client: client.get_aliases())
    """
    answer: T = yield operation
    return answer


def run(steps: Steps[T], call: Callable[[Operation], Any]) -> T:
    """Return the result of steps whose operations are called one after the other."""
    try:
        operation = next(steps)
        while True:
            try:
                answer = call(operation)
            except Exception as error:
                operation = steps.throw(error)
            else:
                operation = steps.send(answer)
    except StopIteration as stop:
        return cast(T, stop.value)


async def arun(steps: Steps[T], call: Callable[[Operation], Awaitable[Any]]) -> T:
    """Return the result of steps whose operations are awaited one after the other."""
    try:
        operation = next(steps)
        while True:
            try:
                answer = await call(operation)
            except Exception as error:
                operation = steps.throw(error)
            else:
                operation = steps.send(answer)
    except StopIteration as stop:
        return cast(T, stop.value)


def locked_call(client: QdrantClient) -> Callable[[Operation], Any]:
    """Return what calls operations on a client, one at a time where the client is an embedded database."""

    def call(operation: Operation) -> Any:
        with client_lock(client):
            return operation(client)

    return call


def threaded_call(client: QdrantClient) -> Callable[[Operation], Awaitable[Any]]:
    """Return what calls operations on a sync client in threads.

    So one embedded folder serves sync and async callers: two clients cannot open it.
    """
    call = locked_call(client)
    return lambda operation: asyncio.to_thread(call, operation)


def async_call(client: AsyncQdrantClient) -> Callable[[Operation], Awaitable[Any]]:
    """Return what calls operations on an async client."""
    return lambda operation: operation(cast(QdrantClient, client))
