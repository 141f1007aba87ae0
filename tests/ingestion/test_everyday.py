"""A day with ``care-ingest``: what it shows, reports, accepts and leaves behind."""

import array
import fcntl
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from qdrant_client import QdrantClient

from care_qdrant import progress as progress_module
from care_qdrant.cli.ingest import program
from care_qdrant.errors import InputError
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.rows import Reading
from care_qdrant.ingestion.settings import IngestReport, IngestSettings
from care_qdrant.progress import Progress
from care_qdrant.qdrant.connection import open_client
from care_qdrant.types import Document
from tests.forks import FORKS
from tests.ingestion.conftest import WriteCorpus, short_rows
from tests.tiny import HashModel

PROGRAM = """
from care_qdrant.model import care_model
from tests.tiny import HashModel
care_model.CareModel.load = lambda *_args, **_options: HashModel()
from care_qdrant.cli.ingest import main
main()
"""
ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("hash_command")


def run(*arguments: str | Path, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(program, list(map(str, arguments)), input=stdin, catch_exceptions=False)


def start(*arguments: str | Path, log: str = "text", **options: object) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TQDM_DISABLE": "0", "CARE_LOG_FORMAT": log}
    python = sys.executable if "pass_fds" in options else FORKS.python  # a fork has the standard streams alone
    command_line = [python, "-c", PROGRAM, *map(str, arguments)]
    settings = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen(command_line, text=True, env=environment, **settings)  # type: ignore[call-overload,no-any-return]


def test_progress_counts_what_is_stored_and_knows_the_limit(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    shown: list[Progress] = []
    with open_client(path=tmp_path / "qdrant") as client:
        settings = IngestSettings(limit=40, batch_tokens=200)
        ingest(write_corpus(short_rows(200)), HashModel(), client, "c", settings=settings, on_progress=shown.append)
        assert client.count("c").count == 40
    assert [progress.stored for progress in shown] == sorted(progress.stored for progress in shown)
    assert shown[0].stored == 0
    assert shown[-1].stored == shown[-1].total == 40
    assert {progress.total for progress in shown} == {40}
    assert shown[-1].seconds_left == 0
    assert any(progress.seconds_left for progress in shown)


def test_the_total_of_documents_in_a_list_is_known() -> None:
    texts = [Document(str(number), "高血压患者要少吃盐") for number in range(30)]
    for corpus, total in ((texts, 30), (iter(texts), None)):
        shown: list[Progress] = []
        with closing(QdrantClient(":memory:")) as client:
            ingest(corpus, HashModel(), client, "c", on_progress=shown.append)
        assert {progress.total for progress in shown} == {total}


def test_in_a_pipe_there_is_a_line_a_minute(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(progress_module, "LINE_SECONDS", 0.05)
    with caplog.at_level("INFO"), progress_module.progress_bar("corpus") as show:
        show(Progress(100, 60, 60, 2, 1_000.0, 6.5, 1.012, 0.03, 240, 5_400.0, 0.5))
        deadline = time.monotonic() + 60
        while not caplog.messages and time.monotonic() < deadline:
            time.sleep(0.01)
    assert caplog.messages[0] == (
        "corpus: 60 of 240 (25%) stored, 1 h 30 min left, 2 rejected, 1,000 tokens/s, 6.5 documents/s, padding 1.01, "
        "idle 3%"
    )


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (89, "89 s"), (600, "10 min"), (27_000, "7 h 30 min"), (432_000, "5.0 days")]
)
def test_durations(seconds: float, text: str) -> None:
    assert progress_module.duration(seconds) == text


def test_a_terminal_gets_a_summary_and_a_pipe_the_report(write_corpus: WriteCorpus) -> None:
    corpus = write_corpus([*short_rows(5), "broken"])
    master, terminal = pty.openpty()
    process = start(corpus, "--model", "my pair", stdout=terminal)
    os.close(terminal)
    _, errors = process.communicate(timeout=60)
    os.set_blocking(master, False)
    shown = os.read(master, 10_000).decode().replace("\r\n", "\n") if select.select([master], [], [], 5)[0] else ""
    assert process.returncode == 8
    assert "done: 5 documents as 5 points (5 encoded, 1 rejected)" in shown
    assert "next: care search \"…\" --collection corpus --model 'my pair'\n" in shown
    assert "\x1b" not in shown, "no colours, with NO_COLOR or without"
    assert "line 6: is not JSON" in errors
    os.close(master)
    process = start(corpus, "--json")
    report = json.loads(process.communicate(timeout=60)[0])
    assert report["unchanged"] == 5
    assert report["first_rejects"][0].startswith("line 6: is not JSON")


def test_a_terminal_without_a_size_shows_the_bar(write_corpus: WriteCorpus) -> None:
    """Job runners and containers open a terminal of 0 columns and 0 lines, on which tqdm paints nothing."""
    master, slave = pty.openpty()
    assert os.get_terminal_size(slave) == (0, 0)
    process = start(corpus := write_corpus(short_rows(5)), stderr=slave)
    os.close(slave)
    process.communicate(timeout=60)
    shown = os.read(master, 100_000).decode()
    assert "100%|" in shown and "5/5 stored" in shown and "\x1b" not in shown
    _, is_there, after = re.sub(r"[\r\n]+", "\n", shown).partition(f"\n{str(corpus)[:40]}")
    assert is_there, "the log does not go on in the line of the bar"
    rest = f"{str(corpus)[40:]}:jsonl"
    assert "".join(after.split()).startswith(rest), "it is whole, though a long path takes two lines"
    os.close(master)


def test_verbose_tells_each_request_and_quiet_only_warnings(write_corpus: WriteCorpus) -> None:
    corpus = write_corpus(short_rows(5))
    plain = run(corpus).stderr
    assert "corpus.jsonl: jsonl" in plain and " ms" not in plain
    assert re.search(
        r"^writing 5 points in collection 'other': \d+ ms$", run(corpus, "--collection", "other", "-v").stderr, re.M
    )
    assert run(corpus, "-q").stderr == ""


def test_a_refused_sync_reports_what_it_stored(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    run(write_corpus(short_rows(20)))
    shorter = write_corpus(short_rows(2))
    reports: list[IngestReport] = []
    with open_client(path=tmp_path / "qdrant") as client, pytest.raises(InputError, match="more than the 20%"):
        ingest(shorter, HashModel(), client, "corpus", settings=IngestSettings(sync=True), on_stopped=reports.append)
    [report] = reports
    assert (report.documents, report.unchanged, report.deleted) == (2, 2, 0)
    assert report.stopped is not None and "more than the 20%" in report.stopped
    for arguments in (["--sync"], ["--sync", "--dry-run"]):
        result = CliRunner().invoke(program, [str(shorter), "--json", *arguments])
        assert isinstance(result.exception, InputError) and "more than the 20%" in str(result.exception)
        assert json.loads(result.stdout)["stopped"] == "error", "its sentence comes once, on stderr"


@pytest.mark.parametrize("rows", [1, 150])
@pytest.mark.parametrize(
    ("option", "number", "status"),
    [
        ("--bm25", signal.SIGINT, 130),
        ("--no-bm25", signal.SIGINT, 130),
        ("--bm25", signal.SIGTERM, -signal.SIGTERM),
    ],
)
def test_a_signal_ends_an_idle_pipe_and_reports(option: str, number: signal.Signals, status: int, rows: int) -> None:
    """Also where it waits for the first rows, by which the collection is made."""
    # A shell lets what it puts in the background ignore SIGINT, and children inherit that.
    process = start(
        "-", "--collection", "c", "--json", option, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    )
    assert process.stdin is not None
    for row in short_rows(rows):
        process.stdin.write(json.dumps(row) + "\n")
    process.stdin.flush()
    output, errors = process.stdout, process.stderr
    assert output is not None and errors is not None
    try:
        unread = array.array("i", [1])
        while unread[0] and process.poll() is None:
            fcntl.ioctl(process.stdin, termios.FIONREAD, unread)
        process.send_signal(number)
        assert process.wait(timeout=60) == status
        assert json.loads(output.read())["stopped"] == "interrupted"
        said = errors.read()
        assert "interrupted; run the same command again" in said and "Fatal" not in said
    finally:
        process.kill()
        process.communicate()


def test_process_substitution_is_read(write_corpus: WriteCorpus) -> None:
    corpus = write_corpus(short_rows(7))
    reader, writer = os.pipe()
    os.write(writer, corpus.read_bytes())
    os.close(writer)
    process = start(f"/dev/fd/{reader}", "--collection", "c", "--json", pass_fds=[reader])
    os.close(reader)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert json.loads(output)["documents"] == 7


def test_the_format_is_said_in_one_line(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,text\n1,一\n", encoding="utf-8")
    process = start(tmp_path / "t.csv")
    _, errors = process.communicate(timeout=60)
    assert "t.csv: table, comma separated, columns id, text" in errors
    process = start(tmp_path / "t.csv", "-q")
    assert process.communicate(timeout=60)[1] == ""
    process = start(tmp_path / "t.csv", log="json")
    [line] = process.communicate(timeout=60)[1].splitlines()
    assert json.loads(line)["level"] == "info"
    process = start(tmp_path / "nothing.csv", log="json")
    entry = json.loads(process.communicate(timeout=60)[1])
    assert entry["level"] == "error" and "does not exist" in entry["message"]


def test_the_rejects_file_is_made_by_a_reject_and_by_nothing_else(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    corpus = write_corpus([*short_rows(3), "broken"])
    first, second = tmp_path / "corpus.rejects.jsonl", tmp_path / "corpus.rejects-2.jsonl"
    assert run(corpus, "--dry-run").exit_code == 8
    with pytest.raises(InputError):
        run(corpus, "--sync", "--limit", "1")
    assert not first.exists()
    assert run(corpus).exit_code == 8
    earlier = first.read_text()
    assert run(corpus).exit_code == 8
    assert (json.loads(earlier)["line"], first.read_text(), second.read_text()) == (4, earlier, earlier)
    assert run(corpus, "--rejects", "of/tonight/mine.jsonl").exit_code == 8
    assert json.loads((tmp_path / "of/tonight/mine.jsonl").read_text())["line"] == 4
    run(corpus, "--shard", "1/2")
    run(corpus, "--shard", "2/2")
    write_corpus(short_rows(3))
    assert run(corpus).exit_code == 0
    assert {file.name for file in tmp_path.glob("*.rejects*")} == {
        "corpus.rejects.jsonl",
        "corpus.rejects-2.jsonl",
        "corpus.rejects-1-of-2.jsonl",
        "corpus.rejects-2-of-2.jsonl",
    }


def test_rejected_rows_in_a_folder_that_cannot_be_written(
    write_corpus: WriteCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root writes anywhere, so what a read-only folder answers is what opening files raises here."""
    corpus = write_corpus(short_rows(3))
    path_open = Path.open

    def read_only_open(self: Path, mode: str = "r", *args: object, **options: object) -> object:
        if ".rejects" in self.name:
            raise OSError(30, "Read-only file system", str(self))
        return path_open(self, mode, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "open", read_only_open)
    assert run(corpus).exit_code == 0
    with path_open(corpus, "a") as stream:
        stream.write("broken\n")
    with pytest.raises(InputError, match=r"cannot be written \(Read-only file system\).*row 4.*--rejects"):
        run(corpus)
    assert run(corpus, "--rejects", tmp_path / "rejects.jsonl").exit_code == 8


def test_a_text_without_a_token_is_a_rejected_row(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    class Wordless(HashModel):
        """Reads no zero width space, as a BERT's tokenizer does not."""

        def __init__(self) -> None:
            super().__init__()
            count = self._encoder.count_tokens
            self._encoder.count_tokens = lambda texts: count([text.replace("\u200b", "") for text in texts])  # type: ignore[method-assign]

    rows = [*short_rows(3), {"id": "empty", "text": "\u200b"}, *short_rows(6)[3:]]
    with open_client(path=tmp_path / "qdrant") as client:
        report = ingest(write_corpus(rows), Wordless(), client, "c")
    assert (report.documents, report.points, report.rejected) == (6, 6, 1)
    assert "no token" in report.first_rejects[0]


def test_a_dry_run_says_hours_and_leaves_nothing(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    report = json.loads(run(write_corpus(short_rows(50)), "--dry-run", "--json").stdout)
    would = report["estimate"]
    assert (would["points"], report["points"], (tmp_path / "qdrant").exists()) == (50, 0, False)
    assert would["tokens"] > 0
    assert would["hours"] * 3_600 == pytest.approx(would["seconds"], rel=0.02)
    assert len(f"{would['seconds']:g}".replace(".", "").replace("e-", "").lstrip("0")) <= 5


def test_an_encoding_is_named_and_taken(tmp_path: Path) -> None:
    (tmp_path / "g.jsonl").write_bytes('{"id": "1", "text": "高血压"}\n'.encode("gbk"))
    with pytest.raises(InputError, match="gb18030"):
        run("g.jsonl")
    assert not (tmp_path / "qdrant" / "collection").exists()
    assert json.loads(run("g.jsonl", "--encoding", "gb18030", "--json").stdout)["points"] == 1


def test_several_files_and_standard_input_need_a_collection(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(f"文件 {name}", encoding="utf-8")
    for sources, stdin in ((["a.txt", "b.txt"], None), (["-"], b'{"id": "1", "text": "a"}\n{"id": "2", "text": "b"}')):
        with pytest.raises(InputError, match="give --collection"):
            run(*sources, stdin=stdin)
        assert json.loads(run(*sources, "--collection", "c", "--json", stdin=stdin).stdout)["documents"] == 2


def test_standard_input_may_be_anything(tmp_path: Path) -> None:
    result = run(
        *("-", "--format", "csv", "--collection", "c", "--id-field", ":hash", "--json"),
        stdin="text,dept\n一,内科\n二,外科\n".encode(),
    )
    assert json.loads(result.stdout)["points"] == 2
    reader, writer = os.pipe()
    pq.write_table(pa.table({"id": ["1"], "text": ["一"]}), tmp_path / "a.parquet")
    os.write(writer, (tmp_path / "a.parquet").read_bytes())
    os.close(writer)
    with open_client(path=tmp_path / "other") as client, os.fdopen(reader, "rb") as pipe:
        read = ingest(f"/dev/fd/{pipe.fileno()}", HashModel(), client, "c", reading=Reading(format="parquet"))
    assert read.points == 1
