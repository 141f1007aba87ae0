"""Sentence pairs of synonyms, written and checked by stand-ins over a real socket."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from care_benchmarks.taskfiles import read_sts
from care_data.build import run_build
from care_data.chain import run_chain, run_step
from care_data.config import load_config
from care_data.files import write_rows
from care_data.sts import drawn, run_sts
from care_trainer.config import Data
from care_trainer.data.read import iter_pairs

from care_qdrant.errors import InputError
from tests.care_data.clinic import config, rows
from tests.care_data.endpoint import Endpoint, Faults

WORDS = {"高血压": "血压高", "糖尿病": "消渴症", "发烧": "发热"}


def write(prompt: str) -> str:
    """Write what table 22 asks for: the question in other words, and two others."""
    names = {
        name: match[1]
        for name in ("原词", "同义词", "替换后的问题")
        if (match := re.search(rf"\n{name}：(.*)", prompt))
    }
    origin, other, replaced = names.values()
    return json.dumps(
        {"positive": f"{replaced}啊", "negative-1": f"{other}能吃辣吗", "negative-2": f"{origin}会遗传吗"}
    )


def same(model: str, question: str, sentence: str) -> str:
    return "S" if sentence.endswith("啊") else "B"


@pytest.fixture
def synonyms(tmp_path: Path) -> Path:
    questions = [{"id": f"q{at}", "text": f"{word}患者{at}号早上起来头疼怎么办"} for at, word in enumerate(WORDS)]
    questions += [
        {"id": "q8", "text": "骨折了怎么办"},
        {"id": "q9", "text": "孩子发烧三十九度要紧吗", "license": "mit"},
    ]
    write_rows(
        tmp_path / "synonyms.jsonl", ({"origin": o, "replace": r, "license": "cc0-1.0"} for o, r in WORDS.items())
    )
    write_rows(tmp_path / "own.jsonl", questions)
    return tmp_path


def with_sts(folder: Path, url: str, **settings: str) -> Path:
    path = config(folder, url, {"ann": 1, "bob": 1, "strong": 2}, questions=4, **settings)
    table = '[sts]\ndictionary = "synonyms.jsonl"\n[sts.writer]\nname = "writer"\nmodel = "writer"\nfamily = "pen"\n'
    text = path.read_text(encoding="utf-8").replace('"questions.jsonl"', '"own.jsonl"')
    path.write_text(f'{text}{table}url = "{url}"\nmax_wait_seconds = 0.05\ninput_price = 1.0\n', encoding="utf-8")
    return path


def test_pairs_are_written_confirmed_and_read_by_the_trainer(synonyms: Path) -> None:
    with Endpoint(same, Faults(wrong_json=0.2, busy=0.2, refused=0.1, cut=0.2)) as endpoint:
        endpoint.write = write
        loaded = load_config(with_sts(synonyms, endpoint.url, judging="attempts = 6"))
        report = run_sts(loaded)
        assert max(endpoint.bill.billed.values()) == 1
        assert run_sts(loaded, replay=True)["pairs"] == report["pairs"]
    assert (report["questions"], report["with_a_synonym"], report["written"]) == (5, 4, 4)
    assert report["pairs"] == {"positive": 4, "hard": 4, "easy": 4} and not report["not_confirmed"]
    pairs = list(iter_pairs(Data(files=("sts.jsonl",)), loaded.folder))
    assert Counter(pair.score for pair in pairs) == {1.0: 4, 0.0: 8}
    for pair in pairs:
        word = next(word for word in WORDS if word in pair.query)
        assert (WORDS[word] in pair.positive) is (pair.other["kind"] != "easy")
        assert pair.other["license"] == ("mit AND cc0-1.0" if "三十九" in pair.query else "apache-2.0 AND cc0-1.0")
        assert pair.other["judge_families"] == ["ann", "bob", "pen", "strong"]


def test_what_judges_do_not_confirm_is_left_out(synonyms: Path) -> None:
    """Here, every judge finds that the hard negative of one question means the same, and two dispute another one."""

    def rate(model: str, question: str, sentence: str) -> str:
        if sentence == "血压高能吃辣吗":
            return "A"
        disputed = sentence == "糖尿病会遗传吗"
        return {"ann": "S", "bob": "D", "strong": "S"}[model] if disputed else same(model, question, sentence)

    with Endpoint(rate) as endpoint:
        endpoint.write = write
        report = run_sts(load_config(with_sts(synonyms, endpoint.url)))
    assert report["not_confirmed"] == {"hard": 1, "easy": 1}
    assert report["pairs"] == {"positive": 4, "hard": 3, "easy": 3}
    assert {bill["judge"]: bill["calls"] for bill in report["bills"]} == {"ann": 4, "bob": 4, "strong": 1, "writer": 4}


@pytest.mark.parametrize(
    "wrong",
    [
        {"positive": "短"},
        {"negative-1": "高血压能吃辣吗"},
        {"negative-2": "血压高会遗传吗"},
        {"positive": None},
    ],
)
def test_an_answer_that_breaks_a_rule_of_table_22_is_asked_for_again(synonyms: Path, wrong: dict[str, str]) -> None:
    asked = Counter[str]()

    def once_wrong(prompt: str) -> str:
        asked[prompt] += 1
        right = json.loads(write(prompt))
        return json.dumps(right | wrong if "高血压" in prompt and asked[prompt] == 1 else right)

    with Endpoint(same) as endpoint:
        endpoint.write = once_wrong
        report = run_sts(load_config(with_sts(synonyms, endpoint.url)))
    assert report["written"] == 4 and sorted(asked.values()) == [1, 1, 1, 2]


def test_the_benchmark_has_one_pair_of_each_question(clinic: Path, synonyms: Path) -> None:
    texts = {row["id"]: row["text"] for row in rows(clinic / "own.jsonl")}

    def rate(model: str, question: str, sentence: str) -> str:
        return same(model, question, sentence) if len(sentence) < 40 else "SD"[len(sentence) % 2]

    with Endpoint(rate) as endpoint:
        endpoint.write = write
        path = with_sts(clinic, endpoint.url, judging="anchors = 0", vote="max_failed_anchors = 1.0")
        report = run_chain(load_config(path))
        assert report["build"]["sts_pairs"] == 4
        again = load_config(path)
        (clinic / "synonyms.jsonl").write_text("")
        with pytest.raises(InputError, match="there is nothing to rewrite"):
            run_step(again, "sts")
    pairs = read_sts(clinic / "clinic" / "benchmark" / "sts.jsonl")
    assert {pair.sentence1 for pair in pairs} == set(texts.values()) - {"骨折了怎么办"} and len(pairs) == 4
    assert list(drawn(rows(clinic / "clinic" / "sts.jsonl"))) == list(drawn(rows(clinic / "clinic" / "sts.jsonl")))
    (clinic / "clinic" / "sts.jsonl").unlink()
    with pytest.raises(InputError, match=r"sts.jsonl: does not exist; run care data sts .*toml first"):
        run_build(again)


def test_without_a_judge_or_synonyms_nothing_is_sent(synonyms: Path) -> None:
    loaded = load_config(config(synonyms, "http://127.0.0.1:9/v1", {"ann": 1}, questions=4))
    with pytest.raises(InputError, match=r"\[sts\] with its dictionary and writer"):
        run_sts(loaded)
    write_rows(synonyms / "synonyms.jsonl", [{"origin": "发烧", "replace": "发烧"}])
    with pytest.raises(InputError, match=r"synonyms.jsonl:1: is not a synonym"):
        run_sts(load_config(with_sts(synonyms, "http://127.0.0.1:9/v1")))
