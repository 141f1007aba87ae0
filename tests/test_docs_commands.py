"""Every command of every page runs, in the order of its page, in one folder, and prints what the page shows."""

import json
import re
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from qdrant_client import QdrantClient, models

from care_qdrant import CareModel, open_client
from care_qdrant.cli import care
from care_qdrant.model.hub import find_folder
from tests import pages
from tests.forks import FORKS
from tests.standin import StandIn

ROOT = pages.ROOT
SAMPLE = ROOT / "examples/sample"
README = ("README.md", "README.zh.md")
PAGES = sorted(
    str(page.relative_to(ROOT))
    for folder in ("docs/start", "docs/how-to", "docs/explanation", "docs/upstream", "docs/zh")
    for page in ROOT.glob(f"{folder}/*.md")
)
TRANSLATED = {
    "README.zh.md": "README.md",
    **{
        f"docs/zh/{chinese}.md": f"docs/{english}.md"
        for chinese, english in {
            "start": "start/first-search",
            "llamaindex": "start/llamaindex",
            "ingest": "how-to/ingest",
            "keep-in-sync": "how-to/keep-in-sync",
            "filter": "how-to/filter",
            "add-a-vector": "how-to/add-a-vector",
            "serve": "how-to/serve",
            "train": "how-to/train",
            "troubleshooting": "how-to/troubleshooting",
        }.items()
    },
}
"""Pages and their originals. They have the same code, so that of the originals is run."""
RUN = [page for page in PAGES if page not in TRANSLATED and list(pages.steps(page))]


@pytest.fixture(scope="module")
def articles() -> list[models.PointStruct]:
    """The sample as another program would have stored it: texts under ``page_content``, vectors of a service."""
    rows = [json.loads(line) for line in (SAMPLE / "corpus.jsonl").read_text(encoding="utf-8").splitlines()]
    vectors = CareModel.load().encode_document([row["text"] for row in rows])
    return [
        models.PointStruct(
            id=number,
            vector={"openai": vector.tolist()},
            payload={"page_content": row["text"], "metadata": {"source": row["id"], **row["metadata"]}},
        )
        for number, (row, vector) in enumerate(zip(rows, vectors, strict=True))
    ]


def write_articles(client: QdrantClient, points: list[models.PointStruct]) -> None:
    """Write a collection as a program that does not know this package would."""
    size = len(points[0].vector["openai"])  # type: ignore[arg-type,call-overload,index]
    vectors = {"openai": models.VectorParams(size=size, distance=models.Distance.COSINE)}
    client.create_collection("articles", vectors_config=vectors)
    client.upload_points("articles", points, wait=True)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with the files of a clone that the README uses, and this environment as its `.venv`."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "examples"):
        place = ROOT / name
        shutil.copytree(place, tmp_path / name) if place.is_dir() else shutil.copy(place, tmp_path)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/bin").symlink_to(Path(sys.executable).parent)
    for mark in (".serve", ".dev"):
        (tmp_path / ".venv" / mark).touch()
    return tmp_path


