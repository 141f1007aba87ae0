"""Quantised vectors: how many of the exact neighbours they still find, and the oversampling that restores them.

Qdrant searches the compressed copies for ``oversampling`` times as many points as requested, and ranks these by the
original vectors (rescoring). How many it takes depends on vectors, dimension and number of points, so it is measured
where they are: at the end of an ingestion or an attach, which record it in the collection's metadata for every search,
and by ``care verify``.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial

from pydantic import TypeAdapter
from qdrant_client import models

from care_qdrant.contracts.metadata import QUANTIZATION
from care_qdrant.errors import Rejected, Unreachable
from care_qdrant.qdrant.calls import in_pages
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.measurements import Measurement
from care_qdrant.qdrant.point_equality import vectors_of
from care_qdrant.qdrant.readable import PointId
from care_qdrant.qdrant.retry import RetryPolicy
from care_qdrant.qdrant.schema import CollectionSchema
from care_qdrant.search.fusion import NEAREST_LEAST

logger = logging.getLogger(__name__)

MAX_LOSS = 0.05
"""Largest fraction of the ten nearest neighbours that a search may miss because of quantization."""
_MAX_RECORDED_LOSS = MAX_LOSS / 5
"""Largest such fraction where stored vectors are the queries."""
# They are found more easily than the vectors of a query encoder.
TOP_K = 10
"""Number of hits among which searches that measure or verify have to find a point."""
OVERSAMPLING = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Factors of oversampling, tried in this order; the first that loses at most `MAX_LOSS` is taken, else the last."""
QUERIES = 64
WAIT_SECONDS = 60.0
"""Longest wait of an ingestion for the server to quantise the vectors."""
_POLICY = RetryPolicy(attempts=2)
"""Retries of a measurement."""
# Nothing is lost where it fails: the next run makes it.
_BATCH = 8
_SETTINGS = frozenset({"type", "compression", "encoding", "query_encoding", "bits"})
"""Settings of a quantization that what a search finds depends on; the others say where the copy is held."""
_ROUNDING = 1e-5
"""Difference of two scores, relative to large ones, below which two points are equally near."""
_IGNORED = models.QuantizationSearchParams(ignore=True)


@dataclass(frozen=True, slots=True)
class Rescoring:
    """Oversampling for searches of a quantised vector, and the quality that it was measured to have."""

    oversampling: float
    overlap_at_10: float
    """Mean fraction of the ten nearest neighbours that a search finds with it, from 0 to 1."""
    without_rescoring: float
    """Mean fraction that a search finds by the compressed vectors alone."""
    points: int
    """Number of points with the vector when this was measured."""
    unquantised: float = 1.0
    """Mean fraction that a search finds by the original vectors: the graph's share of an exact search."""

    @property
    def loses_too_much(self) -> bool:
        """Whether a search misses more than `MAX_LOSS` because of quantization, and not because of the graph."""
        return self.unquantised - self.overlap_at_10 > MAX_LOSS

    @property
    def params(self) -> models.QuantizationSearchParams:
        """Parameters of a search."""
        return models.QuantizationSearchParams(rescore=True, oversampling=self.oversampling)


_RESCORING = TypeAdapter(Rescoring)


def is_quantized(schema: CollectionSchema, vector_name: str) -> bool:
    """Return whether a server searches compressed copies of a dense vector; the embedded database has none."""
    return _quantization(schema, vector_name) is not None


def _quantization(schema: CollectionSchema, vector_name: str) -> models.QuantizationConfig | None:
    params = schema.dense.get(vector_name)
    if params is None or schema.embedded:
        return None
    return params.quantization_config or schema.config.quantization_config


def _measurement(schema: CollectionSchema, vector_name: str) -> Measurement:
    config = _quantization(schema, vector_name)
    assert config is not None
    [(kind, settings)] = config.model_dump(mode="json").items()
    chosen = {name: value for name, value in settings.items() if name in _SETTINGS and value is not None}
    return Measurement(QUANTIZATION, vector_name, {"quantization": {kind: chosen}})


def recorded_rescoring(schema: CollectionSchema, vector_name: str, points: int | None = None) -> Rescoring | None:
    """Return what was measured for a vector; None where nothing was, or it was quantised otherwise then.

    With a number of points, an outdated measurement is None as well. Searches use it until the next run that writes
    vectors replaces it.
    """
    if not is_quantized(schema, vector_name):
        return None
    return _measurement(schema, vector_name).find(schema.metadata, points, _RESCORING.validate_python)


def _hits(
    collection: Collection, vector_name: str, queries: Sequence[Sequence[float]], params: models.SearchParams
) -> Iterator[list[models.ScoredPoint]]:
    using, limit = vector_name or None, collection.limits.top_k(TOP_K)
    requests = [
        models.QueryRequest(query=list(query), using=using, limit=limit, params=params, with_payload=False)
        for query in queries
    ]
    for batch in in_pages(requests, _BATCH):
        yield from collection.search("measuring what a search finds", batch)


def find_nearest(
    collection: Collection, vector_name: str, queries: Sequence[Sequence[float]], params: models.SearchParams
) -> list[set[PointId]]:
    """Return the ids of the `TOP_K` points that each query finds; of fewer where strict mode allows no more."""
    return [{hit.id for hit in hits} for hits in _hits(collection, vector_name, queries, params)]


