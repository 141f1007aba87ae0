"""Fixtures that the tests of ingestion share: corpora on disk, both kinds of Qdrant, and impatient retries."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from qdrant_client import QdrantClient

from care_qdrant.model.care_model import CareModel
from care_qdrant.qdrant.connection import open_client
from care_qdrant.qdrant.retry import RetryPolicy
from tests.databases import REAL, open_database
from tests.standin import StandIn
from tests.tiny import HashModel, medical_texts

IMPATIENT = RetryPolicy(attempts=6, base_seconds=0.001, cap_seconds=0.01)
"""Retries for tests: six attempts, milliseconds apart."""

WriteCorpus = Callable[..., Path]


@pytest.fixture
def write_corpus(tmp_path: Path) -> WriteCorpus:
    """A function that writes rows as ``corpus.jsonl``."""

    def write(rows: Sequence[Mapping[str, Any] | str], name: str = "corpus.jsonl") -> Path:
        lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
        return tmp_path / name

    return write


@pytest.fixture
def hash_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let the command load a model that needs no torch, and work in an empty folder."""
    monkeypatch.setattr(CareModel, "load", lambda *_args, **_options: HashModel())
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("QDRANT_URL", raising=False)


@pytest.fixture
def client(server: StandIn) -> Iterator[QdrantClient]:
    """A client of a server with faults on demand."""
    with open_client(url=server.url) as client:
        yield client


@pytest.fixture(params=["embedded", "server", *REAL])
def qdrant(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[QdrantClient]:
    """Both kinds of Qdrant, one after the other."""
    if request.param == "embedded":
        with open_client(path=tmp_path / "qdrant") as client:
            yield client
    else:
        with open_database(request) as client:
            yield client


def short_rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of one chunk each."""
    return [
        {"id": f"d{n}", "text": text[:50], "metadata": {"n": n}} for n, text in enumerate(medical_texts(count, seed))
    ]


def stored_texts(client: QdrantClient, collection: str = "corpus") -> dict[str, str]:
    """Text of each stored document, by its id; of its chunks, the ones after the first are left out."""
    records, _ = client.scroll(collection, limit=100_000)
    payloads = [record.payload or {} for record in records]
    return {payload["doc_id"]: payload["text"] for payload in payloads if payload["_care"]["chunk"] == 0}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rejected rows are written to the current folder."""
    monkeypatch.chdir(tmp_path)
