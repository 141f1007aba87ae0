"""Checks the vectors of a collection: made of the present texts, by this model, and found by its query encoder."""

import heapq
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, compress, islice
from operator import itemgetter
from typing import Any, Protocol, TypeGuard

import numpy as np
from qdrant_client import models

from care_qdrant.contracts.contract import SparseContract, VectorContract
from care_qdrant.contracts.layouts import Layout
from care_qdrant.contracts.payload import stored_hash
from care_qdrant.contracts.stand_in import stand_ins
from care_qdrant.encoders import Encoder
from care_qdrant.encoders.agreement import LEAST_HALF_PRECISION, cosines
from care_qdrant.encoders.terms import bm25
from care_qdrant.errors import ContractError, InputError, counted, next_command
from care_qdrant.ingestion.settings import DocumentModel, require_fraction
from care_qdrant.model.care_model import CareModel
from care_qdrant.qdrant.checks import check_contract, check_sparse_contract
from care_qdrant.qdrant.collection import Collection, PointId
from care_qdrant.qdrant.point_equality import vectors_of
from care_qdrant.qdrant.public import accepts_client
from care_qdrant.qdrant.schema import CollectionSchema
from care_qdrant.qdrant.slices import Note, Slice, place_in_order, read_slices, slices_for_readers, stateless
from care_qdrant.search.resolve import find_bm25
from care_qdrant.search.tuning import (
    MAX_LOSS,
    TOP_K,
    Rescoring,
    describe_loss,
    is_quantized,
    measure_rescoring,
    recorded_rescoring,
)
from care_qdrant.vectors.points import (
    MOST_UNREADABLE,
    expected_hash,
    is_unreadable,
    other_field_warning,
    other_text_field,
    possible_texts,
    stored_text,
    unreadable_warning,
)
from care_qdrant.vectors.preflight import examine

OPENING_CHARACTERS = 40
"""Length of the beginning of a text that, as a query, has to find it."""
_SEED = 20260413


class TwoSidedModel(DocumentModel, Protocol):
    """The part of `CareModel` that verification uses."""

    @property
    def query_encoder(self) -> Encoder:
        """The encoder of the queries that have to find known documents."""


@dataclass(frozen=True, slots=True)
class VerifySettings:
    """Limits within which a vector counts as right."""

    sample: int = 64
    """Number of points to encode again."""
    least_cosine: float = LEAST_HALF_PRECISION
    """Least cosine between a stored vector and the one that is made anew; other hardware rounds differently."""
    least_known: float = 0.5
    """Least fraction of sampled documents that their own opening has to find among the first ten."""

    def __post_init__(self) -> None:
        if self.sample < 0:
            raise InputError(f"sample is {self.sample}; expected 0 points or more")
        if not -1 <= self.least_cosine <= 1:
            raise InputError(f"least_cosine is {self.least_cosine}; expected a cosine from -1 to 1")
        require_fraction("least_known", self.least_known)


@dataclass(slots=True)
class VerifyReport:
    """Findings of a verification."""

    collection: str
    vector_name: str
    fingerprint: str
    is_attached: bool = True
    """Whether ``care attach`` made the vector; otherwise ingestion or LlamaIndex did."""
    points: int = 0
    with_text: int = 0
    covered: int = 0
    """Number of points that have the vector, counted by Qdrant."""
    without_vector: int = 0
    """Points that have a text, and no hash of a text that their vector was made of. Of a vector that ingestion or
    LlamaIndex made, those that have the vector are not counted: they are sampled, too."""
    without_hash: int = 0
    """Points with a text and the vector, and without such a hash."""
    outdated: int = 0
    """Points whose text has changed since their vector was made."""
    text_gone: int = 0
    """Points whose text is gone, and whose vector is still there."""
    stand_ins: int = 0
    """Points whose vector a learned query encoder made in place of the vector's model."""
    written_by_others: int = 0
    """Points that have the vector without a text, and without the hash of one: another program wrote it."""
    unreadable: list[PointId] = field(default_factory=list)
    """Ids of the first points whose text holds half a surrogate pair, so that no encoder reads it."""
    in_other_field: int = 0
    """Points without a text in the field from which the vector is made that have one in another field."""
    sampled: int = 0
    """Points that were encoded again; 0 where another model than the given one made the vector."""
    lowest_cosine: float | None = None
    known_items: float | None = field(default=None, metadata={"unit": "fraction"})
    """Fraction of the sample that was found by its own opening, from 0 to 1."""
    rescoring: Rescoring | None = None
    """Quality of searches of a quantised vector by the query encoder, with the recorded oversampling, or with the
    least one that is enough."""
    problems: list[str] = field(default_factory=list)
    """Faults that were found; empty where all is right, also with `others`."""
    others: "list[VerifyReport]" = field(default_factory=list)
    """Reports of the other vectors that this package made; empty where one vector was asked for."""


