"""The width that a search of the collection's graph needs for learned queries, measured against exact search."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from qdrant_client import models

from care_qdrant import Collection, RetryPolicy
from care_qdrant.errors import Rejected, Unreachable
from care_qdrant.search.query import Query, find
from care_qdrant.search.resolved import ResolvedCollection, StoreConfig, resolve_vectors
from care_qdrant.types import Vectors

logger = logging.getLogger(__name__)

WIDTHS = (128, 256, 512)
"""Widths to try in addition to the server's default, if they are wider."""
QUERIES = 200
MAX_LOSS = 0.01
"""Largest accepted loss of recall@10 against the best of the widths: no width recovers what quantization loses."""
WAIT_SECONDS = 60.0
"""Longest wait for a graph that is being built."""
EXACT_SECONDS = 60.0
"""Time of exact searches after which no further query is asked: a large collection on disk takes long for each."""
_POLICY = RetryPolicy(attempts=2)
"""Retries of the measurement: few, since nothing is lost where it fails, and the next run makes it."""
_TOP = 10


@dataclass(frozen=True, slots=True)
class Width:
    """One width of a graph search."""

    hnsw_ef: int
    recall_at_10: float
    """Mean fraction of the ten points of an exact search that it finds, from 0 to 1."""
    ms: float
    """Median time of one query on its own, without its encoding."""


@dataclass(frozen=True, slots=True)
class GraphSearch:
    """The recall of learned queries in the collection's graph, by the width of the search."""

    queries: int
    points: int
    widths: list[Width]
    """Measured widths: the server's default first, then wider ones."""
    hnsw_ef: int | None
    """Width to record: the first that finds at most `MAX_LOSS` less than the best; None where that is the default."""


def measure_graph(collection: Collection, vector_name: str, queries: Vectors) -> GraphSearch | None:
    """Search a collection by its graph and exactly; None where it has no graph at rest or allows no exact search."""
    impatient = Collection(collection.client, collection.name, _POLICY)
    if collection.is_embedded:
        return None
    try:
        if impatient.wait_for_optimizer(WAIT_SECONDS).status is models.CollectionStatus.YELLOW:
            logger.warning("collection %r: its graph is being built and was not measured", collection.name)
            return None
        schema = impatient.refresh()
        if not schema.has_index or not schema.limits.exact_count:
            return None
        resolved = resolve_vectors(impatient, schema, StoreConfig(vector_name=vector_name), checked_at=0.0)
        resolved = replace(resolved, hnsw_ef=None)  # of an earlier run
        asked = queries[:QUERIES].tolist()
        exact, _ = search(resolved, asked, models.SearchParams(exact=True), EXACT_SECONDS)
        own = schema.default_ef(vector_name)
        most = schema.limits.hnsw_ef or WIDTHS[-1]
        widths = []
        for hnsw_ef in (own, *(width for width in WIDTHS if own < width <= most)):
            params = None if hnsw_ef == own else models.SearchParams(hnsw_ef=hnsw_ef)
            hits, ms = search(resolved, asked[: len(exact)], params)
            widths.append(Width(hnsw_ef, recall(hits, exact), round(ms, 2)))
    except (Unreachable, Rejected) as error:
        logger.warning("collection %r: its graph was not measured (%s)", collection.name, error)
        return None
    chosen = narrowest(widths)
    return GraphSearch(len(exact), schema.points, widths, None if chosen == own else chosen)


def search(
    resolved: ResolvedCollection,
    queries: Sequence[list[float]],
    params: models.SearchParams | None,
    seconds: float = float("inf"),
) -> tuple[list[set[str]], float]:
    """Return the ids of the first ten points of each query, and the median milliseconds of a query on its own.

    After so many ``seconds`` no further query is asked.
    """
    top = min(_TOP, resolved.limits.query or _TOP)
    ids, taken = list[set[str]](), list[float]()
    for query in queries:
        if sum(taken) > seconds:
            break
        began = time.perf_counter()
        [[hits]] = find(resolved, [Query(query, None, top, params=params)], "measuring the graph")
        taken.append(time.perf_counter() - began)
        ids.append({hit.point_id for hit in hits})
    return ids, float(np.median(taken)) * 1e3


def recall(hits: Sequence[set[str]], exact: Sequence[set[str]]) -> float:
    """Return the mean fraction of the exact answers that are among the hits, from 0 to 1."""
    shares = [len(mine & theirs) / max(1, len(theirs)) for mine, theirs in zip(hits, exact, strict=True)]
    return round(float(np.mean(shares)), 4)


def narrowest(widths: Sequence[Width]) -> int:
    """Return the first width that finds at most `MAX_LOSS` less than the best of them."""
    best = max(width.recall_at_10 for width in widths)
    return next(width.hnsw_ef for width in widths if width.recall_at_10 >= round(best - MAX_LOSS, 4))
