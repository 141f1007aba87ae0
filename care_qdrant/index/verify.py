"""Checks the vectors of a collection: made of the present texts, by this model, and found by its query encoder."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, Protocol

import numpy as np
from qdrant_client import QdrantClient, models

from care_qdrant.encoders import Encoder, bm25
from care_qdrant.index.makers import Bm25Vectors
from care_qdrant.index.points import (
    elsewhere_warning,
    expected_hash,
    other_text_field,
    possible_texts,
    stored_hash,
    stored_text,
)
from care_qdrant.index.preflight import examine
from care_qdrant.index.settings import DocumentModel
from care_qdrant.qdrant.collection import Collection, PointId
from care_qdrant.qdrant.contract_checks import check_contract, check_sparse_contract
from care_qdrant.qdrant.layout import Layout
from care_qdrant.qdrant.point_equality import vectors_of
from care_qdrant.qdrant.quantization import (
    MAX_LOSS,
    Rescoring,
    describe_loss,
    is_quantized,
    measure_rescoring,
    recorded_rescoring,
)
from care_qdrant.qdrant.retry import RetryPolicy
from care_qdrant.search.resolve import find_bm25
from care_qdrant.types import Vectors

TOP_K = 10
OPENING_CHARACTERS = 40
"""Length of the beginning of a text that, as a query, has to find it."""
_SEED = 20260413


class PairModel(DocumentModel, Protocol):
    """The part of `CareModel` that verification uses."""

    @property
    def query_encoder(self) -> Encoder:
        """The encoder of the queries that have to find known documents."""


@dataclass(frozen=True, slots=True)
class VerifySettings:
    """What counts as right."""

    sample: int = 64
    """Number of points to encode again."""
    least_cosine: float = 0.999
    """Least cosine between a stored vector and the one that is made anew; other hardware rounds differently."""
    least_known: float = 0.5
    """Least fraction of sampled documents that their own opening has to find among the first ten."""


@dataclass(slots=True)
class VerifyReport:
    """What was found."""

    collection: str
    vector_name: str
    fingerprint: str
    points: int
    with_text: int
    covered: int
    """Number of points that have the vector, counted by Qdrant."""
    missing: int
    """Points that have a text, and no hash of a text that their vector was made of. Of a vector that ingestion or
    LlamaIndex made, those that have the vector are not counted: they are sampled, too."""
    unhashed: int
    """Points with a text and the vector, and without such a hash."""
    stale: int
    """Points whose text has changed since their vector was made."""
    outlived: int
    """Points whose text is gone, and whose vector is still there."""
    foreign: int
    """Points that have the vector without a text, and without the hash of one: another program wrote it."""
    elsewhere: int
    """Points without a text in the field from which the vector is made that have one in another field."""
    is_attached: bool = True
    """Whether ``care attach`` made the vector; otherwise ingestion or LlamaIndex did."""
    sampled: int = 0
    lowest_cosine: float | None = None
    known_items: float | None = None
    """Fraction of the sample that was found by its own opening, from 0 to 1."""
    compared_with: str | None = None
    """Another vector of the collection, whoever made it; ``""`` is the unnamed one."""
    overlap_at_10: float | None = None
    """Mean fraction of the ten nearest neighbours that both vectors share. A low one is no fault of either model."""
    rescoring: Rescoring | None = None
    """Of a quantised vector: what searches by the query encoder find with the recorded oversampling, or with the
    least one that is enough."""
    problems: list[str] = field(default_factory=list)
    """Empty where all is right."""


@dataclass(slots=True)
class _Census:
    """What one reading of all payloads tells."""

    points: int = 0
    with_text: int = 0
    missing: int = 0
    unhashed: int = 0
    stale: int = 0
    outlived: int = 0
    foreign: int = 0
    elsewhere: int = 0
    sample: list[tuple[PointId, Mapping[str, Any]]] = field(default_factory=list)
    """Points whose vector should be right by their hash."""
    unhashed_sample: list[tuple[PointId, Mapping[str, Any]]] = field(default_factory=list)
    """Points that have the vector, and do not say of what it was made."""


def verify_collection(
    client: QdrantClient,
    collection: str,
    model: PairModel,
    *,
    vector_name: str | None = None,
    text_field: str | None = None,
    settings: VerifySettings | None = None,
    retries: RetryPolicy | None = None,
) -> VerifyReport:
    """Count, compare hashes, encode a sample again and search for it; nothing is written.

    Args:
        client: An open Qdrant.
        collection: Name or alias.
        model: The pair that is said to have made the vectors.
        vector_name: None takes the one that the model made.
        text_field: Payload field with the text; None takes what attach took, or guesses.
        settings: What counts as right.
        retries: How often to try a call again.

    Raises:
        ContractError: Another model made the vectors.
        InputError: There is no such collection or vector, or no text in its payloads.
    """
    settings, contract = settings or VerifySettings(), model.contract()
    target = Collection(client, collection, retries).resolve()
    name = vector_name or target.schema.made_by(contract.fingerprint) or model.name
    check_contract(target.schema, name, contract)
    preflight = examine(target, name, contract, text_field)
    if preflight.is_emptied:
        return _nothing_to_check(target, name, contract.fingerprint)
    if preflight.layout is None:
        raise preflight.problems[0]
    report, sample = _count(target, name, preflight.layout, contract.fingerprint, settings)
    _check_sample(target, report, model, preflight.layout, sample)
    report.problems += _problems(report, settings)
    return report


def verify_bm25(
    client: QdrantClient,
    collection: str,
    *,
    vector_name: str | None = None,
    text_field: str | None = None,
    settings: VerifySettings | None = None,
    retries: RetryPolicy | None = None,
) -> VerifyReport:
    """Check the BM25 vectors of a collection as `verify_collection` checks those of a model; needs no model.

    Args:
        client: An open Qdrant.
        collection: Name or alias.
        vector_name: None takes the one by the analyser of this package.
        text_field: Payload field with the text; None takes what attach took, or guesses.
        settings: What counts as right.
        retries: How often to try a call again.

    Raises:
        ContractError: Another analyser, or another tool, made the vectors.
        InputError: There is no such collection or vector, or no text in its payloads.
    """
    settings, target = settings or VerifySettings(), Collection(client, collection, retries).resolve()
    name = vector_name or find_bm25(target.schema) or bm25.VECTOR_NAME
    contract = check_sparse_contract(target.schema, name, bm25.ANALYSER)
    preflight = examine(target, name, contract, text_field)
    if preflight.is_emptied:
        return _nothing_to_check(target, name, contract.fingerprint)
    if preflight.layout is None:
        raise preflight.problems[0]
    report, sample = _count(target, name, preflight.layout, contract.constants, settings)
    report.fingerprint = contract.fingerprint
    _check_terms(target, report, Bm25Vectors(contract), preflight.layout, sample)
    report.problems += _problems(report, settings)
    return report


def _nothing_to_check(target: Collection, name: str, fingerprint: str) -> VerifyReport:
    """Return the report of a collection that has the vector, and no points at the moment."""
    return VerifyReport(
        collection=target.name,
        vector_name=name,
        fingerprint=fingerprint,
        points=0,
        with_text=0,
        covered=0,
        missing=0,
        unhashed=0,
        stale=0,
        outlived=0,
        foreign=0,
        elsewhere=0,
        is_attached=name in target.schema.attached,
        problems=["the collection has no points, so nothing was checked"],
    )


def _count(
    target: Collection, name: str, layout: Layout, fingerprint: str, settings: VerifySettings
) -> tuple[VerifyReport, list[tuple[PointId, Mapping[str, Any]]]]:
    """Read all payloads; return what they say, and a sample of the points whose vector should be right."""
    is_attached = name in target.schema.attached
    census = _take_census(target, layout, name, fingerprint, settings.sample)
    report = VerifyReport(
        collection=target.name,
        vector_name=name,
        fingerprint=fingerprint,
        points=census.points,
        with_text=census.with_text,
        covered=target.count_with_vector(name),
        missing=census.missing + census.unhashed if is_attached else census.missing,
        unhashed=census.unhashed,
        stale=census.stale,
        outlived=census.outlived,
        foreign=census.foreign,
        elsewhere=census.elsewhere,
        is_attached=is_attached,
    )
    if warning := elsewhere_warning(census.points, census.elsewhere, layout.text_field):
        report.problems.append(warning)
    return report, census.sample if is_attached else census.sample + census.unhashed_sample


def _take_census(
    collection: Collection, layout: Layout, vector_name: str, fingerprint: str, sample_size: int
) -> _Census:
    """Read all payloads, and draw two samples: of points that claim to be right, and of points that claim nothing."""
    census, hashed, unhashed = _Census(), _Reservoir(sample_size), _Reservoir(sample_size)
    has_vector = models.HasVectorCondition(has_vector=vector_name)
    for where, is_there in ((models.Filter(must=[has_vector]), True), (models.Filter(must_not=[has_vector]), False)):
        for record in (record for page in collection.scroll(where=where) for record in page):
            payload = record.payload or {}
            expected = expected_hash(layout, payload, vector_name, fingerprint)
            stored = stored_hash(payload, vector_name)
            census.points += 1
            if expected is None:
                census.outlived += stored is not None and is_there
                census.foreign += stored is None and is_there
                census.elsewhere += other_text_field(layout, payload) is not None
                continue
            census.with_text += 1
            census.missing += stored is None and not is_there
            census.unhashed += stored is None and is_there
            census.stale += stored is not None and stored != expected
            if stored == expected:
                hashed.draw((record.id, payload))
            elif stored is None and is_there:
                unhashed.draw((record.id, payload))
    census.sample, census.unhashed_sample = hashed.drawn, unhashed.drawn
    return census


class _Reservoir:
    """Points of which each had the same chance to be drawn (Vitter 1985, algorithm R)."""

    def __init__(self, size: int) -> None:
        self.drawn: list[tuple[PointId, Mapping[str, Any]]] = []
        self._size, self._seen, self._chance = size, 0, random.Random(_SEED)

    def draw(self, point: tuple[PointId, Mapping[str, Any]]) -> None:
        """Draw from one more point."""
        self._seen += 1
        if len(self.drawn) < self._size:
            self.drawn.append(point)
        elif (place := self._chance.randrange(self._seen)) < self._size:
            self.drawn[place] = point


def _check_sample(
    collection: Collection,
    report: VerifyReport,
    model: PairModel,
    layout: Layout,
    sample: list[tuple[PointId, Mapping[str, Any]]],
) -> None:
    records = collection.retrieve([point_id for point_id, _ in sample], payload=False, vectors=True)
    stored = {point_id: vectors_of(record) for point_id, record in records.items()}
    pairs = [(point_id, payload) for point_id, payload in sample if report.vector_name in stored.get(point_id, {})]
    report.sampled = len(pairs)
    if len(pairs) < len(sample):
        missing = len(sample) - len(pairs)
        report.problems.append(f"{missing} of {len(sample)} sampled points name a vector that they do not have")
    if not pairs:
        return
    texts = [stored_text(layout, payload) for _, payload in pairs]
    possible = [possible_texts(layout, payload) for _, payload in pairs]
    made = iter(model.document_encoder.encode(list(chain.from_iterable(possible))))
    report.lowest_cosine = min(
        _best_cosine(stored[point_id][report.vector_name], np.stack(list(islice(made, len(texts_of_point)))))
        for (point_id, _), texts_of_point in zip(pairs, possible, strict=True)
    )
    openings = model.query_encoder.encode([text[:OPENING_CHARACTERS] for text in texts])
    found = _search(collection, report.vector_name, openings.tolist(), TOP_K)
    known = [_is_among(point_id, payload, hits, layout) for (point_id, payload), hits in zip(pairs, found, strict=True)]
    report.known_items = sum(known) / len(known)
    _check_quantization(collection, report, openings.tolist())
    _compare_neighbours(collection, report, {point_id: stored[point_id] for point_id, _ in pairs})


def _check_terms(
    collection: Collection,
    report: VerifyReport,
    maker: Bm25Vectors,
    layout: Layout,
    sample: list[tuple[PointId, Mapping[str, Any]]],
) -> None:
    """Make the BM25 vectors of a sample again, and search for its points by their own openings."""
    records = collection.retrieve([point_id for point_id, _ in sample], payload=False, vectors=True)
    stored = {point_id: vectors_of(record).get(report.vector_name) for point_id, record in records.items()}
    pairs = [(point_id, payload) for point_id, payload in sample if stored.get(point_id) is not None]
    report.sampled = len(pairs)
    if len(pairs) < len(sample):
        missing = len(sample) - len(pairs)
        report.problems.append(f"{missing} of {len(sample)} sampled points name a vector that they do not have")
    if not pairs:
        return
    report.lowest_cosine = min(
        max(_sparse_cosine(stored[point_id], made) for made in maker.make(possible_texts(layout, payload), []))
        for point_id, payload in pairs
    )
    openings = [bm25.query_vector(stored_text(layout, payload)[:OPENING_CHARACTERS]) for _, payload in pairs]
    found = _search(collection, report.vector_name, openings, TOP_K)
    known = [_is_among(point_id, payload, hits, layout) for (point_id, payload), hits in zip(pairs, found, strict=True)]
    report.known_items = sum(known) / len(known)


def _sparse_cosine(stored: Any, made: models.SparseVector) -> float:
    """Return the cosine of two sparse vectors; two empty ones are equal."""
    one = dict(zip(stored.indices, stored.values, strict=True))
    other = dict(zip(made.indices, made.values, strict=True))
    lengths = math.hypot(*one.values()) * math.hypot(*other.values())
    return (
        sum(value * other.get(index, 0.0) for index, value in one.items()) / lengths if lengths else float(one == other)
    )


def _check_quantization(collection: Collection, report: VerifyReport, queries: Sequence[Sequence[float]]) -> None:
    schema, name = collection.schema, report.vector_name
    if not is_quantized(schema, name) or not collection.limits.exact_count:  # a server that refuses exact searches
        return
    recorded = recorded_rescoring(schema, name)
    report.rescoring = measured = measure_rescoring(
        collection, name, queries, at_least=1.0 if recorded is None else recorded.oversampling
    )
    if measured.loses_too_much:
        report.problems.append(describe_loss(name, measured))
    elif recorded is None or recorded.oversampling < measured.oversampling:
        advice = (
            "none is recorded: run the command that wrote the vectors again, which measures and records it"
            if recorded is None
            else f"{recorded.oversampling:g} is recorded: search with --oversampling {measured.oversampling:g}"
        )
        report.problems.append(
            f"searches of quantised vector {name!r} need oversampling {measured.oversampling:g} to lose at most "
            f"{MAX_LOSS:.0%}, and {advice}"
        )


def _compare_neighbours(
    collection: Collection, report: VerifyReport, stored: Mapping[PointId, Mapping[str, Any]]
) -> None:
    dense = collection.schema.dense
    others = sorted(name for name, params in dense.items() if params.multivector_config is None)
    other = next((name for name in others if name != report.vector_name), None)
    both = {point_id: found for point_id, found in stored.items() if other is not None and other in found}
    if other is None or not both:
        return
    neighbours = [
        _search(collection, name, [vectors[name] for vectors in both.values()], TOP_K + 1)
        for name in (report.vector_name, other)
    ]
    shared = [
        len({hit.id for hit in new} & {hit.id for hit in old} - {point_id})
        for point_id, new, old in zip(both, *neighbours, strict=True)
    ]
    report.compared_with, report.overlap_at_10 = other, sum(shared) / (len(shared) * TOP_K)


def _problems(report: VerifyReport, settings: VerifySettings) -> list[str]:
    problems, unhashed = [], report.unhashed if report.is_attached else 0
    if report.missing or report.stale or report.outlived:
        nameless = f", {unhashed} one that does not say of which text it was made" if unhashed else ""
        problems.append(
            f"{report.missing - unhashed} points have no vector{nameless}, {report.stale} one of an earlier text and "
            f"{report.outlived} one of a text that is gone; finish, with the same --model and --path/--url: "
            f"care attach {report.collection} --vector-name {report.vector_name}"
        )
    if report.foreign:
        problems.append(
            f"{report.foreign} points without a text have the vector, and searches find them: a program that is not "
            "of this package wrote it. Delete their vector there, or give them a text"
        )
    if report.covered < report.with_text - report.missing:
        problems.append(f"{report.covered} points have the vector, and {report.with_text - report.missing} say so")
    if report.lowest_cosine is not None and report.lowest_cosine < settings.least_cosine:
        problems.append(
            f"a stored vector has cosine {report.lowest_cosine:.4f} to the one made anew (at least "
            f"{settings.least_cosine} expected): it was altered, or made by another model or another build of it"
        )
    if report.known_items is not None and report.known_items < settings.least_known:
        problems.append(
            f"only {report.known_items:.0%} of the sample were found by their own opening (at least "
            f"{settings.least_known:.0%} expected): the query encoder does not fit the vectors"
        )
    return problems


def _best_cosine(stored: Sequence[float], made: Vectors) -> float:
    """Return the highest cosine of a stored vector with those of the texts that it may have been made of."""
    row = np.asarray(stored, dtype=np.float32)
    return float((made @ row / (np.linalg.norm(row) * np.linalg.norm(made, axis=1))).max())


def _is_among(
    point_id: PointId, payload: Mapping[str, Any], hits: Sequence[models.ScoredPoint], layout: Layout
) -> bool:
    """Return whether a point, or another one with the same text, is among the hits."""
    text = layout.of_point(payload).text(payload)
    others = (hit.payload or {} for hit in hits)
    return point_id in {hit.id for hit in hits} or any(layout.of_point(one).find_text(one) == text for one in others)


def _search(
    collection: Collection, vector_name: str, vectors: Sequence[Any], limit: int
) -> list[list[models.ScoredPoint]]:
    limit = min(limit, collection.limits.query or limit)
    requests = [
        models.QueryRequest(query=vector, using=vector_name or None, limit=limit, with_payload=True)
        for vector in vectors
    ]
    return collection.search("searching for the sample", requests)
