"""The path of production against mteb's own: the same model must give the same scores."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import mteb
import numpy as np
import pytest
from care_benchmarks.evaluation import Outcome, evaluate
from care_benchmarks.search import LlamaIndexPath, QdrantSearch
from care_benchmarks.systems import EvaluatedSystem
from care_benchmarks.tasks import LoadedTask, directory_tasks, load_task
from llama_index.embeddings.care import shared_model
from mteb.models.abs_encoder import AbsEncoder
from mteb.models.model_meta import ModelMeta, ScoringFunction
from mteb.types import PromptType
from qdrant_client import QdrantClient

from care_qdrant.bulk.encode import encode_unit
from care_qdrant.bulk.job import Job, Manifest
from care_qdrant.bulk.load import load
from care_qdrant.bulk.units import plan
from care_qdrant.encoders.side import Side
from care_qdrant.errors import InputError
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.model.card import Card
from care_qdrant.model.care_model import CareModel
from care_qdrant.progress import Progress
from care_qdrant.qdrant.collection import Collection
from care_qdrant.types import Document, Vectors
from tests.bench.conftest import CORPUS
from tests.standin.server import StandIn
from tests.tiny import GivenEncoder, HashEncoder

# Whole runs import torch, mteb and LlamaIndex: minutes where other work holds the cores.
pytestmark = pytest.mark.timeout(600)

SAMPLE = Path(__file__).parents[2] / "examples/sample"


class PlainEncoder(AbsEncoder):
    """An encoder as mteb defines one: it multiplies vectors itself, by dot product, with the prompts of the task."""

    def __init__(self, model: CareModel, *, by_task: bool = False) -> None:
        self.model, self.by_task = model, by_task
        similarity = ScoringFunction.DOT_PRODUCT if by_task else ScoringFunction.COSINE
        overwrites = {"name": "tests/plain", "similarity_fn_name": similarity}
        self.mteb_model_meta = ModelMeta.create_empty(overwrites=overwrites)

    def encode(
        self,
        inputs: Iterable[Mapping[str, Any]],
        *,
        prompt_type: PromptType | None = None,
        task_metadata: Any = None,
        **_: Any,
    ) -> Vectors:
        card, prompt = self.model.card, None
        is_document = prompt_type is PromptType.document
        if self.by_task:
            assert card is not None
            name = {"Retrieval": "retrieval", "Reranking": "rerank", "STS": "sts"}[task_metadata.type]
            prompt = card.document.tasks.get(name) if is_document else card.query.tasks[name]
        encode = self.model.encode_document if is_document else self.model.encode_query
        return np.concatenate([encode(batch["text"], prompt=prompt) for batch in inputs])


def hash_pair(dim: int = 24) -> CareModel:
    """Return a pair whose two sides differ, and whose vectors do not depend on their batch."""
    query, document = HashEncoder(dim, salt="query"), HashEncoder(dim, salt="document")
    return CareModel(
        name="hash-pair",
        dim=dim,
        fingerprint="f" * 64,
        temperature=0.05,
        query=GivenEncoder(query),
        document=GivenEncoder(document),
    )


def evaluated(model: CareModel, mode: str = "dense") -> EvaluatedSystem:
    name = "BM25" if mode == "sparse" else model.name
    return EvaluatedSystem(name, "", model, "", "auto", None, mode, 0, 0)  # type: ignore[arg-type]


def loaded(directory: Path) -> list[LoadedTask]:
    return [load_task(task) for task in directory_tasks(directory)]


def mteb_scores(outcome_or_encoder: Any, tasks: Any, output: Path) -> dict[str, dict[str, Any]]:
    result = mteb.evaluate(
        outcome_or_encoder,
        tasks,
        cache=None,
        co2_tracker=False,
        show_progress_bar=False,
        encode_kwargs={"batch_size": 7, "show_progress_bar": False},
        prediction_folder=output,
    )
    return {found.task_name: found.scores["test"][0] for found in result.task_results}


def test_every_measure_equals_mtebs_own_path(client: QdrantClient, tmp_path: Path) -> None:
    tasks = loaded(SAMPLE)
    model = hash_pair()
    ours = mteb_scores(
        QdrantSearch(evaluated(model), client, through="core"), [t.task for t in tasks], tmp_path / "ours"
    )
    theirs = mteb_scores(PlainEncoder(model), [t.task for t in tasks], tmp_path / "theirs")
    compared = 0
    for task, scores in theirs.items():
        for measure, value in scores.items():
            if isinstance(value, float) and not np.isnan(value):
                assert ours[task][measure] == pytest.approx(value, abs=1e-6), (task, measure)
                compared += 1
    assert compared > 100


class CutEncoder(HashEncoder):
    """Gives document vectors as cutting leaves them: shorter than 1, each by its own factor."""

    def _row(self, text: str) -> Vectors:
        row = super()._row(text)
        return row * (0.2 + 0.7 * abs(row[0]))


def test_tasks_have_their_prompts_and_cut_documents_the_dot_product(client: QdrantClient, tmp_path: Path) -> None:
    prompts = {"retrieval": "find: ", "rerank": "rank: ", "sts": "same: "}
    query, document = HashEncoder(24, salt="query"), CutEncoder(24, salt="document")
    sides = Side("cls", 64, tasks=prompts), Side("lasttoken", 64, tasks={"sts": "same: "})
    model = CareModel(
        name="cut-pair",
        dim=24,
        fingerprint="c" * 64,
        temperature=0.05,
        query=GivenEncoder(query),
        document=GivenEncoder(document),
        geometry="cut",
        card=Card("cut-pair", 24, *sides, 0.05, {}, "c" * 64, geometry="cut"),
    )
    tasks = [task.task for task in loaded(SAMPLE)]
    ours = mteb_scores(QdrantSearch(evaluated(model), client, through="core"), tasks, tmp_path / "ours")
    theirs = mteb_scores(PlainEncoder(model, by_task=True), tasks, tmp_path / "theirs")
    by_cosine = mteb_scores(PlainEncoder(model), tasks, tmp_path / "cosine")
    assert {task.metadata.type for task in tasks} >= {"Retrieval", "Reranking"}
    for task, scores in theirs.items():
        assert ours[task]["main_score"] == pytest.approx(scores["main_score"], abs=1e-6), task
    assert any(by_cosine[task]["main_score"] != scores["main_score"] for task, scores in theirs.items())


def rankings(outcome: Outcome) -> dict[str, dict[str, float]]:
    return {f"{task}/{query}": dict(answers) for task, run in outcome.runs.items() for query, answers in run.items()}


def test_reranking_answers_only_with_the_candidates(client: QdrantClient, task_directory: Path, tmp_path: Path) -> None:
    task = loaded(task_directory)[1]
    outcome = evaluate(QdrantSearch(evaluated(hash_pair()), client, through="core"), [task], tmp_path)
    split: Any = task.task.dataset
    candidates = split["default"]["test"]["top_ranked"]
    assert {query: set(answers) for query, answers in outcome.runs["clinic-Rerank"].items()} == {
        query: set(documents) for query, documents in candidates.items()
    }


def test_a_corpus_that_was_encoded_and_loaded_in_bulk_is_not_encoded_again(
    client: QdrantClient, task_directory: Path, tmp_path: Path
) -> None:
    labels: list[str] = []

    @contextmanager
    def noting(label: str) -> Iterator[Callable[[Progress], None]]:
        labels.append(label)
        yield lambda _: None

    model, job = hash_pair(), Job(f"{tmp_path}/job")
    task = loaded(task_directory)[0]
    search = QdrantSearch(evaluated(model), client, through="core", progress=noting)
    scores = evaluate(search, [task], tmp_path / "direct").scores
    collection = labels[0].split(": ")[1]
    client.delete_collection(collection)
    draft = Manifest("", model.name, model.fingerprint, model.dim, "Cosine", model.name, overflow="truncate")
    corpus = str(task_directory / "retrieval/corpus.jsonl")
    manifest = plan([corpus], job, draft, model.document_tokenizer, sparse=True)
    for unit in manifest.units:
        encode_unit(job, manifest, unit, model, 1_000)
    load(job, Collection(client, collection))
    again = QdrantSearch(evaluated(model), client, through="core")
    assert evaluate(again, [task], tmp_path / "bulk").scores == scores
    assert [indexing.encoded for indexing in again.indexed.values()] == [0]


def test_another_corpus_never_meets_old_points(client: QdrantClient, task_directory: Path) -> None:
    search = QdrantSearch(evaluated(hash_pair()), client)
    before = load_task(directory_tasks(task_directory)[0])
    with (task_directory / "retrieval/corpus.jsonl").open("a") as corpus:
        corpus.write('{"id": "d6", "text": "新"}\n')
    after = load_task(directory_tasks(task_directory)[0])
    assert len({search.collection(task.name, task.revision) for task in (before, after)}) == 2


def test_a_query_without_an_answer_counts_as_zero(client: QdrantClient, task_directory: Path, tmp_path: Path) -> None:
    """BM25 finds nothing for a query whose characters no document has; mteb would leave it out of the mean."""
    path = task_directory / "retrieval/queries.jsonl"
    path.write_text(path.read_text(encoding="utf-8").replace("血压高要注意什么", "zzz"), encoding="utf-8")
    task = loaded(task_directory)[0]
    outcome = evaluate(QdrantSearch(evaluated(hash_pair(), "sparse"), client), [task], tmp_path)
    assert outcome.runs["clinic-Retrieval"]["q3"] == {}
    [entry] = outcome.per_query
    assert dict(zip(entry.queries, entry.scores["nDCG@10"], strict=True)) == {"q1": 1.0, "q2": 1.0, "q3": 0.0}
    assert outcome.scores[0].value == pytest.approx(2 / 3)


def test_bm25_takes_no_sts(client: QdrantClient, task_directory: Path, tmp_path: Path) -> None:
    tasks = loaded(task_directory)
    search = QdrantSearch(evaluated(hash_pair(), "sparse"), client, through="core")
    assert [score.task for score in evaluate(search, tasks, tmp_path).scores] == ["clinic-Retrieval", "clinic-Rerank"]
    with pytest.raises(InputError, match="has no vectors"):
        search.encode([{"text": ["x"]}], task_metadata=tasks[2].task.metadata)


def test_sts_by_side_equals_the_cosines_of_those_sides(
    client: QdrantClient, task_directory: Path, tmp_path: Path
) -> None:
    tasks = loaded(task_directory)[2:]
    model = hash_pair()
    outcome = evaluate(QdrantSearch(evaluated(model), client, through="core"), tasks, tmp_path)
    first = ["碳酸氢钠片是否会引起头皮痒", "感冒发烧怎么办", "孩子发热", "耳鸣吃什么药"]
    second = ["服用小苏打片是否可能导致头皮发痒？", "肾结石怎么办", "小孩发烧", "贫血吃什么"]
    encode = {"q": model.encode_query, "d": model.encode_document}
    for entry, sides in zip(outcome.per_query, ("qd", "qq", "dd"), strict=True):
        cosines = (encode[sides[0]](first) * encode[sides[1]](second)).sum(axis=1)
        assert entry.scores["similarity"] == pytest.approx(cosines.tolist(), abs=1e-5)


@pytest.mark.parametrize("mode", ["dense", "hybrid"])
def test_a_server_gives_what_the_embedded_database_gives(
    client: QdrantClient, task_directory: Path, tmp_path: Path, mode: str
) -> None:
    tasks = loaded(task_directory)[:2]
    embedded = QdrantSearch(evaluated(hash_pair(), mode), client, through="core")
    expected = rankings(evaluate(embedded, tasks, tmp_path / "embedded"))
    with StandIn() as server:
        remote = QdrantClient(url=server.url, check_compatibility=False)
        search = QdrantSearch(evaluated(hash_pair(), mode), remote, through="core")
        found = rankings(evaluate(search, tasks, tmp_path / "server"))
        remote.close()
    assert search.params and search.params.exact
    assert found.keys() == expected.keys()
    for query, answers in found.items():
        assert answers == pytest.approx(expected[query], abs=1e-6)


def test_the_embedded_database_warns_beyond_its_limit(
    task_directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = QdrantClient(":memory:")
    task = loaded(task_directory)[0]
    split: Any = task.task.dataset
    search = QdrantSearch(evaluated(hash_pair()), client, through="core")
    for limit, warnings in ((len(CORPUS), 0), (len(CORPUS) - 1, 1)):
        monkeypatch.setattr("care_benchmarks.search.EMBEDDED_LIMIT", limit)
        search.index(split["default"]["test"]["corpus"], task_metadata=task.task.metadata)
        assert sum(record.levelname == "WARNING" for record in caplog.records) == warnings


def test_llama_index_encodes_a_query_once(client: QdrantClient, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    encode = shared_model._encode_queries

    def noting(model: CareModel, texts: Sequence[str], settings: shared_model.ModelSettings) -> Vectors:
        asked.extend(texts)
        return encode(model, texts, settings)

    monkeypatch.setattr(shared_model, "_encode_queries", noting)
    model = CareModel.load("built-in")
    ingest([Document("d1", "发烧多喝水"), Document("d2", "咳嗽要看医生")], model, client, "corpus")
    search = LlamaIndexPath(client, "corpus", replace(evaluated(model), source="built-in"), None)
    queries = ["发烧怎么办", "咳嗽怎么办", "发烧怎么办"]
    assert all(search(query, 2) for query in queries)
    assert asked == queries
