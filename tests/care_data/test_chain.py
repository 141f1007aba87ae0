"""From a collection that LlamaIndex wrote to a benchmark that care-bench scores, with judges over a real socket."""

import csv
import json
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from care_benchmarks.cli import care_bench
from care_benchmarks.tasks import directory_tasks, load_task
from care_data import pool
from care_data.build import _repeated
from care_data.chain import STEPS, run_chain, run_step
from care_data.cli import care_data
from care_data.config import ask_again, load_config
from care_data.exchange import write_pairs
from care_data.judging import is_anchor
from care_data.prompts import GRADES
from care_data.sheets import COLUMNS, Task, read_opinions, sample_tasks, write_sheet
from care_data.source import read_texts
from care_data.wire import BudgetReached, JudgeUnreachable
from care_trainer.config import Data
from care_trainer.data.read import iter_pairs
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from openpyxl import Workbook, load_workbook
from qdrant_client import QdrantClient, models

from care_qdrant import open_client
from care_qdrant.errors import InputError
from tests.care_data.clinic import config, rater, rows, truth
from tests.care_data.endpoint import Endpoint, Faults
from tests.care_data.kills import run_killed

THREE = {"ann": 1, "bob": 1, "cleo": 1}


def perfect() -> Any:
    return rater({})


@pytest.mark.timeout(600)
def test_it_goes_from_a_collection_to_a_scored_benchmark(clinic: Path) -> None:
    with Endpoint(perfect()) as endpoint:
        reports = run_chain(load_config(config(clinic, endpoint.url, THREE)))
    assert reports["pool"]["documents"] == 369
    assert {each["retriever"] for each in reports["pool"]["contributions"]} == {"bm25", "pair"}
    target = clinic / "clinic" / "benchmark"
    retrieval, rerank = (load_task(task) for task in directory_tasks(target))
    known = {(query, text) for (query, text), grade in truth().items() if grade > 0}
    found = {
        (retrieval.queries[query], retrieval.documents[document])
        for query, grades in retrieval.qrels.items()
        for document, grade in grades.items()
        if grade
    }
    assert found <= known and len(found) > 0.8 * len(known)
    assert len(rerank.qrels) > 50
    arguments = ["run", str(target), "--output", str(clinic / "result"), "--speed", "none"]
    done = CliRunner().invoke(care_bench, arguments)
    assert done.exit_code == 0, done.output
    card = (target / "README.md").read_text(encoding="utf-8")
    assert "apache-2.0" in card and "| ann | ann | 1 |" in card


def test_mteb_loads_what_was_built(clinic: Path) -> None:
    from datasets import load_dataset

    with Endpoint(perfect()) as endpoint:
        run_chain(load_config(config(clinic, endpoint.url, THREE, questions=8)))
    folder = str(clinic / "clinic" / "benchmark")
    corpus = load_dataset(folder, "corpus", split="corpus", cache_dir=str(clinic / "cache"))
    qrels = load_dataset(folder, "default", split="test", cache_dir=str(clinic / "cache"))
    assert len(corpus) == 369 and {"_id", "title", "text"} <= set(corpus.column_names)
    assert set(qrels.column_names) == {"query-id", "corpus-id", "score"} and set(qrels["score"]) == {0, 1}


def test_faults_of_the_wire_change_nothing_but_missing_votes(clinic: Path) -> None:
    faults = Faults(busy=0.2, broken=0.1, slow=0.05, wrong_json=0.1, partial=0.2, cut=0.2)
    path = config(clinic, "", {}, questions=12)
    with Endpoint(perfect()) as calm:
        run_chain(load_config(config(clinic, calm.url, THREE, questions=12)))
        expected = rows(clinic / "clinic" / "labels.jsonl")
    for file in (clinic / "clinic").glob("calls.sqlite*"):
        file.unlink()
    with Endpoint(perfect(), faults) as endpoint:
        reports = run_chain(load_config(config(clinic, endpoint.url, THREE, questions=12, judging="attempts = 5")))
        assert max(endpoint.bill.billed.values()) == 1
        assert sum(endpoint.bill.sent.values()) > len(endpoint.bill.billed)
    assert rows(clinic / "clinic" / "labels.jsonl") == expected
    assert reports["judge"]["at_risk"] > 0
    assert path.is_file()


