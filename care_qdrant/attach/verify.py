"""Whether the vectors of a collection are what they say: made of the present texts, by this model, and found by it."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
from qdrant_client import QdrantClient, models

from care_qdrant.attach.preflight import examine
from care_qdrant.attach.stored_texts import read_payloads, stored_hash, stored_text, wanted_hash
from care_qdrant.encoders import Encoder
from care_qdrant.ingestion.settings import DocumentModel
from care_qdrant.store.contracts import check_contract, dense_vectors, read_contracts
from care_qdrant.store.inventory import count_with_vector
from care_qdrant.store.layout import Layout
from care_qdrant.store.point_equality import vectors_of
from care_qdrant.store.points import PointId
from care_qdrant.store.retry import Collection, RetryPolicy
from care_qdrant.store.schema import resolve
from care_qdrant.types import Vectors

TOP_K = 10
OPENING_CHARACTERS = 40
"""Of a text: the query that has to find it."""
_SEED = 20260413


class PairModel(DocumentModel, Protocol):
    """The part of `CareModel` that verification uses."""

    @property
    def query_encoder(self) -> Encoder:
        """Finds the known items."""


@dataclass(frozen=True, slots=True)
class VerifySettings:
    """What counts as right."""

    sample: int = 64
    """Points that are encoded again."""
    least_cosine: float = 0.999
    """Between a stored vector and the one that is made anew; other hardware rounds differently."""
    least_known: float = 0.5
    """Share of sampled documents that their own opening has to find among the first ten."""


@dataclass(slots=True)
class VerifyReport:
    """What was found."""

    collection: str
    vector_name: str
    fingerprint: str
    points: int
    with_text: int
    covered: int
    """Points that have the vector, counted by Qdrant."""
    missing: int
    """Points that have a text and name no vector made of any."""
    stale: int
    """Points whose text has changed since their vector was made."""
    outlived: int
    """Points whose text is gone, and whose vector is still there."""
    sampled: int = 0
    lowest_cosine: float | None = None
    known_items: float | None = None
    """Share of the sample that its own opening found."""
    compared_with: str | None = None
    """The vector beside ours, of whoever made it; ``""`` is the unnamed one."""
    overlap_at_10: float | None = None
    """Of the ten nearest neighbours by both vectors. Low is no fault: another model sees other neighbours."""
    problems: list[str] = field(default_factory=list)
    """Empty where all is right."""


@dataclass(slots=True)
class _Census:
    """What one reading of all payloads tells."""

    points: int = 0
    with_text: int = 0
    missing: int = 0
    stale: int = 0
    outlived: int = 0
    sample: list[tuple[PointId, Mapping[str, Any]]] = field(default_factory=list)
    """Points whose vector should be right."""


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
        text_field: Where in a payload the text is; None takes what attach took, or guesses.
        settings: What counts as right.
        retries: How patient to be with a server.

    Raises:
        ContractError: another model made the vectors.
        InputError: there is no such collection or vector, or no text in its payloads.
    """
    settings, contract = settings or VerifySettings(), model.contract()
    alias = Collection(client, collection, retries)
    link = Collection(client, alias.call("looking it up", lambda: resolve(client, collection)), retries)
    name = vector_name or _made_by(link, contract.fingerprint) or model.name
    link.call("reading its contract", lambda: check_contract(client, link.collection, name, contract))
    preflight = examine(link, name, contract, text_field)
    if preflight.layout is None:
        raise preflight.problems[0]
    census = _take_census(link, preflight.layout, name, contract.fingerprint, settings.sample)
    report = VerifyReport(
        collection=link.collection,
        vector_name=name,
        fingerprint=contract.fingerprint,
        points=census.points,
        with_text=census.with_text,
        covered=link.call("counting", lambda: count_with_vector(client, link.collection, name)),
        missing=census.missing,
        stale=census.stale,
        outlived=census.outlived,
    )
    _check_sample(link, report, model, preflight.layout, census.sample)
    report.problems += _problems(report, settings)
    return report


def _made_by(link: Collection, fingerprint: str) -> str | None:
    contracts = link.call("reading its contracts", lambda: read_contracts(link.client, link.collection))
    return next((name for name, found in contracts.items() if found.fingerprint == fingerprint), None)


def _take_census(link: Collection, layout: Layout, vector_name: str, fingerprint: str, size: int) -> _Census:
    """Read all payloads; the sample is uniform over the points that claim to be right (reservoir sampling)."""
    census, right, chance = _Census(), 0, random.Random(_SEED)
    for records in read_payloads(link):
        for record in records:
            payload = record.payload or {}
            wanted, stored = wanted_hash(layout, payload, fingerprint), stored_hash(payload, vector_name)
            census.points += 1
            census.with_text += wanted is not None
            census.missing += wanted is not None and stored is None
            census.stale += wanted is not None and stored is not None and stored != wanted
            census.outlived += wanted is None and stored is not None
            if wanted is None or stored != wanted:
                continue
            right += 1
            if len(census.sample) < size:
                census.sample.append((record.id, payload))
            elif (place := chance.randrange(right)) < size:
                census.sample[place] = (record.id, payload)
    return census


