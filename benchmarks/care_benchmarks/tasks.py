"""mteb tasks: from a directory in the shape of `care_benchmarks.taskfiles`, or by the name that mteb knows them under.

Retrieval and reranking are one mteb class (reranking adds the candidates); an STS set gives three tasks, one for each
choice of the encoders, because mteb's own STS would send both sentences of an asymmetric model to one side, and the
paper does not say which.
"""

import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
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

from care_benchmarks.instructions import Kind
from care_benchmarks.places import Places
from care_benchmarks.taskfiles import (
    Candidates,
    Qrels,
    RetrievalFiles,
    content_digest,
    find_tasks,
    read_corpus,
    read_questions,
    read_rerank,
    read_sts,
)
from care_qdrant.errors import InputError
from care_qdrant.types import Document

HUB_TASKS = ("CMedQAv1-reranking", "CMedQAv2-reranking", "CmedqaRetrieval", "MedicalRetrieval")
"""Chinese medical sets that mteb loads by itself; CMedTEB is not among them."""

MAIN_MEASURE: dict[Kind, str] = {"retrieval": "nDCG@10", "rerank": "AP@10", "sts": "Pearson"}
"""What the paper reports for each kind (its first version says MAP, the second MAP@10: both are always computed)."""

StsSides = Literal["qd", "qq", "dd"]
STS_SIDES: dict[StsSides, tuple[PromptType, PromptType]] = {
    "qd": (PromptType.query, PromptType.document),
    "qq": (PromptType.query, PromptType.query),
    "dd": (PromptType.document, PromptType.document),
}
"""Which encoder reads the first and the second sentence; ``qd`` is the one that an asymmetric model is made for."""

_MtebType = Literal["Retrieval", "Reranking", "STS"]
KINDS: dict[str, Kind] = {"Retrieval": "retrieval", "Reranking": "rerank", "STS": "sts"}
_MTEB_MAIN_SCORE: dict[_MtebType, str] = {
    "Retrieval": "ndcg_at_10",
    "Reranking": "map_at_10",
    "STS": "cosine_pearson",
}
_DEPTHS = (1, 3, 5, 10, 20, 100)
_CORPUS_FEATURES = Features({"id": Value("string"), "title": Value("string"), "text": Value("string")})


