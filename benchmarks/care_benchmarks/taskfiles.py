"""Strict reader of task directories: a benchmark with one bad line yields a number that looks like any other.

Accepted, plain or gzip (``.gz``), in the directory itself or in ``retrieval/``::

    corpus.jsonl    id, text, title?            also BEIR's and mteb's _id
    queries.jsonl   id, text
    qrels.jsonl     query_id, document_id, score    also mteb's query-id/corpus-id, C-MTEB's qid/pid;
                    or qrels/test.tsv (BEIR: a header, then query, document, score)
    rerank.jsonl    query, positive[], negative[]
    sts.jsonl, sts_synonym.jsonl    sentence1, sentence2, score

A query that only another split of BEIR judges is left out; in every other case a query without a positive is an error.
"""

import hashlib
from collections import deque
from collections.abc import Container, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path

from care_benchmarks.measures import Qrels
from care_benchmarks.places import Places
from care_benchmarks.rows import read_jsonl, read_tsv
from care_qdrant import Corpus, Document, Fields, Reject
from care_qdrant.errors import InputError

_QUERY_KEYS = ("query_id", "query-id", "qid")
_DOCUMENT_KEYS = ("document_id", "corpus-id", "pid")


@dataclass(frozen=True, slots=True)
class RetrievalFiles:
    """Paths of the three files of a retrieval task."""

    corpus: Path
    queries: Path
    qrels: Path


@dataclass(frozen=True, slots=True)
class TaskDirectory:
    """The task files of one directory; None for a task that is absent."""

    path: Path
    retrieval: RetrievalFiles | None
    rerank: Path | None
    sts: Path | None
    sts_synonym: Path | None


@dataclass(frozen=True, slots=True)
class Candidates:
    """One reranking query with its relevant and irrelevant candidates."""

    query: str
    positive: list[str]
    negative: list[str]


@dataclass(frozen=True, slots=True)
class ScoredPair:
    """Two sentences and their similarity label."""

    sentence1: str
    sentence2: str
    score: float


def find_tasks(directory: Path) -> TaskDirectory:
    """Find the task files of a directory."""
    if not directory.is_dir():
        raise InputError(f"{directory}: is not a directory; expected one with corpus.jsonl, rerank.jsonl or sts.jsonl")
    base = directory / "retrieval" if (directory / "retrieval").is_dir() else directory
    tasks = TaskDirectory(
        path=directory,
        retrieval=_retrieval_files(base),
        rerank=_existing(directory, "rerank.jsonl"),
        sts=_existing(directory, "sts.jsonl"),
        sts_synonym=_existing(directory, "sts_synonym.jsonl"),
    )
    if not any((tasks.retrieval, tasks.rerank, tasks.sts, tasks.sts_synonym)):
        raise InputError(
            f"{directory}: has no task; expected retrieval/{{corpus,queries,qrels}}.jsonl, rerank.jsonl, sts.jsonl "
            "or sts_synonym.jsonl, plain or .gz"
        )
    return tasks


def read_corpus(path: Path) -> Iterator[Document]:
    """Yield the documents in order."""
    yield from _unique_rows(path, Places())


def read_questions(files: RetrievalFiles) -> tuple[dict[str, str], Qrels]:
    """Read queries and judgements, and check all three files against each other."""
    documents, lines = Places(), Places()
    deque(_unique_rows(files.corpus, documents), maxlen=0)
    queries = {row.id: row.text for row in _unique_rows(files.queries, lines)}
    qrels = _read_qrels(files, queries, documents)
    if files.qrels.suffix == ".tsv":
        queries = {identity: query for identity, query in queries.items() if identity in qrels}
    for identity in queries:
        if not any(grade > 0 for grade in qrels.get(identity, {}).values()):
            raise InputError(
                f"{files.queries}:{lines[identity]}: query {identity!r} has no positive; "
                f"{files.qrels.name} must judge at least one of its documents with a score above 0"
            )
    return queries, qrels


def read_rerank(path: Path) -> list[Candidates]:
    """Read the reranking queries; a text that a list repeats counts once."""
    questions = []
    for row in read_jsonl(path):
        positive, negative = row.texts("positive"), row.texts("negative")
        both = set(positive) & set(negative)
        if both:
            raise InputError(f"{row.where}: {min(both)[:40]!r} is both positive and negative")
        questions.append(Candidates(row.text("query"), positive, negative))
    _refuse_empty(questions, path)
    return questions


def read_sts(path: Path) -> list[ScoredPair]:
    """Read the sentence pairs."""
    pairs = [ScoredPair(row.text("sentence1"), row.text("sentence2"), row.number("score")) for row in read_jsonl(path)]
    _refuse_empty(pairs, path)
    if len({pair.score for pair in pairs}) == 1:
        raise InputError(f"{path}: all scores are {pairs[0].score}; a correlation needs at least two different ones")
    return pairs


def content_digest(paths: Sequence[Path]) -> str:
    """Return the SHA-256 over names and bytes of files: the revision of a local task."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _retrieval_files(base: Path) -> RetrievalFiles | None:
    tsv = base / "qrels" / "test.tsv"
    parts = {
        "corpus.jsonl": _existing(base, "corpus.jsonl"),
        "queries.jsonl": _existing(base, "queries.jsonl"),
        "qrels.jsonl": tsv if tsv.exists() else _existing(base, "qrels.jsonl"),
    }
    corpus, queries, qrels = parts.values()
    if corpus and queries and qrels:
        return RetrievalFiles(corpus, queries, qrels)
    present = [name for name, path in parts.items() if path]
    if not present:
        return None
    missing = [name for name, path in parts.items() if not path]
    raise InputError(f"{base}: {', '.join(missing)} is missing; found only {', '.join(present)} (plain or .gz)")


def _existing(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _unique_rows(path: Path, lines: Places) -> Iterator[Document]:
    """Read a corpus or queries, which have the same shape, and store the line of each id in ``lines``."""
    first = next(read_jsonl(path), None)
    fields = Fields(id="_id") if first and "_id" in first.fields else Fields()
    with Corpus(path, fields) as rows:
        for row in rows:
            if isinstance(row, Reject):
                raise InputError(f"{path}:{row.line}: {row.reason}")
            identity = row.id
            if not lines.add(identity, row.line):
                raise InputError(f"{path}:{row.line}: id {identity!r} was already used in line {lines[identity]}")
            yield row
    _refuse_empty(lines, path)


def _read_qrels(files: RetrievalFiles, queries: Mapping[str, str], documents: Container[str]) -> Qrels:
    qrels: Qrels = {}
    rows = read_tsv(files.qrels) if files.qrels.suffix == ".tsv" else read_jsonl(files.qrels)
    for row in rows:
        query, document = row.identity(*_QUERY_KEYS), row.identity(*_DOCUMENT_KEYS)
        if query not in queries:
            raise InputError(f"{row.where}: query {query!r} is not in {files.queries.name}")
        if document not in documents:
            raise InputError(f"{row.where}: document {document!r} is not in {files.corpus.name}")
        if document in qrels.setdefault(query, {}):
            raise InputError(f"{row.where}: query {query!r} and document {document!r} are judged twice")
        qrels[query][document] = row.grade("score")
    return qrels


def _refuse_empty(rows: Sized, path: Path) -> None:
    if not rows:
        raise InputError(f"{path}: is empty; expected one row per line")
