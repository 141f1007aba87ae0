"""mteb tasks, read from a directory (`care_benchmarks.taskfiles`) or loaded by mteb under their own names.

Retrieval and reranking are one mteb class; reranking adds the candidates. An STS file becomes three tasks, one for each
choice of the encoders: mteb's own STS would send both sentences of an asymmetric model to one side, and the paper does
not say which side it used.
"""

import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

from datasets import Dataset, Features, Value
from datasets.arrow_writer import ArrowWriter
from mteb import get_task
from mteb.abstasks import AbsTask
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData
from mteb.abstasks.sts import AbsTaskSTS
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.types import PromptType

from care_benchmarks.measures import MAIN_MEASURE, Kind, Qrels
from care_benchmarks.places import Places
from care_benchmarks.taskfiles import (
    RetrievalFiles,
    content_digest,
    find_tasks,
    read_corpus,
    read_questions,
    read_rerank,
    read_sts,
)
from care_qdrant.errors import CareError, InputError

HUB_TASKS = ("CMedQAv1-reranking", "CMedQAv2-reranking", "CmedqaRetrieval", "MedicalRetrieval")
"""Chinese medical sets that mteb loads by itself; CMedTEB is not among them."""

StsSides = Literal["qd", "qq", "dd"]
STS_SIDES: dict[StsSides, tuple[PromptType, PromptType]] = {
    "qd": (PromptType.query, PromptType.document),
    "qq": (PromptType.query, PromptType.query),
    "dd": (PromptType.document, PromptType.document),
}
"""Encoders of the first and the second sentence; ``qd`` is the choice that an asymmetric model is made for."""

_MtebType = Literal["Retrieval", "Reranking", "STS"]
KINDS: dict[str, Kind] = {"Retrieval": "retrieval", "Reranking": "rerank", "STS": "sts"}
_MTEB_MAIN_SCORE: dict[_MtebType, str] = {
    "Retrieval": "ndcg_at_10",
    "Reranking": "map_at_10",
    "STS": "cosine_pearson",
}
_DEPTHS = (1, 3, 5, 10, 20, 100)
_CORPUS_FEATURES = Features({"id": Value("string"), "title": Value("string"), "text": Value("string")})


@dataclass(frozen=True, slots=True)
class LoadedTask:
    """One task whose data were read and checked, as plain values."""

    task: AbsTask
    """The task object that mteb evaluates."""
    name: str
    kind: Kind
    revision: str
    """SHA-256 over the files, or the revision on the hub."""
    queries: Mapping[str, str]
    """Query texts by id; empty for STS."""
    documents: Mapping[str, str]
    """Document texts by id, title included, read from disk on access; empty for STS."""
    qrels: Qrels
    """Judgements of all queries; empty for STS."""
    labels: Sequence[float]
    """Similarity labels in the order of the pairs; empty except for STS."""

    @property
    def measure(self) -> str:
        """Return the name of the measure that the paper reports for this kind of task."""
        return MAIN_MEASURE[self.kind]


def load_task(task: AbsTask) -> LoadedTask:
    """Read and check the data of a task."""
    name = task.metadata.name
    try:
        task.load_data()
    except CareError:
        raise
    except Exception as error:  # The hub, its cache and its loaders raise many types, none of them defined here.
        reason = next(iter(str(error).strip().splitlines()), "no reason given")
        raise InputError(
            f"{name}: its data cannot be loaded ({type(error).__name__}: {reason}); "
            "download them by running once with network access"
        ) from error
    dataset: Any = task.dataset
    split: Any = dataset.get("default", dataset)[task.eval_splits[0]]
    kind, revision = KINDS[str(task.metadata.type)], str(task.metadata.dataset["revision"])
    if kind == "sts":
        return LoadedTask(task, name, kind, revision, {}, {}, {}, [float(score) for score in split["score"]])
    queries = dict(zip(split["queries"]["id"], split["queries"]["text"], strict=True))
    qrels = {query: dict(grades) for query, grades in split["relevant_docs"].items()}
    return LoadedTask(task, name, kind, revision, queries, CorpusTexts(split["corpus"]), qrels, [])


class CorpusTexts(Mapping[str, str]):
    """Document texts by id, read from the memory-mapped corpus on access."""

    def __init__(self, corpus: Dataset) -> None:
        self._corpus = corpus

    @cached_property
    def _rows(self) -> Places:
        rows = Places()
        for row, identity in enumerate(self._corpus["id"]):
            rows.add(str(identity), row)
        return rows

    def __getitem__(self, identity: str) -> str:
        row = self._corpus[self._rows[identity]]
        return f"{row.get('title') or ''} {row['text']}".strip()

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._corpus)


class DirectoryRanking(AbsTaskRetrieval):
    """A retrieval or reranking task of local files, which are read and checked once."""

    k_values = _DEPTHS

    def __init__(self, metadata: TaskMetadata, read: Callable[[], RetrievalSplitData]) -> None:
        self.metadata, self._read = metadata, read
        super().__init__()

    def load_data(self, num_proc: int | None = None, **_: Any) -> None:
        """Read and check the files once."""
        del num_proc
        _load_once(self, self._read)


