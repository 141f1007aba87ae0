"""Sources of options: the command line, the environment, care.toml; and what a command does to a target."""

import http.server
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
import pytest
from care_benchmarks.cli import care_bench
from click.testing import CliRunner
from qdrant_client import QdrantClient

from care_qdrant.cli import care
from care_qdrant.cli.ingest import command as ingest_command
from care_qdrant.console.configuration import read_defaults
from care_qdrant.console.options import Target, engine_options
from care_qdrant.console.reports import search_command
from care_qdrant.encoders.engine import Engine
from care_qdrant.errors import CareError, FingerprintMismatch, InputError, Unreachable, next_command
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.qdrant.connection import open_client
from care_qdrant.serve import supervisor
from care_qdrant.types import Document
from tests.forks import FORKS
from tests.listener import Listener, listening
from tests.tiny import HashModel

CARE = "from care_qdrant.cli import main; main()"
INGEST = "from care_qdrant.cli.ingest import main; main()"


@pytest.fixture(autouse=True)
def _empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("QDRANT_URL", raising=False)


def program(script: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r}); {script}"
    return subprocess.run(
        [FORKS.python, "-c", code, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_file_gives_the_options_that_a_project_repeats(tmp_path: Path) -> None:
    (tmp_path / "care.toml").write_text('model = "./pair"\npath = "db"\n[ingest]\nbm25 = false\nid-field = "key"\n')
    assert read_defaults(ingest_command) == {"model": "./pair", "path": "db", "sparse": False, "id_field": "key"}
    defaults = read_defaults(care)
    assert defaults["ingest"]["id_field"] == "key"
    assert defaults["status"] == {"path": "db"}


def test_a_file_reaches_commands_of_groups_under_both_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "care.toml").write_text('model = "./pair"\n[ingest]\nlimit = 5\n[bench.run]\nspeed = "none"\n')
    expected = {"models": ["./pair"], "speed": "none"}
    assert read_defaults(care)["bench"]["run"] == read_defaults(care_bench)["run"] == expected
    assert read_defaults(care)["bulk"]["plan"] == {"model": "./pair"}
    (tmp_path / "care.toml").write_text("[bulk]\nplam = 1\n")
    with pytest.raises(InputError, match=r"\[bulk\] has 'plam', which is not one of its options: .*plan"):
        read_defaults(care)


def test_the_table_of_pyproject_is_read_and_other_tools_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.other]\nx = 1\n[tool.care.ingest]\nlimit = 5\n")
    assert read_defaults(ingest_command) == {"limit": 5}
    (tmp_path / "pyproject.toml").write_text("no toml [")
    assert read_defaults(ingest_command) == {}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("sparce = 1", "'sparce' is an option of no command; known: .*shard"),
        ("[ingset]\nlimit = 1", r"\[ingset\] is not a command of care; known: demo, ingest"),
        ("[ingest]\nlimits = 1", r"\[ingest\] has 'limits', which is not one of its options: .*limit"),
        ("model = ", "care.toml: is not valid TOML"),
        ('collection = ""', "care.toml: 'collection' is empty; give a value, or leave it out"),
        ('[ingest]\ntypes = {year = "text"}', r"\[ingest\] has a table 'types' where a value is expected"),
        ('[ingest.types]\nyear = "text"', r"\[ingest\] has a table 'types' where a value is expected"),
        ('[ingest]\nindex = ["year", ""]', "care.toml: 'index' is empty"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "care.toml").write_text(content)
    with pytest.raises(InputError, match=message):
        read_defaults(care)


@pytest.mark.parametrize(
    "value", ["3", "-1", "nan", "true", '"x"', '""', "[]", '["x"]', "[3, [4]]", "2024-02-01", "{a = 1}"]
)
def test_a_value_of_any_type_at_any_place_is_used_or_refused(tmp_path: Path, value: str) -> None:
    def read(file: str, content: str, command: click.Command) -> None:
        (tmp_path / file).write_text(content)
        with suppress(InputError, click.UsageError):
            command.make_context("x", ["corpus.jsonl"], default_map=read_defaults(command))
        (tmp_path / file).unlink()

    for option in (name for each in ingest_command.params for name in each.opts if name.startswith("--")):
        for table in ("", "[ingest]\n"):
            read("care.toml", f"{table}{option.removeprefix('--')} = {value}", ingest_command)
    for place in ("ingest", "bulk.plan", "bench.run.task"):
        read("care.toml", f"{place} = {value}", care)
    for place in ("tool", "tool.care", "tool.care.ingest", "tool.care.bulk.plan"):
        read("pyproject.toml", f"{place} = {value}", care)


