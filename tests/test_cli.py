"""The command line's frame: help with an example everywhere, errors in one line, exit codes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from care_benchmarks.cli import care_bench
from care_trainer.cli import care_train
from click.testing import CliRunner
from qdrant_client import models

import care_qdrant
from care_qdrant import __version__, errors
from care_qdrant.cli import care
from care_qdrant.console.groups import whole_help
from care_qdrant.console.options import Target, target_options
from care_qdrant.console.text import display_width
from care_qdrant.encoders.remote import server
from care_qdrant.errors import InputError, Unreachable
from care_qdrant.qdrant.connection import open_client
from tests import tiny


def every(command: click.Command, path: str) -> list[tuple[str, click.Command]]:
    """Return a command and all below it, groups included."""
    if not isinstance(command, click.Group):
        return [(path, command)]
    context = click.Context(command)
    children = ((name, command.get_command(context, name)) for name in command.list_commands(context))
    return [(path, command), *(found for name, child in children if child for found in every(child, f"{path} {name}"))]


def commands(command: click.Command, path: str) -> list[tuple[str, click.Command]]:
    return [(name, each) for name, each in every(command, path) if not isinstance(each, click.Group)]


def flags(command: click.Command) -> set[str]:
    return {name for param in command.params for name in param.opts}


@pytest.mark.parametrize(
    ("path", "command"),
    commands(care, "care"),
    ids=lambda value: str(value).replace(" ", "-"),
)
def test_every_command_has_an_example(path: str, command: click.Command) -> None:
    assert re.search(rf"Example:(?s:.*)\b{path}\b", command.help or ""), f"{path} has no example"


@pytest.mark.parametrize(("path", "command"), every(care, "care"), ids=lambda value: str(value).replace(" ", "-"))
def test_no_help_is_wider_than_a_terminal(path: str, command: click.Command) -> None:
    context = click.Context(command, info_name=path, terminal_width=80, max_content_width=80)
    assert [line for line in whole_help(context).splitlines() if display_width(line) > 80] == []


def test_every_command_that_reports_has_json() -> None:
    silent = {"demo", "serve", "train run", "train configs show", "train presets", "train mine"}
    silent |= {"train terms", "bench report"}
    reporting = {path.removeprefix("care ") for path, command in commands(care, "care") if "--json" in flags(command)}
    assert {path.removeprefix("care ") for path, _ in commands(care, "care")} - reporting == silent


def test_a_variable_is_in_the_help_of_the_command_that_reads_it() -> None:
    """Those of other programs, such as OMP_NUM_THREADS, are theirs to explain."""
    source = "".join(path.read_text(encoding="utf-8") for path in Path(care_qdrant.__file__).parent.rglob("*.py"))
    read = set(re.findall(r"\b(?:environ(?:\.get)?[(\[]|setting\(|environment_key\()\"((?:CARE|QDRANT)_\w+)\"", source))
    shown = "".join(whole_help(click.Context(command)) for _, command in every(care, "care"))
    assert len(read) > 8
    assert {name for name in read if name not in shown} == set()


@pytest.mark.parametrize(
    ("module", "group", "arguments"),
    [
        ("care_qdrant.cli", "care", ["--help"]),
        ("care_qdrant.cli.ingest", "command", ["--help"]),
        ("care_trainer.cli", "care_train", ["run", "--help"]),
        ("care_benchmarks.cli", "care_bench", ["--help"]),
    ],
)
def test_help_imports_nothing_heavy(module: str, group: str, arguments: list[str]) -> None:
    code = (
        f"import sys; from click.testing import CliRunner; from {module} import {group}; "
        f"assert CliRunner().invoke({group}, {arguments}).exit_code == 0; "
        "heavy = {'numpy', 'torch', 'transformers', 'datasets', 'qdrant_client', 'onnxruntime', 'tokenizers', 'mteb', "
        "'scipy', 'matplotlib'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


def test_an_expected_error_is_one_line_and_its_exit_code(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from care_qdrant.cli import main; main()", "model", "verify", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == errors.ModelError.exit_code
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1


def test_model_info_and_verify(pair_folder: Path) -> None:
    info = CliRunner().invoke(care, ["model", "info", str(pair_folder)])
    assert "tiny-pair" in info.output
    assert "lasttoken pooling, 96 tokens, ends with <|im_end|>" in info.output
    verified = CliRunner().invoke(care, ["model", "verify", str(pair_folder)])
    assert verified.output.startswith("OK: tiny-pair, ")


def test_exit_codes_are_distinct() -> None:
    direct = [
        error for error in vars(errors).values() if isinstance(error, type) and error.__bases__ == (errors.CareError,)
    ]
    assert len({error.exit_code for error in direct}) == len(direct)
    assert errors.REJECTED_ROWS_EXIT_CODE not in {error.exit_code for error in direct}


PROGRAMS = pytest.mark.parametrize(
    ("program", "module"),
    [
        ("care", "care_qdrant.cli"),
        ("care-ingest", "care_qdrant.cli.ingest"),
        ("care-train", "care_trainer.cli"),
        ("care-bench", "care_benchmarks.cli"),
    ],
)


def test_the_help_of_the_program_is_grouped_and_narrow() -> None:
    shown = CliRunner().invoke(care, ["--help"], terminal_width=80).output
    listed = [line.split(maxsplit=1) for line in shown.splitlines() if re.match(r"  [a-z]+  ", line)]
    assert {name for name, _ in listed} == set(care.list_commands(click.Context(care)))
    assert [summary for _, summary in listed if len(summary) > 50 or summary.endswith("...")] == []
    assert shown.index("\nStart:") < shown.index("  ingest") < shown.index("\nServe:")


def test_rare_options_are_shown_when_all_are_asked_for() -> None:
    short, whole = (CliRunner().invoke(care, ["ingest", asked]).output for asked in ("--help", "--help-all"))
    assert "--collection" in short and "--help-all" in short and "--max-delete-fraction" not in short
    assert "--collection" in whole and "--max-delete-fraction" in whole


@PROGRAMS
def test_every_program_takes_the_options_of_the_log(program: str, module: str) -> None:
    code = f"import sys; sys.argv[0] = {program!r}; from {module} import main; main()"
    help_option = "--help-all" if program == "care-ingest" else "--help"  # those of a group are few
    done = subprocess.run([sys.executable, "-c", code, help_option], capture_output=True, text=True, timeout=60)
    assert "--verbose" in done.stdout and "--quiet" in done.stdout


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["ingest", "corpus.jsonl", "-q"], "care -q ingest"),
        (["search", "发烧", "--verbose"], "care --verbose search"),
        (["model", "verify", "folder", "-v"], "care -v model verify"),
    ],
)
def test_an_option_of_the_log_behind_its_command_is_refused_with_its_place(typed: list[str], meant: str) -> None:
    slip = CliRunner().invoke(care, typed, prog_name="care")
    assert slip.exit_code == 2
    assert f"stands before the command: {meant} …" in slip.output


@pytest.mark.parametrize(
    ("program", "module"), [("care", "care_qdrant.cli"), ("care-ingest", "care_qdrant.cli.ingest")]
)
def test_the_version_is_said(program: str, module: str) -> None:
    code = f"import sys; sys.argv[0] = {program!r}; from {module} import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "--version"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, f"{program}, version {__version__}")


@pytest.mark.parametrize("group", [care, care_train, care_bench], ids=lambda group: group.name)
def test_a_program_alone_prints_its_help_and_a_slip_gets_a_suggestion(group: click.Group) -> None:
    alone = CliRunner().invoke(group, [])
    assert (alone.exit_code, alone.output[:6]) == (0, "Usage:")
    first = group.list_commands(click.Context(group))[0]
    slip = CliRunner().invoke(group, [first[:-2] + first[-1] + first[-2]])
    assert slip.exit_code == 2
    assert f"did you mean '{first}'" in slip.output


@pytest.mark.parametrize("missing", ["mteb", "ir_measures"])
def test_a_run_of_the_benchmark_without_its_extra_is_one_line(missing: str, tmp_path: Path) -> None:
    code = (
        f"import sys; sys.modules[{missing!r}] = None; from care_benchmarks.cli import main; "
        f"sys.argv = ['care-bench', 'run', 'examples/sample', '--output', {str(tmp_path / 'out')!r}]; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == errors.MissingExtra.exit_code
    assert done.stderr.splitlines()[-1].startswith(f"error: care-bench needs {missing}")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("port", "expected"),
    [({}, None), ({"QDRANT_GRPC_PORT": "6334"}, 6334), ({"QDRANT_GRPC_PORT": "0"}, None)],
)
def test_only_a_port_that_is_given_takes_calls_over_grpc(port: dict[str, str], expected: int | None) -> None:
    @click.command()
    @target_options
    def command(target: Target) -> None:
        click.echo(f"{target.grpc_port} {target.api_key}")

    done = CliRunner(env={"QDRANT_API_KEY": "k", **port}).invoke(command, ["--url", "http://host"])
    assert done.output.split() == [str(expected), "k"]


_WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {packages!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
sys.modules.update(dict.fromkeys({packages!r}))
sys.argv = ["care", *sys.argv[1:]]
from care_qdrant.cli import main
main()
"""
"""The program in an installation without some packages."""
_TORCH = ["torch", "sentence_transformers", "transformers", "peft", "safetensors", "onnx"]


