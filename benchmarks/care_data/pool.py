"""Step 1: the fused results of several retrievers for each question, without near-duplicates; and the pool's bias.

The paper pools three dense models and no lexical one, one of them of the family of its query encoder [B]: documents
that only other systems find are never judged. Here BM25 is always included, and each system's contribution is counted.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from care_benchmarks.lexical import Bm25Matrix
from care_benchmarks.measures import Qrels, Run, per_query
from qdrant_client import QdrantClient, models

from care_data.config import Config, Retriever, secret
from care_data.files import Rows, digest, read_rows, write_json, write_rows
from care_data.near import grams, overlap
from care_data.source import Texts, open_source, read_fields, read_questions, read_texts
from care_qdrant import CareModel, Collection
from care_qdrant import Retriever as Search
from care_qdrant.encoders.remote.wire import embed, embeddings_client
from care_qdrant.encoders.terms import bm25
from care_qdrant.errors import EncodingError, InputError, counted
from care_qdrant.http_client import HTTPError
from care_qdrant.types import Vectors, embedded_text

logger = logging.getLogger(__name__)

EMBEDDING_SECONDS = 120.0
"""Longest time of a request for vectors."""

POOL, CORPUS, QUERIES = "pool.jsonl", "corpus.jsonl", "queries.jsonl"
_RRF = 60  # constant of reciprocal rank fusion (Cormack et al., 2009)
Rankings = list[list[str]]  # document ids of each question, best first


def run_pool(config: Config, _: bool = False) -> dict[str, Any]:
    """Search with every retriever, and write the pool, the texts and the questions."""
    settings, folder = config.settings, config.folder
    questions = read_questions(config.at(settings.source.queries))
    retrievers = (Retriever(name="bm25", family="lexical"), *settings.retriever)
    with open_source(config) as client:
        texts = read_texts(client, settings.source.collection)
        rankings = {retriever.name: _rankings(retriever, config, client, texts, questions) for retriever in retrievers}
        now = read_texts(client, settings.source.collection)
    if changes := _changes(settings.source.collection, texts.strings, now.strings):
        raise InputError(f"{changes}; run again when nothing else writes to it")
    rows = _fuse(config, questions, texts, rankings)
    families = {retriever.name: retriever.family or retriever.model for retriever in retrievers}
    report = {
        "collection": settings.source.collection,
        "collection_digest": digest(sorted(texts.strings.items())),
        "documents": len(texts.documents),
        "without_text": texts.skipped,
        "questions": len(questions),
        "pairs": len(rows),
        "near_duplicates": sum(len(row["duplicates"]) for row in rows),
        "contributions": contributions(rows, families),
        "warnings": _warnings(config, families),
    }
    write_rows(folder / QUERIES, questions)
    documents = sorted(texts.documents.values(), key=lambda document: document.id)
    columns = ({"id": d.id, "title": d.title, "text": d.text, "metadata": dict(d.metadata)} for d in documents)
    write_rows(folder / CORPUS, columns)
    write_rows(folder / POOL, rows)
    write_json(folder / "pool.json", report)
    return report


def contributions(
    rows: Sequence[Mapping[str, Any]], families: Mapping[str, str], qrels: Qrels | None = None
) -> list[dict[str, Any]]:
    """Return what each retriever adds: pairs that it found, and those that the pool would lack without it.

    With ``qrels``, after the vote, also how many of those are relevant, and the retriever's own nDCG@10 with and
    without them (leave one out): the difference is the bias against a system outside the pool.
    """
    counted: list[dict[str, Any]] = []
    for name, family in families.items():
        own = [row for row in rows if name in row["found_by"]]
        alone = {(row["query_id"], row["document_id"]) for row in own if len(row["found_by"]) == 1}
        counted.append({"retriever": name, "family": family, "found": len(own), "alone": len(alone)})
        if qrels is not None:
            run: dict[str, dict[str, float]] = {}
            for row in own:
                run.setdefault(row["query_id"], {})[row["document_id"]] = 1 / row["found_by"][name]
            less = {
                query: {document: grade * ((query, document) not in alone) for document, grade in grades.items()}
                for query, grades in qrels.items()
            }
            full, without = (mean_ndcg(side, run) for side in (qrels, less))
            relevant = sum(bool(qrels.get(query, {}).get(document)) for query, document in alone)
            counted[-1] |= {"relevant_alone": relevant, "ndcg": full, "ndcg_left_out": without}
    return counted


def mean_ndcg(qrels: Qrels, run: Run) -> float:
    """Return the mean nDCG@10 over the questions of the qrels; 0 without questions."""
    return float(np.mean(list(per_query(qrels, run)["nDCG@10"].values()))) if qrels else 0.0


def collection_changes(config: Config) -> str | None:
    """Compare the collection with the pool's texts; return one line that describes the changes, or None."""
    with open_source(config) as client:
        now = read_texts(client, config.settings.source.collection)
    before = {row["id"]: (row["title"], row["text"]) for row in read_rows(config.folder / CORPUS)}
    return _changes(config.settings.source.collection, before, now.strings)


