import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
from care_benchmarks.taskfiles import (
    RetrievalFiles,
    content_digest,
    find_tasks,
    read_corpus,
    read_questions,
    read_rerank,
    read_sts,
)

from care_qdrant.errors import InputError
from tests.bench.conftest import CORPUS, QUERIES, write_jsonl

Spoil = Callable[[str, int, str], Path]


def qrel(query: str, document: str, score: str) -> str:
    return f'{{"query_id": "{query}", "document_id": "{document}", "score": {score}}}'


def read_everything(directory: Path) -> None:
    found = find_tasks(directory)
    assert found.retrieval and found.rerank and found.sts
    read_questions(found.retrieval)
    read_rerank(found.rerank)
    read_sts(found.sts)


def retrieval_files(directory: Path) -> RetrievalFiles:
    found = find_tasks(directory).retrieval
    assert found
    return found


def test_a_directory_gives_its_tasks(task_directory: Path) -> None:
    queries, qrels = read_questions(retrieval_files(task_directory))
    assert queries == {row["id"]: row["text"] for row in QUERIES}
    assert qrels == {"q1": {"d1": 2, "d3": 0}, "q2": {"d2": 1}, "q3": {"d5": 1}}
    assert [document.id for document in read_corpus(retrieval_files(task_directory).corpus)] == [
        row["id"] for row in CORPUS
    ]


