"""Step 1: what several retrievers find for each question, fused, without near-duplicates; and how the pool leans.

The paper pools three dense models and no lexical one, one of them of the family of its query encoder [B]: documents
that only other systems find are never judged. Here BM25 is always in, and what each system adds is counted.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import httpx
import numpy as np
from care_benchmarks.lexical import Bm25Matrix
from qdrant_client import QdrantClient, models

from care_data.config import Plan, Retriever, secret
from care_data.files import Rows, digest, file_digest, read_rows, write_json, write_rows
from care_data.near import grams, overlap
from care_data.source import Texts, open_source, read_questions, read_texts
from care_qdrant import CareModel, Collection, InputError, Vectors, embedded_text
from care_qdrant import Retriever as Search
from care_qdrant.encoders import bm25

logger = logging.getLogger(__name__)

POOL, CORPUS, QUERIES = "pool.jsonl", "corpus.jsonl", "queries.jsonl"
_RRF = 60
"""Constant of reciprocal rank fusion (Cormack et al., 2009)."""
Rankings = list[list[str]]
"""Document ids of each question, best first."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one retriever adds to the pool."""

    retriever: str
    family: str
    found: int
    """Pairs of a question and a document that it found."""
    alone: int
    """Pairs that no other retriever found: the pool would lack them without it."""
    relevant_alone: int | None = None
    """Those of them that were labelled relevant; None before the vote."""


def run_pool(plan: Plan) -> dict[str, Any]:
    """Search with every retriever, and write the pool, the texts and the questions."""
    settings, folder = plan.settings, plan.folder
    questions = read_questions(plan.at(settings.source.queries))
    retrievers = (Retriever(name="bm25", family="lexical"), *settings.retriever)
    with open_source(plan) as client:
        texts = read_texts(client, settings.source.collection)
        found = {each.name: _rankings(each, plan, client, texts, questions) for each in retrievers}
        if (now := read_texts(client, settings.source.collection)).digest != texts.digest:
            raise InputError(f"{_changes(settings.source.collection, texts, now)}; run again when nobody writes to it")
    rows = _fuse(plan, questions, texts, found)
    families = {each.name: each.family or each.model for each in retrievers}
    report = {
        "collection": settings.source.collection,
        "collection_digest": texts.digest,
        "documents": len(texts.documents),
        "without_text": texts.skipped,
        "questions": len(questions),
        "pairs": len(rows),
        "near_duplicates": sum(len(row["duplicates"]) for row in rows),
        "contributions": [asdict(each) for each in contributions(rows, families)],
        "warnings": _warnings(plan, families),
    }
    write_rows(folder / QUERIES, questions)
    write_rows(
        folder / CORPUS,
        (
            {"id": each.id, "title": each.title, "text": each.text, "metadata": dict(each.metadata)}
            for each in sorted(texts.documents.values(), key=lambda each: each.id)
        ),
    )
    write_rows(folder / POOL, rows)
    write_json(folder / "pool.json", report)
    return report


def pool_inputs(plan: Plan) -> str:
    """Return the digest of all that decides the pool, but for the collection, which is read once."""
    settings = plan.settings
    runs = [file_digest(plan.at(each.path)) for each in settings.retriever if each.path]
    return digest(
        asdict(settings.source),
        asdict(settings.pool),
        [asdict(each) for each in settings.retriever],
        file_digest(plan.at(settings.source.queries)),
        runs,
    )


def contributions(
    rows: Sequence[Mapping[str, Any]], families: Mapping[str, str], relevant: set[tuple[str, str]] | None = None
) -> list[Contribution]:
    """Count what each retriever adds; leaving one out loses what it found alone."""
    counted = []
    for name, family in families.items():
        found = [row for row in rows if name in row["found_by"]]
        alone = [row for row in found if len(row["found_by"]) == 1]
        hit = None if relevant is None else sum((row["query_id"], row["document_id"]) in relevant for row in alone)
        counted.append(Contribution(name, family, len(found), len(alone), hit))
    return counted


def collection_changes(plan: Plan) -> str | None:
    """Compare the collection with the pool's texts: one line that says what changed, or None."""
    with open_source(plan) as client:
        now = read_texts(client, plan.settings.source.collection)
    before = {row["id"]: (row["title"], row["text"]) for row in read_rows(plan.folder / CORPUS)}
    after = {each.id: (each.title, each.text) for each in now.documents.values()}
    return None if before == after else _difference(plan.settings.source.collection, before, after)


def _changes(name: str, before: Texts, after: Texts) -> str:
    sides = ({each.id: (each.title, each.text) for each in side.documents.values()} for side in (before, after))
    return _difference(name, *sides)


def _difference(name: str, before: Mapping[str, object], after: Mapping[str, object]) -> str:
    altered = sum(before[each] != after[each] for each in before.keys() & after.keys())
    added, removed = len(after.keys() - before.keys()), len(before.keys() - after.keys())
    return f"collection {name!r} changed meanwhile: {added} documents added, {removed} removed, {altered} altered"


def _rankings(retriever: Retriever, plan: Plan, client: QdrantClient, texts: Texts, questions: Rows) -> Rankings:
    queries, depth = [row["text"] for row in questions], plan.settings.pool.depth
    logger.info("pool: %s", retriever.name)
    if retriever.name == "bm25":
        return _lexical(texts, queries, depth)
    if retriever.kind == "run":
        return _from_run(plan, retriever, texts, questions)
    if retriever.kind == "vector":
        return _by_vector(retriever, plan, client, texts, queries)
    search = Search(
        client,
        plan.settings.source.collection,
        CareModel.load(retriever.model),
        mode=retriever.kind,
        vector_name=retriever.vector_name,
        unique_documents=False,
    )
    return [[name for hit in hits if (name := texts.of(hit))] for hits in search.search(queries, depth)]


