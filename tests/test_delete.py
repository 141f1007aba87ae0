"""``care delete``: what is said before, what is refused, and what is gone afterwards."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from qdrant_client import QdrantClient, models

from care_qdrant import open_client
from care_qdrant.cli import care

CONFIG = {"v": models.VectorParams(size=2, distance=models.Distance.COSINE)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with open_client(path=tmp_path / "qdrant") as client:
        for name in ("old", "kept"):
            client.create_collection(name, vectors_config=CONFIG)
            client.upsert(name, [models.PointStruct(id=1, vector={"v": [1.0, 0.0]}, payload={})])
        point_alias(client, "live", "kept")
    return tmp_path / "qdrant"


def point_alias(client: QdrantClient, alias: str, collection: str) -> None:
    create = models.CreateAlias(collection_name=collection, alias_name=alias)
    client.update_collection_aliases([models.CreateAliasOperation(create_alias=create)])


def names(folder: Path) -> set[str]:
    with open_client(path=folder) as client:
        return {each.name for each in client.get_collections().collections}


def test_a_confirmed_collection_is_deleted_and_no_other(folder: Path) -> None:
    done = CliRunner().invoke(care, ["delete", "old", "--yes", "--path", str(folder)], catch_exceptions=False)
    assert done.exit_code == 0 and "1 point, vectors: v" in done.output
    assert names(folder) == {"kept"}


@pytest.mark.parametrize(("collection", "said"), [("live", "alias of collection 'kept'"), ("none", "no collection")])
def test_an_alias_and_an_unknown_name_are_refused(folder: Path, collection: str, said: str) -> None:
    done = CliRunner().invoke(care, ["delete", collection, "--yes", "--path", str(folder)])
    assert said in str(done.exception)
    assert names(folder) == {"old", "kept"}


def test_nothing_is_deleted_in_a_pipe_without_a_confirmation(folder: Path) -> None:
    done = CliRunner().invoke(care, ["delete", "kept", "--path", str(folder)])
    assert done.exit_code == 2
    assert "aliases: live" in done.output and "--yes" in done.output
    assert names(folder) == {"old", "kept"}


@pytest.mark.parametrize(("typed", "left"), [("old", {"kept"}), ("olf", {"old", "kept"}), ("", {"old", "kept"})])
def test_a_terminal_is_asked_for_the_name(folder: Path, typed: str, left: set[str]) -> None:
    code = "import sys; from care_qdrant.cli import main; main()"
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", code, "delete", "old", "--path", str(folder)]
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        os.close(theirs)
        os.write(ours, typed.encode() + b"\n")
        process.communicate(timeout=100)
    os.close(ours)
    assert (process.returncode == 0) == ("old" not in left)
    assert names(folder) == left
