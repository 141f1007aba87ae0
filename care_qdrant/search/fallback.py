"""Sends the queries that a learned encoder is least sure of to the model that made the vectors.

Confidence is how far the best hit stands out: its score, in standard deviations above the mean score of a sample of
stored vectors. Over six collections and two models with three seeds (benchmarks/results/learn-dial.json), all measures
that were tried do about equally well on average; this one does best in the worst case.
"""

import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence

import numpy as np
from qdrant_client import models

from care_qdrant.contracts.learned import probe_ids, probe_texts, probe_vectors
from care_qdrant.encoders.agreement import LEAST_OLD_MODEL, cosines
from care_qdrant.errors import InputError, ModelError, counted
from care_qdrant.forking import ForkLock
from care_qdrant.search.query import Query
from care_qdrant.search.resolved import ResolvedCollection
from care_qdrant.types import Vectors

logger = logging.getLogger(__name__)

Encode = Callable[[Sequence[str]], Vectors]
OnFallback = Callable[[str, list[float], str], object]
"""Receives a query that the old model encoded, its vector, and the origin of those that it searches
(`CollectionSchema.origin`)."""
_Place = tuple[str, str, str]
"""Collection, vector, and fingerprint of the encoder that was learned from it: another one after it was made again."""

SHARE = 0.2
_WINDOW = 500
"""Number of recent queries that a query is compared with."""
_FEW = 20
"""Fewest recent queries to compare with; before that, no query counts as unsure."""
_SAMPLE = 1_000
"""Number of stored vectors that show the mean and the deviation of a query's scores."""
_PROBES = 8
_PAUSE_SECONDS = 30.0
"""Pause after a failure, before the old model is asked again."""


