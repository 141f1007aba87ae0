"""Compares two vectors of a collection, each searched with its own model, on the same questions and by exact search.

A model that is worse must not pass, and an equal one must not be refused. So the difference of nDCG@10 is taken
question by question, and its 95 % interval decides: the new model passes where the interval lies above ``-MARGIN``, and
is refused where it lies below; else the questions cannot tell. Questions about one document are not independent: their
mean counts once. The interval counts two more documents, of which each model wins one: without a difference, it then is
as wide as the rule of three says, 3 / documents.
"""

import hashlib
import heapq
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
from qdrant_client import models

from care_qdrant.contracts.contract import VectorContract
from care_qdrant.contracts.layouts import guess_layout, read_hit
from care_qdrant.encoders.usable import encode_usable
from care_qdrant.errors import InputError
from care_qdrant.measures import TOP, Estimate, estimate, ndcg_at_10
from care_qdrant.progress import OnProgress
from care_qdrant.qdrant.collection import Collection
from care_qdrant.search.grouping import Grouping, find_groups
from care_qdrant.search.judged import KnownLabels, Labelled, find_labels, read_queries
from care_qdrant.search.overview import own_questions
from care_qdrant.search.query import Query, find
from care_qdrant.search.resolved import StoreConfig, resolve_vectors
from care_qdrant.types import Vectors
from care_qdrant.vectors.preflight import SAMPLE_POINTS

MARGIN = 0.02
"""Largest loss of nDCG@10 with which a model counts as equal."""
QUESTIONS = 2_000
"""Most questions that are made of a collection."""
LOSSES = 5
"""Most questions that are shown of those with a loss."""
_READ_POINTS = 10 * QUESTIONS
"""Most points of which they are made."""
_BATCH = 64
_SEED = 0
_Z = 1.96

Verdict = Literal["pass", "refuse", "cannot tell"]
Kind = Literal["judged", "made of the collection"]


class QueryModel(Protocol):
    """The part of `CareModel` that a comparison uses."""

    def contract(self) -> VectorContract:
        """Return the contract of the model's vectors."""

    def encode_query(self, texts: Sequence[str], *, prompt: str | None = None) -> Vectors:
        """Encode queries into unit vectors: (len(texts), dim) float32."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A question that the new model answers worse."""

    question: str
    relevant: list[str]
    """Ids of the documents that answer it."""
    before: float
    """nDCG@10 of the model that readers use now."""
    after: float
    first: str | None
    """Id of the first hit of the new model; None where there is no hit."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two models on the same questions."""

    kind: Kind
    questions: int
    documents: int
    """Different documents that the questions are about."""
    before: Estimate
    """nDCG@10 of the model that readers use now, a mean over documents."""
    after: Estimate
    difference: Estimate
    """Mean of after minus before, and its interval."""
    better: int
    """Documents whose questions the new model answers better."""
    worse: int
    """Documents whose questions it answers worse."""
    overlap_at_10: float = field(metadata={"unit": "fraction"})
    """Mean fraction of the first ten documents that both find."""
    verdict: Verdict
    needed: int | None
    """About how many questions, each about another document, would tell; None where these do."""
    losses: Sequence[Loss] = ()
    """The questions with the largest losses, at most `LOSSES`, the largest first."""


def read_questions(
    collection: Collection, path: Path, vector_name: str, *, text_field: str | None = None
) -> KnownLabels:
    """Read judged questions: JSON lines with ``text``, ``relevant`` and perhaps the old model's ``vector``.

    Raises:
        InputError: The file has no such lines, or the collection has none of their documents.
    """
    labelled = read_queries(
        path, collection.schema.dense[vector_name].size, collection.schema.origin(vector_name)
    ).labelled
    if labelled is None:
        raise InputError(f"{path}: no line has 'relevant', the list of ids of the documents that answer its question")
    return find_labels(collection, guess_layout(sample_payloads(collection), text_field=text_field), labelled)


def make_questions(
    collection: Collection, vector_names: Sequence[str], *, text_field: str | None = None
) -> KnownLabels:
    """Make questions of the titles, or first sentences, of documents that have all of the vectors.

    They are the same at each call: repeating a comparison until it passes would prove nothing.
    """
    layout = guess_layout(sample_payloads(collection), text_field=text_field)
    # As many conditions as the server allows: a document without the other vector is one that its model does not find.
    named = vector_names[: int(min(collection.limits.conditions, len(vector_names)))]
    where = models.Filter(must=[models.HasVectorCondition(has_vector=name) for name in named])
    pages = collection.scroll("making questions", where=where)
    points = (read_hit(record, layout) for page in pages for record in page)
    # Of the whole collection: where ids count up, the first ones are the oldest points, perhaps of one source.
    hits = heapq.nsmallest(_READ_POINTS, points, key=lambda hit: hashlib.sha256(hit.point_id.encode()).digest())
    count = QUESTIONS
    while len(questions := own_questions(hits[:count])) < QUESTIONS and count < len(hits):
        count *= 2
    texts = [question.text for question in questions[:QUESTIONS]]
    relevant = [[question.document_id] for question in questions[:QUESTIONS]]
    return KnownLabels(Labelled(texts, relevant, None), "documents", layout, unknown_ids=0, left_out=0)