@pytest.mark.timeout(600)
def test_the_readme_is_one_session(clone: Path) -> None:
    pages.run("README.md", clone, {})


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """The folder in which the reader of a page works: a corpus, questions with answers, and a second model."""
    shutil.copy(SAMPLE / "corpus.jsonl", tmp_path)
    shutil.copy(SAMPLE / "queries.jsonl", tmp_path / "questions.jsonl")
    shutil.copytree(SAMPLE, tmp_path / "examples/sample")
    shutil.copytree(find_folder("built-in"), tmp_path / "care-2")
    shutil.copytree(find_folder("built-in") / "query", tmp_path / "old-model")
    texts = {row["id"]: row["text"] for name in ("corpus", "queries") for row in _rows(SAMPLE / f"{name}.jsonl")}
    pairs = [
        {"query": texts[row["query_id"]], "positive": texts[row["document_id"]]}
        for row in _rows(SAMPLE / "qrels.jsonl")
        if row["score"]
    ]
    (tmp_path / "faq.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs), encoding="utf-8")
    return tmp_path


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", RUN)
def test_the_commands_of_a_page_run_in_its_order(
    page: str, desk: Path, server: StandIn, articles: list[models.PointStruct]
) -> None:
    with open_client(url=server.url) as client:
        write_articles(client, articles)
    pages.run(page, desk, {pages.SERVER: server.url, **{port: _free_port() for port in pages.PORTS}}, FORKS.commands)


def test_no_collection_of_the_pages_gets_documents_of_two_sources() -> None:
    """A reader walks several pages in one folder; what a page finds must not be what another one wrote."""
    sources: dict[str, set[str]] = {}
    for page in [*README, *PAGES]:
        for line in "\n".join(pages.blocks(page, "bash", "console")).splitlines():
            found = re.match(r"(?:\$ )?care[- ]ingest ([\w./-]+)(.*)", line)
            if found and not re.search(r"--(url|path|sync)\b", found[2]):
                named = re.search(r"--collection (\S+)", found[2])
                sources.setdefault(named[1] if named else Path(found[1]).stem, set()).add(Path(found[1]).name)
        for program in pages.blocks(page, "python"):
            if 'path="qdrant"' in program and (
                named := re.search(r'Store\("(\w+)".*from_documents', program, re.DOTALL)
            ):
                sources.setdefault(named[1], set()).add(program)
    assert len(sources) > 5
    assert {name: found for name, found in sources.items() if len(found) > 1} == {}


@pytest.mark.parametrize("page", [*README, *PAGES])
def test_every_option_that_a_page_names_is_one_of_its_command(page: str) -> None:
    programs: dict[str, Callable[[], click.Command]] = {
        "care": lambda: care,
        **{
            f"care-{name}": lambda name=name: care.get_command(click.Context(care), name)  # type: ignore[misc]
            for name in ("ingest", "train", "bench", "data")
        },
    }
    text = "\n".join(pages.blocks(page, "bash", "console", "sh")).replace("\\\n", " ")
    lines = re.findall(r"^(?:\$ )?(?:\w+=\S+ +)*((?:care|care-(?:ingest|train|bench|data)) .*)$", text, re.MULTILINE)
    found = {line: pages.unknown_options(programs[line.split()[0]](), line.split(" # ")[0]) for line in lines}
    assert {line: unknown for line, unknown in found.items() if unknown} == {}


def test_the_extras_that_pages_install_exist() -> None:
    known = set(re.findall(r"^([\w-]+) = \[", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE))
    for page in [*README, *PAGES]:
        for extras in re.findall(r"pip install (?:-e )?'\.\[([\w,-]+)\]'", pages.text_of(page)):
            assert set(extras.split(",")) <= known, page


@pytest.mark.parametrize(
    ("shown", "printed", "fits"),
    [
        ("one\n", "one\n", True),
        ("one\n", "two\n", False),
        ("a … z\n", "a b c z\n", True),
        ("…\nlast\n", "first\nsecond\nlast\n", True),
        ("first\n", "first\nsecond\n", False),
        ("", "anything\n", False),
    ],
)
def test_what_a_page_shows_is_compared(tmp_path: Path, shown: str, printed: str, fits: bool) -> None:
    assert pages._fits(shown, printed) is fits


@pytest.mark.parametrize("command", ["false", "care search --no-such-option x", "exit 3"])
def test_a_page_with_a_line_that_fails_is_noticed(tmp_path: Path, command: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"```bash\ntrue\n{command}\ntrue\n```\n", encoding="utf-8")
    with pytest.raises(AssertionError, match=command.split()[0]):
        pages.run(str(page), tmp_path, {})


def _free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return str(taken.getsockname()[1])


def _rows(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("chinese", TRANSLATED)
def test_a_translated_page_has_the_code_of_its_original(chinese: str) -> None:
    ours, original = (list(pages.steps(page, everything=True)) for page in (chinese, TRANSLATED[chinese]))
    assert [_without_comments(step) for step in ours] == [_without_comments(step) for step in original]


def test_every_chinese_page_has_an_original() -> None:
    assert {page for page in PAGES if page.startswith("docs/zh/")} == set(TRANSLATED) - {"README.zh.md"}


def _without_comments(step: pages.Step) -> tuple[str, str, str | None]:
    return step.kind, re.sub(r" *#.*", "", step.text), step.expected