@pytest.mark.parametrize(
    ("packages", "arguments", "extra"),
    [
        (["onnx"], ["learn", "c", "--path", "qdrant"], "learn"),
        (_TORCH, ["model", "import", "somewhere", "pair"], "ingest"),
        (_TORCH, ["model", "export-onnx", "qdrant"], "onnx"),
        (["mcp"], ["serve", "--mcp"], "mcp"),
    ],
    ids=lambda value: "-".join(value[:2]) if isinstance(value, list) else value,
)
def test_a_missing_extra_is_one_line_that_says_what_to_install(
    packages: list[str], arguments: list[str], extra: str, tmp_path: Path
) -> None:
    (tmp_path / "qdrant").mkdir()
    command = [sys.executable, "-c", _WITHOUT.format(packages=packages), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == errors.MissingExtra.exit_code, done.stderr[-2_000:]
    assert re.search(rf"error: .* which is not installed: .*\[({extra})\]", done.stderr)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("engine", [("--device", "cuda:7"), ("--endpoint", "http://127.0.0.1:9/v1")])
@pytest.mark.parametrize("command", ["ingest", "attach"])
def test_what_cannot_encode_is_said_before_anything_is_written(
    command: str, engine: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(server, "START_PATIENCE_SECONDS", 0.2)
    corpus = tiny.write_jsonl(tmp_path / "c.jsonl", [{"id": "a", "text": "多喝水"}])
    vectors = {"old": models.VectorParams(size=4, distance=models.Distance.COSINE)}
    if command == "attach":
        with open_client(path=tmp_path / "qdrant") as client:
            client.create_collection("c", vectors)
            client.upsert("c", [models.PointStruct(id=1, vector={"old": [1.0] * 4}, payload={"text": "多喝水"})])
    given = [command, str(corpus) if command == "ingest" else "c", *engine]
    with pytest.raises((InputError, Unreachable), match=r"cuda:7.*torch cannot use it here|no answer for"):
        CliRunner().invoke(care, given, catch_exceptions=False)
    with open_client(path=tmp_path / "qdrant") as client:
        if command == "ingest":
            assert not client.get_collections().collections
        else:
            info = client.get_collection("c").config
            assert info.params.vectors == vectors
            assert not info.metadata


def test_an_argument_in_another_encoding_is_named(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("care")).encode(), b"search", "糖尿病".encode("gbk")]
    done = subprocess.run(command, capture_output=True, cwd=tmp_path, check=False)
    assert done.returncode == InputError.exit_code
    assert b"its bytes are not UTF-8, perhaps GBK" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_locale_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    """Python 3.11 reads arguments in the locale's encoding; a question would be searched as other characters."""
    care = str(Path(sys.executable).with_name("care"))
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [care, "search", "糖尿病"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=60)
    assert done.returncode == InputError.exit_code
    assert done.stderr.startswith("error: argument b'\\xe7")
    assert "PYTHONUTF8=1" in done.stderr and "GBK" not in done.stderr


@pytest.mark.parametrize("package", ["click", "care_qdrant.console"])
def test_an_interruption_while_the_program_is_imported_is_no_traceback(package: str) -> None:
    code = """
import runpy, sys
class Interruption:
    def find_spec(self, name, path=None, target=None):
        if name == {package!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interruption())
sys.argv = ["care", "--help"]
runpy.run_module("care_qdrant", run_name="__main__")
"""
    command = [sys.executable, "-c", code.replace("{package!r}", repr(package))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (errors.INTERRUPTED_EXIT_CODE, "", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_a_result_that_cannot_be_written_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", "from care_qdrant.cli import main; main()", "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
            text=True,
            timeout=60,
        )
    assert done.returncode == errors.CareError.exit_code
    assert done.stderr.splitlines() == [done.stderr.strip()]
    assert "No space left on device" in done.stderr


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_a_closed_stream_ends_no_program_and_gets_into_no_file(tmp_path: Path, closed: int) -> None:
    """The first file that a program opens would have the number of the stream, and get what libraries write to it."""
    code = """
import os, sys, click
from care_qdrant.console import run
from care_qdrant.progress import points_bar

@click.command()
def command():
    with open("result.txt", "w") as file, points_bar("points"):
        os.write(1, b"printed"), os.write(2, b"noted"), sys.stdin.read(), click.echo("said", err=True)
        file.write("ours")

run(command)
"""
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -c "$1" {closed}>&-', sys.executable, code],
        cwd=tmp_path,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "result.txt").read_text(encoding="utf-8") == "ours"


def test_the_help_names_every_language_of_bm25() -> None:
    from care_qdrant.encoders.terms.languages import LANGUAGES

    shown = CliRunner().invoke(care, ["ingest", "--help-all"]).output
    assert all(name in shown for name in LANGUAGES)
    refused = CliRunner().invoke(care, ["ingest", "corpus.jsonl", "--bm25-language", "klingon"])
    assert refused.exit_code == 2 and "'klingon' is not one of 'chinese'" in refused.output