def compare_models(
    collection: Collection,
    labels: KnownLabels,
    kind: Kind,
    sides: Sequence[tuple[str, QueryModel | None]],
    on_progress: OnProgress = lambda _done, _total: None,
) -> Comparison:
    """Search two vectors with the same questions, each with its own model.

    Args:
        collection: Holds both vectors.
        labels: The questions.
        kind: Source of the questions.
        sides: Name of the vector and its model, before and after; the questions' own vectors stand for a None.
        on_progress: Called after each batch of searches.
    """
    count, rankings = len(labels.questions.texts), []
    for number, (name, model) in enumerate(sides):
        show = partial(_shifted, on_progress, number * count, len(sides) * count)
        rankings.append(_ranked(collection, labels, name, model, show))
    before, after = (ndcg_at_10(ranking, labels.questions.relevant) for ranking in rankings)
    comparison = judge(kind, before, after, _overlap(*rankings), _documents(labels.questions.relevant))
    rows = heapq.nsmallest(LOSSES, range(count), key=lambda row: after[row] - before[row])
    losses = [
        Loss(
            labels.questions.texts[row],
            labels.questions.relevant[row],
            before=round(before[row], 4),
            after=round(after[row], 4),
            first=next(iter(rankings[1][row]), None),
        )
        for row in rows
        if after[row] < before[row]
    ]
    return replace(comparison, losses=losses)


def _documents(relevant: Sequence[Sequence[str]]) -> list[int]:
    """Return a number for the document of each question, of several relevant ones the most frequent."""
    asked = Counter(id_ for ids in relevant for id_ in ids)
    numbers = {id_: number for number, id_ in enumerate(asked)}
    return [numbers[max(ids, key=lambda id_: (asked[id_], id_))] for ids in relevant]


def _shifted(on_progress: OnProgress, before: int, total: int, done: int) -> None:
    on_progress(before + done, total)


def judge(
    kind: Kind, before: Sequence[float], after: Sequence[float], overlap: float, documents: Sequence[int] | None = None
) -> Comparison:
    """Return the verdict on the values of two models for the same questions.

    Args:
        kind: Source of the questions.
        before: nDCG@10 of each question by the model that readers use now.
        after: The same by the new model.
        overlap: Mean fraction of the first ten documents that both find.
        documents: Number of each question's document; None where each question is about another one.
    """
    if not before:
        raise InputError("there are no questions to compare the models with; give judged ones with --questions")
    _, rows, sizes = np.unique(
        np.arange(len(before)) if documents is None else documents, return_inverse=True, return_counts=True
    )
    old, new = (np.bincount(rows, values) / sizes for values in (before, after))
    differences = new - old
    difference = replace(estimate([*differences, -1.0, 1.0], _SEED), mean=round(float(differences.mean()), 4))
    verdict: Verdict = "pass" if difference.low >= -MARGIN else "refuse" if difference.high < -MARGIN else "cannot tell"
    return Comparison(
        kind=kind,
        questions=len(before),
        documents=len(sizes),
        before=estimate(old.tolist(), _SEED),
        after=estimate(new.tolist(), _SEED),
        difference=difference,
        better=int((differences > 0).sum()),
        worse=int((differences < 0).sum()),
        overlap_at_10=round(overlap, 4),
        verdict=verdict,
        needed=_needed(differences) if verdict == "cannot tell" else None,
    )


def _needed(differences: npt.NDArray[np.float64]) -> int:
    """Return about how many documents an interval of these differences needs to leave out the margin."""
    variance = float(differences.var()) + 2 / len(differences)
    distance = max(abs(float(differences.mean()) + MARGIN), 1e-3)
    return max(math.ceil(_Z**2 * variance / distance**2 / 50) * 50, len(differences) + 50)


def _ranked(
    collection: Collection,
    labels: KnownLabels,
    vector_name: str,
    model: QueryModel | None,
    on_progress: Callable[[int], None],
) -> list[list[str]]:
    """Return the ids that each question finds, best first; none for a question that the model does not read."""
    resolved = resolve_vectors(collection, collection.schema, StoreConfig(vector_name=vector_name), checked_at=0.0)
    resolved = replace(resolved, layout=labels.layout, hnsw_ef=None)
    is_exact = resolved.limits.exact_count and not collection.is_embedded
    params = models.SearchParams(exact=True) if is_exact else None
    top = TOP if resolved.limits.query is None else min(TOP, resolved.limits.query)
    texts, ranked = labels.questions.texts, []
    for start in range(0, len(texts), _BATCH):
        batch = texts[start : start + _BATCH]
        vectors: Sequence[list[float] | None]
        if model is not None:
            vectors = [None if row is None else row.tolist() for row in encode_usable(model.encode_query, batch)]
        else:
            assert labels.questions.vectors is not None, "the caller refuses questions without vectors and a model"
            vectors = labels.questions.vectors[start : start + _BATCH].tolist()
        places = [place for place, vector in enumerate(vectors) if vector is not None]
        queries = [Query(vectors[place], None, top, params=params) for place in places]
        found: list[list[str]] = [[] for _ in batch]
        if labels.unit == "documents":
            answers = find_groups(resolved, queries, Grouping(), "comparing")
        else:
            answers = [lists[0] if lists else [] for lists in find(resolved, queries, "comparing")]
        for place, hits in zip(places, answers, strict=True):
            found[place] = [hit.document_id if labels.unit == "documents" else hit.point_id for hit in hits]
        ranked += found
        on_progress(len(ranked))
    return ranked


def _overlap(before: Sequence[Sequence[str]], after: Sequence[Sequence[str]]) -> float:
    shared = [len({*these} & {*those}) / max(1, len(these)) for these, those in zip(before, after, strict=True)]
    return float(np.mean(shared)) if shared else 0.0


def sample_payloads(collection: Collection) -> list[dict[str, object]]:
    """Return payloads of a few points, which show their layout."""
    return [point.payload or {} for point in collection.sample(SAMPLE_POINTS)]
