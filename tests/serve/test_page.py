"""The search page: served with a policy that keeps it to itself, and read in a browser where one is installed."""

import html
import json
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from care_trainer.learn.learn import learn
from care_trainer.learn.settings import LearnSettings
from qdrant_client import QdrantClient

import care_qdrant.serve
from care_qdrant.errors import Unreachable
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.settings import IngestSettings
from care_qdrant.model.care_model import CareModel
from care_qdrant.qdrant.connection import open_client
from care_qdrant.types import Document
from care_qdrant.vectors.attach import attach_vector
from tests.browser import CHROMIUM, Browser
from tests.serve.conftest import aligned
from tests.trainer.learn.collections import WordModel, word_texts, write_langchain

SAMPLE = Path(__file__).parents[2] / "examples" / "sample" / "corpus.jsonl"
FOLDER = Path(care_qdrant.serve.__file__).parent / "page"
HOSTILE = "<img src=x onerror=document.title=1>"


async def test_the_page_may_load_and_reach_this_service_only(make_service, connect) -> None:
    http = connect(make_service())
    answer = await http.get("/")
    policy = dict(rule.split(" ", 1) for rule in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert {policy[name] for name in ("script-src", "style-src", "connect-src")} == {"'self'"}
    assert policy["frame-ancestors"] == "'none'"
    assert answer.headers["x-content-type-options"] == "nosniff"
    for path in re.findall(r'(?:src|href)="([^"#]+)"', answer.text):
        assert path.startswith("data:") or (await http.get(f"/{path}")).status_code == 200


def test_the_page_names_no_other_place_and_writes_no_markup() -> None:
    for file in FOLDER.iterdir():
        text = file.read_text(encoding="utf-8")
        assert not re.findall(r"https?://|//[a-z]+\.", text), file.name
        assert not re.findall(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|\bon[a-z]+=", text), file.name


def test_both_languages_say_everything() -> None:
    script = (FOLDER / "page.js").read_text(encoding="utf-8")
    english, chinese = re.search(r"  en: \{(.*?)\n  \},\n  zh: \{(.*?)\n  \},", script, re.DOTALL).groups()
    names = [set(re.findall(r"(?:^|[ ,])(\w+): (?=[\"`(])", text)) for text in (english, chinese)]
    assert names[0] == names[1]
    used = set(re.findall(r'\bt\("(\w+)"', script)) | set(
        re.findall(r'data-text="(\w+)"', (FOLDER / "index.html").read_text(encoding="utf-8"))
    )
    assert used <= names[0]


@pytest.fixture
def address(make_service, listen, client: QdrantClient) -> str:
    """Serve a collection with vectors of two pairs and texts that try to be markup; return the address."""
    documents = [
        Document("<i>d1</i>", f"𠀀 头皮痒 {HOSTILE}", title="<script>0</script>", metadata={"k": HOSTILE}),
        Document("d2", "头皮痒怎么办", title="洗发水"),
        Document("d3", "糖尿病人能吃西瓜吗", title="水果"),
    ]
    ingest(documents, aligned(), client, "corpus", settings=IngestSettings(sparse=True))
    attach_vector(client, "corpus", aligned("other"))
    service = make_service(aligned(), aligned("other"), collections=("corpus",), over=client)
    address: str = listen(service)
    return address


def shown(page: str, profile: Path, expected: str = '<section class="column"') -> str:
    """Return the document of a page as soon as it holds a text."""
    browser = Browser(profile)
    try:
        browser.call("Page.navigate", url=page)
        browser.until(f"document.documentElement.outerHTML.includes({json.dumps(expected)})")
        return str(browser.value("document.documentElement.outerHTML"))
    finally:
        browser.close()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_a_browser_shows_hits_as_text(address: str, tmp_path: Path) -> None:
    first = f"pair@{aligned().fingerprint[:12]}"
    columns = f"column=dense:{first}&column=sparse:&column=hybrid:{first}"
    page = shown(f"{address}/?q=头皮痒&collection=corpus&lang=zh&{columns}", tmp_path)
    assert page.count('<section class="column"') == 3
    assert "<mark>头皮痒</mark>" in page
    assert "&lt;img src=x onerror=" in page
    assert "&lt;script&gt;0&lt;/script&gt;" in page
    assert "<img" not in page
    assert page.count("<script") == 1
    assert "<title>corpus – care search</title>" in page
    assert "并排比较" in page


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_a_link_holds_the_conditions_too(address: str, tmp_path: Path) -> None:
    where = quote(f'k="{HOSTILE}"')
    page = shown(f"{address}/?q=头皮痒&collection=corpus&lang=en&where={where}", tmp_path)
    hits = re.findall(r'<li class="hit".*?</li>', page, re.DOTALL)
    assert len(hits) == 1, "one column, hybrid, where nothing is compared"
    assert "&lt;i&gt;d1&lt;/i&gt;" in hits[0]
    assert "<h2>hybrid · pair</h2>" in page


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_what_the_menus_offer_finds_what_has_it(address: str, client: QdrantClient, tmp_path: Path) -> None:
    values = {"code; =": ["x; y", "true"], "year": [2020.0, 2021.5], "source.system": ["2020", 'say "no"']}
    for number, point in enumerate(client.scroll("corpus")[0]):
        client.set_payload("corpus", {key: each[number % 2] for key, each in values.items()}, [point.id])
    page = shown(address, tmp_path, "<option")
    menus = dict(re.findall(r"<label><span>([^<]*)</span> <select>(.*?)</select>", page.split('id="facets"')[1]))
    assert set(map(html.unescape, menus)) == {'"code; ="', "year", "source.system"}
    for key, menu in menus.items():
        offered = list(map(html.unescape, re.findall(r'<option value="([^"]+)"', menu)))
        counts = []
        for value in offered:
            where = quote(f"{html.unescape(key)}={value}; k!=x; {html.unescape(key)}!=z")
            page = shown(f"{address}/?q=头皮痒&collection=corpus&lang=en&where={where}", tmp_path)
            assert "refused" not in page
            counts.append(page.split('<section class="column"')[1].count('<li class="hit"'))
        assert sorted(counts) == [1, 2], (key, offered)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_two_pairs_stand_side_by_side_with_what_moved(address: str, tmp_path: Path) -> None:
    names = [f"{model.name}@{model.fingerprint[:12]}" for model in (aligned(), aligned("other"))]
    found = [
        httpx.post(f"{address}/search", json={"query": "西瓜", "model": name, "mode": "dense", "top_k": 3}).json()[
            "hits"
        ]
        for name in names
    ]
    ranks = {hit["document_id"]: rank for rank, hit in enumerate(found[0])}
    columns = "&".join(f"column=dense:{name}" for name in names)
    page = shown(f"{address}/?q=西瓜&collection=corpus&lang=en&k=3&{columns}", tmp_path)
    first, second = page.split('<section class="column"')[1:]
    assert ("<h2>dense · pair</h2>" in first, "<h2>dense · other</h2>" in second) == (True, True)
    assert "compared with this one" in first
    assert "same rank" not in first
    assert "3 in common with the first column" in second
    expected = []
    for rank, hit in enumerate(found[1]):
        moved = ranks[hit["document_id"]] - rank
        expected.append("same rank" if not moved else f"up {moved}" if moved > 0 else f"down {-moved}")
    assert any(move.startswith("up") for move in expected)
    assert re.findall(r"(same rank|(?:up|down) \d+)<", second) == expected


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_a_reason_that_all_columns_share_is_said_once(address: str, tmp_path: Path) -> None:
    reason = httpx.post(f"{address}/search", json={"query": "西瓜", "conditions": ["nonsense"]}).json()["error"]
    page = shown(f"{address}/?q=西瓜&collection=corpus&lang=en&where=nonsense", tmp_path, 'class="bad"')
    assert html.unescape(page).count(reason) == 1


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_the_page_opens_on_the_only_collection_and_shows_what_to_ask(
    make_service, listen, client: QdrantClient, tmp_path: Path
) -> None:
    """It says what it searches, offers questions and the values of filters, and says where nothing matches well."""
    model = CareModel.load()
    ingest(SAMPLE, model, client, "sample", settings=IngestSettings(sparse=True))
    address = listen(make_service(model, over=client))
    page = shown(f"{address}/?lang=zh", tmp_path, "试试")
    assert '<h1 id="title">sample</h1>' in page
    assert "在 384 段文本中搜索" in page
    examples = re.search(r'<div id="examples">(.*?)</div>', page, re.DOTALL)
    assert examples is not None
    assert len(re.findall("<button", examples[1])) == 3
    assert '<option value="professional">' in page
    hybrid = f"{address}/?lang=zh&column=hybrid:{model.name}@{model.fingerprint[:12]}"
    asked = shown(f"{hybrid}&q=股票亏损了怎么办", tmp_path, "没有好的匹配")
    assert asked.count("没有好的匹配") == 1
    good = shown(f"{hybrid}&q=高血压病人能吃咸菜吗", tmp_path, "一般能达到")
    assert "没有好的匹配" not in good
    assert "一般能达到" in good


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_a_service_without_a_collection_says_so_in_the_language_of_the_page(
    make_service, listen, tmp_path: Path
) -> None:
    page = shown(f"{listen(make_service())}/?lang=zh", tmp_path, "本服务没有可搜索的集合")
    assert page.count("本服务没有可搜索的集合") == 1


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
@pytest.mark.parametrize("collections", [(), ("corpus",)])
def test_a_page_whose_qdrant_is_away_says_so_and_finds_it_again(
    make_service, listen, filled: QdrantClient, tmp_path: Path, collections: tuple[str, ...]
) -> None:
    up = False

    def open_qdrant():  # type: ignore[no-untyped-def]
        if not up:
            raise Unreachable("http://qdrant:6333: no Qdrant server answers there")
        return nullcontext(filled)

    address = f"{listen(make_service(aligned(), collections=collections, open_qdrant=open_qdrant))}/?lang=en"
    for query in ("", "&q=发烧"):
        page = shown(f"{address}{query}", tmp_path, "no Qdrant server answers there")
        assert "Choose at least one" not in page
        assert "has no collection" not in page
    up = True
    assert "第3篇" in shown(f"{address}&q=第3篇", tmp_path)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_a_page_comes_back_by_itself(make_service, listen, filled: QdrantClient, browser: Browser) -> None:
    up = threading.Event()

    def open_qdrant():  # type: ignore[no-untyped-def]
        if not up.wait(3):
            raise Unreachable("http://qdrant:6333: no Qdrant server answers there")
        return nullcontext(filled)

    address = listen(make_service(aligned(), collections=("corpus",), open_qdrant=open_qdrant))
    browser.call("Page.navigate", url=f"{address}/?lang=en&q=第3篇")
    browser.until("document.getElementById('status').innerText.startsWith('Qdrant has not answered yet')")
    browser.until("document.getElementById('status').innerText.includes('no Qdrant server answers there')")
    up.set()
    browser.until("document.querySelector('.hit')")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_a_question_in_a_language_that_the_pair_does_not_read_is_told(
    make_service, listen, client: QdrantClient, tmp_path: Path
) -> None:
    model = CareModel.load()
    ingest(SAMPLE, model, client, "sample")
    address = listen(make_service(model, over=client))
    page = shown(f"{address}/?lang=en&q=wie lange bleibt ein Fieber gefährlich".replace(" ", "%20"), tmp_path)
    assert "does not read wie, lange, bleibt, ein, Fieber, …, so" in page


async def test_errors_of_conditions_speak_of_conditions_alone(make_service, connect, filled: QdrantClient) -> None:
    http = connect(make_service(aligned(), over=filled))
    for condition in ("nonsense", "n>=many"):
        reason = (await http.post("/search", json={"query": "发烧", "conditions": [condition]})).json()["error"]
        assert repr(condition) in reason
        assert not re.search(r"--filter|shell|in quotes", reason)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    pytest.importorskip("websockets")
    browser = Browser(tmp_path / "profile")
    yield browser
    browser.close()


def write(browser: Browser, text: str) -> None:
    """Enter a text as an input method does: Latin letters first, then what they stand for."""
    for letters in ("x", "xx", "xxx"):
        browser.call("Input.imeSetComposition", text=letters, selectionStart=len(letters), selectionEnd=len(letters))
    browser.call("Input.insertText", text=text)


FIRST_TITLE = "document.querySelector('.hit h3')?.textContent"


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
@pytest.mark.timeout(300)
def test_one_searches_as_one_types_and_goes_back_to_the_question_before(address: str, browser: Browser) -> None:
    browser.call("Page.navigate", url=f"{address}/?lang=en")
    browser.until("document.title.startsWith('corpus') && document.activeElement.id === 'query'")
    browser.value(
        "window.asked = []; const real = fetch; window.fetch = (path, options) => { if (path === 'search') "
        "asked.push(JSON.parse(options.body).query); return real(path, options); }"
    )
    write(browser, "糖尿病人能吃西瓜吗")
    browser.until(f"{FIRST_TITLE} === '水果'")
    assert browser.value("asked") == ["糖尿病人能吃西瓜吗"], "what an input method composes is not asked"
    browser.value("document.getElementById('form').requestSubmit()")
    browser.value("document.getElementById('query').select()")
    write(browser, "头皮痒")
    browser.until("new URLSearchParams(location.search).get('q') === '头皮痒'")
    write(browser, "怎么办")
    browser.until(f"{FIRST_TITLE} === '洗发水'")
    browser.value("history.back()")
    browser.until(f"{FIRST_TITLE} === '水果' && document.getElementById('query').value === '糖尿病人能吃西瓜吗'")
    browser.value("history.back()")
    browser.until("document.getElementById('query').value === '' && !document.querySelector('.hit')")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
@pytest.mark.timeout(300)
def test_an_answer_that_comes_late_does_not_replace_a_later_question_s(address: str, browser: Browser) -> None:
    browser.call("Page.navigate", url=f"{address}/?lang=en")
    browser.until("document.title.startsWith('corpus')")
    browser.value(
        "window.ended = []; const real = fetch; "
        "window.fetch = (path, options) => path !== 'search' ? real(path, options) : real(path, options).then("
        "(answer) => JSON.parse(options.body).query === '西瓜' ? new Promise((done) => "
        "{ window.release = () => done(answer); options.signal.onabort = () => ended.push('cancelled'); }) : answer)"
    )
    browser.call("Input.insertText", text="西瓜")
    browser.until("window.release")
    browser.value("document.getElementById('query').select()")
    browser.call("Input.insertText", text="头皮痒怎么办")
    browser.until(f"{FIRST_TITLE} === '洗发水'")
    assert browser.value("ended") == ["cancelled"]
    browser.value("release(); setTimeout(() => { window.isOver = true; }, 0)")
    browser.until("window.isOver")
    assert browser.value(FIRST_TITLE) == "洗发水"


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
@pytest.mark.timeout(300)
def test_the_wrong_model_is_refused_before_one_s_eyes(address: str, browser: Browser) -> None:
    browser.call("Page.navigate", url=f"{address}/?lang=en&q=西瓜")
    browser.until("document.querySelector('.hit')")
    browser.value("document.getElementById('wrong-model').click()")
    browser.until("document.querySelector('.refusal')")
    said = browser.value("document.getElementById('results').innerText")
    assert "HTTP 400, fingerprint_mismatch" in said
    assert "its vectors are of another space" in said
    assert not browser.value("document.querySelectorAll('.hit').length")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
@pytest.mark.timeout(300)
def test_thumbs_label_a_question_and_are_there_only_where_they_are_kept(
    make_service, listen, filled: QdrantClient, address: str, browser: Browser, tmp_path: Path
) -> None:
    browser.call("Page.navigate", url=f"{address}/?lang=en&q=西瓜")
    browser.until("document.querySelector('.hit')")
    assert not browser.value("document.querySelectorAll('.thumbs').length")
    folder = tmp_path / "labels"
    service = make_service(aligned(), collections=("corpus",), over=filled, record=folder, record_days=0)
    browser.call("Page.navigate", url=f"{listen(service)}/?lang=en&q=第3篇")
    browser.until("document.querySelector('.thumbs')")
    assert not folder.exists(), "nothing is written before somebody says something"
    browser.value("document.querySelector('.thumbs button').click()")
    browser.until("document.querySelector('.thumbs button[aria-pressed=true]')")
    [question] = map(json.loads, (folder / "corpus" / "queries.jsonl").read_text("utf-8").splitlines())
    document = browser.value("document.querySelector('.hit table td').textContent")
    assert (question["text"], question["relevant"]) == ("第3篇", [document])
    browser.call("Page.reload")
    browser.until("document.querySelectorAll('.thumbs button[aria-pressed=true]').length === 1")
    assert browser.value("document.querySelector('[aria-pressed=true]').closest('.hit').innerText").count(document)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
@pytest.mark.timeout(400)
def test_every_kind_of_model_is_asked_on_the_page(make_service, listen, browser: Browser, tmp_path: Path) -> None:
    """A learned encoder alone, with BM25 beside it, and with a model beside both."""
    texts = word_texts(200)
    with ExitStack() as stack:
        client = stack.enter_context(open_client(path=tmp_path / "qdrant"))
        write_langchain(client, texts, WordModel().encode(texts))
        settings = LearnSettings(vocabulary=200, batch=64, epochs=4, learning_rate=2e-2)
        learn(client, "articles", tmp_path / "articles-queries", settings=settings, force=True)
        learned, other = CareModel.load(tmp_path / "articles-queries"), aligned()
        for attached, served, names in (
            ((), [learned], []),
            ((None,), [learned], ["dense", "BM25", "hybrid"]),
            ((other,), [learned, other], ["dense", "dense", "BM25", "hybrid", "hybrid"]),
        ):
            for model in attached:
                attach_vector(client, "articles", model)
            service = make_service(*served, over=client)
            stack.callback(service.close)
            browser.call("Page.navigate", url=f"{listen(service)}/?lang=en&q={quote(texts[5])}")
            browser.until("document.querySelector('.hit')")
            said = browser.value("document.body.innerText")
            assert all(model.name in said.split("searched with the model", 1)[1].split("\n", 1)[0] for model in served)
            assert texts[5] in said
            assert browser.value("document.getElementById('compare').disabled") == (not names)
            browser.value("document.getElementById('compare').click()")
            shown = browser.value("[...document.querySelectorAll('#columns label')].map((each) => each.innerText)")
            assert [name.split(" · ")[0].strip() for name in shown] == (names or ["dense"])