_Point = tuple[PointId, Mapping[str, Any]]
"""Point of a sample: its id and its payload."""
_Sample = list[_Point]
_Drawn = tuple[bytes, PointId, Mapping[str, Any]]
"""Point that may be of the sample, after its place in the random order of all points."""


@accepts_client
def verify_collection(
    collection: Collection,
    model: TwoSidedModel | None,
    *,
    vector_name: str | None = None,
    text_field: str | None = None,
    settings: VerifySettings | None = None,
) -> VerifyReport:
    """Count, compare hashes, encode a sample again and search for it; nothing is written.

    Args:
        collection: An open Qdrant and a name: the collection, or an alias of it. A `Collection` with several readers is
            counted by slices, in as many processes.
        model: The model that is said to have made the vectors; None for BM25.
        vector_name: None takes the one that the model made, and then all others that this package made: BM25 in the
            same way, those of other models without encoding a sample. Without a model it takes BM25 alone.
        text_field: Payload field with the text; None takes what attach took, or guesses.
        settings: Limits within which a vector counts as right.

    Raises:
        ContractError: Another model made the vectors.
        InputError: There is no such collection or vector, or no text in its payloads.
    """
    settings, target = settings or VerifySettings(), collection.whole()
    schema = target.schema
    if model is None:
        found = find_bm25(schema) or bm25.VECTOR_NAME
        name = found if vector_name is None else vector_name
        report = _verify(target, name, check_sparse_contract(schema, name), None, text_field, settings)
    else:
        contract = model.contract()
        name = _vector_of(schema, model.name, contract) if vector_name is None else vector_name
        check_contract(schema, name, contract)
        report = _verify(target, name, contract, model, text_field, settings)
    if model is not None and vector_name is None:
        report.others = [_verify_other(target, other, model, settings) for other in _others(schema, name)]
        report.problems += [f"vector {each.vector_name!r}: {said}" for each in report.others for said in each.problems]
    verified = [name] if vector_name is not None else [name, *schema.contracts]
    report.problems += dict.fromkeys(said for each in verified if (said := schema.unfinished_of(each)) is not None)
    return report


def _vector_of(schema: CollectionSchema, model: str, contract: VectorContract) -> str:
    """Return the vector of a model that readers search who name none."""
    made = schema.all_made_by(contract.fingerprint)
    return next((name for name in made if not schema.is_beside(name)), model)


def _others(schema: CollectionSchema, name: str) -> list[str]:
    """Return the other vectors that this package made, or says that it made."""
    return [other for other in schema.contracts if other != name and schema.has_vector(other)]


def _verify_other(collection: Collection, name: str, model: TwoSidedModel, settings: VerifySettings) -> VerifyReport:
    """Verify a vector beside that of the model as far as that goes: nothing of it stops the report."""
    contract = collection.schema.contracts[name]
    report = VerifyReport(collection.name, name, contract.fingerprint, name in collection.schema.attached)
    try:
        if isinstance(contract, VectorContract):
            is_same = contract.fingerprint == model.contract().fingerprint
            check_contract(collection.schema, name, contract)
            return _verify(collection, name, contract, model if is_same else None, None, settings)
        return _verify(collection, name, check_sparse_contract(collection.schema, name), None, None, settings)
    except (ContractError, InputError) as error:
        report.problems.append(str(error))
        return report


