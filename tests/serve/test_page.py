"""The search page: served with a policy that keeps it to itself, and read in a browser where one is installed."""

import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import uvicorn
from qdrant_client import QdrantClient

import care_qdrant.serve
from care_qdrant.ingestion.run import ingest
from care_qdrant.ingestion.settings import IngestSettings
from care_qdrant.types import Document
from tests.serve.test_searching import aligned

FOLDER = Path(care_qdrant.serve.__file__).parent / "page"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
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


async def test_the_page_can_be_left_out(make_service, connect) -> None:
    assert (await connect(make_service(page=False)).get("/")).status_code == 404


@pytest.fixture
def address(make_service, client: QdrantClient) -> Iterator[str]:
    """Serve a collection with texts that try to be markup."""
    documents = [
        Document("<i>d1</i>", f"𠀀 头皮痒 {HOSTILE}", title="<script>0</script>", metadata={"k": HOSTILE}),
        Document("d2", "头皮痒怎么办", title="洗发水"),
    ]
    ingest(documents, aligned(), client, "corpus", settings=IngestSettings(sparse=True))
    service = make_service(aligned(), collections=("corpus",), open_qdrant=lambda: nullcontext(client))
    config = uvicorn.Config(service.app, port=0, lifespan="off", log_config=None, access_log=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_a_browser_shows_hits_as_text(address: str, tmp_path: Path) -> None:
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    wait = ["--virtual-time-budget=8000", "--timeout=20000", f"--user-data-dir={tmp_path}", "--disable-sync"]
    page = f"{address}/?q=头皮痒&collection=corpus&lang=zh"
    assert CHROMIUM is not None
    done = subprocess.run([CHROMIUM, *flags, *wait, "--dump-dom", page], capture_output=True, text=True, timeout=90)
    shown = done.stdout
    assert shown.count('<section class="column"') == 3, done.stderr
    assert "<mark>头皮痒</mark>" in shown
    assert "&lt;img src=x onerror=" in shown
    assert "&lt;script&gt;0&lt;/script&gt;" in shown
    assert "<img" not in shown
    assert shown.count("<script") == 1
    assert "<title>care search</title>" in shown
    assert "并排比较" in shown
