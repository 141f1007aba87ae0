from pathlib import Path

import pytest
from care_benchmarks.instructions import QWEN3_TEMPLATE, Instructions
from care_benchmarks.tasks import directory_tasks, hub_task, kind_of, labels_of, qrels_of, texts_of

from care_qdrant.errors import InputError
from tests.bench.conftest import CORPUS, RERANK


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
    task = directory_tasks(task_directory, "other")[0]
    task.load_data()
    assert task.metadata.name == "other-Retrieval"
    assert qrels_of(task)["q1"] == {"d1": 2, "d3": 0}
    queries, documents = texts_of(task)
    assert queries["q3"] == "血压高要注意什么"
    assert documents["d1"] == f"{CORPUS[0]['title']} {CORPUS[0]['text']}"
    assert documents["d2"] == CORPUS[1]["text"]
    assert len(documents) == len(CORPUS)


def test_reranking_encodes_a_shared_candidate_once(task_directory: Path) -> None:
    task = directory_tasks(task_directory)[1]
    task.load_data()
    queries, documents = texts_of(task)
    assert list(queries.values()) == [row["query"] for row in RERANK]
    assert len(documents) == 5
    right = {documents[name] for name, grade in qrels_of(task)["q0"].items() if grade}
    assert right == set(RERANK[0]["positive"])


def test_sts_sends_the_sentences_to_the_stated_sides(task_directory: Path) -> None:
    sides = [
        (task.input1_prompt_type.value, task.input2_prompt_type.value)  # type: ignore[attr-defined]
        for task in directory_tasks(task_directory)[2:]
    ]
    assert sides == [("query", "document"), ("query", "query"), ("document", "document")]
    task = directory_tasks(task_directory)[2]
    task.load_data()
    assert labels_of(task) == [1, 0, 1, 0]


def test_hub_tasks_are_mtebs_own() -> None:
    task = hub_task("CMedQAv2-reranking")
    assert kind_of(task) == "rerank"
    assert kind_of(hub_task("MedicalRetrieval")) == "retrieval"
    with pytest.raises(InputError, match="CMedTEB is not in mteb"):
        hub_task("CMedTEB-Retrieval")


@pytest.mark.parametrize("template", ["no place", "{task}: ", "{}", "{instruction} {other}"])
def test_a_template_without_a_place_for_the_instruction_is_refused(template: str) -> None:
    with pytest.raises(InputError, match=r"must have \{instruction\} in it"):
        Instructions(query=True, template=template)


def test_instructions_are_off_unless_a_side_is_switched_on() -> None:
    assert Instructions().prompt("retrieval", "query") is None
    only_query = Instructions(query=True)
    assert only_query.prompt("sts", "query") == QWEN3_TEMPLATE.format(instruction="Retrieve semantically similar text.")
    assert only_query.prompt("sts", "document") is None
    plain = Instructions(document=True, template="{instruction} ")
    assert plain.prompt("retrieval", "document") == (
        "Given a Chinese medical question, retrieve medical documents that answer the question. "
    )