def test_a_byte_order_mark_is_no_mistake_and_the_unnamed_vector_has_an_empty_name(tmp_path: Path) -> None:
    (tmp_path / "care.toml").write_text('vector-name = ""\n', encoding="utf-8-sig")
    assert read_defaults(ingest_command) == {"vector_name": ""}


def test_the_command_line_comes_before_the_file(tmp_path: Path) -> None:
    (tmp_path / "care.toml").write_text('path = "db"\n')
    (tmp_path / "corpus.jsonl").write_text('{"id": "1", "text": "一"}\n')
    done = program(INGEST, "corpus.jsonl", "--dry-run", "--limit", "1")
    assert done.returncode == 0, done.stderr
    done = program(CARE, "status")
    assert "db: there is no such folder" in done.stderr
    done = program(CARE, "status", "--path", "other")
    assert "other: there is no such folder" in done.stderr
    done = program(CARE, "status", "--url", "http://127.0.0.1:1")
    assert "no Qdrant server answers" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--engine", "server"], "'server' is not one of 'torch', 'onnx'"),
        (["--device", "bogus"], "--device bogus: is not a device"),
        (["--device", "cpu,bogus"], "--device cpu,bogus: is not a device"),
        (["--endpoint", "gpu1:8000/v1"], "--endpoint gpu1:8000/v1: is not a URL"),
        (["--endpoint", "http://gpu1/v1,gpu2"], "--endpoint gpu2: is not a URL"),
        (["--endpoint", "http://gpu1/v1", "--device", "cpu"], "--endpoint and --device cpu"),
        (["--endpoint", "http://gpu1/v1", "--engine", "onnx"], "--endpoint and --engine onnx"),
        (["--engine", "onnx", "--device", "cuda:1"], "--engine onnx and --device cuda:1"),
        (["--engine", "onnx", "--device", "all"], "--engine onnx and --device all"),
    ],
)
@pytest.mark.parametrize(
    "command", [["ingest", "c.jsonl"], ["attach", "c"], ["verify", "c"], ["bulk", "encode", "job"]]
)
def test_what_cannot_encode_together_is_refused_by_name(command: list[str], words: list[str], said: str) -> None:
    result = CliRunner().invoke(care, [*command, *words])
    assert result.exit_code == 2
    assert said in result.stderr


