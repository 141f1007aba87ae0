"""The review page: what it stores, whom it answers, and how it is used by key in a browser."""

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from care_data.chain import run_chain, run_step
from care_data.config import Config, load_config
from care_data.review import review_app
from care_data.sheets import Task, page_opinions, sample_tasks, write_sheet
from openpyxl import load_workbook
from starlette.testclient import TestClient

from care_qdrant.errors import InputError
from tests.browser import CHROMIUM, Browser
from tests.care_data.clinic import config, rater
from tests.care_data.endpoint import Endpoint

TASKS = [
    Task("q1", "d1", "头皮痒怎么办 <img src=x onerror=document.title=1>", "勤洗头。\n" * 40),
    Task("q1", "d2", "头皮痒怎么办 <img src=x onerror=document.title=1>", "<script>document.title=2</script> 水果"),
    Task("q2", "d1", "糖尿病人能吃西瓜吗", "可以少量吃。"),
]
HOST = "http://127.0.0.1:8090"


def said(expert: str, task: Task, grade: str) -> dict[str, str]:
    return {"expert": expert, "query_id": task.query_id, "document_id": task.document_id, "grade": grade}


@pytest.fixture
def loaded(tmp_path: Path) -> Config:
    made = load_config(config(tmp_path, "http://x", {"ann": 1}, questions=1))
    made.folder.mkdir()
    return made


@pytest.fixture
def page(loaded: Config) -> TestClient:
    return TestClient(review_app(loaded, TASKS), base_url=HOST)


def test_grades_are_kept_for_each_expert_and_the_last_word_counts(page: TestClient, loaded: Config) -> None:
    assert all(task["grade"] is None for task in page.get("/tasks?expert=li").json()["tasks"])
    for expert, grades in (("li", "SDA"), ("wu", "SDD")):
        for task, grade in zip(TASKS, grades, strict=True):
            assert page.post("/opinions", json=said(expert, task, grade)).json() == {"stored": True}
    page.post("/opinions", json=said("li", TASKS[0], "B"))
    assert [task["grade"] for task in page.get("/tasks?expert=li").json()["tasks"]] == ["B", "D", "A"]
    again = TestClient(review_app(loaded, TASKS), base_url=HOST).get("/tasks?expert=wu").json()
    assert [task["grade"] for task in again["tasks"]] == ["S", "D", "D"]
    [agreement] = again["agreement"]
    assert agreement["raters"] == ["li", "wu"] and agreement["agreement"]["value"] == pytest.approx(1 / 3)
    assert page_opinions(loaded)["li", "q1", "d1"] == 2


def test_nothing_is_shown_of_others_before_the_end(page: TestClient) -> None:
    for task in TASKS:
        page.post("/opinions", json=said("wu", task, "S"))
    shown = page.get("/tasks?expert=li")
    assert shown.json()["agreement"] == [] and "wu" not in shown.text
    assert {key for task in shown.json()["tasks"] for key in task} == {
        "query_id", "document_id", "question", "document", "grade",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"grade": "E"}, "expected expert, query_id and document_id as texts, and a grade of S, A, B, C, D"),
        ({"document_id": "d9"}, "the pair is not in this sample"),
        ({"expert": " "}, "expected expert, query_id and document_id as texts, and a grade of S, A, B, C, D"),
        ({"expert": 5}, "expected expert, query_id and document_id as texts, and a grade of S, A, B, C, D"),
    ],
)
def test_what_is_no_grade_is_not_stored(page: TestClient, loaded: Config, wrong: dict[str, Any], reason: str) -> None:
    answer = page.post("/opinions", json=said("li", TASKS[0], "S") | wrong)
    assert answer.status_code == 400 and reason in answer.json()["error"]
    assert page_opinions(loaded) == {}


def test_pages_of_other_sites_reach_nothing(page: TestClient, loaded: Config) -> None:
    assert page.get("/tasks", headers={"host": "evil.example"}).status_code == 400
    form = {"content-type": "text/plain"}
    assert page.post("/opinions", content=json.dumps(said("li", TASKS[0], "S")), headers=form).status_code == 400
    assert page_opinions(loaded) == {}
    policy = page.get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    for path in re.findall(r'(?:src|href)="([^"#:]+)"', page.get("/").text):
        assert page.get(f"/{path}").status_code == 200


