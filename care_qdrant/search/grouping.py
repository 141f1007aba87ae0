"""Hits by group: the best ones of each document, or of each value of a payload key.

Qdrant groups by texts and integers only, answers one query per request, and stops after ten searches. Here the usual
searches are repeated while groups are missing. Where a score does not depend on the other hits, the next search leaves
out the points that no longer count, so all groups are found. A fusion by ranks would change with them; there, as for
documents, only the number of points grows, up to 64 times.

The document id of another tool may name a kind of text (LangChain's ``source``) or a part of a document. Where such ids
leave fewer hits than requested, further hits of the same documents fill the answer.
"""

import math
import sys
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from qdrant_client import models
from qdrant_client.local.payload_value_extractor import value_by_key

from care_qdrant.contracts.layouts import names_its_document
from care_qdrant.errors import InputError
from care_qdrant.qdrant.collection import Collection
from care_qdrant.search.conditions import Keys, Value, at_first, equals, is_absent, no_such_key
from care_qdrant.search.fusion import candidates
from care_qdrant.search.query import Query, find
from care_qdrant.search.resolved import ResolvedCollection
from care_qdrant.types import Hit

_MOST_WIDER = 64
"""Largest factor by which a later search asks for more points than the first."""
_INTEGERS = 2**63
"""From this number on, Qdrant has no integer in conditions."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """The groups of hits, and how many hits each may have."""

    paths: tuple[str, ...] = ()
    """Payload paths of a key, the first that a point has counts; empty to group by document."""
    size: int = 1
    """Largest number of hits of a group."""

    @classmethod
    def by(cls, key: str | None, size: int, collection: Collection, keys: Keys) -> "Grouping":
        """Return the grouping by a key as a person writes it, or by document.

        Raises:
            InputError: No point has the key, or the size does not fit.
        """
        if size < 1:
            raise InputError(f"group_size is {size}; a group has at least one hit")
        if key is None:
            if size > 1:
                raise InputError(
                    f"group_size is {size} and no group_by is given: a document counts once, by its best chunk. "
                    "For several chunks of each, group by the key that holds its id, such as doc_id"
                )
            return cls()
        if not keys.has(collection, key):
            raise InputError(f"group_by: {no_such_key(collection, key)}")
        return cls(keys.paths(key), size)

    def values(self, hit: Hit) -> list[Value]:
        """Return the groups of a hit: one for each value of a list, none for a point without the key."""
        if not self.paths:
            return [hit.document_id]
        for path in self.paths:
            stored = value_by_key(dict(hit.payload), path) or []
            if any(value not in (None, []) for value in stored):
                # No condition can name NaN and infinite numbers, which the embedded database keeps.
                values = {
                    _identity(value): value
                    for value in stored
                    if isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))
                }
                return list(values.values())
        return []

    def narrows(self, query: Query) -> bool:
        """Return whether a later search may leave points out: that changes neither a score nor a rank."""
        return bool(self.paths) and query.has_comparable_scores()


@dataclass(slots=True)
class _Group:
    """The hits of one query that share a value."""

    value: Value
    hits: list[Hit] = field(default_factory=list)


class _Groups:
    """The groups of one query that were found so far."""

    def __init__(self, grouping: Grouping, top_k: int) -> None:
        self._grouping, self._top_k = grouping, top_k
        self._found: dict[Hashable, _Group] = {}
        self._spare: list[Hit] = []
        """Further hits of documents with uncertain ids; they fill an answer with too few documents."""
        self._seen: list[int | str] = []
        """Ids of the points so far."""

    def add(self, hits: Iterable[Hit]) -> None:
        """Sort hits into their groups, and drop those of full groups."""
        for hit in hits:
            self._seen.append(int(hit.point_id) if hit.point_id.isdecimal() else hit.point_id)
            for value in self._grouping.values(hit):
                group = self._found.setdefault(_identity(value), _Group(value))
                if len(group.hits) < self._grouping.size:
                    group.hits.append(replace(hit, group=value) if self._grouping.paths else hit)
                elif not self._grouping.paths and not names_its_document(hit.payload):
                    self._spare.append(hit)

    @property
    def _unfilled(self) -> list[Value]:
        """Values of the groups of the answer that may have more hits; none while groups are missing."""
        groups = list(self._found.values())[: self._top_k]
        return [] if len(groups) < self._top_k else [group.value for group in groups if self._lacks(group)]

    @property
    def are_complete(self) -> bool:
        """Whether no other hit belongs to the answer."""
        return len(self._found) >= self._top_k and not self._unfilled

    def part(self) -> models.Filter:
        """Return the filter of the points that may still count: of other groups, or of those that are not full."""
        if unfilled := self._unfilled:
            condition = at_first(
                self._grouping.paths, lambda path: models.Filter(should=[equals(path, value) for value in unfilled])
            )
        else:
            full = [group.value for group in self._found.values() if not self._lacks(group)]
            condition = at_first(self._grouping.paths, lambda path: _has_other(path, full))
        seen: list[models.Condition] = [models.HasIdCondition(has_id=list(self._seen))] if self._seen else []
        return models.Filter(must=[condition], must_not=seen or None)

    def best(self, *, nearest_least: bool) -> list[Hit]:
        """Return the hits of the best groups, one group after the other."""

        def rank(hit: Hit) -> float:
            return hit.score if nearest_least else -hit.score

        # A later search of a fusion has other candidates, and may find better hits than an earlier one.
        groups = [sorted(group.hits, key=rank) for group in self._found.values()]
        chosen = [hit for hits in sorted(groups, key=lambda hits: rank(hits[0]))[: self._top_k] for hit in hits]
        missing = 0 if self._grouping.paths else self._top_k - len(chosen)
        return sorted([*chosen, *sorted(self._spare, key=rank)[:missing]], key=rank) if missing > 0 else chosen

    def _lacks(self, group: _Group) -> bool:
        return len(group.hits) < self._grouping.size


def find_groups(
    resolved: ResolvedCollection, queries: Sequence[Query], grouping: Grouping, what: str = "searching"
) -> list[list[Hit]]:
    """Return the hits of each query by group, the best group first; ``top_k`` of a query counts groups."""
    answers = [_Groups(grouping, query.top_k) for query in queries]
    most = sys.maxsize if resolved.limits.query is None else resolved.limits.query
    pending, times = list(range(len(queries))), 1
    while pending:
        asked = []
        for number in pending:
            query = queries[number]
            limit = min(query.top_k * grouping.size * times, max(query.top_k * grouping.size, most))
            if not grouping.narrows(query):
                answers[number] = _Groups(grouping, query.top_k)
            part = answers[number].part() if grouping.narrows(query) else None
            asked.append(replace(query, top_k=limit, part=part))
        unfinished = []
        for number, query, lists in zip(pending, asked, find(resolved, asked, what), strict=True):
            hits = lists[0] if lists else []
            answers[number].add(hits)
            offered = candidates(query.top_k, fusion=query.fusion, max_limit=resolved.limits.query)
            has_more = len(hits) >= min(query.top_k, offered) and not answers[number].are_complete
            if has_more and (grouping.narrows(query) or (times < _MOST_WIDER and query.top_k < most)):
                unfinished.append(number)
        pending, times = unfinished, min(times * 4, _MOST_WIDER)
    return [
        groups.best(nearest_least=query.is_nearest_least(resolved))
        for groups, query in zip(answers, queries, strict=True)
    ]


def _identity(value: Any) -> Hashable:
    """Return what two values of one group have in common: 1 is 1.0, and not true."""
    return isinstance(value, bool), value


def _has_other(path: str, values: Sequence[Value]) -> models.Filter:
    """Match points that have a value under a path, and one that is not among some values; a list may have both."""
    must: list[models.Condition] = [models.Filter(must_not=[is_absent(path)])]
    texts = [value for value in values if isinstance(value, str)]
    # Qdrant compares larger ones as floats: points of their groups come again, and are not counted again.
    numbers = [value for value in values if type(value) is int and -_INTEGERS <= value < _INTEGERS]
    must += [
        models.FieldCondition(key=path, match=models.MatchExcept(**{"except": some}))
        for some in (texts, numbers)
        if some
    ]
    # Qdrant has no such condition for the others, so here every list passes.
    others = [value for value in values if isinstance(value, bool | float)]
    if others:
        is_list = models.FieldCondition(key=path, values_count=models.ValuesCount(gt=1))
        is_other = models.Filter(must_not=[equals(path, value) for value in others])
        must.append(models.Filter(should=[is_list, is_other]))
    return models.Filter(must=must)
