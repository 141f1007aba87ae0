"""Opening Qdrant: a folder that is taken, a server that is not there, an embedded database that is fast and safe."""

import subprocess
import sys
from pathlib import Path

import pytest
from qdrant_client import models

from care_qdrant.errors import FolderLocked, InputError, Unreachable
from care_qdrant.store.connection import is_embedded, open_client, tune_embedded


def test_a_locked_folder_names_its_holder(tmp_path: Path) -> None:
    code = (
        "import sys; from qdrant_client import QdrantClient; "
        f"client = QdrantClient(path={str(tmp_path)!r}); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(FolderLocked) as refusal, open_client(path=tmp_path):
            pass
        holder.communicate()
    if sys.platform == "linux":
        assert f"(pid {holder.pid})" in str(refusal.value)


def test_a_file_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").touch()
    with pytest.raises(InputError, match="is a file"), open_client(path=tmp_path / "corpus.jsonl"):
        pass


def test_a_server_that_is_not_there_is_said_with_its_url() -> None:
    with (
        pytest.raises(Unreachable, match=r"http://127\.0\.0\.1:9: no Qdrant server"),
        open_client(url="http://127.0.0.1:9"),
    ):
        pass


def test_the_tuned_database_reopens_with_every_point(tmp_path: Path) -> None:
    params = models.VectorParams(size=2, distance=models.Distance.COSINE)
    with open_client(path=tmp_path) as client:
        client.create_collection("docs", {"v": params})
        assert is_embedded(client)
        assert tune_embedded(client, "docs")
        client.upsert("docs", [models.PointStruct(id=1, vector={"v": [1.0, 0.0]}, payload={})])
    with open_client(path=tmp_path) as client:
        assert client.count("docs").count == 1
