"""Whatever a judge, another tool or a killed page has written, is read as what it says or refused; nothing crashes."""

import json
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from care_data.config import Judge, load_config
from care_data.exchange import read_judgements, write_qrels
from care_data.files import LABELS
from care_data.pool import run_pool
from care_data.prompts import LETTERS, read_grades
from care_data.review import review_app
from care_data.sheets import OPINIONS, Task, page_opinions
from care_data.source import read_fields, read_questions
from care_data.wire import Answer, Caller, Ledger, highest_price
from hypothesis import example, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from care_qdrant.errors import CareError, InputError
from tests.care_data.clinic import config
from tests.care_data.endpoint import Endpoint

JUDGE = Judge(name="ann", url="http://127.0.0.1:9", model="m", family="f", input_price=1.0, output_price=2.0, retries=0)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=9,
)
CONTENT = st.just([{"type": "text", "text": "x"}, {"type": "image"}]) | JSON
COMPLETION = st.builds(
    lambda content, usage, refusal: {
        "choices": [{"message": {"content": content, "refusal": refusal}}],
        "usage": usage,
    },
    CONTENT,
    st.fixed_dictionaries({"prompt_tokens": JSON, "completion_tokens": JSON}) | JSON,
    JSON,
)


class Response:
    """An answer of an endpoint with a body."""

    status_code, headers, text = 200, dict[str, str](), ""

    def __init__(self, body: Any) -> None:
        self.body = body

    def json(self) -> Any:
        return self.body


@settings(deadline=None)
@given(COMPLETION | JSON)
def test_any_body_is_an_answer_that_can_be_stored_or_a_failure(body: Any) -> None:
    ledger = Ledger(Path(":memory:"))
    caller = Caller(JUDGE, ledger)
    try:
        answer = caller._read(Response(body), "question")  # type: ignore[arg-type]
    except Exception as failure:
        assert type(failure).__name__ in ("_Busy", "JudgeUnreachable")
        return
    finally:
        caller.close()
    ledger.reserve("key", "ann", 1.0)
    ledger.store("key", answer)
    assert ledger.stored("key") == answer and answer.cost >= 0
    if answer.input_tokens == answer.output_tokens == 0 and "usage" not in body:
        assert answer.cost == highest_price(JUDGE, "question")
    ledger.close()


@given(st.text() | st.dictionaries(st.text(max_size=3), st.sampled_from("SABCD") | JSON).map(json.dumps))
@example('{"²": "A"}')
@example(json.dumps({"9" * 5_000: "A"}))
@example("{" * 3_000)
@example('{"a":' * 2_000)
def test_any_text_of_a_judge_gives_grades_of_the_passages_alone(text: str) -> None:
    grades = read_grades(text, 3)
    assert grades.keys() <= {0, 1, 2} and set(grades.values()) <= LETTERS.keys()


@given(st.lists(st.sampled_from("SABCD"), min_size=1, max_size=12), st.integers(0, 2), st.sampled_from(["{}", "P-{}"]))
def test_an_answer_that_numbers_passages_in_another_way_gives_no_grade(letters: str, first: int, key: str) -> None:
    text = json.dumps({key.format(number): letter for number, letter in enumerate(letters, first)})
    grades = read_grades(text, len(letters))
    assert [LETTERS[grades[at]] for at in sorted(grades)] == ([] if first else [*letters])


@given(st.binary(max_size=60))
@example(b"q1 0 d\xe9 1\n")
@example("q1 0 d1 1\n".encode("utf-16"))
def test_any_bytes_are_judgements_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    for name in ("theirs.qrels", "theirs.jsonl"):
        path = tmp_path_factory.getbasetemp() / name
        path.write_bytes(content)
        try:
            found = read_judgements(path, 1)
        except CareError:
            continue
        assert set(found.values()) <= LETTERS.keys() and not any("\ufeff" in query for query, _ in found)


def _answer(number: int) -> Answer:
    return Answer(f"答 {number} " * 50, "", number, number, 0.5)


@pytest.fixture(scope="module")
def ledgers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """The files of a ledger after a run that ended, and after one that was killed."""
    folder, files = tmp_path_factory.mktemp("ledger"), {}
    for half in (range(20), range(20, 40)):
        ledger = Ledger(folder / "calls.sqlite")
        for number in half:
            ledger.reserve(str(number), "ann", 1.0)
            ledger.store(str(number), _answer(number))
        files["killed"] = {path.name: path.read_bytes() for path in folder.iterdir()}
        ledger.close()
    return files | {"ended": {"calls.sqlite": (folder / "calls.sqlite").read_bytes()}}


