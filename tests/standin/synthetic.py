"""An engine for measuring what a client needs for a million points: they are computed from their ids.

Of a point it remembers only whether somebody has given it a vector. A collection whose metadata say
``{"synthetic_points": n}`` begins with the points 0 to n - 1; it can be scrolled, counted and given vectors once.
"""

import re
from typing import Any

from pydantic_core import from_json

from tests.standin.call import COMPLETED
from tests.standin.engine import Engine

_PATH = re.compile(r"/collections/([^/]+)(?:/points/(scroll|count|batch))?")


class SyntheticEngine(Engine):
    """Collections are real, points are numbers."""

    def __init__(self, path: str | None, version: str) -> None:
        super().__init__(path, version)
        self._has_vector: dict[str, bytearray] = {}

    def answer(self, method: str, path: str, body: bytes) -> Any:
        match = _PATH.fullmatch(path)
        if match is None or match[2] is None:
            result = super().answer(method, path, body)
            if match and method == "PUT":
                self._has_vector[match[1]] = bytearray(from_json(body)["metadata"]["synthetic_points"])
            return result
        asked, flags = from_json(body), self._has_vector[match[1]]
        if match[2] == "count":
            return {"count": flags.count(1) if asked.get("filter") else len(flags)}
        if match[2] == "scroll":
            return _page(flags, asked.get("offset") or 0, asked["limit"])
        updates = [each["update_vectors"]["points"] for each in asked["operations"] if "update_vectors" in each]
        for point in (point for points in updates for point in points):
            flags[point["id"]] = 1
        return [COMPLETED] * len(asked["operations"])


def _page(flags: bytearray, start: int, limit: int) -> dict[str, Any]:
    end = min(start + limit, len(flags))
    points = [{"id": n, "payload": {"text": f"第{n}条：高血压患者应当限制食盐。"}} for n in range(start, end)]
    return {"points": points, "next_page_offset": end if end < len(flags) else None}
