"""An engine for measuring clients: it remembers which points it was sent, and nothing else of them."""

import re
from typing import Any

from pydantic_core import from_json

from tests.standin.call import COMPLETED
from tests.standin.engine import Engine

_POINTS = re.compile(r"/collections/([^/]+)/points(/count)?")


class CountingEngine(Engine):
    """Collections are real, points are ids; searching and reading back are not possible."""

    def __init__(self, path: str | None, version: str) -> None:
        super().__init__(path, version)
        self._ids: dict[str, set[str]] = {}

    def answer(self, method: str, path: str, body: bytes) -> Any:
        match = _POINTS.fullmatch(path)
        if match is None:
            return super().answer(method, path, body)
        ids = self._ids.setdefault(match[1], set())
        if method == "PUT":
            ids.update(point["id"] for point in from_json(body)["points"])
            return COMPLETED
        return {"count": len(ids)} if match[2] else []
