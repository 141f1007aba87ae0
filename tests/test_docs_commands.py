"""The shell commands of the README and of the deployment guide, run as they stand."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from qdrant_client import QdrantClient, models

from care_qdrant import find_folder, open_client
from tests.databases import require_added_vectors
from tests.standin import StandIn

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "README.zh.md", "docs/deployment.md")
SERVER = "http://localhost:6333"
RUNNABLE = re.compile(rf"(care|care-ingest) |export QDRANT_URL={SERVER}$|pip install |\s*#|$")


def commands(page: str) -> list[str]:
    """Return the blocks of a page that need nothing but the corpus, the collections and the server set up below."""
    found = re.findall(r"```(?:sh|bash)\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    blocks = [block for block in found if all(map(RUNNABLE.match, block.splitlines()))]
    return [block for block in blocks if re.search(r"^care", block, re.MULTILINE)]


BLOCKS = {f"{page}, {number}": block for page in PAGES for number, block in enumerate(commands(page), 1)}


def write_articles(client: QdrantClient) -> None:
    """Write a collection as a program that does not know this package would."""
    lines = (ROOT / "examples/sample/corpus.jsonl").read_text(encoding="utf-8").splitlines()[:40]
    vectors = {"openai": models.VectorParams(size=4, distance=models.Distance.COSINE)}
    client.create_collection("articles", vectors_config=vectors)
    points = [
        models.PointStruct(id=number, vector={"openai": [1.0, number, 0.0, 2.0]}, payload={"page_content": line})
        for number, line in enumerate(lines)
    ]
    client.upsert("articles", points)


def test_the_pages_have_commands_to_run() -> None:
    assert len(BLOCKS) >= 8
    assert all(f"care {name} " in "".join(BLOCKS.values()) for name in ("attach", "publish", "promote"))


@pytest.mark.slow
@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_commands_run_as_they_stand(block: str, server: StandIn, tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples/sample/corpus.jsonl", tmp_path)
    shutil.copytree(find_folder("built-in"), tmp_path / "care-2")
    for place in ({"path": tmp_path / "qdrant"}, {"url": server.url}) if "articles" in block else ():
        with open_client(**place) as client:  # type: ignore[arg-type]
            if "care-1" in block:
                require_added_vectors(client)
            write_articles(client)
    before = []
    if "promote" in block or "publish corpus" in block:
        before.append(f"care-ingest corpus.jsonl {'' if 'promote' in block else f'--url {SERVER}'}")
    if "care-1" in block:
        before.append("care attach articles --vector-name care-1")
    lines = [line for line in block.splitlines() if not line.startswith(("pip ", " "))]
    script = "\n".join([*before, *lines]).replace(SERVER, server.url)
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment |= {"QDRANT_URL": server.url} if "./care-2" in block else {}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{script}\n{done.stderr[-3_000:]}"
    assert done.stdout