def _check_sample(
    link: Collection,
    report: VerifyReport,
    model: PairModel,
    layout: Layout,
    sample: list[tuple[PointId, Mapping[str, Any]]],
) -> None:
    ids = [point_id for point_id, _ in sample]
    records = link.call("reading the sample", lambda: _retrieve(link, ids))
    stored = {record.id: vectors_of(record) for record in records}
    pairs = [(point_id, payload) for point_id, payload in sample if report.vector_name in stored.get(point_id, {})]
    report.sampled = len(pairs)
    if len(pairs) < len(sample):
        missing = len(sample) - len(pairs)
        report.problems.append(f"{missing} of {len(sample)} sampled points name a vector that they do not have")
    if not pairs:
        return
    texts = [stored_text(layout, payload) for _, payload in pairs]
    mine = [stored[point_id][report.vector_name] for point_id, _ in pairs]
    report.lowest_cosine = _lowest_cosine(mine, model.document_encoder.encode(texts))
    openings = model.query_encoder.encode([text[:OPENING_CHARACTERS] for text in texts])
    found = _search(link, report.vector_name, openings.tolist(), TOP_K)
    known = [_is_among(point_id, payload, hits, layout) for (point_id, payload), hits in zip(pairs, found, strict=True)]
    report.known_items = sum(known) / len(known)
    _compare_neighbours(link, report, {point_id: stored[point_id] for point_id, _ in pairs})


def _compare_neighbours(link: Collection, report: VerifyReport, stored: Mapping[PointId, Mapping[str, Any]]) -> None:
    vectors = link.call("reading its vectors", lambda: dense_vectors(link.client, link.collection))
    others = sorted(name for name, params in vectors.items() if params.multivector_config is None)
    other = next((name for name in others if name != report.vector_name), None)
    both = {point_id: found for point_id, found in stored.items() if other is not None and other in found}
    if other is None or not both:
        return
    ids = list(both)
    neighbours = [
        _search(link, name, [both[point_id][name] for point_id in ids], TOP_K + 1)
        for name in (report.vector_name, other)
    ]
    shared = [
        len({hit.id for hit in new[: TOP_K + 1]} & {hit.id for hit in old} - {point_id})
        for point_id, new, old in zip(ids, *neighbours, strict=True)
    ]
    report.compared_with, report.overlap_at_10 = other, sum(shared) / (len(shared) * TOP_K)


def _problems(report: VerifyReport, settings: VerifySettings) -> list[str]:
    problems = []
    if report.missing or report.stale or report.outlived:
        problems.append(
            f"{report.missing} points have no vector, {report.stale} one of an earlier text and {report.outlived} one "
            "of a text that is gone; finish, with the same --model and --path/--url: "
            f"care attach {report.collection} --vector-name {report.vector_name}"
        )
    if report.covered < report.with_text - report.missing:
        problems.append(f"{report.covered} points have the vector, and {report.with_text - report.missing} say so")
    if report.lowest_cosine is not None and report.lowest_cosine < settings.least_cosine:
        problems.append(
            f"a stored vector has cosine {report.lowest_cosine:.4f} to the one made anew (at least "
            f"{settings.least_cosine} expected): it was altered, or made by another build of the model"
        )
    if report.known_items is not None and report.known_items < settings.least_known:
        problems.append(
            f"only {report.known_items:.0%} of the sample were found by their own opening (at least "
            f"{settings.least_known:.0%} expected): the query encoder does not fit the vectors"
        )
    return problems


def _lowest_cosine(stored: Sequence[Sequence[float]], made: Vectors) -> float:
    rows = np.asarray(stored, dtype=np.float32)
    products = (rows * made).sum(axis=1) / (np.linalg.norm(rows, axis=1) * np.linalg.norm(made, axis=1))
    return float(products.min())


def _is_among(
    point_id: PointId, payload: Mapping[str, Any], hits: Sequence[models.ScoredPoint], layout: Layout
) -> bool:
    """Say whether a point, or another one with the same text, is among the hits."""
    text = layout.text(payload)
    return any(hit.id == point_id or layout.find_text(hit.payload or {}) == text for hit in hits)


def _search(link: Collection, name: str, vectors: Sequence[Any], limit: int) -> list[list[models.ScoredPoint]]:
    requests = [
        models.QueryRequest(query=vector, using=name or None, limit=limit, with_payload=True) for vector in vectors
    ]
    search: Callable[[], list[models.QueryResponse]] = partial(
        link.client.query_batch_points, link.collection, requests
    )
    return [response.points for response in link.call("searching for the sample", search)]


def _retrieve(link: Collection, ids: list[PointId]) -> list[models.Record]:
    return link.client.retrieve(link.collection, ids, with_payload=False, with_vectors=True)
