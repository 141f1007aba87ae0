"""How large requests may be: our own habits, and what the operator of a server allows (strict mode)."""

from dataclasses import dataclass

from care_qdrant.store.retry import Collection

MAX_POINTS = 256
MAX_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class Limits:
    """Points of one request."""

    write: int = MAX_POINTS
    page: int = MAX_PAGE


def read_limits(link: Collection) -> Limits:
    """Read the strict mode of a collection."""
    config = link.call("reading its limits", lambda: link.client.get_collection(link.collection)).config
    strict = config.strict_mode_config
    if strict is None or not strict.enabled:
        return Limits()
    return Limits(
        write=min(MAX_POINTS, strict.upsert_max_batchsize or MAX_POINTS),
        page=min(MAX_PAGE, strict.max_query_limit or MAX_PAGE),
    )