def _verify(
    target: Collection,
    name: str,
    contract: VectorContract | SparseContract,
    model: TwoSidedModel | None,
    text_field: str | None,
    settings: VerifySettings,
) -> VerifyReport:
    """Verify one vector, whose contract is the right one; without its model, no sample is encoded."""
    report = VerifyReport(target.name, name, contract.fingerprint, name in target.schema.attached)
    preflight = examine(target, name, contract, text_field)
    if preflight.is_emptied:
        report.problems.append("the collection has no points, so nothing was checked")
        return report
    if preflight.layout is None:
        raise preflight.problems[0]
    sample = _count(target, report, preflight.layout, _makers(target.schema, name, contract), settings.sample)
    if warning := other_field_warning(report.points, report.in_other_field, preflight.layout.text_field):
        report.problems.append(warning)
    if warning := unreadable_warning(report.unreadable):
        report.problems.append(warning)
    if model is not None or isinstance(contract, SparseContract):
        _check_sample(target, report, model, contract, preflight.layout, sample)
    report.problems += _problems(report, settings, _finishing(report, contract, model))
    if report.stand_ins and model is not None and not _is_learned(model):
        report.problems.append(
            f"{counted(report.stand_ins, 'point', 'have')} a vector of a learned query encoder that stood in for this "
            "model: ingest their documents again, without --stand-in"
        )
    return report


def _is_learned(model: TwoSidedModel) -> TypeGuard[CareModel]:
    """Return whether a model was learned from stored vectors and encodes queries only."""
    return isinstance(model, CareModel) and not model.encodes_documents


def _makers(schema: CollectionSchema, name: str, contract: VectorContract | SparseContract) -> list[str]:
    """Return what the hashes of a vector hold beside the text: its model, or also the one that it was learned from."""
    made = schema.contracts.get(name) if name in schema.learned_by(contract.fingerprint) else None
    return [contract.constants, *([made.constants] if isinstance(made, VectorContract) else [])]


@dataclass(slots=True)
class _Counts:
    """Numbers and samples of some points, by what their payloads say."""

    counts: Counter[str] = field(default_factory=Counter)
    """Numbers of points, by the field of the report."""
    unreadable: list[PointId] = field(default_factory=list)
    claims: list[_Drawn] = field(default_factory=list)
    """Some of the points that say that their vector is of their text."""
    silent: list[_Drawn] = field(default_factory=list)
    """Some of the points that have the vector and do not say of which text it was made."""

    def add(self, other: "_Counts", size: int) -> None:
        """Add the counts of other points."""
        self.counts.update(other.counts)
        self.unreadable = [*self.unreadable, *other.unreadable][:MOST_UNREADABLE]
        self.claims, self.silent = _first(self.claims + other.claims, size), _first(self.silent + other.silent, size)


def _first(points: list[_Drawn], size: int) -> list[_Drawn]:
    """Return the first points in the random order of all points."""
    return heapq.nsmallest(size, points, key=itemgetter(0))


