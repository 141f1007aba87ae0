"""Uploads over a real socket: the command in a process of its own, against the hub's endpoints."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tiny import care_folder
from tests.trainer.hub import TOKEN, Hub, hub


@pytest.fixture
def server() -> Iterator[Hub]:
    with hub() as running:
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return care_folder(tmp_path_factory.mktemp("pair") / "pair")


def _push(server: Hub, folder: Path, home: Path, *options: str, token: str = TOKEN) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environment |= {"HF_ENDPOINT": server.url, "HF_HOME": str(home), "PYTHONPATH": os.pathsep.join(sys.path)}
    environment |= {"HF_TOKEN": token} if token else {}
    command = [sys.executable, "-c", "from care_trainer.cli import main; main()", "push", str(folder), "me/pair"]
    return subprocess.run([*command, *options], env=environment, capture_output=True, text=True, timeout=100)


def test_a_new_repository_is_private_and_holds_the_folder_after_a_hub_that_stumbled(
    server: Hub, folder: Path, tmp_path: Path
) -> None:
    server.failures = {"/create": [503], "/commit/main": [502]}
    result = _push(server, folder, tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == f"{server.url}/me/pair/commit/1"
    repository = server.repositories["me/pair"]
    assert repository["private"] is True
    expected = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert repository["files"] == expected


def test_without_a_token_nothing_is_sent(server: Hub, folder: Path, tmp_path: Path) -> None:
    result = _push(server, folder, tmp_path, token="")
    assert result.returncode == 2
    assert result.stderr.strip().endswith("set HF_TOKEN, or run: hf auth login")
    assert len(result.stderr.strip().splitlines()) == 1
    assert server.requests == []


def test_a_public_repository_gets_nothing_unless_asked_for(server: Hub, folder: Path, tmp_path: Path) -> None:
    server.repositories["me/pair"] = {"private": False, "files": {}}
    refused = _push(server, folder, tmp_path)
    assert refused.returncode == 2 and "me/pair: is public; pass --public" in refused.stderr
    assert server.repositories["me/pair"]["files"] == {}
    assert _push(server, folder, tmp_path, "--public").returncode == 0
    assert "care.json" in server.repositories["me/pair"]["files"]


def test_a_refusal_is_one_line_and_not_tried_again(server: Hub, folder: Path, tmp_path: Path) -> None:
    result = _push(server, folder, tmp_path, token="hf_wrong")
    assert result.returncode == 9
    assert "me/pair: the repository failed after 1 attempt(s)" in result.stderr
    assert "Traceback" not in result.stderr
    assert server.repositories == {}


def test_an_altered_folder_is_not_published(server: Hub, folder: Path, tmp_path: Path) -> None:
    result = _push(server, care_folder(tmp_path / "altered"), tmp_path)
    assert result.returncode == 0
    weights = tmp_path / "altered" / "query" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    sent = len(server.requests)
    result = _push(server, tmp_path / "altered", tmp_path)
    assert result.returncode == 3 and "is not the file that was saved" in result.stderr
    assert len(server.requests) == sent