def test_a_second_run_asks_nothing_and_a_replay_needs_no_network(clinic: Path) -> None:
    with Endpoint(perfect()) as endpoint:
        loaded = load_config(config(clinic, endpoint.url, THREE, questions=6))
        first = run_chain(loaded)
        sent = endpoint.bill.sent.total()
        assert run_chain(loaded) == first
        (clinic / "clinic" / "judgements.jsonl").unlink()
        assert run_chain(loaded)["judge"]["bills"] == first["judge"]["bills"]
        assert endpoint.bill.sent.total() == sent
    (clinic / "clinic" / "judgements.jsonl").unlink()
    assert run_chain(loaded, replay=True) == first
    (clinic / "clinic" / "calls.sqlite").unlink()
    (clinic / "clinic" / "judgements.jsonl").unlink()
    with pytest.raises(JudgeUnreachable, match="--replay"):
        run_chain(loaded, replay=True)


def test_a_replay_repeats_a_run_that_went_on_without_a_judge_that_was_down(clinic: Path) -> None:
    with Endpoint(perfect()) as endpoint:
        path = config(
            clinic,
            endpoint.url,
            THREE,
            questions=6,
            judging="allow_missing = true",
            vote='max_missing = 0.5\nrule = "majority"',
        )
        down = path.read_text(encoding="utf-8").replace(f'"{endpoint.url}"', '"http://127.0.0.1:9/v1"', 1)
        path.write_text(f"{down}retries = 0\n", encoding="utf-8")
        first = run_chain(loaded := load_config(path))
    assert first["judge"]["unreachable"] == ["ann"]
    labels = rows(clinic / "clinic" / "labels.jsonl")
    (clinic / "clinic" / "judgements.jsonl").unlink()
    assert run_chain(loaded, replay=True) == first
    assert rows(clinic / "clinic" / "labels.jsonl") == labels


_READING: list[set[Path]] = []
"""Files that were opened, while a test has a set here: an audit hook stays for ever."""


def _note_opened(event: str, arguments: tuple[object, ...]) -> None:
    if _READING and event == "open" and isinstance(arguments[0], str | Path):
        _READING[0].add(Path(arguments[0]).absolute())


sys.addaudithook(_note_opened)


def test_a_step_is_repeated_where_a_file_that_it_reads_has_changed(clinic: Path) -> None:
    """A question that was corrected kept its votes, and the benchmark its former text."""
    with Endpoint(perfect()) as endpoint:
        voting = 'sheets = ["li.xlsx"]\nimported = [{ name = "old", path = "old.qrels" }]\n'
        voting += 'max_missing = 0.3\nrule = "majority"'
        settings = {"vote": voting, "build": 'drop = true\ntrain = ["train.jsonl"]'}
        (clinic / "train.jsonl").write_text('{"query": "腰疼怎么办"}\n', encoding="utf-8")
        write_sheet(clinic / "li.xlsx", [Task("q01", "d1", "怎么办", "文本")], "li")
        (clinic / "old.qrels").write_text("q01 0 nothing 1\n", encoding="utf-8")
        loaded = load_config(config(clinic, endpoint.url, THREE, questions=6, **settings))
        run_chain(loaded)
        for name, step in STEPS.items():
            if name != "sts":  # which these questions have no synonyms for
                _READING.append(opened := set[Path]())
                step.work(loaded, True)
                _READING.clear()
                known = {loaded.folder / file for file in (*step.inputs, *step.outputs)}
                known |= {loaded.at(str(file)) for file in step.named(loaded)}
                read = {file for file in opened if file.is_file() and file.is_relative_to(clinic)}
                ledger = {file for file in read if file.name.startswith("calls.sqlite")}
                database = {file for file in read if file.is_relative_to(clinic / "qdrant")}
                assert read - ledger - database <= known, name


def test_a_benchmark_has_no_pairs_of_an_earlier_configuration(clinic: Path) -> None:
    with Endpoint(perfect()) as endpoint:
        loaded = load_config(config(clinic, endpoint.url, THREE, questions=6))
        run_chain(loaded)
        left = loaded.folder / "benchmark" / "sts.jsonl"
        left.write_text('{"sentence1": "a", "sentence2": "b", "score": 1}\n', encoding="utf-8")
        run_step(replace(loaded, settings=replace(loaded.settings, name="renamed")), "build")
    assert not left.exists()