def test_flat_and_compressed_files_are_the_same_task(task_directory: Path, tmp_path: Path) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    for file in (task_directory / "retrieval").iterdir():
        (flat / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
    assert read_questions(retrieval_files(flat)) == read_questions(retrieval_files(task_directory))


def test_beir_shape_keeps_only_the_queries_of_its_split(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "corpus.jsonl", [{"_id": row["id"], "title": "", "text": row["text"]} for row in CORPUS])
    write_jsonl(tmp_path / "queries.jsonl", [{"_id": row["id"], "text": row["text"]} for row in QUERIES])
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\nq2\td2\t1\n")
    queries, qrels = read_questions(retrieval_files(tmp_path))
    assert list(queries) == ["q1", "q2"]
    assert qrels == {"q1": {"d1": 1}, "q2": {"d2": 1}}


def test_c_mteb_shape_with_numbers_for_ids(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "corpus.jsonl", [{"id": 7, "text": "甲"}, {"id": 8, "text": "乙"}])
    write_jsonl(tmp_path / "queries.jsonl", [{"id": 1, "text": "问"}])
    write_jsonl(tmp_path / "qrels.jsonl", [{"qid": 1, "pid": 8, "score": 1}])
    assert read_questions(retrieval_files(tmp_path)) == ({"1": "问"}, {"1": {"8": 1}})


def test_a_repeated_candidate_counts_once(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rerank.jsonl", [{"query": "问", "positive": ["甲", "甲"], "negative": ["乙"]}])
    assert read_rerank(path)[0].positive == ["甲"]


@pytest.mark.parametrize(
    ("file", "line", "text", "place", "problem"),
    [
        ("retrieval/corpus.jsonl", 2, "{oops", "corpus.jsonl:2", "is not JSON"),
        ("retrieval/corpus.jsonl", 2, "[1]", "corpus.jsonl:2", "is a JSON array"),
        ("retrieval/corpus.jsonl", 3, '{"id": "d1", "text": "x"}', "corpus.jsonl:3", "'d1' was already used"),
        ("retrieval/corpus.jsonl", 4, '{"id": "d4", "body": "x"}', "corpus.jsonl:4", "has no 'text' (keys: id, body)"),
        ("retrieval/corpus.jsonl", 4, '{"id": "d4", "text": " "}', "corpus.jsonl:4", "'text' is empty"),
        ("retrieval/corpus.jsonl", 4, '{"id": "d4", "text": "x", "title": 3}', "corpus.jsonl:4", "'title' is a JSON"),
        ("retrieval/queries.jsonl", 2, '{"id": "q1", "text": "x"}', "queries.jsonl:2", "'q1' was already used"),
        ("retrieval/queries.jsonl", 2, '{"id": "q9", "text": "x"}', "qrels.jsonl:3", "query 'q2' is not in"),
        ("retrieval/qrels.jsonl", 1, qrel("q1", "dx", '1'), "qrels.jsonl:1", "'dx'"),
        ("retrieval/qrels.jsonl", 2, qrel("q1", "d1", '1'), "qrels.jsonl:2", "twice"),
        ("retrieval/qrels.jsonl", 3, qrel("q2", "d2", '0'), "queries.jsonl:2", "'q2' has no positive"),
        ("retrieval/qrels.jsonl", 3, qrel("q2", "d2", '"yes"'), "qrels.jsonl:3", "finite number"),
        ("retrieval/qrels.jsonl", 3, qrel("q2", "d2", 'true'), "qrels.jsonl:3", "finite number"),
        ("retrieval/qrels.jsonl", 3, qrel("q2", "d2", '0.5'), "qrels.jsonl:3", "expected a grade"),
        ("rerank.jsonl", 2, '{"query": "x", "positive": [], "negative": ["y"]}', "rerank.jsonl:2", "'positive' is []"),
        ("rerank.jsonl", 2, '{"query": "x", "positive": ["y"]}', "rerank.jsonl:2", "'negative' is None"),
        ("rerank.jsonl", 2, '{"query": "x", "positive": ["y"], "negative": ["y"]}', "rerank.jsonl:2", "both"),
        ("sts.jsonl", 3, '{"sentence1": "x", "sentence2": "y", "score": NaN}', "sts.jsonl:3", "finite number"),
        ("sts.jsonl", 3, '{"sentence1": "x", "sentence2": "y", "score": 1' + "0" * 400 + "}", "sts.jsonl:3", "finite"),
        ("sts.jsonl", 3, "[" * 100_000, "sts.jsonl:3", "is not JSON"),
        ("sts.jsonl", 3, '{"score": 1' + "0" * 5_000 + "}", "sts.jsonl:3", "is not JSON"),
        ("sts.jsonl", 3, '{"sentence1": "x", "sentence2": "y"}', "sts.jsonl:3", "finite number"),
    ],
)  # fmt: skip
def test_one_bad_line_is_named(spoil: Spoil, file: str, line: int, text: str, place: str, problem: str) -> None:
    with pytest.raises(InputError) as caught:
        read_everything(spoil(file, line, text))
    assert f"{place}: " in str(caught.value)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("line", "problem"),
    [("q1\td1", "has 2 fields; the header has 3"), ("q1\td1\thigh", "finite number"), ("q1\tdx\t1", "'dx' is not in")],
)
def test_one_bad_line_of_a_table_is_named(task_directory: Path, line: str, problem: str) -> None:
    table = task_directory / "retrieval/qrels/test.tsv"
    table.parent.mkdir()
    table.write_text(f"query-id\tcorpus-id\tscore\nq2\td2\t1\n{line}\n")
    with pytest.raises(InputError, match=rf"test\.tsv:3: .*{problem}"):
        read_questions(retrieval_files(task_directory))


def test_a_damaged_file_is_named_with_the_line_that_is_cut_off(task_directory: Path) -> None:
    whole = gzip.compress((task_directory / "sts.jsonl").read_bytes() * 500, mtime=0)
    (task_directory / "sts.jsonl").unlink()
    (task_directory / "sts.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"sts\.jsonl\.gz:\d+: cannot be read"):
        read_sts(task_directory / "sts.jsonl.gz")
    (task_directory / "rerank.jsonl").write_bytes("血糖".encode("gb18030"))
    with pytest.raises(InputError, match=r"rerank\.jsonl:1: cannot be read"):
        read_rerank(task_directory / "rerank.jsonl")


@pytest.mark.parametrize("name", ["corpus.jsonl", "queries.jsonl", "qrels.jsonl"])
def test_a_missing_part_is_named(task_directory: Path, name: str) -> None:
    (task_directory / "retrieval" / name).unlink()
    with pytest.raises(InputError, match=f"{name} is missing; found only "):
        find_tasks(task_directory)


@pytest.mark.parametrize("name", ["retrieval/corpus.jsonl", "retrieval/queries.jsonl", "rerank.jsonl", "sts.jsonl"])
def test_an_empty_file_is_named(task_directory: Path, name: str) -> None:
    (task_directory / name).write_text("\n")
    with pytest.raises(InputError, match=f"{Path(name).name}: .*empty"):
        read_everything(task_directory)


def test_a_correlation_with_one_label_is_refused(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "sts.jsonl", [{"sentence1": "甲", "sentence2": "乙", "score": 1}] * 2)
    with pytest.raises(InputError, match="two different ones"):
        read_sts(path)


def test_a_directory_without_tasks_says_what_it_expected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no task; expected retrieval/"):
        find_tasks(tmp_path)
    with pytest.raises(InputError, match="is not a directory"):
        find_tasks(tmp_path / "absent")


def test_the_digest_changes_with_a_byte(task_directory: Path) -> None:
    file = task_directory / "sts.jsonl"
    before = content_digest([file])
    assert content_digest([file]) == before
    file.write_bytes(file.read_bytes() + b"\n")
    assert content_digest([file]) != before
