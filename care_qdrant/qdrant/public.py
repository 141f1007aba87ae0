"""Adapter of public functions: they take a `Collection`, or an open client and a name in its place."""

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from qdrant_client import QdrantClient

from care_qdrant.qdrant.collection import Collection

First = TypeVar("First", contravariant=True)
Second = TypeVar("Second", contravariant=True)
Others = ParamSpec("Others")
Result = TypeVar("Result", covariant=True)


class OnCollection(Protocol[Others, Result]):
    """A function whose first argument is a collection, or a client and a name."""

    @overload
    def __call__(self, collection: Collection, /, *args: Others.args, **kwargs: Others.kwargs) -> Result: ...

    @overload
    def __call__(self, client: QdrantClient, name: str, /, *args: Others.args, **kwargs: Others.kwargs) -> Result: ...


class IntoCollection(Protocol[First, Second, Others, Result]):
    """A function whose third argument is a collection, or whose third and fourth are a client and a name."""

    @overload
    def __call__(
        self, first: First, second: Second, collection: Collection, /, *args: Others.args, **kwargs: Others.kwargs
    ) -> Result: ...

    @overload
    def __call__(
        self,
        first: First,
        second: Second,
        client: QdrantClient,
        name: str,
        /,
        *args: Others.args,
        **kwargs: Others.kwargs,
    ) -> Result: ...


# Where a function fits both overloads, its first argument is the collection.
@overload
def accepts_client(  # type: ignore[overload-overlap]
    function: Callable[Concatenate[Collection, Others], Result],
) -> OnCollection[Others, Result]: ...


@overload
def accepts_client(
    function: Callable[Concatenate[First, Second, Collection, Others], Result],
) -> IntoCollection[First, Second, Others, Result]: ...


def accepts_client(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function that takes a `Collection` also accept an open client and a name, with the default policy."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        at = next((number for number, value in enumerate(args) if isinstance(value, QdrantClient)), None)
        if at is None:
            return function(*args, **kwargs)
        if at + 1 == len(args) or not isinstance(args[at + 1], str):
            raise TypeError(f"{function.__name__}(): expected the name of a collection after the client")
        return function(*args[:at], Collection(args[at], args[at + 1]), *args[at + 2 :], **kwargs)

    return call
