"""Where commands write files that a person named: a file that they did not write is never touched."""

import json
import os
from pathlib import Path

import pytest
from care_benchmarks.cli import care_bench
from care_data.cli import care_data
from care_trainer.cli import care_train
from click.testing import CliRunner

from care_qdrant.cli.bulk import command as care_bulk
from care_qdrant.cli.model import command as care_model
from care_qdrant.console.outputs import require_free
from care_qdrant.encoders.references import Reference, save_references
from care_qdrant.errors import InputError

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
        (care_bench, "audit", "folder", "folder", "--output", "notes.txt"),
        (care_bench, "compare", "folder", "folder", "--output", "notes.txt"),
        (care_model, "reference-vectors", "built-in", "--output", "notes.txt"),
        (care_data, "anonymise", "pairs.jsonl", "--output", "pairs.jsonl"),
        (care_data, "anonymise", "pairs.jsonl", "--output", "notes.txt"),
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
    assert "would be lost" in str(result.exception)
    assert Path("notes.txt").read_text() == Path("pairs.jsonl").read_text() == NOTES


def test_what_a_command_wrote_it_replaces(tmp_path: Path) -> None:
    from care_qdrant.cli.model import _REFERENCE_VECTORS

    save_references(tmp_path / "reference.json", "a" * 64, [Reference.of("text", [1.0])])
    require_free(tmp_path / "reference.json", _REFERENCE_VECTORS)
    (tmp_path / "config.json").write_text(json.dumps({"fingerprint": "a" * 64}))
    with pytest.raises(InputError, match="would be lost"):
        require_free(tmp_path / "config.json", _REFERENCE_VECTORS)
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    for name in ("empty", "pipe", "new"):
        require_free(tmp_path / name)


@pytest.mark.parametrize("name", ["result.json", "per_query.json", "report.md", "report.html"])
def test_a_result_is_not_written_over_files_of_the_user(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(NOTES)
    result = CliRunner().invoke(care_bench, ["run", "examples/sample", "--output", str(tmp_path)])
    assert isinstance(result.exception, InputError) and f"{tmp_path / name}: is there" in str(result.exception)
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
    assert isinstance(result.exception, InputError) and f"{notes}: is there" in str(result.exception)
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
    assert "is not of a bulk job" in str(result.exception)
    assert (tmp_path / "manifest.json").read_text() == content
    assert {path.name for path in tmp_path.iterdir()} == {"corpus.jsonl", "manifest.json"}
