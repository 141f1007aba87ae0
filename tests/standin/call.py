"""One request to one route, and what a route needs to answer it."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pydantic import TypeAdapter
from qdrant_client.local.qdrant_local import QdrantLocal

from tests.standin.strict import StrictMode

if TYPE_CHECKING:
    from tests.standin.engine import Engine

T = TypeVar("T")
Handler = Callable[["Call"], Any]
Route = tuple[str, re.Pattern[str], Handler]
"""Method, path and handler."""

COMPLETED = {"operation_id": 0, "status": "completed"}
COLLECTION_SETTINGS = ("hnsw_config", "quantization_config", "strict_mode_config")
DEFAULT_PARAMS = {"shard_number": 1, "replication_factor": 1, "write_consistency_factor": 1, "on_disk_payload": True}
COLLECTION_PARAMS = (
    "shard_number",
    "sharding_method",
    "replication_factor",
    "write_consistency_factor",
    "on_disk_payload",
    "payload",
    "id_tracker",
)


class NotFound(Exception):
    """Answered with 404."""


class NoRoute(Exception):
    """Answered with 404 and nothing else, as a server answers a path that it does not know."""


class Call(NamedTuple):
    """One request to one route."""

    engine: "Engine"
    names: tuple[str, ...]
    """The variable parts of the path; the first is the collection where there is one."""
    body: bytes

    def parse(self, kind: type[T] | Any) -> Any:
        return TypeAdapter(kind).validate_json(self.body)

    @property
    def local(self) -> QdrantLocal:
        return self.engine.local

    @property
    def collection(self) -> str:
        return self.engine.resolve(self.names[0])

    @property
    def strict(self) -> StrictMode:
        self.local.get_collection(self.collection)
        return self.engine.settings_of(self.collection).strict


@dataclass
class Settings:
    """Settings of a collection that a server remembers and local mode forgets."""

    config: dict[str, Any] = field(default_factory=dict)
    params: dict[str, Any] = field(default_factory=lambda: dict(DEFAULT_PARAMS))
    optimizer: dict[str, Any] = field(default_factory=dict)
    indexes: dict[str, Any] = field(default_factory=dict)

    def take(self, body: Any) -> None:
        """Remember the settings of a create or an update request."""
        for name in COLLECTION_SETTINGS:
            _merge(self.config, name, _plain(getattr(body, name, None)))
        for source in (body, getattr(body, "params", None)):
            self.params |= {
                key: value for key in COLLECTION_PARAMS if (value := getattr(source, key, None)) is not None
            }
        self.optimizer |= _plain(getattr(body, "optimizers_config", None)) or {}

    @property
    def strict(self) -> StrictMode:
        return StrictMode(self.config.get("strict_mode_config") or {}, frozenset(self.indexes))


def route(method: str, template: str, handler: Handler) -> Route:
    """Make a route; each ``{}`` in the path is one of `Call.names`."""
    return method, re.compile(template.replace("{}", "([^/]+)")), handler


def _plain(value: Any) -> dict[str, Any] | None:
    return None if value is None else value.model_dump(mode="json", exclude_none=True)


def _merge(target: dict[str, Any], name: str, value: dict[str, Any] | None) -> None:
    if value is not None:
        target[name] = {**(target.get(name) or {}), **value}