@dataclass(frozen=True, slots=True)
class _Counting:
    """The question that counting answers: which points have the vector, of which text."""

    layout: Layout
    vector_name: str
    makers: Sequence[str]
    """Strings that the hashes of the vector hold beside the text, as `_makers` returns them."""
    learned: frozenset[str]
    """Fingerprints of the learned encoders that stood in for the vector's model."""
    is_attached: bool
    size: int
    """Number of points to draw."""

    def read_slice(self, collection: Collection, slice_: Slice, note: Note) -> _Counts:
        """Count what the payloads of one slice say."""
        found = _Counts()
        of_slice: list[models.Condition] = [] if slice_.where is None else [slice_.where]
        has_vector = models.HasVectorCondition(has_vector=self.vector_name)
        with_vector = models.Filter(must=[has_vector, *of_slice])
        for where, is_there in (with_vector, True), (models.Filter(must_not=[has_vector], must=of_slice), False):
            for page in collection.scroll(where=where):
                found.add(self._count(page, is_there), self.size)
                note(len(page))
        return found

    def _count(self, page: Sequence[models.Record], is_there: bool) -> _Counts:
        layout, found = self.layout, _Counts()
        counts = found.counts
        for record in page:
            payload = record.payload or {}
            stored = stored_hash(payload, self.vector_name)
            standing_in = self.learned.intersection(stand_ins(payload))
            made_by = (*self.makers, *standing_in)
            expected = [expected_hash(layout, payload, self.vector_name, each) for each in made_by]
            counts["points"] += 1
            if expected[0] is None:
                if is_unreadable(layout, payload):
                    found.unreadable.append(record.id)
                counts["text_gone"] += stored is not None and is_there
                counts["written_by_others"] += stored is None and is_there
                counts["in_other_field"] += other_text_field(layout, payload) is not None
                continue
            counts["with_text"] += 1
            counts["without_vector"] += stored is None and (self.is_attached or not is_there)
            counts["without_hash"] += stored is None and is_there
            counts["outdated"] += stored is not None and stored not in expected
            counts["stand_ins"] += bool(standing_in) and stored in expected
            if stored in expected[: len(self.makers)] or (stored is None and is_there):
                drawn = found.silent if stored is None else found.claims
                drawn.append((place_in_order(record.id, _SEED), record.id, payload))
        return found


def _count(collection: Collection, report: VerifyReport, layout: Layout, makers: Sequence[str], size: int) -> _Sample:
    """Count what all payloads say; return a sample of the points whose vector should be right."""
    learned = frozenset(collection.schema.stand_ins.get(report.vector_name, ()))
    counting = _Counting(layout, report.vector_name, makers, learned, report.is_attached, size)
    slices = slices_for_readers(collection)
    total = _Counts()
    for found in read_slices(collection, partial(stateless, counting.read_slice), slices):
        total.add(found, size)
    for name, number in total.counts.items():
        setattr(report, name, number)
    report.unreadable = total.unreadable
    report.covered = collection.count_with_vector(report.vector_name)
    drawn = total.claims if report.is_attached else total.claims + total.silent
    return [(point_id, payload) for _, point_id, payload in drawn]


def _check_sample(
    collection: Collection,
    report: VerifyReport,
    model: TwoSidedModel | None,
    contract: VectorContract | SparseContract,
    layout: Layout,
    sample: _Sample,
) -> None:
    """Make the vectors of a sample again, and search for its points by their own openings."""
    name = report.vector_name
    records = collection.retrieve([point_id for point_id, _ in sample], payload=False, vectors=True)
    stored = {point_id: vectors_of(record) for point_id, record in records.items()}
    pairs = [(point_id, payload) for point_id, payload in sample if name in stored.get(point_id, {})]
    if lost := len(sample) - len(pairs):
        report.problems.append(f"{counted(lost, 'sampled point', 'name', of=len(sample))} a vector without having it")
    if not pairs:
        return
    possible = [possible_texts(layout, payload) for _, payload in pairs]
    encoder: Encoder | None = None
    own = [True] * len(pairs)
    if model is not None and _is_learned(model):  # it can make no vectors but its own
        own = [contract.fingerprint in stand_ins(payload) for _, payload in pairs]
        encoder = model.standing_in().document_encoder if any(own) else None
    elif model is not None:
        encoder = model.document_encoder
    report.sampled = sum(own)
    if any(own):
        again = [stored[point_id][name] for point_id, _ in compress(pairs, own)]
        lowest = np.min(list(_cosines(encoder, contract, again, list(compress(possible, own)))))
        report.lowest_cosine = round(
            float(np.nan_to_num(lowest)), 6
        )  # of a vector that holds NaN, as of one without a length
    openings = [stored_text(layout, payload)[:OPENING_CHARACTERS] for _, payload in pairs]
    queries: list[Any] = (
        list(map(bm25.query_vector, openings)) if model is None else model.query_encoder.encode(openings).tolist()
    )
    found = _search(collection, name, queries)
    known = [_is_among(point_id, payload, hits, layout) for (point_id, payload), hits in zip(pairs, found, strict=True)]
    report.known_items = sum(known) / len(known)
    if name in collection.schema.dense:
        _check_quantization(collection, report, queries)