def test_no_step_reads_files_of_a_step_whose_settings_or_files_have_changed(clinic: Path) -> None:
    with Endpoint(perfect()) as endpoint:
        one = {"ann": 1}
        path = config(clinic, endpoint.url, one, questions=3, pool="depth = 3")
        run_chain(load_config(path))
        labels = (clinic / "clinic" / "labels.jsonl").read_bytes()
        for depth in (2, 6):  # fewer documents than were judged, and more
            config(clinic, endpoint.url, one, questions=3, pool=f"depth = {depth}")
            for step, first in (("judge", "pool"), ("vote", "pool"), ("build", "pool")):
                with pytest.raises(InputError, match=f"step {first} has not run, or its settings"):
                    run_step(load_config(path), step)
            run_step(load_config(path), "pool")
            for step in ("vote", "build"):
                with pytest.raises(InputError, match=r"step judge has not run, .* run care data judge"):
                    run_step(load_config(path), step)
            for name in ("out.qrels", "out.jsonl"):
                done = CliRunner().invoke(care_data, ["export", str(path), "--output", str(clinic / f"{depth}-{name}")])
                assert (done.exit_code == 0) is name.endswith(".jsonl")
            done = CliRunner().invoke(care_data, ["pairs", str(path), "--output", str(clinic / f"{depth}-pairs.jsonl")])
            assert isinstance(done.exception, InputError) and "step vote" in str(done.exception)
            for step in ("judge", "vote", "build"):
                run_step(load_config(path), step)
        (clinic / "clinic" / "labels.jsonl").write_bytes(labels)
        with pytest.raises(InputError, match="step vote has not run"):
            run_step(load_config(path), "build")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_chain_is_killed_and_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    found = run_killed(tmp_path, 3, seed=1, questions=6, score=False)
    assert found.kills == 3 and found.same_result and found.calls == found.billed
    assert found.stored_and_sent_again == found.billed_twice == 0
    assert found.cost == pytest.approx(found.cost_undisturbed)


def test_a_cascade_asks_the_strong_judge_only_what_is_disputed(clinic: Path) -> None:
    judges = {"ann": 1, "bob": 1, "strong": 2}
    with Endpoint(rater({"ann": 0.1, "bob": 0.1})) as endpoint:
        report = run_chain(load_config(config(clinic, endpoint.url, judges, questions=20)))
    votes = {each["judge"]: each["votes"] for each in report["judge"]["judges"]}
    assert 0 < votes["strong"] < 0.4 * votes["ann"]
    relevant = {pair for pair, grade in truth().items() if grade > 0}
    corpus = {row["id"]: row["text"] for row in rows(clinic / "clinic" / "corpus.jsonl")}
    queries = {row["id"]: row["text"] for row in rows(clinic / "questions.jsonl")}
    for row in rows(clinic / "clinic" / "labels.jsonl"):
        pair = queries[row["query_id"]], corpus[row["document_id"]]
        if "strong" in row["votes"]:
            assert row["label"] == ("relevant" if pair in relevant else "irrelevant")


def test_it_stops_where_ranks_bring_nothing_more(clinic: Path) -> None:
    with Endpoint(perfect()) as endpoint:
        deep = config(clinic, endpoint.url, THREE, questions=10, pool="depth = 40")
        run_step(load_config(deep), "pool")
        whole = run_step(load_config(deep), "judge")
        stopping = "batch = 5\nstop_after = 2"
        report = run_step(
            load_config(config(clinic, endpoint.url, THREE, questions=10, pool="depth = 40", judging=stopping)), "judge"
        )
    assert report["judged"] < 0.6 * whole["judged"]
    assert report["mean_depth"] < 0.6 * whole["mean_depth"]


