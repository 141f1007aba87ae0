"""A random sample of a collection's texts with the vectors that are stored for them."""

import heapq
from collections.abc import Callable, Sequence
from collections.abc import Collection as Collected
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
from qdrant_client import models
from qdrant_client.models import ExtendedPointId as PointId

from care_qdrant import Collection
from care_qdrant.contracts.layouts import Layout, guess_layout
from care_qdrant.contracts.learned import stored_vector
from care_qdrant.contracts.stand_in import stand_ins
from care_qdrant.errors import InputError, SchemaMismatch, TooFewDocuments, counted
from care_qdrant.qdrant.calls import in_pages
from care_qdrant.qdrant.readable import place_in_order
from care_qdrant.qdrant.schema import CollectionSchema
from care_qdrant.types import Vectors, half_character
from care_trainer.config.run import MIN_DOCUMENTS
from care_trainer.learn.settings import LearnSettings

LAYOUT_POINTS = 256
"""Points from which the layout of the payloads is guessed."""
_PAGE = 256
_BASIS_POINTS = 8_192
_MAX_CHARACTERS = 4_000
"""Highest number of characters of a text to keep: more than any tokenizer limit here reads."""
_DISTANCES = (models.Distance.COSINE, models.Distance.DOT, models.Distance.EUCLID)
_MAX_NORM_SPREAD = 0.02
"""Standard deviation of the lengths over their mean; Euclidean distance ranks as the inner product below it."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Counts of the points of a sample, by what they have to learn from."""

    points: int
    """Points of the collection, read or not."""
    texts: int
    """Points that are learned from: with a vector, and a text that no point before has."""
    without_text: int
    without_vector: int
    repeated: int
    """Points with a text that was read before."""
    text_field: str
    stand_ins: int = 0
    """Points left out because a learned encoder made their vector: it would learn from itself."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Texts of a collection with their vectors, in random order."""

    ids: list[PointId]
    titles: list[str]
    texts: list[str]
    vectors: Vectors
    """Directions of the stored vectors in the learned space, (texts, width), of length at most 1."""
    basis: Vectors | None
    """Orthonormal rows (width, dim) that span the learned space; None where it is the whole space."""
    layout: Layout
    sample: Sample
    read: list[PointId]
    """All points of the sample, those without a text, a vector or a new text as well."""


def dense_vector(schema: CollectionSchema, vector_name: str | None) -> tuple[str, models.VectorParams]:
    """Return the name and the settings of the vector to learn from; None takes the only one."""
    names = ", ".join(name or "'' (unnamed)" for name in sorted(schema.dense)) or "none"
    if vector_name is None and len(schema.dense) != 1:
        raise InputError(
            f"collection {schema.name!r} has {len(schema.dense)} dense vectors ({names}); choose one: --vector, "
            "or vector in [document.collection] of a training run"
        )
    name = next(iter(schema.dense)) if vector_name is None else vector_name
    if name not in schema.dense:
        raise InputError(f"collection {schema.name!r} has no dense vector {name!r} (it has: {names})")
    params = schema.dense[name]
    if params.multivector_config is not None:
        raise SchemaMismatch(f"vector {name!r} of collection {schema.name!r} holds several vectors a point, not one")
    if params.distance not in _DISTANCES:
        raise SchemaMismatch(
            f"vector {name!r} of collection {schema.name!r} is compared by {params.distance.value} distance; "
            "a query encoder can be learned for Cosine, Dot and Euclid"
        )
    return name, params


def sample_ids(collection: Collection, points: int, seed: int) -> list[PointId]:
    """Return the ids of at most so many points, each point being as likely as any other, in random order.

    The points with the smallest digests of their ids are taken, so a later sample differs only by added and deleted
    points.
    """
    ids = chain.from_iterable(collection.ids())
    return heapq.nsmallest(points, ids, key=lambda point_id: place_in_order(point_id, seed))


def require_documents(collection: Collection, points: int) -> None:
    """Refuse a collection with too few points to learn from."""
    if points < MIN_DOCUMENTS:
        raise TooFewDocuments(
            f"collection {collection.name!r} has {counted(points, 'point')}; learning needs at least {MIN_DOCUMENTS} "
            "with a text and a vector"
        )