class DirectoryRetrieval(AbsTaskRetrieval):
    """A retrieval task whose three files lie in a directory. The corpus stays on the disk, memory-mapped."""

    k_values = _DEPTHS

    def __init__(self, name: str, files: RetrievalFiles) -> None:
        self.metadata = _metadata(name, "Retrieval", (files.corpus, files.queries, files.qrels))
        self._files = files
        super().__init__()

    def load_data(self, num_proc: int | None = None, **_: Any) -> None:
        """Read and check the files; mteb calls this once before it evaluates."""
        del num_proc
        if self.data_loaded:
            return
        queries, qrels = read_questions(self._files)
        folder = tempfile.mkdtemp(prefix="care-bench-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        corpus = _on_disk(read_corpus(self._files.corpus), Path(folder))
        self.dataset = {"default": {"test": _split(corpus, queries, qrels, None)}}
        self.data_loaded = True


class DirectoryRerank(AbsTaskRetrieval):
    """A reranking task of one file: each question brings its own candidates."""

    k_values = _DEPTHS

    def __init__(self, name: str, file: Path) -> None:
        self.metadata = _metadata(name, "Reranking", (file,))
        self._file = file
        super().__init__()

    def load_data(self, num_proc: int | None = None, **_: Any) -> None:
        """Read and check the file; mteb calls this once before it evaluates."""
        del num_proc
        if self.data_loaded:
            return
        self.dataset = {"default": {"test": _rerank_split(read_rerank(self._file))}}
        self.data_loaded = True


class DirectorySts(AbsTaskSTS):
    """An STS task of one file, with each sentence sent to a stated side of the model."""

    min_score, max_score = 0, 1

    def __init__(self, name: str, file: Path, sides: StsSides) -> None:
        self.metadata = _metadata(f"{name}-{sides}", "STS", (file,))
        self.input1_prompt_type, self.input2_prompt_type = STS_SIDES[sides]
        self._file = file
        super().__init__()

    def load_data(self, num_proc: int | None = None, **_: Any) -> None:
        """Read and check the file; mteb calls this once before it evaluates."""
        del num_proc
        if self.data_loaded:
            return
        rows = [
            {"sentence1": pair.sentence1, "sentence2": pair.sentence2, "score": pair.score}
            for pair in read_sts(self._file)
        ]
        self.dataset = {"default": {"test": Dataset.from_list(rows)}}
        self.data_loaded = True


def directory_tasks(directory: Path, name: str | None = None) -> list[AbsTask]:
    """Give the tasks of a directory, named after it.

    Args:
        directory: In the shape of `care_benchmarks.taskfiles`.
        name: Prefix of the task names; the directory's own name where None.

    Raises:
        InputError: see `care_benchmarks.taskfiles.find_tasks`.
    """
    found, prefix = find_tasks(directory), name or directory.resolve().name
    tasks: list[AbsTask] = []
    if found.retrieval:
        tasks.append(DirectoryRetrieval(f"{prefix}-Retrieval", found.retrieval))
    if found.rerank:
        tasks.append(DirectoryRerank(f"{prefix}-Rerank", found.rerank))
    for label, file in (("STS", found.sts), ("SynonymSTS", found.sts_synonym)):
        if file:
            tasks.extend(DirectorySts(f"{prefix}-{label}", file, sides) for sides in STS_SIDES)
    return tasks


def hub_task(name: str) -> AbsTask:
    """Give one of mteb's own Chinese medical tasks; its data are downloaded when it is evaluated.

    Raises:
        InputError: mteb has no such task among `HUB_TASKS`.
    """
    if name not in HUB_TASKS:
        raise InputError(
            f"task {name!r} is unknown; mteb has {', '.join(HUB_TASKS)}. CMedTEB is not in mteb: "
            "fetch it into a directory with care-bench fetch, and pass the directory"
        )
    return get_task(name)


def kind_of(task: AbsTask) -> Kind:
    """Say whether a task is retrieval, reranking or STS."""
    return KINDS[str(task.metadata.type)]


def qrels_of(task: AbsTask) -> Qrels:
    """Give the judgements of a loaded retrieval or reranking task, of all queries, answered or not."""
    judgements: Mapping[str, Mapping[str, int]] = _only_split(task)["relevant_docs"]
    return {query: dict(grades) for query, grades in judgements.items()}


def labels_of(task: AbsTask) -> list[float]:
    """Give the scores of a loaded STS task, in the order of its pairs."""
    return [float(score) for score in _only_split(task)["score"]]


def texts_of(task: AbsTask) -> tuple[dict[str, str], Mapping[str, str]]:
    """Give the texts of the queries and of the documents of a loaded task, by id."""
    split = _only_split(task)
    queries = dict(zip(split["queries"]["id"], split["queries"]["text"], strict=True))
    return queries, CorpusTexts(split["corpus"])


class CorpusTexts(Mapping[str, str]):
    """Document texts by id, read from the memory-mapped corpus only when asked for."""

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


def _only_split(task: AbsTask) -> Any:
    dataset: Any = task.dataset
    return dataset["default"][task.eval_splits[0]] if "default" in dataset else dataset[task.eval_splits[0]]


def _rerank_split(questions: list[Candidates]) -> RetrievalSplitData:
    """Number the distinct texts as documents, so that a candidate of two questions is encoded once."""
    identities: dict[str, str] = {}
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


def _on_disk(documents: Iterable[Document], folder: Path) -> Dataset:
    """Write the corpus as a memory-mapped table, so that a million documents take no memory."""
    path = folder / "corpus.arrow"
    with ArrowWriter(path=str(path), features=_CORPUS_FEATURES) as writer:
        for document in documents:
            writer.write({"id": document.id, "title": document.title, "text": document.text})
        writer.finalize()
    return Dataset.from_file(str(path))


def _metadata(name: str, kind: _MtebType, files: tuple[Path, ...]) -> TaskMetadata:
    return TaskMetadata(
        name=name,
        description=f"{kind} task read from {', '.join(file.name for file in files)}",
        reference=None,
        dataset={"path": f"local/{name}", "revision": content_digest(files)},
        type=kind,
        category="t2t",
        modalities=["text"],
        eval_splits=["test"],
        eval_langs=["cmn-Hans"],
        main_score=_MTEB_MAIN_SCORE[kind],
        date=None,
        domains=["Medical"],
        task_subtypes=[],
        license=None,
        annotations_creators=None,
        dialect=[],
        sample_creation=None,
        bibtex_citation=None,
    )