def test_labels_become_training_pairs_that_the_trainer_reads(clinic: Path) -> None:
    with Endpoint(rater({"ann": 0.1})) as endpoint:
        loaded = load_config(config(clinic, endpoint.url, THREE, questions=10))
        run_chain(loaded)
    report = write_pairs(loaded, clinic / "pairs.jsonl", negatives=3)
    pairs = list(iter_pairs(Data(files=("pairs.jsonl",)), clinic))
    known = {pair for pair, grade in truth().items() if grade > 0}
    assert len(pairs) == report["pairs"] > 10 and report["left_out_documents"] > 0
    for pair in pairs:
        assert (pair.query, pair.positive) in known
        assert not {(pair.query, negative) for negative in pair.negatives} & known
        assert len(pair.negatives) == 3
        assert pair.other == {"license": "apache-2.0", "judge_families": ["ann", "bob", "cleo"]}


def test_experts_fill_in_sheets_that_are_compared_with_the_judges(clinic: Path) -> None:
    with Endpoint(rater({"ann": 0.05, "bob": 0.3})) as endpoint:
        run_chain(load_config(config(clinic, endpoint.url, THREE, questions=10)))
        tasks = sample_tasks(load_config(clinic / "clinic.toml"), 30)
        for expert, change in (("li", {}), ("wu", {0: "D"})):
            write_sheet(clinic / f"{expert}.xlsx", tasks, expert)
            book = load_workbook(clinic / f"{expert}.xlsx")
            for number, task in enumerate(tasks):
                right = "DCAS"[truth().get((task.question, task.document), -1) + 1]
                book["review"].cell(row=number + 2, column=5).value = change.get(number, right)
            book.save(clinic / f"{expert}.xlsx")
        sheets = 'sheets = ["li.xlsx", "wu.xlsx"]\nrule = "weighted"'
        report = run_chain(load_config(config(clinic, endpoint.url, THREE, questions=10, vote=sheets)))["vote"]
    experts = report["agreement"]["experts"]
    assert experts["pairs"] == 30 and experts["experts"] == ["li", "wu"]
    agreed = {(each["judge"], each["expert"]): each["agreement"]["value"] for each in experts["judges"]}
    assert agreed["cleo", "li"] == 1.0 > agreed["bob", "li"]
    assert report["weights"]["cleo"] > report["weights"]["bob"]


def test_an_expert_who_contradicts_himself_in_two_sheets_is_asked(clinic: Path) -> None:
    for name, grade in (("one", "S"), ("two", "D")):
        write_sheet(clinic / f"{name}.xlsx", [Task("q1", "d1", "=1+1", "文本\x07")], "li")
        book = load_workbook(clinic / f"{name}.xlsx")
        assert book["review"]["C2"].value == "=1+1" and book["review"]["C2"].data_type == "s"
        book["review"]["E2"].value = grade
        book.save(clinic / f"{name}.xlsx")
    loaded = load_config(config(clinic, "http://x", THREE, vote='sheets = ["one.xlsx", "two.xlsx"]'))
    with pytest.raises(InputError, match=r"two.xlsx:E2: expert 'li' rates .* D, and S in .*one.xlsx:E2; keep one"):
        read_opinions(loaded)


