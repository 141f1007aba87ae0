"""Opening Qdrant: a folder that is taken, a server that is not there, an embedded database that is fast and safe."""

import json
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from llama_index.vector_stores.care import CareVectorStore
from qdrant_client import QdrantClient, models

from care_qdrant.errors import FolderLocked, InputError, QdrantError, ServerTooOld, Unreachable
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import is_embedded, open_client, tune_embedded
from care_qdrant.types import Document
from tests.standin.server import StandIn
from tests.tiny import HashModel, medical_texts


def test_an_error_leaves_no_database_behind_that_nothing_was_put_in(tmp_path: Path) -> None:
    for place in ("new", "results/of/today"):
        with pytest.raises(InputError), open_client(path=tmp_path / place):
            raise InputError("refused")
    assert list(tmp_path.iterdir()) == []


def test_what_was_there_before_an_error_stays(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    vectors = models.VectorParams(size=2, distance=models.Distance.COSINE)
    with pytest.raises(InputError), open_client(path=tmp_path / "empty"):
        raise InputError("refused")
    with pytest.raises(InputError), open_client(path=tmp_path / "used") as client:
        client.create_collection("c", vectors_config=vectors)
        raise InputError("refused later")
    with pytest.raises(InputError), open_client(path=tmp_path / "shared"):
        (tmp_path / "shared" / "notes.txt").write_text("not ours", encoding="utf-8")
        raise InputError("refused")
    assert (tmp_path / "empty").is_dir()
    assert (tmp_path / "shared" / "notes.txt").read_text(encoding="utf-8") == "not ours"
    with open_client(path=tmp_path / "used") as client:
        assert client.collection_exists("c")


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


@pytest.mark.parametrize(
    ("place", "error", "message"),
    [
        ({"path": "file"}, InputError, "is a file"),
        ({"path": "file/q"}, InputError, "cannot be opened as an embedded database"),
        ({"url": "http://127.0.0.1:9"}, Unreachable, r"http://127\.0\.0\.1:9: no Qdrant server"),
    ],
)
def test_what_cannot_be_opened_is_said(
    tmp_path: Path, place: dict[str, str], error: type[Exception], message: str
) -> None:
    (tmp_path / "file").touch()
    where: Any = {"path": tmp_path / place["path"]} if "path" in place else place
    with pytest.raises(error, match=message), open_client(**where):
        pass


@pytest.mark.parametrize("content", [b"no database", b"SQLite format 3\0 and no pages"])
def test_a_damaged_collection_is_said(tmp_path: Path, content: bytes) -> None:
    with open_client(path=tmp_path) as client:
        client.create_collection("c", models.VectorParams(size=2, distance=models.Distance.COSINE))
    (tmp_path / "collection" / "c" / "storage.sqlite").write_bytes(content)
    with pytest.raises(InputError, match="cannot be opened as an embedded database"), open_client(path=tmp_path):
        pass


def test_a_server_that_comes_up_late_is_waited_for() -> None:
    """The first request is cut off, and the server listens only after it."""
    closed = socket.create_server(("127.0.0.1", 0))
    port = closed.getsockname()[1]
    with ExitStack() as stack:

        def start() -> None:
            closed.accept()[0].close()
            closed.close()
            stack.enter_context(StandIn(port=port))

        starting = threading.Thread(target=start)
        starting.start()
        with open_client(url=f"http://127.0.0.1:{port}", patience_seconds=60) as client:
            assert client.get_collections().collections == []
        starting.join()


def test_answers_are_asked_for_without_compression() -> None:
    asked: list[str | None] = []

    class Empty(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.headers["accept-encoding"])
            body = b'{"title": "", "version": "1.19.0", "result": {"collections": [], "exists": false}}'
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Empty) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        with open_client(url=url) as client:
            client.get_collections()
        CareVectorStore("corpus", url=url, client_kwargs={"check_compatibility": False}).client.get_collections()
        server.shutdown()
    assert {*asked} == {"identity"}


def test_a_server_without_grpc_is_said_with_the_port_and_the_option() -> None:
    with StandIn() as server:
        with (
            pytest.raises(Unreachable, match=r"no Qdrant answers over gRPC at 127\.0\.0\.1:9 .*QDRANT_GRPC_PORT"),
            open_client(url=server.url, grpc=True, grpc_port=9),
        ):
            pass
        expected = int(server.url.rpartition(":")[2]) + 1
        with (
            pytest.raises(Unreachable, match=f"gRPC at 127.0.0.1:{expected} "),
            open_client(url=server.url, grpc=True),
        ):
            pass