def read_pairs(
    collection: Collection,
    vector_name: str,
    settings: LearnSettings,
    *,
    text_field: str | None = None,
    basis: Vectors | None = None,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Pairs:
    """Read a sample of the points that have a text and a vector."""
    params = collection.schema.dense[vector_name]
    ids = sample_ids(collection, settings.sample, settings.seed)
    require_documents(collection, len(ids))
    layout = guess_layout([record.payload or {} for record in collection.sample(LAYOUT_POINTS)], text_field=text_field)
    reader = Reader(layout, vector_name, settings.width, basis, collection.schema.stand_ins.get(vector_name, ()))
    done = 0
    for page in in_pages(ids, _PAGE):
        records = collection.retrieve(page, payload=True, vectors=[vector_name])
        reader.add([records[point_id] for point_id in page if point_id in records])
        done += len(page)
        on_progress(done, len(ids))
    pairs = reader.pairs(ids, collection.count() if len(ids) == settings.sample else len(ids))
    sample = pairs.sample
    if len(pairs.ids) < MIN_DOCUMENTS:
        raise TooFewDocuments(
            f"collection {collection.name!r} has {counted(len(pairs.ids), 'different text')} with a vector "
            f"{vector_name!r} in a sample of {counted(len(ids), 'point')} ({sample.without_text} without text, "
            f"{sample.without_vector} without vector, {sample.repeated} repeated, {sample.stand_ins} by a learned "
            f"encoder); learning needs at least {MIN_DOCUMENTS}"
        )
    if params.distance is models.Distance.EUCLID and reader.norm_spread > _MAX_NORM_SPREAD:
        raise SchemaMismatch(
            f"vector {vector_name!r} of collection {collection.name!r} is compared by Euclidean distance and its "
            f"lengths differ by {reader.norm_spread:.0%}: a query would need the length that its model gave it, which "
            "stored vectors do not tell. Copy the collection with Cosine distance, or keep the model for queries"
        )
    return pairs


class Reader:
    """Collects pairs page by page, in the dimensions of the learned space as soon as they are known."""

    def __init__(
        self, layout: Layout, vector_name: str, width: int, basis: Vectors | None, encoders: Collected[str] = ()
    ) -> None:
        self._layout, self._vector_name, self._width = layout, vector_name, width
        self._ids: list[PointId] = []
        self._titles: list[str] = []
        self._texts: list[str] = []
        self._seen: set[int] = set()
        self._raw: list[Vectors] = []
        self._directions: list[Vectors] = []
        self._norms: list[float] = []
        self._basis = basis
        self._encoders = frozenset(encoders)
        self._without_text = self._without_vector = self._repeated = self._stand_ins = 0

    @property
    def norm_spread(self) -> float:
        """Standard deviation of the stored vectors' lengths over their mean."""
        return float(np.std(self._norms) / np.mean(self._norms)) if self._norms else 0.0

    def add(self, records: Sequence[models.Record]) -> None:
        """Keep the records that have a new text and a usable vector, and count the others."""
        for record in records:
            payload = record.payload or {}
            text = self._layout.find_text(payload)
            vector = stored_vector(record.vector, self._vector_name)
            if not self._encoders.isdisjoint(stand_ins(payload)):
                self._stand_ins += 1
            elif text is None or half_character(text + self._layout.title(payload)):  # which no tokenizer reads
                self._without_text += 1
            elif vector is None:
                self._without_vector += 1
            elif hash(text) in self._seen:
                self._repeated += 1
            else:
                norm = float(np.linalg.norm(vector))
                self._seen.add(hash(text))
                self._norms.append(norm)
                self._ids.append(record.id)
                self._titles.append(self._layout.title(payload))
                self._texts.append(text[:_MAX_CHARACTERS])
                self._raw.append(vector / norm)
        if len(self._raw) >= _BASIS_POINTS:
            self._reduce()

    def pairs(self, read: list[PointId], points: int) -> Pairs:
        """Return everything that was kept of the points that were read."""
        self._reduce()
        width = self._directions[0].shape[1] if self._directions else 0
        vectors = np.concatenate(self._directions) if self._directions else np.empty((0, width), np.float32)
        return Pairs(
            self._ids,
            self._titles,
            self._texts,
            vectors,
            self._basis,
            self._layout,
            Sample(
                points,
                len(self._texts),
                self._without_text,
                self._without_vector,
                self._repeated,
                self._layout.text_field,
                self._stand_ins,
            ),
            read,
        )

    def _reduce(self) -> None:
        if not self._raw:
            return
        raw = np.stack(self._raw)
        if self._basis is None and not self._directions and raw.shape[1] > self._width:
            self._basis = principal_directions(raw, self._width)
        self._directions.append(raw if self._basis is None else raw @ self._basis.T)
        self._raw = []


def principal_directions(vectors: Vectors, width: int) -> Vectors:
    """Return the orthonormal rows (width, dim) that keep most of the vectors' lengths."""
    moment = (vectors.T @ vectors).astype(np.float64)
    _, directions = np.linalg.eigh(moment)
    return np.ascontiguousarray(directions[:, ::-1][:, :width].T, dtype=np.float32)


def restored(queries: npt.NDArray[np.floating], basis: Vectors | None) -> Vectors:
    """Return vectors of the learned space in the dimensions of the collection."""
    return np.asarray(queries if basis is None else queries @ basis, dtype=np.float32)
