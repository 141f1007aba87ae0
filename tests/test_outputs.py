"""Where commands write files that a person named: a file that they did not write is never touched."""

import json
import os
from pathlib import Path

import pytest
from care_benchmarks.cli import care_bench
from care_data.cli import care_data
from care_trainer.cli import care_train
from click.testing import CliRunner

from care_qdrant.cli.model import command as care_model
from care_qdrant.console.outputs import require_free
from care_qdrant.encoders.references import Reference, save_references
from care_qdrant.errors import InputError

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
        (care_data, "diversify", "pairs.jsonl", "--side", "query", "--output", "./pairs.jsonl"),
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
