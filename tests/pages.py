"""Documentation pages as sessions: the commands of a page, run in their order in one folder by one shell.

The language of a fenced block says what becomes of it:

- ``bash``: every line has to succeed;
- ``console``: the line after ``$`` is run, and prints what stands below it; ``…`` stands for any text, alone on a line
  for any lines. A command has to fail where its output begins with ``error:``;
- ``python``: a program of its own, which prints what stands in the comments behind its calls of ``print``;
- a language with ``title="NAME"``: a file that later commands read;
- ``sh``: not run, since it needs what a test has not (a GPU, a model hub, object storage); its options are checked;
- ``py``: a part of a program, which another test runs or nobody can.

``pip install`` is left out, since the tests have all extras. A server (``care serve``, ``care demo``, ``--watch``) runs
beside what follows on the page.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

ROOT = Path(__file__).parent.parent
PROGRAMS = Path(sys.executable).parent
SERVER = "http://localhost:6333"
PORTS = ("8080", "8090", "8091")
"""Ports of services on the pages."""
_FENCE = re.compile(r"^( *)```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_STAYS = re.compile(r"(?:care|care-data|care data) (?:serve|demo|review)\b|.* --watch\b")
_SHELL = """
set -uo pipefail
trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT
beside() {  # in the background, from when it says where it listens or prints its first report
  local log; log=$(mktemp beside.XXXXXX)  # its own: what a server before it still logs says nothing of this one
  "$@" >$log 2>&1 </dev/null & local pid=$!
  until grep -qE 'http://|[{]' $log; do kill -0 $pid 2>/dev/null || { cat $log; return 1; }; sleep 0.2; done
}
"""


@dataclass(frozen=True)
class Step:
    """One command, program or file of a page."""

    kind: str
    text: str
    expected: str | None = None


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, *kinds: str) -> list[str]:
    """Return the code blocks of a page that have one of the languages."""
    return [text for _, kind, _, text in _FENCE.findall(text_of(page)) if kind in kinds]


def steps(page: str, *, everything: bool = False) -> Iterator[Step]:
    """Yield what a reader of a page does, in order; with ``everything`` also the blocks that are not run."""
    for indent, kind, title, text in _FENCE.findall(text_of(page)):
        text = re.sub(f"^{indent}", "", text, flags=re.MULTILINE)
        if title:
            yield Step("file", text, title)
        elif kind == "python":
            printed = re.findall(r"^ *print\(.*\)  # (.*)$", text, re.MULTILINE)
            yield Step("python", text, "\n".join(printed) if printed else None)
        elif kind == "bash":
            yield from (Step("command", line) for line in _commands(text))
        elif kind == "console":
            for command, output in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
                yield Step("command", command, output)
        elif everything:
            yield Step(kind, text)


def _commands(text: str) -> list[str]:
    lines = text.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not re.match(r"\s*(#|pip install |make test|git clone )", line)]


def run(page: str, folder: Path, replaced: dict[str, str], commands: Path = PROGRAMS) -> None:
    """Run a page in a folder, with the commands of another folder where one is given.

    The first step that does not do what the page says is an AssertionError.
    """
    todo = list(steps(page))
    script = [_SHELL]
    for number, step in enumerate(todo):
        text = step.text
        for before, after in replaced.items():
            text = text.replace(before, after)
        script.append(f"printf '\\036%d\\n' {number}")
        if step.kind == "file":
            script.append(f"cat >{shlex.quote(step.expected or '')} <<'END_OF_FILE'\n{text}END_OF_FILE")
        elif step.kind == "python":
            script.append(f"python - 2>&1 <<'END_OF_FILE' || exit\n{text}END_OF_FILE")
        elif _STAYS.match(text):
            script.append(f"beside {text} || exit")
        elif (step.expected or "").startswith("error:"):
            script.append(f"{{ {text}\n}} 2>&1 </dev/null && exit 99")
        else:
            script.append(f"{{ {text}\n}} 2>&1 </dev/null || exit")
    script.append(f"printf '\\036%d\\n' {len(todo)}")
    # What `make test VENV=…` hands down is not for the `make` of a page, whose environment is the folder's own.
    environment = {name: value for name, value in os.environ.items() if name != "VENV" and "MAKE" not in name}
    environment |= {"PATH": f"{commands}:{PROGRAMS}:{os.environ['PATH']}", "BROWSER": "true"}
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    parts = re.split(r"\x1e(\d+)\n", done.stdout)
    said = dict(zip(map(int, parts[1::2]), parts[2::2], strict=True))
    last = max(said)
    assert last == len(todo), f"{page}: {todo[last].text}\n{said[last][-3_000:]}"
    for number, step in enumerate(todo):
        if step.kind != "file" and step.expected:
            assert _fits(step.expected, said[number]), (
                f"{page}: {step.text}\nthe page shows\n{step.expected}\nit prints\n{said[number]}"
            )


def _fits(shown: str, printed: str) -> bool:
    lines = [
        r"(?:.*\n)*?" if line.strip() == "…" else re.escape(line.rstrip()).replace("…", ".*") + r"[^\S\n]*\n"
        for line in shown.splitlines()
    ]
    return re.fullmatch("".join(lines), printed if printed.endswith("\n") else printed + "\n") is not None


def unknown_options(command: click.Command, line: str) -> list[str]:
    """Return the options of a command line that the command does not have; a word that is no command is one, too."""
    words = shlex.split(line, comments=True)[1:]
    while isinstance(command, click.Group) and words:
        own = {name for parameter in command.params for name in parameter.opts}
        word = words.pop(0)
        if word in own or word.startswith("-"):
            continue
        found = command.get_command(click.Context(command), word)
        if found is None:
            return [word]
        command = found
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    known |= {"--help", "-h", "--help-all"}
    return [word for word in words if word.startswith("--") and word.split("=")[0] not in known]
