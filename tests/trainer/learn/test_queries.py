"""Query logs with the old model's vectors."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from care_trainer.learn.quality import agreement

from care_qdrant.errors import InputError
from care_qdrant.search.judged import read_queries
from tests.tiny import write_jsonl


def test_vectors_of_the_file_become_unit_rows(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "log.jsonl", [{"text": "a", "vector": [3, 4]}, {"text": " ", "vector": [1, 0]}])
    found = read_queries(path, 2)
    assert found.log is not None and found.log.texts == ["a"] and found.labelled is None
    np.testing.assert_allclose(found.log.vectors, [[0.6, 0.8]], atol=1e-6)


def test_labelled_questions_are_apart_from_those_that_are_trained_on(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"text": "a", "vector": [1, 0]},
        {"text": "b", "vector": [0, 2], "relevant": ["x", 7]},
        {"text": "b", "vector": [0, 2]},
        {"text": "c", "relevant": ["y"]},
        {"text": "?", "relevant": ["y"]},
        {"text": "b", "vector": [0, 2], "relevant": [7, "z"]},
    ]
    found = read_queries(write_jsonl(tmp_path / "log.jsonl", rows), 2)
    assert found.log is not None and found.log.texts == ["a"]
    assert found.labelled is not None and found.labelled.texts == ["b", "c"]
    assert found.labelled.relevant == [["x", "7", "7", "z"], ["y"]]
    assert found.labelled.vectors is None  # one has none
    only_b = read_queries(write_jsonl(tmp_path / "log.jsonl", rows[1:3]), 2)
    assert only_b.log is None and only_b.labelled is not None and only_b.labelled.vectors is not None
    np.testing.assert_allclose(only_b.labelled.vectors, [[0, 1]])


def test_a_text_may_hold_any_character_of_json_and_a_file_may_be_compressed(tmp_path: Path) -> None:
    row = json.dumps({"text": "one\u2028two", "vector": [1, 0]}, ensure_ascii=False)
    with gzip.open(tmp_path / "log.jsonl.gz", "wt", encoding="utf-8") as stream:
        stream.write(f"{row}\n\n")
    found = read_queries(tmp_path / "log.jsonl.gz", 2)
    assert found.log is not None and found.log.texts == ["one\u2028two"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "a"}', "log.jsonl:1: expected a vector of 2 finite numbers, found none"),
        ('{"text": "a", "vector": [1, 2, 3]}', "found 3 values"),
        (f'{{"text": "a", "vector": [1, 1{"0" * 400}]}}', "expected a vector of 2 finite numbers, found 2 values"),
        ('{"text": "a", "vector": [1, "2"]}', "expected a vector of 2 finite numbers, found 2 values"),
        ('{"text": "a", "vector": [1], "relevant": ["x"]}', "expected a vector of 2 finite numbers, found 1 value"),
        ('{"text": "a", "relevant": []}', "log.jsonl:1: expected 'relevant' to be a list of ids"),
        ('{"text": "a", "relevant": "x"}', "expected 'relevant' to be a list of ids"),
        ('{"text": "a", "relevant": [{"id": 1}]}', "expected 'relevant' to be a list of ids"),
        ("[]", "log.jsonl:1: expected"),
        ("{", "log.jsonl:1: not JSON"),
        ('{"vector": [1, 2]}', "log.jsonl:1: expected 'text' with a 'vector'"),
        ('{"text": null, "vector": [1, 2]}', "log.jsonl:1: expected 'text' with a 'vector'"),
        ('{"text": "a", "vector": [0, 0]}', "a query vector is zero"),
        ("", "holds no questions"),
    ],
)
def test_a_line_that_cannot_be_used(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(line, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_queries(path, 2)


def test_agreement_of_the_old_model_with_itself_is_complete(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(20, 8)).astype(np.float32)
    path = write_jsonl(tmp_path / "log.jsonl", [{"text": f"q{n}", "vector": v.tolist()} for n, v in enumerate(vectors)])
    questions = read_queries(path, 8).log
    assert questions is not None
    documents = generator.normal(size=(200, 8)).astype(np.float32)
    same = agreement(questions.vectors, questions, documents)
    assert (same.overlap_at_10, same.ndcg_at_10) == (1.0, 1.0)
    other = agreement(questions.vectors[::-1].copy(), questions, documents)
    assert other.overlap_at_10 < 0.3