def _changes(name: str, before: Mapping[str, object], after: Mapping[str, object]) -> str | None:
    if before == after:
        return None
    altered = sum(before[name] != after[name] for name in before.keys() & after.keys())
    added, removed = len(after.keys() - before.keys()), len(before.keys() - after.keys())
    changes = f"{counted(added, 'document')} added, {removed} removed, {altered} altered"
    return f"collection {name!r} changed meanwhile: {changes}"


def _rankings(retriever: Retriever, config: Config, client: QdrantClient, texts: Texts, questions: Rows) -> Rankings:
    queries, depth = [row["text"] for row in questions], config.settings.pool.depth
    logger.info("pool: %s", retriever.name)
    if retriever.name == "bm25":
        return _lexical(texts, queries, depth)
    if retriever.kind == "run":
        return _from_run(config, retriever, texts, questions)
    if retriever.kind == "vector":
        return _by_vector(retriever, config, client, texts, queries)
    collection, model, vector = (
        config.settings.source.collection,
        CareModel.load(retriever.model),
        retriever.vector_name,
    )
    search = Search(client, collection, model, mode=retriever.kind, vector_name=vector, unique_documents=False)
    results = search.search(queries, depth)
    return [[texts.names[hit.point_id] for hit in hits if hit.point_id in texts.names] for hits in results]


def _lexical(texts: Texts, queries: Sequence[str], depth: int) -> Rankings:
    """Rank by BM25 over the texts themselves, so that the collection needs no sparse vector."""
    names = sorted(texts.documents)
    shown = [embedded_text(*texts.strings[name]) for name in names]
    length = bm25.average_length(shown)
    matrix = Bm25Matrix([bm25.document_vector(text, average_length=length) for text in shown])
    rankings = []
    for query in queries:
        scores, matches = matrix.scores(bm25.query_vector(query))
        order = np.argsort(-scores, kind="stable")[:depth]
        rankings.append([names[row] for row in order if matches[row]])
    return rankings


def _by_vector(
    retriever: Retriever, config: Config, client: QdrantClient, texts: Texts, queries: Sequence[str]
) -> Rankings:
    """Search a vector of another program; only the user knows that the model fits it."""
    encode = CareModel.load(retriever.model).encode_query if retriever.url is None else None
    vectors = encode(queries) if encode else _embedded(retriever, queries)
    requests = [
        models.QueryRequest(query=row.tolist(), using=retriever.vector_name or None, limit=config.settings.pool.depth)
        for row in vectors
    ]
    collection = Collection(client, config.settings.source.collection)
    results = collection.search(f"searching {retriever.vector_name}", requests)
    return [[texts.names[str(hit.id)] for hit in hits if str(hit.id) in texts.names] for hits in results]


