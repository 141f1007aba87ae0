"""Talking to Qdrant once, for sync and async: an operation yields its calls, and a driver makes them.

Written twice, the two ways drift apart: the stock store's ``aquery`` turns ``alpha=0.0`` into 0.5, its ``query`` does
not.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call:
    """One method of a Qdrant client, with its arguments."""

    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


Steps = Generator[Call, Any, T]
"""Yields calls, is sent their answers, and returns the result; an error of a call is raised where it was yielded."""


def call(method: str, *args: Any, **kwargs: Any) -> Call:
    """Write down a call."""
    return Call(method, args, kwargs)


def run(steps: Steps[T], client: Any) -> T:
    """Make the calls with a ``QdrantClient``."""
    try:
        step = next(steps)
        while True:
            try:
                answer = getattr(client, step.method)(*step.args, **step.kwargs)
            except Exception as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result


async def arun(steps: Steps[T], client: Any) -> T:
    """Make the calls with an ``AsyncQdrantClient``."""
    try:
        step = next(steps)
        while True:
            try:
                answer = await getattr(client, step.method)(*step.args, **step.kwargs)
            except Exception as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result