def test_an_api_key_is_told_to_be_unencrypted_except_on_this_machine(caplog: pytest.LogCaptureFixture) -> None:
    with StandIn(api_key="key") as server, open_client(url=server.url, api_key="key"):
        assert not caplog.records
    with pytest.raises(Unreachable), open_client(url="http://192.0.2.1:9", api_key="key", timeout_seconds=1):
        pass
    assert len(caplog.records) == 1


def test_an_address_without_a_scheme_is_asked_over_https_where_a_key_is_given(caplog: pytest.LogCaptureFixture) -> None:
    with StandIn() as server, open_client(url=server.url.removeprefix("http://")) as client:
        assert client.get_collections().collections == []
    asked = "asked over https, since a key is given: if it has no TLS, write http:// in front"
    for host in ("127.0.0.1", "192.0.2.1"):
        with pytest.raises(Unreachable, match=asked), open_client(url=f"{host}:9", api_key="key", timeout_seconds=1):
            pass
    assert "without encryption" not in caplog.text


def test_the_tuned_database_reopens_with_every_point(tmp_path: Path) -> None:
    params = models.VectorParams(size=2, distance=models.Distance.COSINE)
    with open_client(path=tmp_path) as client:
        client.create_collection("docs", {"v": params})
        assert is_embedded(client)
        assert tune_embedded(client, "docs")
        client.upsert("docs", [models.PointStruct(id=1, vector={"v": [1.0, 0.0]}, payload={})])
    with open_client(path=tmp_path) as client:
        assert client.count("docs").count == 1


def test_a_folder_that_a_full_disk_left_empty_can_be_used(tmp_path: Path) -> None:
    folder = tmp_path / "qdrant"
    (folder / "collection").mkdir(parents=True)
    (folder / "meta.json").touch()
    with open_client(path=folder) as client:
        client.create_collection("c", models.VectorParams(size=2, distance=models.Distance.COSINE))
    (folder / "meta.json").write_text("")
    with pytest.raises(InputError, match="is damaged"), open_client(path=folder):
        pass


def test_a_full_disk_is_an_error_in_one_line_and_the_next_run_finishes(tmp_path: Path) -> None:
    """The kernel refuses files above some size, as a full disk refuses all."""
    rows = [{"id": f"d{n}", "text": text} for n, text in enumerate(medical_texts(400))]
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    script = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "size = int(sys.argv.pop(1))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))\n"
        "from care_qdrant.cli.ingest import main\n"
        "main()\n"
    )

    def run(limit: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", script, str(limit), str(corpus), "--path", str(tmp_path / "qdrant")]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)

    stopped = run(150_000)
    assert stopped.returncode != 0 and "Traceback" not in stopped.stderr
    assert "the folder of the embedded database cannot be" in stopped.stderr.splitlines()[-1]
    finished = run(-1)
    assert finished.returncode == 0, finished.stderr
    with open_client(path=tmp_path / "qdrant") as client:
        assert client.count("corpus").count >= 400


def test_a_folder_that_is_read_only_is_an_error_in_one_line(tmp_path: Path) -> None:
    """SQLite answers as it does on a read-only file system; root would write through any permission."""
    model = HashModel()
    with open_client(path=tmp_path / "qdrant") as client:
        ingest([Document("a", "高血压")], model, client, "corpus")
        database: Any = client._client
        database.collections["corpus"].storage.storage.execute("PRAGMA query_only = ON")
        with pytest.raises(QdrantError, match=r"folder of the embedded database cannot be .*readonly database"):
            ingest([Document("b", "糖尿病")], model, client, "corpus")


@pytest.mark.parametrize("version", ["1.15.4", "1.17.9"])
def test_an_old_server_is_refused_when_it_is_opened_and_with_a_client_of_the_user(version: str) -> None:
    with StandIn(version=version) as server:
        too_old = pytest.raises(ServerTooOld, match=rf"version {version}, and 1\.18 is the oldest .*: upgrade it")
        with too_old, open_client(url=server.url):
            pass
        client = QdrantClient(url=server.url, check_compatibility=False)
        for use in (
            lambda: Collection(client, "c").schema,
            lambda: ingest([Document("d", "咳嗽")], HashModel(), client, "c"),
        ):
            with pytest.raises(ServerTooOld):
                use()
        assert not [each for each in server.requests if each.method != "GET"]
        client.close()


def test_several_urls_are_refused() -> None:
    with (
        pytest.raises(InputError, match="names several servers; give one URL"),
        open_client(url="http://a:1,http://b:2"),
    ):
        pass