def _embedded(retriever: Retriever, queries: Sequence[str]) -> Vectors:
    key = secret(retriever.key_env, f"retriever {retriever.name}")
    try:
        with embeddings_client(str(retriever.url), key, EMBEDDING_SECONDS) as client:
            return embed(client, retriever.model, queries)
    except (HTTPError, EncodingError) as error:
        raise InputError(f"retriever {retriever.name} at {retriever.url}: no vectors ({error})") from error


def _from_run(config: Config, retriever: Retriever, texts: Texts, questions: Rows) -> Rankings:
    path, depth = config.at(str(retriever.path)), config.settings.pool.depth
    ranked: dict[str, list[tuple[float, str]]] = {}
    unknown, asked, strange = 0, {row["id"] for row in questions}, set[str]()
    for number, fields in enumerate(read_fields(path, "query Q0 document rank score name"), start=1):
        try:
            score = float(fields[4])
        except ValueError:
            score = math.nan
        if not math.isfinite(score):
            raise InputError(f"{path}:{number}: score is {fields[4]!r}; expected a finite number")
        if fields[0] not in asked:
            strange.add(fields[0])
        document = fields[2] if fields[2] in texts.documents else texts.names.get(fields[2])
        if document is None:
            unknown += 1
        else:
            ranked.setdefault(fields[0], []).append((score, document))
    if strange and not asked & ranked.keys():
        raise InputError(
            f"{path}: ranks documents for none of the questions, but for {min(strange)!r} and others; its query "
            "ids must match the ids of the questions"
        )
    if strange:
        logger.warning("%s: %s not among the questions and left out", path, counted(len(strange), "query id", "are"))
    if unknown:
        lacking = counted(unknown, "document", "are")
        logger.warning("%s: %s not in the collection and left out", path, lacking)
    best = {query: sorted(rows, key=lambda row: (-row[0], row[1]))[:depth] for query, rows in ranked.items()}
    return [[document for _, document in best.get(row["id"], [])] for row in questions]


def _fuse(config: Config, questions: Rows, texts: Texts, results: Mapping[str, Rankings]) -> Rows:
    rows: Rows = []
    for place, question in enumerate(questions):
        ranks: dict[str, dict[str, int]] = {}
        for name, rankings in results.items():
            for rank, document in enumerate(dict.fromkeys(rankings[place]), start=1):
                ranks.setdefault(document, {})[name] = rank
        score = {document: sum(1 / (_RRF + rank) for rank in by.values()) for document, by in ranks.items()}
        order = sorted(score, key=lambda document: (-score[document], document))[: config.settings.pool.limit]
        for rank, (document, duplicates) in enumerate(_distinct(order, texts, config.settings.pool.near_duplicate), 1):
            by = {name: rank for copy in reversed([document, *duplicates]) for name, rank in ranks[copy].items()}
            row = {"query_id": question["id"], "document_id": document, "rank": rank, "found_by": by}
            rows.append({**row, "duplicates": duplicates})
    return rows


def _distinct(order: Sequence[str], texts: Texts, threshold: float) -> list[tuple[str, list[str]]]:
    kept: list[tuple[str, list[str], frozenset[str]]] = []
    for document in order:
        own = grams(embedded_text(*texts.strings[document]))
        same = next((copies for _, copies, other in kept if overlap(own, other) >= threshold), None)
        if same is None:
            kept.append((document, [], own))
        else:
            same.append(document)
    return [(document, copies) for document, copies, _ in kept]


def _warnings(config: Config, families: Mapping[str, str]) -> list[str]:
    dense = {family for name, family in families.items() if name != "bm25"}
    tested = config.settings.pool.tested_family
    if not dense:
        return ["BM25 is the only retriever: what shares no word with a question is never judged"]
    if len(dense) == 1 and tested in dense:
        return [f"all retrievers but BM25 are of the family under test, {tested}: what only others find is not judged"]
    if len(dense) == 1:
        return [f"all retrievers but BM25 are of one family, {min(dense)}: what only others find is not judged"]
    return []