def measure_recall(collection: Collection, vector_name: str, queries: Sequence[Sequence[float]]) -> float | None:
    """Return the fraction of the `TOP_K` exact neighbours that a search by the graph finds, from 0 to 1.

    Quantised copies are not read. Any hit as near as the last exact one counts, since equal vectors have no order;
    points without a finite score, such as that of a vector with NaN, are left out.

    Returns:
        None where every search is exact, in the embedded database, where a server refuses exact searches, and without
        queries.
    """
    if collection.is_embedded or not collection.limits.exact_count or not queries:
        return None
    sign = -1 if collection.schema.dense[vector_name].distance in NEAREST_LEAST else 1

    def scores(*, exact: bool) -> list[list[float]]:
        params = models.SearchParams(exact=exact, quantization=_IGNORED)
        answers = _hits(collection, vector_name, queries, params)
        return [[sign * hit.score for hit in hits if math.isfinite(hit.score)] for hits in answers]

    expected = scores(exact=True)
    found = sum(
        score >= nearest[-1] - _ROUNDING * max(1.0, abs(nearest[-1]))
        for nearest, searched in zip(expected, scores(exact=False), strict=True)
        for score in searched[: len(nearest)]
    )
    return round(found / max(1, sum(map(len, expected))), 4)


def overlap_of(exact: Sequence[set[PointId]], searched: Sequence[set[PointId]]) -> float:
    """Return the fraction of the nearest points that was found, from 0 to 1."""
    return sum(len(here & there) for here, there in zip(exact, searched, strict=True)) / max(1, sum(map(len, exact)))


def measure_rescoring(
    collection: Collection,
    vector_name: str,
    queries: Sequence[Sequence[float]],
    *,
    at_least: float = OVERSAMPLING[0],
    max_loss: float = MAX_LOSS,
) -> Rescoring:
    """Compare searches of a quantised vector with those by the original vectors, and both with exact ones."""
    strict = collection.schema.strict_mode
    most = (strict and strict.search_max_oversampling) or OVERSAMPLING[-1]
    find = partial(find_nearest, collection, vector_name, queries)
    exact = find(models.SearchParams(exact=True, quantization=_IGNORED))

    def overlap(quantization: models.QuantizationSearchParams) -> float:
        return overlap_of(exact, find(models.SearchParams(quantization=quantization)))

    unquantised = overlap(_IGNORED)
    without = overlap(models.QuantizationSearchParams(rescore=False))
    points = collection.count_with_vector(vector_name)
    oversampling = overlapping = 0.0
    for oversampling in sorted({at_least, *(factor for factor in OVERSAMPLING if at_least < factor <= most)}):
        overlapping = overlap(models.QuantizationSearchParams(rescore=True, oversampling=oversampling))
        if unquantised - overlapping <= max_loss:
            break
    return Rescoring(oversampling, round(overlapping, 4), round(without, 4), points, round(unquantised, 4))


def record_rescoring(collection: Collection, vector_name: str) -> Rescoring | None:
    """Measure a quantised vector, unless that was done, and let searches use the result.

    Stored vectors are the queries, and vectors of a query encoder lie further from their hits: searches use
    twice the oversampling that was enough here, if any was needed. A loss above `MAX_LOSS` is logged as a warning.
    """
    schema = collection.refresh()
    if not is_quantized(schema, vector_name) or not schema.limits.exact_count:  # a server that refuses exact searches
        return None
    known = recorded_rescoring(schema, vector_name)
    impatient = Collection(collection.client, collection.name, _POLICY)
    try:
        if recorded_rescoring(schema, vector_name, impatient.count_with_vector(vector_name)) is not None:
            return known
        if impatient.wait_for_optimizer(WAIT_SECONDS, 1.0).status is not models.CollectionStatus.GREEN:
            logger.info(
                "collection %r: the server is still building its index, so what quantization loses was not measured; "
                "run the same command again when it is done",
                collection.name,
            )
            return known
        ids = [record.id for record in impatient.sample(QUERIES)]
        records = impatient.retrieve(ids, "reading sampled vectors", payload=False, vectors=[vector_name])
        stored = (vectors_of(record).get(vector_name) for record in records.values())
        queries = [vector for vector in stored if isinstance(vector, list)]
        if not queries:
            return known
        measured = measure_rescoring(impatient, vector_name, queries, max_loss=_MAX_RECORDED_LOSS)
        if 1 < measured.oversampling < OVERSAMPLING[-1]:
            measured = measure_rescoring(impatient, vector_name, queries, at_least=2 * measured.oversampling)
    except (Unreachable, Rejected) as error:
        logger.warning("collection %r: what quantization loses was not measured (%s)", collection.name, error)
        return known
    measurement = _measurement(schema, vector_name)
    measurement.keep(collection, measurement.change(asdict(measured), measured.points), level=logging.WARNING)
    logger.log(
        logging.WARNING if measured.loses_too_much else logging.INFO,
        "collection %r: %s",
        collection.name,
        describe_loss(vector_name, measured),
    )
    return measured


def describe_loss(vector_name: str, measured: Rescoring) -> str:
    """Return in one line what quantization loses, and what to do where that is too much."""
    line = (
        f"of the ten nearest neighbours, a search of quantised vector {vector_name!r} finds "
        f"{measured.overlap_at_10:.1%} with oversampling {measured.oversampling:g} "
        f"({measured.without_rescoring:.1%} without rescoring, {measured.unquantised:.1%} without quantization)"
    )
    if measured.loses_too_much:
        line += f"; at most {MAX_LOSS:.0%} may be lost: quantise with int8, or not at all"
    return line
