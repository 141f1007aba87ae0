"""The study of instructions: which texts get one, and that instructed documents are stored apart."""

from pathlib import Path

import numpy as np
import pytest
from care_benchmarks.search import QdrantSearch
from care_benchmarks.tasks import directory_tasks, load_task
from qdrant_client import QdrantClient

from benchmarks.experiments.instructions import QWEN3_TEMPLATE, Instructions, with_instructions
from care_qdrant.errors import InputError
from tests.bench.test_search import evaluated, hash_pair


def test_a_document_instruction_never_meets_old_points(client: QdrantClient, task_directory: Path) -> None:
    task = load_task(directory_tasks(task_directory)[0])
    models = [hash_pair(), with_instructions(hash_pair(), Instructions(document=True), "retrieval")]
    names = {QdrantSearch(evaluated(model), client).collection(task.name, task.revision) for model in models}
    assert len(names) == 2


def test_instructions_reach_the_side_that_they_are_for() -> None:
    model = hash_pair()
    instructed = with_instructions(model, Instructions(query=True, template="[{instruction}]"), "retrieval")
    prompt = "[Given a Chinese medical question, retrieve medical documents that answer the question.]"
    assert np.array_equal(instructed.encode_query(["耳鸣"]), model.encode_query(["耳鸣"], prompt=prompt))
    assert np.array_equal(instructed.encode_document(["耳鸣"]), model.encode_document(["耳鸣"]))
    assert instructed.query_encoder.count_tokens(["耳鸣"]) == [len(prompt) + 2 + 2]


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
