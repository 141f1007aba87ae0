"""REST routes of Qdrant on top of qdrant-client's local mode."""

import re
import threading
from typing import Any

from pydantic_core import to_jsonable_python
from qdrant_client.local.qdrant_local import QdrantLocal

from tests.standin import collections, reading, writing
from tests.standin.call import Call, NoRoute, Settings

ROUTES = [*collections.ROUTES, *writing.ROUTES, *reading.ROUTES]


class Engine:
    """Answers the requests of qdrant-client, one at a time."""

    def __init__(self, path: str | None, version: str) -> None:
        self.local = QdrantLocal(path or ":memory:", force_disable_check_same_thread=True)
        self.version = version
        self.settings: dict[str, Settings] = {}
        self.lock = threading.RLock()

    def answer(self, method: str, path: str, body: bytes) -> Any:
        """Return the result of a request. Raises: NoRoute, NotFound, KeyError, ValueError as a server's 404 and 400."""
        for route_method, pattern, handler in ROUTES:
            match = pattern.fullmatch(path)
            if match and route_method == method:
                with self.lock:
                    return to_jsonable_python(handler(Call(self, match.groups(), body)))
        raise NoRoute

    def resolve(self, name: str) -> str:
        return self.local.aliases.get(name, name)

    def settings_of(self, collection: str) -> Settings:
        return self.settings.setdefault(collection, Settings())

    def at_least(self, major: int, minor: int) -> bool:
        found = tuple(int(part) for part in self.version.split(".")[:2])
        return found >= (major, minor)


READS = re.compile(r".*/(points|points/scroll|points/count|points/query(/batch|/groups)?)")
"""Paths that POST only to read."""


def is_write(method: str, path: str) -> bool:
    """Return whether a read-only key may not send this."""
    return method != "GET" and not (method == "POST" and READS.fullmatch(path))