class DirectorySts(AbsTaskSTS):
    """An STS task of one local file, with a stated encoder for each of the two sentences."""

    min_score, max_score = 0, 1

    def __init__(self, name: str, file: Path, sides: StsSides) -> None:
        self.metadata = _metadata(f"{name}-{sides}", "STS", (file,))
        self.input1_prompt_type, self.input2_prompt_type = STS_SIDES[sides]
        self._file = file
        super().__init__()

    def load_data(self, num_proc: int | None = None, **_: Any) -> None:
        """Read and check the file once."""
        del num_proc
        _load_once(self, lambda: Dataset.from_list([asdict(pair) for pair in read_sts(self._file)]))


def directory_tasks(directory: Path, name: str | None = None) -> list[AbsTask]:
    """Create the tasks of a directory; their data are not read yet."""
    paths, prefix = find_tasks(directory), name or directory.resolve().name
    tasks: list[AbsTask] = []
    if files := paths.retrieval:
        metadata = _metadata(f"{prefix}-Retrieval", "Retrieval", (files.corpus, files.queries, files.qrels))
        tasks.append(DirectoryRanking(metadata, partial(_retrieval_split, files)))
    if paths.rerank:
        metadata = _metadata(f"{prefix}-Rerank", "Reranking", (paths.rerank,))
        tasks.append(DirectoryRanking(metadata, partial(_rerank_split, paths.rerank)))
    for label, file in (("STS", paths.sts), ("SynonymSTS", paths.sts_synonym)):
        if file:
            tasks.extend(DirectorySts(f"{prefix}-{label}", file, sides) for sides in STS_SIDES)
    return tasks


def hub_task(name: str) -> AbsTask:
    """Return one of mteb's own Chinese medical tasks; its data are downloaded when it is loaded."""
    if name not in HUB_TASKS:
        raise InputError(
            f"task {name!r} is unknown; mteb has {', '.join(HUB_TASKS)}. CMedTEB is not in mteb: "
            "download it into a directory (hf download --repo-type dataset), and pass the directory"
        )
    return get_task(name)


def _load_once(task: AbsTask, read: Callable[[], Any]) -> None:
    if not task.data_loaded:
        task.dataset = {"default": {"test": read()}}
        task.data_loaded = True


def _retrieval_split(files: RetrievalFiles) -> RetrievalSplitData:
    """Keep the corpus on disk, memory-mapped, so that a million documents take no memory."""
    queries, qrels = read_questions(files)
    folder = tempfile.TemporaryDirectory(prefix="care-bench-", ignore_cleanup_errors=True)
    path = f"{folder.name}/corpus.arrow"
    with ArrowWriter(path=path, features=_CORPUS_FEATURES) as writer:
        for document in read_corpus(files.corpus):
            writer.write({"id": document.id, "title": document.title, "text": document.text})
        writer.finalize()
    corpus = Dataset.from_file(path)
    weakref.finalize(corpus, folder.cleanup)
    return _split(corpus, queries, qrels, None)


def _rerank_split(path: Path) -> RetrievalSplitData:
    """Number the distinct texts as documents, so that a candidate of two queries is encoded once."""
    questions, identities = read_rerank(path), dict[str, str]()
    for question in questions:
        for text in (*question.positive, *question.negative):
            identities.setdefault(text, f"d{len(identities)}")
    queries, qrels, candidates = {}, {}, {}
    for number, question in enumerate(questions):
        query = f"q{number}"
        queries[query] = question.query
        qrels[query] = {identities[text]: 1 for text in question.positive}
        qrels[query] |= {identities[text]: 0 for text in question.negative}
        candidates[query] = list(qrels[query])
    rows = [{"id": identity, "title": "", "text": text} for text, identity in identities.items()]
    return _split(Dataset.from_list(rows, features=_CORPUS_FEATURES), queries, qrels, candidates)


def _split(
    corpus: Dataset, queries: Mapping[str, str], qrels: Qrels, candidates: dict[str, list[str]] | None
) -> RetrievalSplitData:
    questions = Dataset.from_list([{"id": identity, "text": text} for identity, text in queries.items()])
    return RetrievalSplitData(corpus=corpus, queries=questions, relevant_docs=qrels, top_ranked=candidates)


def _metadata(name: str, kind: _MtebType, files: tuple[Path, ...]) -> TaskMetadata:
    return TaskMetadata(
        name=name,
        description=f"{kind} task read from {', '.join(file.name for file in files)}",
        dataset={"path": f"local/{name}", "revision": content_digest(files)},
        type=kind,
        category="t2t",
        eval_langs=["cmn-Hans"],
        main_score=_MTEB_MAIN_SCORE[kind],
        domains=["Medical"],
    )
