"""Re-encodes sampled points, and searches for the points by the beginnings of their texts."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, compress, islice
from typing import Any, Protocol, TypeGuard

import numpy as np
from qdrant_client import models

from care_qdrant.contracts.contract import SparseContract, VectorContract, sparse_vector
from care_qdrant.contracts.layouts import Layout
from care_qdrant.contracts.learned import stored_vector
from care_qdrant.contracts.stand_in import stand_ins
from care_qdrant.encoders import Encoder
from care_qdrant.encoders.agreement import cosines
from care_qdrant.encoders.terms import bm25
from care_qdrant.encoders.usable import encode_usable
from care_qdrant.errors import counted
from care_qdrant.ingestion.settings import DocumentModel
from care_qdrant.model.care_model import CareModel
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.point_equality import vectors_of
from care_qdrant.qdrant.readable import PointId
from care_qdrant.search.tuning import (
    MAX_LOSS,
    TOP_K,
    describe_loss,
    is_quantized,
    measure_recall,
    measure_rescoring,
    recorded_rescoring,
)
from care_qdrant.vectors.points import possible_texts, stored_text
from care_qdrant.vectors.verify_counts import Sample
from care_qdrant.vectors.verify_report import VerifyReport

OPENING_CHARACTERS = 40
"""Length of the beginning of a text with which a search must find the text."""


class TwoSidedModel(DocumentModel, Protocol):
    """The part of `CareModel` that verification uses."""

    @property
    def query_encoder(self) -> Encoder:
        """The encoder of the queries that must find known documents."""


def is_learned(model: TwoSidedModel) -> TypeGuard[CareModel]:
    """Return whether a model was learned from stored vectors and encodes queries only."""
    return isinstance(model, CareModel) and not model.encodes_documents


def check_sample(
    collection: Collection,
    report: VerifyReport,
    model: TwoSidedModel | None,
    contract: VectorContract | SparseContract,
    layout: Layout,
    sample: Sample,
) -> None:
    """Fill in the findings of a report on sampled points; without its model, a dense vector is only inspected."""
    name = report.vector_name
    pairs: list[tuple[PointId, Mapping[str, Any]]] = []
    stored: list[Any] = []
    for part in collection.parts():
        drawn = [(point_id, payload) for shard_key, point_id, payload in sample if shard_key == part.shard_key]
        records = part.retrieve([point_id for point_id, _ in drawn], payload=False, vectors=True)
        vectors = {point_id: vectors_of(record) for point_id, record in records.items()}
        there = {point_id: own[name] for point_id, own in vectors.items() if name in own}
        pairs += [(point_id, payload) for point_id, payload in drawn if point_id in there]
        stored += [there[point_id] for point_id, _ in drawn if point_id in there]
    if isinstance(contract, VectorContract):
        usable = [stored_vector(vector, name) is not None for vector in stored]
        unusable = [point_id for (point_id, _), is_usable in zip(pairs, usable, strict=True) if not is_usable]
        if unusable:
            report.problems.append(
                f"{counted(len(unusable), 'sampled point', 'have', of=len(pairs))} (such as {unusable[0]!r}) a vector "
                "that is zero or holds NaN, which no search finds: delete it, and run the command that wrote it again"
            )
        report.recall_at_10 = measure_recall(collection, name, list(compress(stored, usable)))
    if not pairs or (model is None and isinstance(contract, VectorContract)):
        return
    possible = [possible_texts(layout, payload) for _, payload in pairs]
    encoder: Encoder | None = None
    is_own = [True] * len(pairs)
    if model is not None and is_learned(model):  # it can only re-encode its own vectors
        is_own = [contract.fingerprint in stand_ins(payload) for _, payload in pairs]
        encoder = model.standing_in().document_encoder if any(is_own) else None
    elif model is not None:
        encoder = model.document_encoder
    report.sampled = sum(is_own)
    if any(is_own):
        highest = list(_cosines(encoder, contract, list(compress(stored, is_own)), list(compress(possible, is_own))))
        report.lowest_cosine = round(float(np.min(np.nan_to_num(highest))), 6)  # NaN counts as a vector without length
    openings = [stored_text(layout, payload)[:OPENING_CHARACTERS] for _, payload in pairs]
    asked = [(*pair, query) for pair, query in zip(pairs, _queries(model, contract, openings), strict=True)]
    asked = [each for each in asked if each[2] is not None]
    queries = [query for _, _, query in asked]
    limit, using = collection.limits.top_k(TOP_K), name or None
    requests = [models.QueryRequest(query=query, using=using, limit=limit, with_payload=True) for query in queries]
    answers = collection.search("searching for the sample", requests)
    known = [
        _is_among(point_id, payload, hits, layout) for (point_id, payload, _), hits in zip(asked, answers, strict=True)
    ]
    report.known_items = sum(known) / len(known) if known else None
    if queries and name in collection.schema.dense:
        _check_quantization(collection, report, queries)


def _queries(
    model: TwoSidedModel | None, contract: VectorContract | SparseContract, openings: Sequence[str]
) -> list[Any]:
    """Return the query of each opening; None for one that the model does not read, such as a row of odd characters."""
    if model is None and isinstance(contract, SparseContract):
        terms = [bm25.query_vector(text, contract.analyser) for text in openings]
        return [sparse_vector(each) if each.indices else None for each in terms]
    assert model is not None
    return [None if row is None else row.tolist() for row in encode_usable(model.query_encoder.encode, openings)]


def _cosines(
    encoder: Encoder | None,
    contract: VectorContract | SparseContract,
    stored: Sequence[Any],
    possible: Sequence[Sequence[str]],
) -> Iterator[float]:
    """Yield each stored vector's highest cosine with the vectors of the texts from which it may have been made."""
    if isinstance(contract, SparseContract):
        for vector, texts in zip(stored, possible, strict=True):
            yield max(_sparse_cosine(vector, contract.vector(text)) for text in texts)
        return
    assert encoder is not None
    made = iter(encode_usable(encoder.encode, list(chain.from_iterable(possible))))
    for vector, texts in zip(stored, possible, strict=True):
        rows = [row for row in islice(made, len(texts)) if row is not None]
        values = cosines(np.array([vector] * len(rows), dtype=np.float32), np.stack(rows)) if rows else np.zeros(1)
        yield float(values.max())


def _sparse_cosine(stored: Any, made: models.SparseVector) -> float:
    """Return the cosine of two sparse vectors; two empty ones are equal."""
    before = dict(zip(stored.indices, stored.values, strict=True))
    now = dict(zip(made.indices, made.values, strict=True))
    lengths = math.hypot(*before.values()) * math.hypot(*now.values())
    if not lengths:
        return float(before == now)
    return float(sum(value * now.get(index, 0.0) for index, value in before.items()) / lengths)


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
        known = "none is recorded" if recorded is None else f"{recorded.oversampling:g} is recorded"
        report.problems.append(
            f"searches of quantised vector {name!r} need oversampling {measured.oversampling:g} to lose at most "
            f"{MAX_LOSS:.0%}, and {known}: run the command that wrote the vectors again, which measures and records it"
        )


def _is_among(
    point_id: PointId, payload: Mapping[str, Any], hits: Sequence[models.ScoredPoint], layout: Layout
) -> bool:
    """Return whether a point, or another one with the same text, is among the hits."""
    text = layout.of_point(payload).text(payload)
    if point_id in {hit.id for hit in hits}:
        return True
    payloads = (hit.payload or {} for hit in hits)
    return any(layout.of_point(other).find_text(other) == text for other in payloads)
