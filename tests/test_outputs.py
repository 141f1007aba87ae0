"""Files that a person names for a command to write: one that the command did not write is never touched."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from care_benchmarks.cli import care_bench
from care_data.cli import care_data
from care_trainer.cli import care_train
from care_trainer.cli.learn import command as care_learn
from click.testing import CliRunner
from qdrant_client import models

from care_qdrant.cli.bulk import command as care_bulk
from care_qdrant.cli.ingest import command as care_ingest
from care_qdrant.cli.model import command as care_model
from care_qdrant.cli.serve import command as care_serve
from care_qdrant.console.outputs import require_free
from care_qdrant.destinations import require_new_folder
from care_qdrant.encoders.references import Reference, save_references
from care_qdrant.errors import CareError, InputError
from care_qdrant.qdrant.connection import open_client

_PLAN = """
name = "clinic"
folder = "clinic"
[source]
collection = "clinic"
path = "qdrant"
queries = "questions.jsonl"
license = "apache-2.0"
origin = "written for this test"
"""
NOTES = '{"query": "my own", "label": "S"}\n'


@pytest.mark.parametrize(
    "command",
    [
        (care_train, "mine", "pairs.jsonl", "--collection", "c", "--output", "pairs.jsonl"),
        (care_train, "mine", "pairs.jsonl", "--collection", "c", "--output", "notes.txt"),
        (care_bench, "compare", "folder", "folder", "--output", "notes.txt"),
        (care_model, "reference-vectors", "built-in", "--output", "notes.txt"),
        (care_data, "diversify", "pairs.jsonl", "--side", "query", "--output", "./pairs.jsonl"),
        (care_data, "diversify", "pairs.jsonl", "--side", "query", "--output", "notes.txt"),
        (care_data, "export", "plan.toml", "--output", "notes.txt"),
        (care_data, "pairs", "plan.toml", "--output", "pairs.jsonl"),
    ],
    ids=lambda command: " ".join(command[1:]),
)
def test_a_file_of_the_user_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[object, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    for name in ("notes.txt", "pairs.jsonl"):
        Path(name).write_text(NOTES)
    Path("plan.toml").write_text(_PLAN)
    program, *arguments = command
    result = CliRunner().invoke(program, arguments)  # type: ignore[arg-type]
    assert isinstance(result.exception, InputError), result.output
    assert "would be overwritten" in str(result.exception)
    assert Path("notes.txt").read_text() == Path("pairs.jsonl").read_text() == NOTES


@pytest.mark.parametrize(
    "command",
    [
        (
            "notes.txt/new: cannot be made",
            care_train,
            "mine",
            "pairs.jsonl",
            "--collection",
            "c",
            "--output",
            "notes.txt/new",
        ),
        ("notes.txt/new: cannot be made", care_bench, "run", "folder", "--output", "notes.txt/new"),
        ("notes.txt/new: cannot be made", care_bench, "compare", "folder", "folder", "--output", "notes.txt/new"),
        ("notes.txt/new: cannot be made", care_model, "reference-vectors", "built-in", "--output", "notes.txt/new"),
        ("notes.txt/new: cannot be made", care_model, "join", "folder", "folder", "notes.txt/new"),
        ("notes.txt: is not a folder", care_model, "join", "folder", "folder", "notes.txt"),
        ("full: exists and is not a CARE folder", care_model, "join", "folder", "folder", "full"),
        (".: cannot be replaced", care_model, "join", "folder", "folder", "."),
        ("notes.txt: is not a folder", care_model, "import", "folder", "notes.txt"),
        ("full: exists and is not a CARE folder", care_model, "import", "folder", "full"),
        ("notes.txt/new: cannot be made", care_ingest, "pairs.jsonl", "--rejects", "notes.txt/new"),
        ("notes.txt/new: cannot be made", care_serve, "--record", "notes.txt/new"),
        ("folder: no sentence-transformers folder", care_serve, "--collection", "c", "--fallback", "folder"),
        ("no collection 'nowhere'", care_serve, "--collection", "nowhere"),
        ("notes.txt/new: cannot be made", care_learn, "articles", "--output", "notes.txt/new"),
        ("full: exists and is not a CARE folder", care_learn, "articles", "--output", "full"),
        (
            "notes.txt/new: cannot be made",
            care_data,
            "diversify",
            "pairs.jsonl",
            "--side",
            "query",
            "--output",
            "notes.txt/new",
        ),
        ("notes.txt/new: cannot be made", care_data, "pairs", "plan.toml", "--output", "notes.txt/new"),
        ("corpus.jsonl: already exists", care_data, "pool", "here.toml"),
        ("notes.txt/new: cannot be made", care_train, "start", "pairs.jsonl", "--output", "notes.txt/new"),
        (
            "notes.txt/new: cannot be made",
            care_train,
            "run",
            "tiny",
            "--set",
            "data_root=sample",
            "--set",
            "output=notes.txt/new",
        ),
        ("notes.txt", care_train, "run", "tiny", "--set", "data_root=sample", "--set", "output=notes.txt"),
        (
            "base: already exists",
            care_train,
            "run",
            "tiny",
            "--set",
            "data_root=sample",
            "--set",
            "output=.",
        ),
        (
            "mine-rehearsal: already exists",
            care_train,
            "rehearse",
            "tiny",
            "--set",
            "data_root=sample",
            "--set",
            "output=mine",
        ),
    ],
    ids=lambda command: " ".join(command[2:]),
)
def test_what_cannot_be_written_is_refused_before_any_work_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[object, ...]
) -> None:
    """A file where a folder belongs, folders of the user under the names that a command writes and removes."""
    sample = Path("examples/sample").resolve()
    monkeypatch.chdir(tmp_path)
    Path("sample").symlink_to(sample)
    for folder in ("folder", "full", "base", "mine-rehearsal"):
        Path(folder).mkdir()
        Path(folder, "notes.txt").write_text(NOTES)
    Path("notes.txt").write_text(NOTES)
    Path("corpus.jsonl").write_text(NOTES)
    pairs = [{"id": f"{number}", "query": f"q {number}", "positive": f"a {number}"} for number in range(40)]
    Path("pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    Path("plan.toml").write_text(_PLAN)
    Path("here.toml").write_text(_PLAN.replace('folder = "clinic"', 'folder = "."'))
    with open_client(path=Path("qdrant")) as client:
        client.create_collection("articles", models.VectorParams(size=2, distance=models.Distance.COSINE))
    before = _files(tmp_path)
    said, program, *arguments = command
    result = CliRunner().invoke(program, arguments)  # type: ignore[arg-type]
    assert isinstance(result.exception, CareError) and str(said) in str(result.exception), result.output
    assert _files(tmp_path) == before


def _files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


@pytest.mark.skipif(os.geteuid() == 0 and shutil.which("setpriv") is None, reason="root may write anywhere")
def test_a_folder_without_the_right_to_write_is_refused(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    code = (
        "import pathlib, sys\nfrom care_qdrant.destinations import require_writable\n"
        "require_writable(pathlib.Path(sys.argv[1]))"
    )
    rights = "-dac_override,-dac_read_search"
    unprivileged = ["setpriv", f"--bounding-set={rights}", f"--inh-caps={rights}"] if os.geteuid() == 0 else []
    for path, is_refused in ((closed / "new", True), (closed / "a" / "b", True), (tmp_path / "a" / "b", False)):
        done = subprocess.run(
            [*unprivileged, sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
        )
        assert ("is read-only for this user" in done.stderr) is is_refused, done.stderr


def test_a_folder_on_a_mount_of_its_own_is_refused_as_a_model() -> None:
    """It cannot be renamed, which would come out after the model was made."""
    with pytest.raises(InputError, match="mount point"):
        require_new_folder(Path("/proc"))


def test_what_a_command_wrote_it_replaces(tmp_path: Path) -> None:
    from care_qdrant.cli.model import _REFERENCE_VECTORS

    save_references(tmp_path / "reference.json", "a" * 64, [Reference.of("text", [1.0])])
    require_free(tmp_path / "reference.json", _REFERENCE_VECTORS)
    (tmp_path / "config.json").write_text(json.dumps({"fingerprint": "a" * 64}))
    with pytest.raises(InputError, match="would be overwritten"):
        require_free(tmp_path / "config.json", _REFERENCE_VECTORS)
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    for name in ("empty", "pipe", "new"):
        require_free(tmp_path / name)


@pytest.mark.parametrize("name", ["result.json", "per_query.json", "report.md", "report.html"])
def test_a_result_is_not_written_over_files_of_the_user(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(NOTES)
    result = CliRunner().invoke(care_bench, ["run", "examples/sample", "--output", str(tmp_path)])
    assert isinstance(result.exception, InputError) and f"{tmp_path / name}: already exists" in str(result.exception)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["start.toml", "data/train.jsonl", "data/held-out/queries.jsonl", "result.json"])
def test_a_training_is_not_started_over_files_of_the_user(tmp_path: Path, name: str) -> None:
    rows = [{"query": f"question {number}", "positive": f"answer {number}"} for number in range(40)]
    (tmp_path / "faq.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    notes = tmp_path / "faq" / name
    notes.parent.mkdir(parents=True)
    notes.write_text(NOTES)
    arguments = ["start", str(tmp_path / "faq.jsonl"), "--output", str(tmp_path / "faq")]
    result = CliRunner().invoke(care_train, arguments)
    assert isinstance(result.exception, InputError) and f"{notes}: already exists" in str(result.exception)
    assert [path for path in (tmp_path / "faq").rglob("*") if path.is_file()] == [notes]
    assert notes.read_text() == NOTES


@pytest.mark.parametrize("content", ['{"name": "web page", "icons": []}', "[1, 2]", "not JSON", '{"format": "x"}'])
@pytest.mark.parametrize("command", ["plan", "encode", "load", "verify"])
def test_a_manifest_of_another_program_is_no_job(tmp_path: Path, command: str, content: str) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"id": "a", "text": "some text"}\n')
    (tmp_path / "manifest.json").write_text(content)
    corpus = [str(tmp_path / "corpus.jsonl")] if command == "plan" else []
    into = ["--collection", "corpus", "--url", "http://127.0.0.1:1"] if command in ("load", "verify") else []
    result = CliRunner().invoke(care_bulk, [command, *corpus, str(tmp_path), *into])
    assert isinstance(result.exception, InputError), result.output
    assert "does not belong to a bulk job" in str(result.exception)
    assert (tmp_path / "manifest.json").read_text() == content
    assert {path.name for path in tmp_path.iterdir()} == {"corpus.jsonl", "manifest.json"}