@settings(deadline=None, max_examples=300)
@given(
    st.sampled_from(["ended", "killed"]),
    st.integers(0, 1),
    st.integers(0, 999),
    st.none() | st.binary(min_size=1, max_size=9),
)
def test_a_ledger_that_is_cut_or_damaged_anywhere_has_its_answers_or_is_refused(
    ledgers: dict[str, dict[str, bytes]], how: str, which: int, permille: int, written: bytes | None
) -> None:
    files = dict(ledgers[how])
    name = sorted(files)[which % len(files)]
    content = files[name]
    place = permille * len(content) // 1000
    files[name] = content[:place] + (b"" if written is None else written + content[place + len(written) :])
    with tempfile.TemporaryDirectory() as folder:
        for file, whole in files.items():
            (Path(folder) / file).write_bytes(whole)
        try:
            with closing(Ledger(Path(folder) / "calls.sqlite")) as ledger:
                found = [ledger.stored(str(number)) for number in range(40)]
                ledger.bills()
                ledger.reserve("new", "ann", 1.0)
                ledger.store("new", _answer(0))
        except InputError as error:
            assert "calls.sqlite" in str(error)
            return
    if written is None and files["calls.sqlite"]:  # an empty file is a new ledger
        assert found == [_answer(number) for number in range(40)]


def test_a_byte_order_mark_is_no_part_of_an_id(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("\ufeffq1 0 d1 1\n", encoding="utf-8")
    assert list(read_fields(tmp_path / "run", "query 0 document grade")) == [["q1", "0", "d1", "1"]]
    (tmp_path / "questions.jsonl").write_text('\ufeff{"id": "q1", "text": "哮喘"}\n', encoding="utf-8")
    assert read_questions(tmp_path / "questions.jsonl") == [{"id": "q1", "text": "哮喘"}]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ('{"qid": null, "docid": "d", "judgment": 1}', "has no qid or no docid"),
        ('{"qid": "q", "docid": "d", "judgment": Infinity}', "grade is inf"),
        (
            '{"qid": "q", "docid": "d", "judgment": 1}\n{"qid": "q", "docid": "d", "judgment": 0}',
            "with different grades",
        ),
    ],
)
def test_judgements_that_say_nothing_are_refused(tmp_path: Path, row: str, problem: str) -> None:
    (tmp_path / "theirs.jsonl").write_text(f"{row}\n", encoding="utf-8")
    with pytest.raises(InputError, match=problem):
        read_judgements(tmp_path / "theirs.jsonl", 1)


@pytest.mark.parametrize(
    ("line", "problem"),
    [("0001 Q0 {} 1 high run", "expected a finite number"), ("other Q0 {} 1 1.0 run", "for none of the questions")],
)
def test_a_run_of_another_tool_that_cannot_be_read_is_refused(clinic: Path, line: str, problem: str) -> None:
    with Endpoint(lambda *_: "D") as endpoint:
        path = config(clinic, endpoint.url, {"ann": 1}, questions=2)
    (clinic / "their.run").write_text(line.format("x") + "\n", encoding="utf-8")
    table = '\n[[retriever]]\nname = "theirs"\nkind = "run"\npath = "their.run"\n'
    path.write_text(path.read_text(encoding="utf-8") + table, encoding="utf-8")
    with pytest.raises(InputError, match=problem):
        run_pool(load_config(path))


def test_an_id_with_a_blank_is_in_no_qrels(tmp_path: Path) -> None:
    loaded = load_config(config(tmp_path, "http://x", {"ann": 1}, questions=1))
    loaded.folder.mkdir()
    row = {"query_id": "q1", "document_id": "my note.md", "label": "relevant"}
    (loaded.folder / LABELS).write_text(json.dumps(row) + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"cannot hold the id .my note\.md."):
        write_qrels(loaded, tmp_path / "out.qrels")
    assert not (tmp_path / "out.qrels").exists()


@pytest.mark.parametrize("cut", range(1, 70, 13))
def test_opinions_that_are_cut_anywhere_lose_one_line_alone(tmp_path: Path, cut: int) -> None:
    loaded = load_config(config(tmp_path, "http://x", {"ann": 1}, questions=1))
    loaded.folder.mkdir()
    page = TestClient(review_app(loaded, [Task("q1", "d1", "哮喘", "喘息")]), base_url="http://127.0.0.1:8090")
    said = {"expert": "li", "query_id": "q1", "document_id": "d1", "grade": "A"}
    for expert in ("li", "wu"):
        page.post("/opinions", json=said | {"expert": expert})
    file = loaded.folder / OPINIONS
    file.write_bytes(file.read_bytes()[:-cut])
    assert page.get("/tasks?expert=li").status_code == 200
    assert page.post("/opinions", json=said | {"expert": "he"}).json() == {"stored": True}
    assert {expert for expert, *_ in page_opinions(loaded)} == {"li", "he"} | ({"wu"} if cut == 1 else set())
