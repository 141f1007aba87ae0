"""The pool's other retrievers, other tools' formats, and what the commands print."""

import json
from pathlib import Path
from typing import Any

import pytest
from care_data.chain import run_chain, run_step
from care_data.cli import care_data
from care_data.config import load_config
from click.testing import CliRunner
from openpyxl import load_workbook

from care_qdrant import CareModel, open_client
from care_qdrant.errors import InputError
from tests.care_data.clinic import config, rater, rows, truth
from tests.care_data.endpoint import Endpoint

THREE = {"ann": 1, "bob": 1, "cleo": 1}


def command(*arguments: object) -> Any:
    done = CliRunner().invoke(care_data, [*map(str, arguments), "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def with_retrievers(path: Path, *tables: str) -> Path:
    text = path.read_text(encoding="utf-8")
    path.write_text(text + "".join(f"\n[[retriever]]\n{table}\n" for table in tables), encoding="utf-8")
    return path


def found_by(folder: Path, name: str) -> dict[tuple[str, str], int]:
    """Return question and document → rank of a retriever, of the pool's rows."""
    pool = rows(folder / "clinic" / "pool.jsonl")
    return {(row["query_id"], row["document_id"]): row["found_by"][name] for row in pool if name in row["found_by"]}


def test_any_named_vector_is_searched_by_vectors_made_here_or_elsewhere(clinic: Path) -> None:
    """The endpoint answers out of order."""
    model = CareModel.load()
    with open_client(path=clinic / "qdrant") as client:
        [vector] = client.get_collection("clinic").config.params.vectors
    with Endpoint(rater({})) as endpoint:
        endpoint.embed = lambda texts: model.encode_query(texts).tolist()
        here = f'name = "here"\nkind = "vector"\nvector_name = "{vector}"'
        there = f'name = "there"\nkind = "vector"\nvector_name = "{vector}"\nurl = "{endpoint.url}"\nmodel = "theirs"'
        path = with_retrievers(config(clinic, endpoint.url, THREE, questions=6), here, there)
        report = run_step(load_config(path), "pool")
        assert found_by(clinic, "here") == found_by(clinic, "there") == found_by(clinic, "pair")
        assert len(found_by(clinic, "here")) == 6 * 12
        assert {each["retriever"]: each["family"] for each in report["contributions"]}["there"] == "theirs"
        endpoint.embed = lambda texts: [[0.0]][:0]
        path = with_retrievers(config(clinic, endpoint.url, THREE, questions=5), there)
        with pytest.raises(InputError, match=r"retriever there at .*: no vectors .*for 5 texts"):
            run_step(load_config(path), "pool")
    with pytest.raises(InputError, match=r"retriever there at http://127.0.0.1:\d+/v1: no vectors"):
        run_step(load_config(path), "pool")


def test_a_run_file_from_elsewhere_enters_the_pool(clinic: Path) -> None:
    path = config(clinic, "http://x", THREE, questions=2)
    run_step(load_config(path), "pool")
    names = [row["id"] for row in rows(clinic / "clinic" / "corpus.jsonl")]
    queries = [row["id"] for row in rows(clinic / "questions.jsonl")]
    lines = [f"{queries[0]} Q0 {name} {at} {at} other" for at, name in enumerate(names[-20:])]
    (clinic / "other.run").write_text("\n".join([*lines, f"{queries[1]} Q0 gone 1 1.0 other"]), encoding="utf-8")
    with_retrievers(path, 'name = "other"\nkind = "run"\npath = "other.run"\nfamily = "elsewhere"')
    run_step(load_config(path), "pool")
    best = found_by(clinic, "other")
    assert [document for (_, document), _ in sorted(best.items(), key=lambda each: each[1])] == names[-1:-13:-1]
    (clinic / "other.run").write_text("q1 Q0 d1 1 other", encoding="utf-8")
    with pytest.raises(InputError, match=r"other.run:1: is 'q1 Q0 d1 1 other'; expected: query Q0 document rank"):
        run_step(load_config(path), "pool")


def test_a_pool_of_the_family_under_test_is_warned_about(clinic: Path) -> None:
    path = config(clinic, "http://x", THREE, questions=2, pool='depth = 5\ntested_family = "care"')
    [warning] = run_step(load_config(path), "pool")["warnings"]
    assert warning.startswith("all retrievers but BM25 are of the family under test, care")
    path.write_text(path.read_text(encoding="utf-8").replace('"care"', '"another"', 1), encoding="utf-8")
    [warning] = run_step(load_config(path), "pool")["warnings"]
    assert warning.startswith("all retrievers but BM25 are of one family, care")
    alone = path.read_text(encoding="utf-8").replace('[[retriever]]\nname = "pair"\nfamily = "care"\n', "")
    path.write_text(alone, encoding="utf-8")
    assert run_step(load_config(path), "pool")["warnings"][0].startswith("BM25 is the only retriever")
    (clinic / "empty.run").write_text("", encoding="utf-8")
    run = 'kind = "run"\npath = "empty.run"\n'
    with_retrievers(path, f'name = "a"\nfamily = "a"\n{run}', f'name = "b"\nfamily = "b"\n{run}')
    assert run_step(load_config(path), "pool")["warnings"] == []


def test_the_bias_against_a_system_that_is_not_in_the_pool_is_estimated(clinic: Path) -> None:
    """A run that alone finds a relevant document would lose it, and score, had it not been in the pool."""
    with Endpoint(rater({})) as endpoint:
        path = config(clinic, endpoint.url, THREE, questions=4, pool="depth = 1")
        run_step(load_config(path), "pool")
        texts = {row["text"]: row["id"] for row in rows(clinic / "clinic" / "corpus.jsonl")}
        asked = {row["text"]: row["id"] for row in rows(clinic / "questions.jsonl")}
        relevant = [(asked[query], texts[text]) for (query, text), grade in truth().items() if grade and query in asked]
        pooled = {(row["query_id"], row["document_id"]) for row in rows(clinic / "clinic" / "pool.jsonl")}
        query, document = next(pair for pair in relevant if pair not in pooled)
        (clinic / "other.run").write_text(f"{query} Q0 {document} 1 1.0 other", encoding="utf-8")
        with_retrievers(path, 'name = "other"\nkind = "run"\npath = "other.run"\nfamily = "elsewhere"')
        report = run_chain(load_config(path))["vote"]
    other = next(each for each in report["contributions"] if each["retriever"] == "other")
    assert (other["found"], other["alone"], other["relevant_alone"]) == (1, 1, 1)
    assert other["ndcg"] > other["ndcg_left_out"] == 0.0


def test_trec_and_umbrela_go_out_and_come_back_as_one_more_judge(clinic: Path) -> None:
    with Endpoint(rater({"ann": 0.1})) as endpoint:
        path = config(clinic, endpoint.url, THREE, questions=6)
        run_chain(load_config(path))
        labels = rows(clinic / "clinic" / "labels.jsonl")
        qrels, requests = clinic / "out.qrels", clinic / "requests.jsonl"
        report = command("export", path, "--output", qrels)
        lines = [line.split() for line in qrels.read_text(encoding="utf-8").splitlines()]
        known = {(row["query_id"], row["document_id"]): row["label"] for row in labels}
        assert report["rows"] == len(lines) == sum(label in ("relevant", "irrelevant") for label in known.values())
        assert all(
            known[query, name] == ("relevant" if grade == "1" else "irrelevant") for query, _, name, grade in lines
        )
        assert command("export", path, "--output", requests)["rows"] == 6
        judgments = []
        for request in rows(requests):
            assert set(request) == {"query", "candidates"}
            for candidate in request["candidates"]:
                grade = truth().get((request["query"]["text"], candidate["doc"]["segment"]), -1)
                ids = {"qid": request["query"]["qid"], "docid": candidate["docid"]}
                judgments.append(json.dumps({**ids, "judgment": grade + 1}))
        assert len(judgments) == len(rows(clinic / "clinic" / "pool.jsonl"))
        (clinic / "theirs.jsonl").write_text("\n".join(judgments), encoding="utf-8")
        imported = 'exclude = ["ann", "bob", "cleo"]\n' + "".join(
            f'[[vote.imported]]\nname = "{name}"\npath = "{file}"\nrelevant_from = {least}\n'
            for name, file, least in (("umbrela", "theirs.jsonl", 2), ("trec", "out.qrels", 1))
        )
        again = run_step(load_config(config(clinic, endpoint.url, THREE, questions=6, vote=imported)), "vote")
    agreed = again["agreement"]["pairs"][0]
    assert agreed["raters"] == ["umbrela", "trec"] and agreed["agreement"]["value"] == 1.0
    assert again["labels"]["relevant"] >= 10
    (clinic / "out.qrels").write_text("q 0 d", encoding="utf-8")
    with pytest.raises(InputError, match=r"out.qrels:1: is 'q 0 d'; expected: query 0 document grade"):
        run_step(load_config(clinic / "clinic.toml"), "vote")
    (clinic / "theirs.jsonl").write_text('{"qid": "q"}', encoding="utf-8")
    with pytest.raises(InputError, match=r"theirs.jsonl:1: has no qid or no docid; expected both"):
        run_step(load_config(clinic / "clinic.toml"), "vote")


def test_a_dry_run_counts_without_a_call_and_is_never_too_low(clinic: Path) -> None:
    with Endpoint(rater({"ann": 0.1})) as endpoint:
        path = config(clinic, endpoint.url, {"ann": 1, "bob": 1, "strong": 2}, questions=5)
        command("pool", path)
        expected = command("judge", path, "--dry-run")
        assert not endpoint.bill.sent
        real = command("judge", path)
        judged = command("vote", path)
        assert command("pairs", path, "--output", clinic / "pairs.jsonl")["pairs"] > 0
        sheet = command("review", path, "--output", clinic / "li.xlsx", "--pairs", 7)
        assert command("--replay", "run", path)["vote"] == judged
    calls = {each["judge"]: each["calls"] for each in expected["judges"]}
    assert calls["ann"] == calls["bob"] == calls["strong"] == sum(bill["calls"] for bill in real["bills"][:1])
    assert 0 < real["cost"] < expected["highest_cost"] and expected["without_price"] == []
    assert sheet["pairs"] == 7 == load_workbook(clinic / "li.xlsx")["review"].max_row - 1


def test_diversify_keeps_whole_rows_and_leaves_no_collection(tmp_path: Path) -> None:
    texts = ("发烧怎么办", "发烧怎么办？", "发烧怎么办呢", "糖尿病人能吃西瓜吗")
    source, output, folder = tmp_path / "raw.jsonl", tmp_path / "new.jsonl", tmp_path / "qdrant"
    source.write_text("".join(json.dumps({"text": text, "n": n}) + "\n" for n, text in enumerate(texts)))
    found = command("diversify", source, "--side", "document", "--output", output, "--path", folder, "--threshold", 0.9)
    assert (found["rows"], found["kept"]) == (4, 3)
    assert [json.loads(line)["n"] for line in output.read_text().splitlines()] == [0, 1, 3]
    with open_client(path=folder) as client:
        assert client.get_collections().collections == []
    given = ("diversify", source, "--side", "document", "--path", folder, "--threshold", 0.9, "--output")
    assert command(*given, tmp_path / "seeded.jsonl", "--seed-rows", 3)["kept"] == 4, "the first ones are kept unseen"
    assert command(*given, tmp_path / "none.jsonl", "-k", 3, "--neighbours", 0)["kept"] == 2
    assert command(*given, tmp_path / "two.jsonl", "-k", 3, "--neighbours", 2)["kept"] == 4


def test_a_judge_without_a_price_is_named_and_one_that_is_free_is_not(
    clinic: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Endpoint(rater({})) as endpoint:
        path = config(clinic, endpoint.url, {"ann": 1, "bob": 1}, questions=2)
        text = path.read_text(encoding="utf-8")
        first, second = text.split('name = "bob"')
        unset = second.replace("input_price = 1.0\noutput_price = 4.0\n", "")
        path.write_text(f'{first}name = "bob"{unset}', encoding="utf-8")
        command("pool", path)
        assert command("judge", path, "--dry-run")["without_price"] == ["bob"]
        command("judge", path)
        assert "no price is set for bob:" in caplog.text
        free = second.replace("input_price = 1.0\noutput_price = 4.0\n", "input_price = 0\n")
        path.write_text(f'{first}name = "bob"{free}', encoding="utf-8")
        assert command("judge", path, "--dry-run")["without_price"] == []