def test_the_page_names_no_other_place_writes_no_markup_and_says_all_in_both_languages(page: TestClient) -> None:
    script, markup = page.get("/review.js").text, page.get("/").text
    for text in (script, markup, page.get("/review.css").text):
        assert not re.findall(r"https?://|innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text)
    english, chinese = re.search(r"  en: \{(.*?)\n  \},\n  zh: \{(.*?)\n  \},", script, re.DOTALL).groups()  # type: ignore[union-attr]
    names = [set(re.findall(r"(?:^|[ ,])(\w+): (?=[\"`(])", text)) for text in (english, chinese)]
    used = set(re.findall(r'\bt\("(\w+)"', script)) | set(re.findall(r'data-(?:text|label)="(\w+)"', markup))
    assert names[0] == names[1] >= used


def test_votes_are_compared_with_the_page_and_a_sheet_may_not_contradict_it(clinic: Path) -> None:
    with Endpoint(rater({"ann": 0.3})) as endpoint:
        path = config(clinic, endpoint.url, {"ann": 1, "bob": 1, "cleo": 1}, questions=6)
        run_chain(load_config(path))
        tasks = sample_tasks(load_config(path), 12)
        page = TestClient(review_app(load_config(path), tasks), base_url=HOST)
        for number, task in enumerate(tasks):
            page.post("/opinions", json=said("li", task, "SD"[number % 2]))
        report = run_step(load_config(path), "vote")
        assert report["agreement"]["experts"]["pairs"] == 12
        assert {each["expert"] for each in report["agreement"]["experts"]["judges"]} == {"li"}
        write_sheet(clinic / "li.xlsx", tasks[:1], "li")
        book = load_workbook(clinic / "li.xlsx")
        book["review"]["E2"].value = "C"
        book.save(clinic / "li.xlsx")
        path = config(clinic, endpoint.url, {"ann": 1, "bob": 1, "cleo": 1}, questions=6, vote='sheets = ["li.xlsx"]')
        with pytest.raises(InputError, match=r"opinions.jsonl: expert 'li' rates .* S, and C in .*li.xlsx:E2"):
            run_step(load_config(path), "vote")


@pytest.fixture
def address(loaded: Config) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(review_app(loaded, TASKS), port=port, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
@pytest.mark.timeout(300)
def test_an_expert_rates_by_key_leaves_and_goes_on(address: str, loaded: Config, tmp_path: Path) -> None:
    pytest.importorskip("websockets")
    browser = Browser(tmp_path / "profile")
    place = 'document.getElementById("place").textContent'
    try:
        browser.call("Page.navigate", url=f"{address}/?lang=en")
        browser.until('document.readyState === "complete" && document.activeElement.id === "expert"')
        for letter in "dasha":
            browser.press(letter)
        assert browser.value('document.getElementById("expert").value') == "dasha"
        browser.value('document.querySelector("#start button").click()')
        browser.until(f"{place}.startsWith('Pair 1 of 3, 3 left')")
        assert page_opinions(loaded) == {}, "letters of a name are no grades"
        assert browser.value('document.querySelector("#question").textContent') == TASKS[0].question
        assert browser.value("document.querySelectorAll('main img, main script').length") == 0
        browser.press("s")
        browser.until(f"{place}.startsWith('Pair 2 of 3, 2 left')")
        browser.press("ArrowLeft")
        browser.until(f"{place}.startsWith('Pair 1 of 3, 2 left')")
        assert browser.value("document.querySelector('#grades [aria-pressed=true] b').textContent") == "S"
        browser.press("2")
        browser.until(f"{place}.startsWith('Pair 2 of 3, 2 left')")
        browser.press("n")
        browser.until(f"{place}.startsWith('Pair 3 of 3, 2 left')")
        browser.press("d")
        browser.until(f"{place}.startsWith('Pair 2 of 3, 1 left')")
        browser.call("Page.navigate", url=f"{address}/?lang=zh&expert=dasha")
        browser.until(f"{place}.startsWith('第 2 对，共 3 对，还剩 1 对')")
        browser.press("c")
        browser.until('!document.getElementById("end").hidden')
        assert browser.value("document.title") == "care review"
    finally:
        browser.close()
    assert list(page_opinions(loaded).values()) == [3, 0, 1]
