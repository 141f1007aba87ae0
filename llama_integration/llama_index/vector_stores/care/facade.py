"""An asynchronous view of a synchronous client."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from typing import Any

from qdrant_client import QdrantClient

from care_qdrant.store.connection import is_embedded


class AsyncView:
    """Runs the calls of a ``QdrantClient`` in threads, so that one embedded folder serves sync and async callers.

    Two clients cannot open one folder, and an in-memory one is not shared at all. Calls to an embedded database go
    one at a time: it is not made for threads.
    """

    def __init__(self, client: QdrantClient) -> None:
        """Take an open client, which stays usable directly."""
        self._sync = client
        self._client = getattr(client, "_client", None)
        """What LlamaIndex and `is_embedded` look at to see which kind of client this is."""
        self._turn = threading.Lock() if is_embedded(client) else nullcontext()

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        method = getattr(self._sync, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            with self._turn:
                return method(*args, **kwargs)

        async def awaitable(*args: Any, **kwargs: Any) -> Any:
            return await asyncio.to_thread(call, *args, **kwargs)

        return awaitable
