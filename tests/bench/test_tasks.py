from pathlib import Path

import pytest
from care_benchmarks.tasks import KINDS, directory_tasks, hub_task, load_task
from mteb.abstasks import AbsTask

from care_qdrant.errors import InputError
from tests.bench.conftest import CORPUS, RERANK


def kind_of(task: AbsTask) -> str:
    return KINDS[str(task.metadata.type)]


def test_names_kinds_and_revisions(task_directory: Path) -> None:
    tasks = directory_tasks(task_directory)
    assert [(task.metadata.name, kind_of(task)) for task in tasks] == [
        ("clinic-Retrieval", "retrieval"),
        ("clinic-Rerank", "rerank"),
        ("clinic-STS-qd", "sts"),
        ("clinic-STS-qq", "sts"),
        ("clinic-STS-dd", "sts"),
    ]
    before = tasks[0].metadata.dataset["revision"]
    with (task_directory / "retrieval/corpus.jsonl").open("a") as corpus:
        corpus.write('{"id": "d6", "text": "新"}\n')
    assert directory_tasks(task_directory)[0].metadata.dataset["revision"] != before


def test_retrieval_keeps_titles_apart_and_joins_them_as_mteb_does(task_directory: Path) -> None:
    task = load_task(directory_tasks(task_directory, "other")[0])
    assert task.name == "other-Retrieval"
    assert task.qrels["q1"] == {"d1": 2, "d3": 0}
    queries, documents = task.queries, task.documents
    assert queries["q3"] == "血压高要注意什么"
    assert documents["d1"] == f"{CORPUS[0]['title']} {CORPUS[0]['text']}"
    assert documents["d2"] == CORPUS[1]["text"]
    assert len(documents) == len(CORPUS)


def test_reranking_encodes_a_shared_candidate_once(task_directory: Path) -> None:
    task = load_task(directory_tasks(task_directory)[1])
    queries, documents = task.queries, task.documents
    assert list(queries.values()) == [row["query"] for row in RERANK]
    assert len(documents) == 5
    right = {documents[name] for name, grade in task.qrels["q0"].items() if grade}
    assert right == set(RERANK[0]["positive"])


def test_sts_sends_the_sentences_to_the_stated_sides(task_directory: Path) -> None:
    sides = [
        (task.input1_prompt_type.value, task.input2_prompt_type.value)  # type: ignore[attr-defined]
        for task in directory_tasks(task_directory)[2:]
    ]
    assert sides == [("query", "document"), ("query", "query"), ("document", "document")]
    assert load_task(directory_tasks(task_directory)[2]).labels == [1, 0, 1, 0]


def test_hub_tasks_are_mtebs_own() -> None:
    task = hub_task("CMedQAv2-reranking")
    assert kind_of(task) == "rerank"
    assert kind_of(hub_task("MedicalRetrieval")) == "retrieval"
    with pytest.raises(InputError, match="CMedTEB is not in mteb"):
        hub_task("CMedTEB-Retrieval")