class Fallback:
    """The model that made a collection's vectors, for the queries that a learned encoder is least sure of.

    Example::

        fallback = Fallback(vendor.encode_query, vendor.encode_document, share=0.2)
        Retriever(client, "articles", CareModel.load("articles-queries"), fallback=fallback)
    """

    def __init__(self, encode_query: Encode, encode_document: Encode | None = None, share: float = SHARE) -> None:
        """Set up; nothing is encoded yet.

        Args:
            encode_query: Makes vectors of queries, ``(texts, dim)``; what it raises costs no answer, only its help.
            encode_document: Makes vectors of documents, by which the model is checked against the stored ones before it
                is first used; None checks nothing.
            share: Share of the queries to send on, from 0 to 1: the least sure among the last 500.

        Raises:
            InputError: The share is not between 0 and 1.
        """
        if not 0 <= share <= 1:
            raise InputError(f"share is {share}; it is the fraction of the queries that are sent on, from 0 to 1")
        self._encode_query, self._encode_document, self._share = encode_query, encode_document, share
        self._seen: dict[_Place, deque[float]] = defaultdict(lambda: deque(maxlen=_WINDOW))
        self._samples: dict[_Place, Vectors] = {}
        self._checked: set[_Place] = set()
        self._told: set[str] = set()
        self._resumes_at = 0.0
        self._lock = ForkLock()
        self.asked, self.sent = 0, 0
        """Number of queries so far, and how many of them the former model encoded."""

    def improve(
        self,
        resolved: ResolvedCollection,
        texts: Sequence[str],
        vectors: list[list[float]],
        shard_key: models.ShardKeySelector | None = None,
        on_fallback: OnFallback = lambda _text, _vector, _name: None,
    ) -> list[list[float]]:
        """Return the query vectors to search with: the old model's in the place of those that are unsure.

        Where no encoder was learned from the searched vector, all are left as they are, and a warning says so once.

        Raises:
            ModelError: The model is not the one that made the stored vectors.
        """
        if resolved.vector_name not in resolved.collection.schema.learned:
            if resolved.name not in self._told:
                self._told.add(resolved.name)
                logger.warning("collection %r: no query encoder was learned, so there is no fallback", resolved.name)
            return vectors
        unsure = self._unsure(resolved, self._deviations(resolved, vectors, shard_key))
        if not unsure or time.monotonic() < self._resumes_at:
            return vectors
        try:
            self._check(resolved)
            asked = np.asarray(self._encode_query([texts[row] for row in unsure]), dtype=np.float32)
            _require_shape(asked, len(unsure), len(vectors[0]))
        except ModelError:
            raise
        except Exception as error:  # of any client library; the learned query still answers
            self._resumes_at = time.monotonic() + _PAUSE_SECONDS
            logger.warning("the old model did not answer (%s); the learned queries are used alone", error)
            return vectors
        self.sent += len(unsure)
        improved = list(vectors)
        for row, vector in zip(unsure, asked.tolist(), strict=True):
            improved[row] = vector
            on_fallback(texts[row], vector, resolved.schema.origin(resolved.vector_name or ""))
        return improved

    def _deviations(
        self, resolved: ResolvedCollection, vectors: list[list[float]], shard_key: models.ShardKeySelector | None
    ) -> list[float | None]:
        """Return how far each query's best document stands out; None if nothing was found."""
        name = resolved.vector_name
        assert name is not None
        requests = [
            request.model_copy(update={"with_payload": False})
            for vector in vectors
            for request in Query(vector, None, 1, shard_key=shard_key).requests(resolved)
        ]
        answers = resolved.collection.search("finding unsure queries", requests)
        if not any(answers):
            return [None] * len(answers)
        place = _place(resolved)
        if place not in self._samples:
            ids = [record.id for record in resolved.collection.sample(_SAMPLE)]
            records = resolved.collection.retrieve(ids, payload=False, vectors=[name])
            stored = list(probe_vectors(records.values(), name).values())
            if not stored:  # few points have the vector, and none of them was drawn
                return [None] * len(answers)
            self._samples[place] = np.stack(stored)
        distance = resolved.collection.schema.dense[name].distance
        best = [hits[0].score if hits else None for hits in answers]
        return deviations(best, np.asarray(vectors, dtype=np.float32), self._samples[place], distance)

    def _unsure(self, resolved: ResolvedCollection, measured: Sequence[float | None]) -> list[int]:
        unsure = []
        with self._lock:
            seen = self._seen[_place(resolved)]
            if not seen:
                seen.extend(resolved.held_out_deviations)
            self.asked += len(measured)
            for row, deviation in enumerate(measured):
                if deviation is None:
                    continue
                if len(seen) >= _FEW and deviation < float(np.quantile(seen, self._share)):
                    unsure.append(row)
                seen.append(deviation)
        return unsure

    def _check(self, resolved: ResolvedCollection) -> None:
        """Compare the old model with stored vectors, once for each collection."""
        learned = resolved.collection.schema.learned.get(resolved.vector_name or "")
        if self._encode_document is None or learned is None or _place(resolved) in self._checked:
            return
        collection, name = resolved.collection, resolved.vector_name or ""
        records = collection.retrieve(probe_ids(learned)[:_PROBES], payload=True, vectors=[name])
        texts, stored = probe_texts(records.values(), learned), probe_vectors(records.values(), name)
        both = sorted(texts.keys() & stored.keys())
        if not both:
            return
        made = np.asarray(self._encode_document([texts[key] for key in both]), dtype=np.float32)
        there = np.stack([stored[key] for key in both])
        _require_shape(made, len(both), there.shape[1])
        cosine = float(np.median(cosines(made, there)))
        if not cosine >= LEAST_OLD_MODEL:
            raise ModelError(
                f"the model to fall back to did not make vector {name!r} of collection {resolved.name!r}: its vectors "
                f"of {counted(len(both), 'stored text')} have a median cosine of {cosine:.2f} to the stored ones"
            )
        self._checked.add(_place(resolved))


def _place(resolved: ResolvedCollection) -> _Place:
    name = resolved.vector_name or ""
    return resolved.name, name, resolved.collection.schema.learned[name].fingerprint


def deviations(
    best: Sequence[float | None], queries: Vectors, documents: Vectors, distance: models.Distance
) -> list[float | None]:
    """Return by how many deviations each query's best score exceeds the mean of its scores with some documents."""
    if distance is models.Distance.EUCLID:
        squares = (queries**2).sum(axis=1)[:, None] - 2 * queries @ documents.T + (documents**2).sum(axis=1)
        scores = -np.sqrt(np.maximum(squares, 0))
    else:
        if distance is models.Distance.COSINE:
            queries, documents = (
                rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12) for rows in (queries, documents)
            )
        scores = queries @ documents.T
    sign = -1 if distance is models.Distance.EUCLID else 1
    means, spreads = scores.mean(axis=1), np.maximum(scores.std(axis=1), 1e-12)
    return [
        None if score is None else float((sign * score - mean) / spread)
        for score, mean, spread in zip(best, means, spreads, strict=True)
    ]


def _require_shape(vectors: Vectors, count: int, dim: int) -> None:
    if vectors.shape != (count, dim):
        raise ModelError(
            f"the model to fall back to gave vectors of shape {vectors.shape} and the collection has {dim} dimensions: "
            "it is not the one that made them"
        )
