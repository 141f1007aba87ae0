"""No password and no key in what is printed, logged or written."""

import subprocess
from pathlib import Path

import pytest

from care_qdrant.errors import CareError, Unreachable, redact, remember_secret
from care_qdrant.qdrant.connection import open_client
from tests.bench.conftest import task_directory  # noqa: F401  # a fixture
from tests.encoders.remote.test_server import EmbeddingServer
from tests.forks import FORKS
from tests.standin import StandIn

PASSWORD, KEY, SERVER_KEY = "pa55w0rd", "k3y-of-qdrant", "k3y-of-vllm"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://user:pa55w0rd@host:6333/x", "http://***@host:6333/x"),
        ("see https://u:p@ss@host, and http://host/a@b", "see https://***@host, and http://host/a@b"),
        ("care-bench run --api-key abc --grpc", "care-bench run --api-key *** --grpc"),
        ("--endpoint-key=abc x", "--endpoint-key=*** x"),
        ("care search x --shard-key north", "care search x --shard-key north"),
        ("http://host/v1?api_key=abc&limit=3", "http://host/v1?api_key=***&limit=3"),
        ("QDRANT_URL=user:s3cret@127.0.0.1:1 and u:p@host", "QDRANT_URL=***@127.0.0.1:1 and ***@host"),
        ("at 12:30 me@example.com", "at 12:30 me@example.com"),
        ("mail me@example.com, --keep 3 --batch-tokens 60", "mail me@example.com, --keep 3 --batch-tokens 60"),
    ],
)
def test_texts(text: str, expected: str) -> None:
    assert redact(text) == expected


def test_a_known_secret_is_hidden_wherever_it_stands() -> None:
    remember_secret("xyzzy-plugh")
    remember_secret(None)
    assert redact("the server says: bad key xyzzy-plugh!") == "the server says: bad key ***!"
    assert str(CareError("key xyzzy-plugh")) == "key ***"


def test_an_error_of_the_library() -> None:
    with pytest.raises(Unreachable) as caught, open_client(url=f"http://user:{PASSWORD}@127.0.0.1:9"):
        pass
    assert PASSWORD not in str(caught.value)
    assert "***@127.0.0.1:9" in str(caught.value)


def _run(program: str, *arguments: str) -> str:
    code = f"import sys; sys.argv = [{program!r}, *sys.argv[1:]]; "
    code += {
        "care": "from care_qdrant.cli import main; main()",
        "care-bench": "from care_benchmarks.cli import main; main()",
    }[program]
    done = subprocess.run([FORKS.python, "-c", code, *arguments], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.parametrize("command", [["status"], ["search", "x"], ["attach", "corpus", "--dry-run"]])
def test_what_a_command_prints(command: list[str], pair_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QDRANT_API_KEY", KEY)
    printed = _run("care", *command, "--url", f"http://user:{PASSWORD}@127.0.0.1:9")
    assert "127.0.0.1:9" in printed
    assert PASSWORD not in printed and KEY not in printed


@pytest.mark.parametrize("end", ["\n", "\r\n", " \n"])
def test_a_key_of_a_file_may_end_in_a_line_feed(
    end: str, pair_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "a", "text": "发烧时要多喝水。"}\n', encoding="utf-8")
    with StandIn() as server, EmbeddingServer.serving(pair_folder / "document") as documents:
        monkeypatch.setenv("QDRANT_API_KEY", KEY + end)
        monkeypatch.setenv("CARE_ENDPOINT_KEY", SERVER_KEY + end)
        options = ["--model", str(pair_folder), "--url", server.url, "--endpoint", documents.url]
        printed = _run("care", "ingest", str(corpus), *options)
    assert "1 document as 1 point" in printed and documents.requests
    assert KEY not in printed and SERVER_KEY not in printed


@pytest.mark.timeout(300)
def test_everything_that_a_run_writes_and_prints(
    task_directory: Path,  # noqa: F811
    pair_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output = tmp_path / "out"
    with StandIn() as server, EmbeddingServer.serving(pair_folder / "document") as documents:
        url, documents_url = (
            each.replace("http://", f"http://user:{PASSWORD}@") for each in (server.url, documents.url)
        )
        arguments = ["--model", str(pair_folder), "--output", str(output), "--speed", "none", "--url", url]
        monkeypatch.setenv("QDRANT_API_KEY", KEY)
        arguments += ["--endpoint", documents_url]
        monkeypatch.setenv("CARE_ENDPOINT_KEY", SERVER_KEY)
        printed = _run("care-bench", "run", str(task_directory), *arguments)
    assert documents.requests, printed
    files = {file for file in tmp_path.rglob("*") if file.is_file()}
    assert {"result.json", "report.md", "report.html"} <= {file.name for file in files}, printed
    written = "".join(file.read_bytes().decode(errors="replace") for file in files)
    assert "://***@" in written
    for secret in (PASSWORD, KEY, SERVER_KEY):
        assert secret not in written + printed


def test_a_key_that_is_an_ordinary_word_does_not_spoil_other_texts() -> None:
    remember_secret("read")
    remember_secret("reading-room-key")
    assert redact("cannot be read: machine.threads") == "cannot be read: machine.threads"
    assert redact("key reading-room-key, reading-room-keys") == "key ***, reading-room-keys"


def test_a_password_in_a_url_without_a_scheme_is_hidden() -> None:
    assert redact("user:s3cretpw@127.0.0.1:1: no server answers") == "***@127.0.0.1:1: no server answers"
    assert redact("at 12:30, a@b.c, care-nano:x") == "at 12:30, a@b.c, care-nano:x"