def _cosines(
    encoder: Encoder | None,
    contract: VectorContract | SparseContract,
    stored: Sequence[Any],
    possible: Sequence[Sequence[str]],
) -> Iterator[float]:
    """Return the highest cosine of each stored vector with those of the texts that it may be of."""
    if isinstance(contract, SparseContract):
        for vector, texts in zip(stored, possible, strict=True):
            yield max(_sparse_cosine(vector, contract.vector(text)) for text in texts)
        return
    assert encoder is not None
    made = iter(encoder.encode(list(chain.from_iterable(possible))))
    for vector, texts in zip(stored, possible, strict=True):
        rows = np.stack(list(islice(made, len(texts))))
        yield float(cosines(np.tile(np.asarray(vector, dtype=np.float32), (len(rows), 1)), rows).max())


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
        known = "none is recorded" if recorded is None else f"{recorded.oversampling:g} is recorded"
        report.problems.append(
            f"searches of quantised vector {name!r} need oversampling {measured.oversampling:g} to lose at most "
            f"{MAX_LOSS:.0%}, and {known}: run the command that wrote the vectors again, which measures and records it"
        )


def _finishing(report: VerifyReport, contract: VectorContract | SparseContract, model: TwoSidedModel | None) -> str:
    """Return the command that makes the vectors which are missing, by the model that made the others."""
    words = f"care attach {report.collection} --vector-name {report.vector_name}"
    if isinstance(contract, VectorContract) and model is None:
        return f"{next_command(words, model=False)}, and with --model {contract.model!r}, which made the others"
    return next_command(words, model=model is not None)


def _problems(report: VerifyReport, settings: VerifySettings, finishing: str) -> list[str]:
    problems, without_hash = [], report.without_hash if report.is_attached else 0
    if report.without_vector or report.outdated or report.text_gone:
        nameless = f", {without_hash} one that does not say of which text it was made" if without_hash else ""
        problems.append(
            f"{counted(report.without_vector - without_hash, 'point', 'have')} no vector{nameless}, {report.outdated} "
            f"one of an earlier text and {report.text_gone} one of a text that is gone; finish, {finishing}"
        )
    if report.written_by_others:
        problems.append(
            f"{counted(report.written_by_others, 'point', 'have')} the vector and no text, and searches find such "
            "points: a program that is not of this package wrote it. Delete the vector there, or write the text"
        )
    if report.covered < report.with_text - report.without_vector:
        problems.append(
            f"{counted(report.covered, 'point', 'have')} the vector, and {report.with_text - report.without_vector} "
            "say so"
        )
    if report.lowest_cosine is not None and not report.lowest_cosine >= settings.least_cosine:
        problems.append(
            f"a stored vector has cosine {report.lowest_cosine:.4f} to the one made anew (at least "
            f"{settings.least_cosine} expected): it was altered, or made by another model or another build of it"
        )
    if report.known_items is not None and not report.known_items >= settings.least_known:
        problems.append(
            f"only {report.known_items:.0%} of the sample were found by their own opening (at least "
            f"{settings.least_known:.0%} expected): the query encoder does not fit the vectors"
        )
    return problems


def _is_among(
    point_id: PointId, payload: Mapping[str, Any], hits: Sequence[models.ScoredPoint], layout: Layout
) -> bool:
    """Return whether a point, or another one with the same text, is among the hits."""
    text = layout.of_point(payload).text(payload)
    others = (hit.payload or {} for hit in hits)
    return point_id in {hit.id for hit in hits} or any(layout.of_point(one).find_text(one) == text for one in others)


def _search(collection: Collection, vector_name: str, vectors: Sequence[Any]) -> list[list[models.ScoredPoint]]:
    limit = min(TOP_K, collection.limits.query or TOP_K)
    using = vector_name or None
    requests = [models.QueryRequest(query=each, using=using, limit=limit, with_payload=True) for each in vectors]
    return collection.search("searching for the sample", requests)