def _lexical(texts: Texts, queries: Sequence[str], depth: int) -> Rankings:
    """Rank by BM25 over the texts themselves, so that the collection needs no sparse vector."""
    names = sorted(texts.documents)
    shown = [embedded_text(texts.documents[name].title, texts.documents[name].text) for name in names]
    length = bm25.average_length(shown)
    matrix = Bm25Matrix([bm25.document_vector(text, average_length=length) for text in shown])
    rankings = []
    for query in queries:
        scores, matches = matrix.scores(bm25.query_vector(query))
        order = np.argsort(-scores, kind="stable")[:depth]
        rankings.append([names[row] for row in order if matches[row]])
    return rankings


def _by_vector(
    retriever: Retriever, plan: Plan, client: QdrantClient, texts: Texts, queries: Sequence[str]
) -> Rankings:
    """Search a vector that no contract of ours describes: that the model fits it is the user's word."""
    encode = CareModel.load(retriever.model).encode_query if retriever.url is None else None
    vectors = encode(queries) if encode else _embedded(retriever, queries)
    requests = [
        models.QueryRequest(query=row.tolist(), using=retriever.vector_name or None, limit=plan.settings.pool.depth)
        for row in vectors
    ]
    found = Collection(client, plan.settings.source.collection).search(f"searching {retriever.vector_name}", requests)
    return [[texts.names[str(hit.id)] for hit in hits if str(hit.id) in texts.names] for hits in found]


def _embedded(retriever: Retriever, queries: Sequence[str]) -> Vectors:
    key = secret(retriever.key_env, f"retriever {retriever.name}")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        answer = httpx.post(
            f"{str(retriever.url).rstrip('/')}/embeddings",
            json={"model": retriever.model, "input": list(queries)},
            headers=headers,
            timeout=120,
        ).raise_for_status()
        rows = sorted(answer.json()["data"], key=lambda row: row["index"])
        return np.asarray([row["embedding"] for row in rows], dtype=np.float32)
    except (httpx.HTTPError, KeyError, ValueError) as error:
        raise InputError(f"retriever {retriever.name} at {retriever.url}: no vectors ({error})") from error


def _from_run(plan: Plan, retriever: Retriever, texts: Texts, questions: Rows) -> Rankings:
    path, depth = plan.at(str(retriever.path)), plan.settings.pool.depth
    ranked: dict[str, list[tuple[float, str]]] = {}
    unknown = 0
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        fields = line.split()
        if len(fields) != 6:
            raise InputError(f"{path}:{number}: has {len(fields)} fields; a TREC run has 6")
        document = fields[2] if fields[2] in texts.documents else texts.names.get(fields[2])
        if document is None:
            unknown += 1
        else:
            ranked.setdefault(fields[0], []).append((float(fields[4]), document))
    if unknown:
        logger.warning("%s: %d documents are not in the collection and were left out", path, unknown)
    best = {query: sorted(rows, key=lambda row: (-row[0], row[1]))[:depth] for query, rows in ranked.items()}
    return [[document for _, document in best.get(row["id"], [])] for row in questions]


def _fuse(plan: Plan, questions: Rows, texts: Texts, found: Mapping[str, Rankings]) -> Rows:
    rows: Rows = []
    for place, question in enumerate(questions):
        ranks: dict[str, dict[str, int]] = {}
        for name, rankings in found.items():
            for rank, document in enumerate(dict.fromkeys(rankings[place]), start=1):
                ranks.setdefault(document, {})[name] = rank
        score = {document: sum(1 / (_RRF + rank) for rank in by.values()) for document, by in ranks.items()}
        order = sorted(score, key=lambda document: (-score[document], document))[: plan.settings.pool.limit]
        for rank, (document, duplicates) in enumerate(_distinct(order, texts, plan.settings.pool.near_duplicate), 1):
            by = {name: rank for copy in reversed([document, *duplicates]) for name, rank in ranks[copy].items()}
            row = {"query_id": question["id"], "document_id": document, "rank": rank, "found_by": by}
            rows.append({**row, "duplicates": duplicates})
    return rows


def _distinct(order: Sequence[str], texts: Texts, threshold: float) -> list[tuple[str, list[str]]]:
    kept: list[tuple[str, list[str], frozenset[str]]] = []
    for document in order:
        own = grams(embedded_text(texts.documents[document].title, texts.documents[document].text))
        same = next((copies for _, copies, other in kept if overlap(own, other) >= threshold), None)
        if same is None:
            kept.append((document, [], own))
        else:
            same.append(document)
    return [(document, copies) for document, copies, _ in kept]


def _warnings(plan: Plan, families: Mapping[str, str]) -> list[str]:
    dense = {family for name, family in families.items() if name != "bm25"}
    tested = plan.settings.pool.tested_family
    if not dense:
        return ["BM25 is the only retriever: what shares no word with a question is never judged"]
    if len(dense) == 1 and tested in dense:
        return [f"all retrievers but BM25 are of the family under test, {tested}: what only others find is not judged"]
    if len(dense) == 1:
        return [f"all retrievers but BM25 are of one family, {min(dense)}: what only others find is not judged"]
    return []
