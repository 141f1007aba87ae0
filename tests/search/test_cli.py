"""The two commands as a user runs them, on an embedded folder."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from qdrant_client import QdrantClient, models

from care_qdrant.cli import search, status
from care_qdrant.console.text import beginning, cut, display_width, table
from care_qdrant.errors import CareError, InputError
from care_qdrant.model.care_model import CareModel
from care_qdrant.qdrant.connection import open_client
from care_qdrant.search import conditions
from care_qdrant.types import Chunk, Document
from care_qdrant.versions.publish import publish_collection
from tests.search.conftest import COLLECTION, fill
from tests.standin import StandIn
from tests.tiny import TEXTS, HashModel

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, pair_folder: Path) -> Path:
    """A database that the tiny pair wrote: the texts with a department each."""
    path = tmp_path_factory.mktemp("search") / "qdrant"
    client = QdrantClient(path=str(path))
    departments = ("内科", "外科")
    rows = [Document(f"d{n}", text, metadata={"dept": departments[n % 2], "n": n}) for n, text in enumerate(TEXTS)]
    fill(client, CareModel.load(pair_folder), [Chunk(row, row.text) for row in rows])
    client.close()
    return path


@pytest.fixture
def run(folder: Path, pair_folder: Path) -> Run:
    def run(*arguments: str) -> Result:
        options = ["--path", str(folder), "--model", str(pair_folder)]
        return CliRunner().invoke(search.command, [*arguments, *options])

    return run


def test_json_has_every_field_of_a_hit(run: Run) -> None:
    result = run("HbA1c 6.5%", "--mode", "hybrid", "--top-k", "2", "--json")
    found = json.loads(result.stdout)
    assert (found["query"], found["collection"], found["mode"]) == ("HbA1c 6.5%", COLLECTION, "hybrid")
    assert len(found["hits"]) == 2
    best = found["hits"][0]
    assert (best["document_id"], best["text"], best["metadata"]) == ("d3", TEXTS[3], {"dept": "外科", "n": 3})


def test_a_pipe_gets_the_text_that_a_terminal_gets(run: Run) -> None:
    lines = run("EGFR", "--mode", "sparse").stdout.splitlines()
    assert lines[0].split()[::2] == ["1", "d7"]
    assert lines[1].strip() == TEXTS[7]


def test_filters_narrow_the_answer(run: Run) -> None:
    def numbers(*options: str) -> list[int]:
        hits = json.loads(run("高血压", "--json", *options).stdout)["hits"]
        return sorted(hit["metadata"]["n"] for hit in hits)

    assert numbers() == list(range(8))
    assert numbers("--filter", "dept=外科") == [1, 3, 5, 7]
    assert numbers("--filter", "dept!=外科", "--filter", "n>=2", "--filter", "n<6") == [2, 4]
    assert numbers("--filter", "n=3") == numbers("--filter", "n=3.0") == [3]
    assert numbers("--filter", "dept=儿科") == []


def test_hits_come_by_group_and_with_a_least_score(run: Run) -> None:
    options = ("HbA1c 6.5%", "--mode", "hybrid", "--group-by", "dept", "--group-size", "2")
    found = [(hit["group"], hit["score"]) for hit in json.loads(run(*options, "--json").stdout)["hits"]]
    assert [group for group, _ in found] == ["外科", "外科", "内科", "内科"]
    above = json.loads(run(*options, "--score-threshold", str(found[0][1] - 1e-6), "--json").stdout)["hits"]
    assert [hit["group"] for hit in above] == ["外科"]
    lines = run(*options).stdout.splitlines()
    assert [line for line in lines if line.startswith("dept=")] == ["dept=外科", "dept=内科"]
    refused = run("HbA1c", "--group-by", "department").exception
    assert isinstance(refused, InputError) and "group_by: no point of 'corpus' has 'department'" in str(refused)


def test_nothing_found_says_so(run: Run) -> None:
    assert run("xyz", "--mode", "sparse").stdout == "nothing found\n"


@pytest.mark.parametrize("condition", ["dept", "=内科", "n>=x", "n>true"])
def test_filter_that_cannot_be_read_is_refused(condition: str) -> None:
    result = CliRunner().invoke(search.command, ["糖", "--filter", condition])
    assert isinstance(result.exception, InputError)
    assert str(result.exception).startswith(f"--filter: condition {condition!r}")
    assert ("in quotes" in str(result.exception)) is (condition == "dept")


def test_filter_value_in_quotes_is_a_text() -> None:
    parsed = conditions.parse_filter(['code="017"', "age=17", "adult=false", "name=a=b"])
    assert parsed is not None
    code, age, adult, name = parsed.must
    assert [code.match.value, name.match.value] == ["017", "a=b"]
    number, text = age.should
    assert (number.range.gte, number.range.lte, text.match.value) == (17, 17, "17")
    assert [one.match.value for one in adult.should] == [False, "false", "False", "FALSE"]


def test_collection_must_be_named_only_when_there_are_several(tmp_path: Path, pair_folder: Path) -> None:
    def error(*arguments: str) -> str:
        options = ["--path", str(tmp_path), "--mode", "sparse", *arguments]
        exception = CliRunner().invoke(search.command, ["发热", *options]).exception
        assert isinstance(exception, InputError)
        return str(exception)

    assert "no collections yet" in error()
    client = QdrantClient(path=str(tmp_path))
    for name in ("a", "b"):
        client.create_collection(name, vectors_config={})
    client.close()
    assert "several collections (a, b)" in error()
    assert "no collection 'x' (existing collections: a, b)" in error("--collection", "x")


def test_a_terminal_is_asked_which_of_several_collections_is_meant(tmp_path: Path) -> None:
    with open_client(path=tmp_path / "qdrant") as client:
        for name, text in (("a", "发烧"), ("b", "咳嗽")):
            fill(client, HashModel(), [Chunk(Document(name, text), text)], name)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", "from care_qdrant.cli import main; main()", "search", "咳嗽", "--mode", "sparse"]
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, cwd=tmp_path) as process:
        os.close(theirs)
        os.write(ours, b"2\n")
        assert process.stdout is not None
        found = process.stdout.read().decode()
    os.close(ours)
    assert found.split()[2] == "b"


def test_hits_of_piped_questions_follow_their_question(folder: Path, pair_folder: Path) -> None:
    options = ["--path", str(folder), "--model", str(pair_folder), "--mode", "sparse"]
    found = CliRunner().invoke(search.command, options, input="\nxyz\n \nHbA1c").stdout.splitlines()
    assert found[:3] == ["xyz:", "nothing found", "HbA1c:"] and found[3].startswith("1 ")


def test_blank_query_is_refused(run: Run) -> None:
    assert isinstance(run("  ").exception, CareError)


def test_status_shows_models_and_counts(folder: Path, pair_folder: Path) -> None:
    [found] = json.loads(CliRunner().invoke(status.command, ["--path", str(folder), "--json"]).stdout)
    assert (found["name"], found["points"], found["aliases"]) == (COLLECTION, 8, [])
    dense, sparse = found["vectors"]
    card = CareModel.load(pair_folder)
    assert dense == {
        "name": "tiny-pair",
        "kind": "dense",
        "points": 8,
        "dim": 32,
        "distance": "Cosine",
        "made_by": "tiny-pair",
        "fingerprint": card.fingerprint,
        "stand_ins": 0,
        "stand_in_models": [],
        "learned": None,
        "learned_fingerprint": None,
    }
    assert (sparse["kind"], sparse["made_by"], sparse["points"]) == ("sparse", "zh-char-bigram-2", 8)
    lines = CliRunner().invoke(status.command, ["--path", str(folder)]).stdout.splitlines()
    assert lines[1].split() == [COLLECTION, "8"]
    assert lines[2].split()[:2] == ["tiny-pair", "8"] and card.fingerprint[:12] in lines[2]


def test_vectors_of_another_tool_are_shown_as_such(tmp_path: Path) -> None:
    client = QdrantClient(path=str(tmp_path))
    client.create_collection("old", vectors_config=models.VectorParams(size=4, distance=models.Distance.DOT))
    client.upsert("old", [models.PointStruct(id=1, vector=[1, 0, 0, 0])])
    client.close()
    lines = CliRunner().invoke(status.command, ["--path", str(tmp_path)]).stdout.splitlines()
    assert lines[2].split() == ["(unnamed)", "1", "dense", "4", "Dot,", "by", "another", "tool"]


def test_the_status_of_a_collection_has_its_texts_and_its_versions(server: StandIn, pair_folder: Path) -> None:
    pair = CareModel.load(pair_folder)
    with open_client(url=server.url) as client:
        fill(client, pair, [Chunk(Document(f"d{n}", text), text) for n, text in enumerate(TEXTS)])
        for _ in range(2):
            publish_collection(client, COLLECTION, "live")

    def shown(*arguments: str) -> str:
        return CliRunner().invoke(status.command, [*arguments, "--url", server.url], catch_exceptions=False).stdout

    text = shown("live")
    assert text.startswith("live_v2: 8 points") and "versions: live_v1, live_v2" in text
    assert "payloads of care" in text and any(each[:20] in text for each in TEXTS)
    found = json.loads(shown("live", "--json"))
    assert (found["version_of"], found["versions"]) == (COLLECTION, ["live_v1", "live_v2"])
    assert found["summary"]["aliases"] == ["live"] and len(found["texts"]) == 3


def test_the_online_half_imports_no_torch(folder: Path, pair_folder: Path) -> None:
    command = ["search", "EGFR", "--path", str(folder), "--model", str(pair_folder)]
    code = (
        f"import sys; from care_qdrant.cli import care; care.main({command!r}, standalone_mode=False)\n"
        "assert not {'torch', 'transformers', 'sentence_transformers'} & set(sys.modules), 'heavy imports'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "d7" in done.stdout


def test_columns_line_up_for_chinese() -> None:
    assert display_width("糖尿病 HbA1c") == 12
    assert display_width("e\u0301") == 1
    lines = table(["id", "文本", "end"], [["一", "a\nb", "x"], ["22", "糖", "y"]], width=80).splitlines()
    assert len({display_width(line[: line.rindex(line.split()[-1])]) for line in lines}) == 1


def test_a_text_is_cut_to_a_width() -> None:
    assert cut("糖尿病人", 5) == "糖尿…"
    assert cut("糖尿病人", 8) == "糖尿病人"


def test_a_listing_shows_enough_of_a_text_to_judge_it() -> None:
    text = "高血压患者应当限制食盐的摄入，每天不超过五克。" * 4
    lines = beginning(text, indent=3, width=43)
    assert len(lines) == 3
    assert all(display_width(line) <= 40 for line in lines)
    assert "".join(lines).removesuffix("…") == text[: len("".join(lines)) - 1]
    assert lines[-1].endswith("…")
    assert beginning("短\n文", width=40) == ["短 文"]
