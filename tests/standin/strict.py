"""Strict mode: the limits that a server's operator sets on a collection."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from qdrant_client import models


class RateExceeded(Exception):
    """A request costs more than the rate of a minute; the server answers it with 429 and no time to wait."""


@dataclass(frozen=True)
class StrictMode:
    """The limits of one collection; checks raise ValueError, which the server answers with 400."""

    config: Mapping[str, Any]
    indexed: frozenset[str]

    def limit(self, name: str) -> Any:
        return self.config.get(name) if self.config.get("enabled") else None

    @property
    def limits_size(self) -> bool:
        return any(self.limit(name) for name in ("max_points_count", "max_collection_vector_size_bytes"))

    def check_batch(self, size: int) -> None:
        self.check_writes(size)
        most = self.limit("upsert_max_batchsize")
        if most is not None and size > most:
            raise ValueError(_exceeded("upsert limit", size, most))

    def check_limit(self, asked: int | None) -> None:
        most = self.limit("max_query_limit")
        if most is not None and asked is not None and asked > most:
            raise ValueError(_exceeded("limit", asked, most))

    def check_prefetch(self, prefetch: models.Prefetch | list[models.Prefetch] | None) -> None:
        """Check the limit of every prefetch, at every level."""
        for one in prefetch if isinstance(prefetch, list) else [prefetch] if prefetch else []:
            self.check_limit(one.limit)
            self.check_filter(one.filter)
            self.check_prefetch(one.prefetch)

    def check_exact(self, exact: bool | None) -> None:
        if exact and self.limit("search_allow_exact") is False:
            raise ValueError("Bad request: Exact search disabled!. Help: Set exact=false.")

    def check_reads(self, points: int) -> None:
        self._check_rate("read_rate_limit", points)

    def check_writes(self, points: int) -> None:
        self._check_rate("write_rate_limit", points)

    def _check_rate(self, name: str, cost: int) -> None:
        most, what = self.limit(name), name.removesuffix("_rate_limit").capitalize()
        if most is not None and cost > most:
            raise RateExceeded(
                f"Rate limiting exceeded: {what} rate limit exceeded, request larger than rate limiter capacity, "
                "please try to split your request"
            )

    def check_size(self, points: int, vector_bytes: int) -> None:
        """Check what the collection holds before the write, as a server does: it refuses when the limit is reached."""
        most_points, most_bytes = self.limit("max_points_count"), self.limit("max_collection_vector_size_bytes")
        if most_points is not None and points >= most_points:
            raise ValueError(f"Bad request: Max points count limit of {most_points} reached!")
        if most_bytes is not None and vector_bytes >= most_bytes:
            raise ValueError(f"Bad request: Max vector storage size limit of {most_bytes / 1024**2}MB reached!")

    def check_searches(self, searches: int) -> None:
        most = self.limit("search_max_batchsize")
        if most is not None and searches > most:
            raise ValueError(_exceeded("search batch size", searches, most))

    def check_filter(self, condition: models.Filter | None) -> None:
        most, found = self.limit("filter_max_conditions"), _conditions(condition)
        if most is not None and found > most:
            raise ValueError(f"Bad request: Filter condition limit reached ({found} > {most}).")
        self._check_sizes(condition)
        if self.limit("unindexed_filtering_retrieve") is False:
            self._check_indexed(condition)

    def check_update(self, condition: models.Filter | None) -> None:
        self._check_sizes(condition)
        if self.limit("unindexed_filtering_update") is False:
            self._check_indexed(condition)

    def _check_sizes(self, condition: models.Filter | None) -> None:
        most, largest = self.limit("condition_max_size"), max(_sizes(condition), default=0)
        if most is not None and largest > most:
            raise ValueError(f"Bad request: Condition size limit reached ({largest} > {most}).")

    def _check_indexed(self, condition: models.Filter | None) -> None:
        for key in _keys(condition):
            if key not in self.indexed:
                raise ValueError(
                    f'Bad request: Index required but not found for "{key}" of one of the following types: '
                    f"[{_index_type(condition, key)}]. Help: Create an index for this key or use a different filter."
                )


def _exceeded(what: str, asked: int, most: int) -> str:
    limit = f'Help: Reduce the "{what}" parameter to or below {most}.'
    return f'Bad request: Limit exceeded {asked} > {most} for "{what}". {limit}'


def _index_type(condition: Any, key: str) -> str:
    """Return the kind of index that a match on a key in a filter needs; a keyword's where it is no match on a value."""
    must = condition.must if isinstance(condition.must, list) else [condition.must]
    values = [
        part.match.value
        for part in must
        if isinstance(part, models.FieldCondition) and part.key == key and isinstance(part.match, models.MatchValue)
    ]
    return {bool: "bool", int: "integer"}.get(type(values[0]), "keyword") if values else "keyword"


def _keys(condition: Any) -> Iterator[str]:
    """Walk through a filter and give the payload keys that it reads."""
    if isinstance(condition, models.Filter):
        for clause in (condition.must, condition.should, condition.must_not):
            for part in clause if isinstance(clause, list) else [clause]:
                yield from _keys(part)
    elif isinstance(condition, models.FieldCondition):
        yield condition.key
    elif isinstance(condition, models.IsEmptyCondition):
        yield condition.is_empty.key
    elif isinstance(condition, models.IsNullCondition):
        yield condition.is_null.key
    elif isinstance(condition, models.NestedCondition):
        yield from (f"{condition.nested.key}[].{key}" for key in _keys(condition.nested.filter))


def _sizes(condition: Any) -> Iterator[int]:
    """Walk through a filter and give the numbers of ids that its conditions name."""
    if isinstance(condition, models.Filter):
        for clause in (condition.must, condition.should, condition.must_not):
            for part in clause if isinstance(clause, list) else [clause]:
                yield from _sizes(part)
    elif isinstance(condition, models.HasIdCondition):
        yield len(condition.has_id)


def _conditions(condition: Any) -> int:
    """Count the conditions of a filter, those of filters inside it included."""
    if not isinstance(condition, models.Filter):
        return condition is not None
    clauses = [condition.must, condition.should, condition.must_not]
    return sum(_conditions(each) for clause in clauses for each in (clause if isinstance(clause, list) else [clause]))