@pytest.mark.parametrize(
    ("file", "words", "expected"),
    [
        ('endpoint = "http://a/v1"', ["--device", "cpu"], ("cpu", None, ())),
        ('device = "cuda"', ["--endpoint", "http://b/v1"], (None, "server", ("http://b/v1",))),
        ('endpoint = ["http://a/v1", "http://b/v1"]', [], (None, "server", ("http://a/v1", "http://b/v1"))),
        ('engine = "torch"', ["--device", "cpu,cpu"], ("cpu,cpu", "torch", ())),
    ],
)
def test_an_engine_of_the_command_line_comes_before_one_of_the_file(
    tmp_path: Path, file: str, words: list[str], expected: tuple[object, ...]
) -> None:
    (tmp_path / "care.toml").write_text(file)
    found = []

    @click.command(name="encode")
    @engine_options
    def encode(device: str | None, engine: Engine) -> None:
        found.append((device, engine.kind, engine.endpoints))

    result = CliRunner().invoke(encode, words, default_map=read_defaults(encode), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert found == [expected]


def test_a_name_that_is_no_url_makes_no_folder(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"id": "1", "text": "一"}\n', encoding="utf-8")
    done = program(CARE, "ingest", "corpus.jsonl", "--url", "not a url")
    assert "is not a URL of a Qdrant server" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.jsonl"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["search", "糖", "--collection", ""], "--collection"),
        (["search", "糖", "--collection="], "--collection"),
        (["search", "糖", "--path", ""], "--path"),
        (["search", "糖", "--url", ""], "--url"),
        (["search", "糖", "--model", ""], "--model"),
        (["verify", ""], "COLLECTION"),
        (["publish", "c", "--as", ""], "--as"),
        (["promote", "c", "--to", "", "--url", "http://localhost"], "--to"),
        (["serve", "--collection", "a", "--collection", ""], "--collection"),
        (["model", "info", ""], "MODEL"),
    ],
)
def test_an_empty_value_is_not_the_default(arguments: list[str], named: str) -> None:
    result = CliRunner().invoke(care, arguments)
    assert result.exit_code == 2
    assert f"{named} is empty" in result.stderr


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(
    ("command", "option"),
    [
        (["search", "糖"], "--score-threshold"),
        (["search", "糖"], "--alpha"),
        (["ingest", "c.jsonl"], "--max-delete-fraction"),
        (["attach", "c"], "--max-delete-fraction"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else value,
)
def test_a_number_that_is_none_passes_no_range(command: list[str], option: str, value: str, tmp_path: Path) -> None:
    """Also where a file gives it: TOML has such numbers."""
    result = CliRunner().invoke(care, [*command, f"{option}={value}"])
    assert result.exit_code == 2 and option in result.stderr
    (tmp_path / "care.toml").write_text(f"[{command[0]}]\n{option.strip('-')} = {value}\n")
    result = CliRunner().invoke(care, command, default_map=read_defaults(care))
    assert result.exit_code == 2 and option in result.stderr


def test_the_unnamed_vector_has_an_empty_name(tmp_path: Path) -> None:
    result = CliRunner().invoke(care, ["search", "糖", "--vector-name", "", "--path", "typo"])
    assert "typo: there is no such folder" in str(result.exception)


@pytest.mark.parametrize(
    ("environment", "file", "target", "words"),
    [
        (None, "", Target(Path("qdrant"), None), ""),
        (None, "", Target(Path("a b"), None), " --path 'a b'"),
        (None, "", Target(None, "http://q:6333"), " --url http://q:6333"),
        ("http://q:6333", "", Target(Path("qdrant"), None), " --path qdrant"),
        ("http://q:6333", "", Target(None, "http://q:6333"), ""),
        (None, 'url = "http://q:6333"', Target(Path("qdrant"), None), " --path qdrant"),
        (None, 'url = "http://q:6333"', Target(None, "http://q:6333"), ""),
        (None, 'path = "db"', Target(Path("db"), None), ""),
        (None, 'path = "db"', Target(Path("qdrant"), None), " --path qdrant"),
        (None, '[search]\npath = "db"', Target(Path("db"), None), ""),
        ("http://q:6333", 'path = "db"', Target(Path("db"), None), " --path db"),
    ],
)
def test_a_hint_has_the_options_that_it_needs(
    monkeypatch: pytest.MonkeyPatch, environment: str | None, file: str, target: Target, words: str
) -> None:
    """The command that is shown reaches the database of the command that shows it."""
    Path("care.toml").write_text(file)
    if environment is not None:
        monkeypatch.setenv("QDRANT_URL", environment)
    with click.Context(ingest_command):
        assert search_command("c", target, "built-in") == f'care search "…" --collection c --model built-in{words}'


@pytest.mark.parametrize("is_typed", [False, True])
def test_an_error_shows_a_command_that_reaches_the_same_database(
    monkeypatch: pytest.MonkeyPatch, is_typed: bool
) -> None:
    monkeypatch.setenv("QDRANT_URL", "http://127.0.0.1:1")
    with open_client(path=Path("my db")) as client:
        ingest([Document("1", "一")], HashModel(name="theirs"), client, "c")
    model = ["--model", "built-in"] if is_typed else []
    result = CliRunner().invoke(care, ["search", "糖", "--path", "my db", *model])
    typed = " --model built-in" if is_typed else ""
    assert str(result.exception).endswith(f"with: care attach c --vector-name care-small{typed} --path 'my db'")
    with (
        open_client(path=Path("my db")) as client,
        pytest.raises(InputError, match=r"with the same --model .*attach c"),
    ):
        ingest([Document("1", "一")], HashModel(), client, "c", vector_name="hash-model")


def test_an_answer_of_the_service_says_that_its_command_needs_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bare, it would reach ./qdrant of the reader; with the options of the service, a server of another network."""
    said: list[str] = []
    monkeypatch.setattr(supervisor, "serve", lambda *_: said.append(next_command("care attach c")))
    assert CliRunner().invoke(care, ["serve", "--url", "http://127.0.0.1:1", "--model", "built-in"]).exit_code == 0
    assert said == ["with the same --model and --path/--url: care attach c"]


def test_two_databases_on_the_command_line_are_refused() -> None:
    result = CliRunner().invoke(care, ["status", "--path", "a", "--url", "http://b"])
    assert result.exit_code == 2
    assert "two different databases" in result.stderr


@pytest.mark.parametrize("arguments", [["status"], ["search", "糖"], ["attach", "c", "--dry-run"], ["detach", "c"]])
def test_a_command_that_reads_makes_no_folder(tmp_path: Path, arguments: list[str]) -> None:
    done = program(CARE, *arguments, "--path", "typo")
    assert done.returncode == InputError.exit_code
    assert done.stderr.startswith("error: typo: there is no such folder")
    assert not (tmp_path / "typo").exists()


@pytest.fixture
def proxy() -> Iterator[str]:
    """The address of a server that answers everything with a page."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<html>please log in</html>")

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


QDRANT_KEY, ENDPOINT_KEY = "a-key-of-this-qdrant", "a-key-of-that-endpoint"


@pytest.fixture
def listener() -> Iterator[Listener]:
    with listening() as found:
        yield found


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the keys of a user."""
    monkeypatch.setenv("QDRANT_API_KEY", QDRANT_KEY)
    monkeypatch.setenv("CARE_ENDPOINT_KEY", ENDPOINT_KEY)
    monkeypatch.setenv("CARE_ENDPOINT_MODEL", "m")
    monkeypatch.setenv("CARE_PATIENCE", "1")


@pytest.mark.parametrize("file", ["care.toml", "pyproject.toml"])
@pytest.mark.parametrize("arguments", [["status"], ["search", "糖"], ["attach", "c"], ["ingest", "corpus.jsonl"]])
def test_a_folder_that_names_a_server_gets_no_key(
    listener: Listener, keys: None, file: str, arguments: list[str]
) -> None:
    Path("corpus.jsonl").write_text('{"id": "1", "text": "一"}\n', encoding="utf-8")
    Path(file).write_text(("[tool.care]\n" if file == "pyproject.toml" else "") + f'url = "{listener.url}"\n')
    done = program(CARE, *arguments)
    assert listener.received, done.stderr
    assert not listener.got(QDRANT_KEY)
    assert f"QDRANT_API_KEY is not sent to {listener.url}" in done.stderr
    assert QDRANT_KEY not in done.stderr + done.stdout


@pytest.mark.parametrize("by", ["command line", "environment"])
def test_a_server_that_the_user_gave_gets_the_key(
    listener: Listener, keys: None, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    Path("care.toml").write_text(f'url = "{listener.url}"\n')
    if by == "environment":
        monkeypatch.setenv("QDRANT_URL", listener.url)
    program(CARE, "status", *(["--url", listener.url] if by == "command line" else []))
    assert listener.got(QDRANT_KEY)


@pytest.mark.parametrize("is_typed", [False, True])
def test_an_endpoint_that_a_folder_names_gets_no_key(listener: Listener, keys: None, is_typed: bool) -> None:
    Path("corpus.jsonl").write_text('{"id": "1", "text": "一"}\n', encoding="utf-8")
    if not is_typed:
        Path("care.toml").write_text(f'endpoint = "{listener.url}/v1"\n')
    done = program(CARE, "ingest", "corpus.jsonl", *(["--endpoint", f"{listener.url}/v1"] if is_typed else []))
    assert listener.received, done.stderr
    assert listener.got(ENDPOINT_KEY) is is_typed
    assert ("CARE_ENDPOINT_KEY is not sent" in done.stderr) is not is_typed


@pytest.mark.parametrize("is_typed", [False, True])
def test_a_database_of_another_user_is_named_unless_it_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_typed: bool
) -> None:
    with open_client(path=tmp_path / "db"):
        pass
    Path("care.toml").write_text('path = "db"\n')
    pretend = f"import os; os.geteuid = lambda: {os.geteuid() + 1}; {CARE}"
    done = program(pretend, "status", *(["--path", "db"] if is_typed else []))
    assert ("belongs to another user" in done.stderr) is not is_typed


@pytest.mark.parametrize("url", ["ftp://localhost:6333", "http://[::1", "not a url", "http://localhost:99999"])
def test_what_is_no_url_is_said(url: str) -> None:
    with pytest.raises(InputError, match="is not a URL of a Qdrant server"), open_client(url=url):
        pass


def test_a_proxy_that_answers_with_a_page_is_no_server(proxy: str) -> None:
    with pytest.raises(Unreachable, match="what answers there is not a Qdrant server"), open_client(url=proxy):
        pass


def test_every_error_begins_with_the_same_word() -> None:
    for arguments in (["status", "--bogus"], ["status", "--path", "typo"], ["nothing"]):
        done = program(CARE, *arguments)
        assert done.returncode == 2
        assert [line for line in done.stderr.splitlines() if line.startswith("error: ")] != []
        assert "Error:" not in done.stderr


@pytest.mark.parametrize("name", [None, "hash-model"])
def test_a_collection_of_another_pair_names_the_pair_before_it_advises_to_attach(
    client: QdrantClient, name: str | None
) -> None:
    ingest([Document("1", "一")], HashModel(name="theirs", salt="x"), client, "c", vector_name=name)
    kinds: dict[bool, type[CareError]] = {True: InputError, False: FingerprintMismatch}
    with pytest.raises(kinds[name is None], match=r"made by theirs.*--model.*care attach c"):
        ingest([Document("1", "一")], HashModel(), client, "c", vector_name="hash-model")


def test_the_card_reads_like_one() -> None:
    shown = CliRunner().invoke(care, ["model", "info"]).output
    assert "two encoders into one space of 384 dimensions, license CC-BY-4.0" in shown
    assert "runs on onnxruntime" in shown
    assert all(len(line) < 120 for line in shown.splitlines())
    assert "{" not in shown