@given(st.lists(st.sampled_from(["q1", "d1", None, "", "a text", "A", "li"]), max_size=8))
def test_any_row_of_a_sheet_is_a_grade_nothing_or_refused(row: list[str | None]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        book = Workbook(write_only=True)  # which keeps no empty cells at the end of a row
        sheet = book.create_sheet("review")
        sheet.append(COLUMNS)
        sheet.append(row)
        book.save(Path(folder) / "li.xlsx")
        loaded = load_config(config(Path(folder), "http://x", THREE, vote='sheets = ["li.xlsx"]'))
        grade, expert = ([*row, *[None] * 6][at] for at in (4, 5))
        try:
            read = read_opinions(loaded)
        except InputError as error:
            assert grade and (grade not in GRADES or not expert), error
        else:
            assert len(read) == bool(grade)


def test_a_judge_whose_answers_could_not_be_read_is_asked_again(clinic: Path) -> None:
    with Endpoint(rater({}, always={"bob": "very good"})) as endpoint:
        loaded = load_config(config(clinic, endpoint.url, THREE, questions=6, vote="max_missing = 1.0"))
        run_step(loaded, "pool")
        report = run_step(loaded, "judge")
        found = {each["judge"]: each for each in report["judges"]}
        assert found["bob"]["votes"] == 0 and found["bob"]["missing"]["invalid"] == found["bob"]["asked"] > 20
        assert "very good" in found["bob"]["unread"] and found["ann"]["unread"] == ""
        sent = endpoint.bill.sent.total()
        endpoint.rate = rater({})
        assert run_step(loaded, "judge") == report and endpoint.bill.sent.total() == sent
        mended = run_step(ask_again(loaded, ("bob",)), "judge")
        assert {each["judge"]: each["missing"].total() for each in mended["judges"]} == dict.fromkeys(THREE, 0)
        assert endpoint.bill.sent.total() < 1.5 * sent  # bob alone, and once
        assert max(endpoint.bill.billed.values()) == 1
    (clinic / "clinic" / "judgements.jsonl").unlink()
    assert run_step(loaded, "judge", replay=True) == mended
    with pytest.raises(InputError, match=r"--again rob: unknown judge; expected one of ann, bob, cleo"):
        ask_again(loaded, ("rob",))


def test_a_benchmark_of_few_of_the_questions_is_refused_unless_asked_for(clinic: Path) -> None:
    known = {row["text"] for row in rows(config(clinic, "", {}, questions=12).parent / "questions.jsonl")[:3]}

    def rate(model: str, query: str, document: str) -> str:
        return perfect()(model, query, document) if query in known else "D"

    with Endpoint(rate) as endpoint:
        loaded = load_config(config(clinic, endpoint.url, THREE, questions=12))
        with pytest.raises(InputError, match=r"only 3 of 12 questions .*--again NAME.*build.min_answered below 0.5"):
            run_chain(loaded)
        card = run_chain(load_config(config(clinic, endpoint.url, THREE, questions=12, build="min_answered = 0.2")))
    assert (card["build"]["asked"], card["build"]["questions"]) == (12, 3)
    assert "| questions | 3 of 12 |" in (clinic / "clinic/benchmark/README.md").read_text(encoding="utf-8")


class TestBadInput:
    def test_no_judge_can_be_reached(self, clinic: Path) -> None:
        path = config(clinic, "http://127.0.0.1:9/v1", THREE, questions=2, judge="retries = 1")
        with pytest.raises(JudgeUnreachable, match=r"(?s)judge ann at .*cannot be reached.*judge cleo"):
            run_chain(load_config(path))

    def test_one_judge_is_down_and_the_others_are_kept(self, clinic: Path) -> None:
        with Endpoint(perfect()) as endpoint:
            endpoint.down = {"bob"}
            path = config(clinic, endpoint.url, THREE, questions=4, judge="retries = 1")
            with pytest.raises(JudgeUnreachable, match=r"judge bob .*answered 503, 2 times"):
                run_chain(load_config(path))
            paid = endpoint.bill.billed.total()
            endpoint.down = set()
            run_chain(load_config(path))
            assert max(endpoint.bill.billed.values()) == 1
            assert endpoint.bill.billed.total() == pytest.approx(1.5 * paid, abs=1)

    def test_the_budget_is_reached_before_it_is_passed(self, clinic: Path) -> None:
        with Endpoint(perfect()) as endpoint:
            path = config(clinic, endpoint.url, THREE, questions=10, judging="max_cost = 0.03")
            with pytest.raises(BudgetReached, match=r"raise max_cost"):
                run_chain(load_config(path))
            some = endpoint.bill.billed.total()
            report = run_chain(load_config(config(clinic, endpoint.url, THREE, questions=10)))
            assert 0 < some < endpoint.bill.billed.total()
            assert max(endpoint.bill.billed.values()) == 1
        assert report["judge"]["cost"] > 0.01

    def test_half_of_the_votes_are_missing(self, clinic: Path) -> None:
        with Endpoint(perfect()) as endpoint:
            endpoint.down = {"bob"}
            two = {"ann": 1, "bob": 1}
            path = config(clinic, endpoint.url, two, questions=4, judging="allow_missing = true", judge="retries = 0")
            with pytest.raises(InputError, match=r"50 % of the votes are missing \(bob: (\d+) of \1\)"):
                run_chain(load_config(path))

    def test_a_judge_that_always_says_yes_is_named(self, clinic: Path) -> None:
        with Endpoint(rater({}, always={"bob": "S"})) as endpoint:
            with pytest.raises(InputError, match=r"judge 'bob' rates (\d+) of \1 planted .*exclude = \[\"bob\"\]"):
                run_chain(load_config(config(clinic, endpoint.url, THREE, questions=6)))
            with pytest.raises(InputError, match=r"judge 'bob' rates all of its"):
                run_chain(load_config(config(clinic, endpoint.url, THREE, questions=6, judging="anchors = 0")))
            report = run_chain(load_config(config(clinic, endpoint.url, THREE, questions=6, vote='exclude = ["bob"]')))
        assert report["build"]["relevant"] > 0

    @pytest.mark.parametrize("rule", ["unanimous", "majority"])
    def test_a_judge_that_always_says_no_is_named(self, clinic: Path, rule: str) -> None:
        vote, problem = f'rule = "{rule}"', r"'bob' rates none of its .* relevant, of which another .*\[\"bob\"\]$"
        with Endpoint(rater({}, always={"bob": "D"})) as endpoint:
            with pytest.raises(InputError, match=problem):
                run_chain(load_config(config(clinic, endpoint.url, THREE, questions=10, vote=vote)))
            vote += '\nexclude = ["bob"]'
            report = run_chain(load_config(config(clinic, endpoint.url, THREE, questions=10, vote=vote)))
        assert report["build"]["relevant"] > 0

    def test_a_judge_that_takes_repeated_questions_for_answers_is_named_with_the_kind(self, clinic: Path) -> None:
        """A third of what was planted, so that all kinds together pass."""
        right = perfect()

        def rate(model: str, query: str, document: str) -> str:
            return "S" if model == "bob" and document.count(query) > 1 else right(model, query, document)

        with Endpoint(rate) as endpoint, pytest.raises(InputError, match=r"'bob' rates 6 of 18 .* 6 of 6 stuffed with"):
            run_chain(load_config(config(clinic, endpoint.url, THREE, questions=6)))

    def test_the_collection_changes_meanwhile(self, clinic: Path) -> None:
        with Endpoint(perfect()) as endpoint:
            loaded = load_config(config(clinic, endpoint.url, THREE, questions=4))
            for step in ("pool", "judge", "vote"):
                run_step(loaded, step)
            with open_client(path=clinic / "qdrant") as client:
                [point], _ = client.scroll("clinic", limit=1)
                client.delete("clinic", [point.id])
            report = run_step(loaded, "build")
        assert report["collection_changed"] == (
            "collection 'clinic' changed meanwhile: 0 documents added, 1 removed, 0 altered"
        )
        assert "changed meanwhile" in (clinic / "clinic/benchmark/README.md").read_text(encoding="utf-8")

    def test_the_collection_changes_while_it_is_read(self, clinic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        rank = pool._rankings

        def rank_and_delete(retriever: Any, loaded: Any, client: Any, *given: Any) -> Any:
            [point], _ = client.scroll("clinic", limit=1)
            client.delete("clinic", [point.id])
            return rank(retriever, loaded, client, *given)

        monkeypatch.setattr(pool, "_rankings", rank_and_delete)
        loaded = load_config(config(clinic, "http://127.0.0.1:9/v1", THREE, questions=4))
        with pytest.raises(
            InputError, match=r"changed meanwhile: 0 documents added, \d removed.*when nothing else writes to it"
        ):
            run_step(loaded, "pool")
        assert not (loaded.folder / pool.POOL).exists()

    def test_a_wrong_key_is_not_tried_again(self, clinic: Path) -> None:
        with Endpoint(perfect()) as endpoint:
            path = config(clinic, endpoint.url.replace("/v1", "/v2"), THREE, questions=2, judge='key_env = "NO_KEY"')
            with pytest.raises(InputError, match="NO_KEY is not set"):
                run_chain(load_config(path))

    def test_all_problems_of_a_configuration_are_named(self, clinic: Path) -> None:
        path = config(clinic, "http://x", {"ann": 2})
        path.write_text(path.read_text(encoding="utf-8").replace("depth = 12", "deep = 12"), encoding="utf-8")
        with pytest.raises(InputError, match=r"(?s)pool.deep: unknown key \(known: depth, limit"):
            load_config(path)

    def test_a_judge_that_is_not_there_cannot_be_left_out(self, clinic: Path) -> None:
        path = config(clinic, "http://x", {"ann": 1, "bob": 1}, vote='exclude = ["anne"]')
        with pytest.raises(InputError, match=r"vote.exclude: no judge is named 'anne' \(known: ann, bob\)"):
            load_config(path)

    def test_a_benchmark_shares_no_question_with_a_training_set(self, clinic: Path) -> None:
        question = rows(Path("examples/sample/queries.jsonl"))[0]["text"]
        row = {"query": question + "？", "positive": "x", "judge_families": ["cleo"]}
        (clinic / "train.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
        with Endpoint(perfect()) as endpoint:
            build = 'train = ["train.jsonl"]'
            with pytest.raises(InputError, match=r"judges of the family cleo also labelled a training set"):
                run_chain(load_config(config(clinic, endpoint.url, THREE, questions=4, build=build)))
            build += "\nallow_same_judges = true"
            with pytest.raises(InputError, match=r"q01: is in train.jsonl:1"):
                run_chain(load_config(config(clinic, endpoint.url, THREE, questions=4, build=build)))
            build += "\ndrop = true"
            report = run_chain(load_config(config(clinic, endpoint.url, THREE, questions=4, build=build)))
        assert report["build"]["repeated"] == 1
        with (clinic / "clinic/benchmark/qrels/test.tsv").open(encoding="utf-8") as file:
            assert "q01" not in {row["query-id"] for row in csv.DictReader(file, delimiter="\t")}


_IDS = st.sampled_from(["1", "2", "3", "4", "anchor:long"])


@settings(deadline=None)
@given(st.lists(st.tuples(_IDS, st.integers(1, 6)), min_size=1, max_size=6, unique_by=lambda row: row[1]))
def test_no_document_takes_the_place_of_another_whatever_its_id(points: list[tuple[str, int]]) -> None:
    client = QdrantClient(":memory:")
    client.create_collection("clinic", vectors_config={})
    payloads = {number: {"doc_id": name, "text": f"text {number}"} for name, number in points}
    client.upsert("clinic", [models.PointStruct(id=at, vector={}, payload=own) for at, own in payloads.items()])
    texts = read_texts(client, "clinic")
    assert {document.text for document in texts.documents.values()} == {f"text {number}" for number in payloads}
    assert all(texts.documents[name].text == f"text {number}" for number, name in texts.names.items())
    assert not any(map(is_anchor, texts.documents))


def test_every_question_that_a_training_row_nearly_equals_is_left_out(tmp_path: Path) -> None:
    asked = ["高血压病人能不能吃西瓜和葡萄呢", "高血压病人能不能吃西瓜和葡萄吗请问"]
    row = {"query": "高血压病人能不能吃西瓜和葡萄"}
    (tmp_path / "train.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    loaded = load_config(
        config(tmp_path, "http://x", {"ann": 1}, build='near_duplicate = 0.75\ntrain = ["train.jsonl"]')
    )
    questions = {f"q{at}": {"text": text} for at, text in enumerate(asked)}
    assert _repeated(loaded, questions) == dict.fromkeys(questions, "is in train.jsonl:1")


def test_judges_of_one_model_string_answer_for_themselves(clinic: Path) -> None:
    with Endpoint(rater({}, {"same": "A"})) as ours, Endpoint(rater({}, {"same": "D"})) as theirs:
        path = config(clinic, ours.url, {"ann": 1, "bob": 1, "cleo": 1}, questions=4)
        text = path.read_text(encoding="utf-8")
        for name in ("ann", "bob", "cleo"):
            text = text.replace(f'model = "{name}"', 'model = "same"')
        head, *judges = text.split("[[judge]]")
        judges[1] = judges[1].replace(ours.url, theirs.url)
        path.write_text("[[judge]]".join([head, *judges]), encoding="utf-8")
        run_step(load_config(path), "pool")
        run_step(load_config(path), "judge")
        assert 0 < theirs.bill.sent.total() < ours.bill.sent.total()
    votes = Counter((row["judge"], row["grade"]) for row in rows(clinic / "clinic" / "judgements.jsonl"))
    assert {judge for judge, _ in votes} == {"ann", "bob", "cleo"}
