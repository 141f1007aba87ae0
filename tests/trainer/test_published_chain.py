"""The whole recipe on bfloat16 stand-ins in the published layout: killed in every stage, resumed to the same bytes."""

import hashlib
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from care_trainer.config import find_config, load_run

from tests.trainer.bases import gte_mlm_base, qwen3_base, write_paper_data
from tests.trainer.tiny_run import environment

NAME, HIDDEN, PROCESSES = "care-0.3b-4b", 2560, 2
"""The chain of 8B differs in one width; `config/test_shipped.py` trains and exports it in one process."""
ATTEMPTS = """
import gc, json, os, sys
from pathlib import Path
from care_trainer import recipe
from care_trainer.config import find_config, load_run

run = load_run(find_config(sys.argv[1]), json.loads(sys.argv[2]))
ports = json.loads(sys.argv[3])
stages = [stage.kind for stage in run.stage]

def attempt(kill_in, port):
    os.environ["MASTER_PORT"] = str(port)
    def report(what, step, steps, loss, tokens):
        if what == kill_in and step == 2:
            os._exit(3)
    recipe.run_stages(run, resume=True, report=report)
    os._exit(0)

gc.freeze()  # training asks for collections, and each would walk through all that is imported
for kill_in, port in zip([*stages, None] if len(ports) > 1 else [None], ports):
    child = os.fork()
    if child == 0:
        try:
            attempt(kill_in, port)
        except Exception as error:
            print(kill_in, type(error).__name__, error, file=sys.stderr)
            os._exit(4)
    _, status = os.waitpid(child, 0)
    folder = Path(run.output) / (kill_in or stages[-1])
    print(kill_in, status, (folder / "checkpoints/checkpoint-1/complete").exists(), (folder / "stage.json").exists())
"""


def _overrides(root: Path, output: str) -> list[str]:
    own = [
        f"stage.{stage.kind}.{key}"
        for stage in load_run(find_config(NAME)).stage
        for key in ("max_steps=3", "global_batch_size=8")
    ]
    places = [f"output={root / output}", f"data_root={root / 'data'}", f"query.base={root / 'gte'}"]
    return [*places, f"document.base={root / 'qwen3'}", "checkpoint_minutes=0", *own]


def _ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for opened in sockets:
        opened.bind(("127.0.0.1", 0))
    ports = [int(opened.getsockname()[1]) for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports


def _train(root: Path, output: str, attempts: int) -> list[str]:
    """Run attempts on several processes, all but the last killed in one stage each; return what the first prints."""
    arguments = [NAME, json.dumps(_overrides(root, output)), json.dumps(_ports(attempts))]
    started = []
    for rank in range(PROCESSES):
        own = {**environment(), "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(PROCESSES)}
        own |= {"MASTER_ADDR": "127.0.0.1", "LOCAL_WORLD_SIZE": str(PROCESSES)}
        command = [sys.executable, "-c", ATTEMPTS, *arguments]
        started.append(subprocess.Popen(command, env=own, text=True, stdout=subprocess.PIPE))
    printed = [process.communicate(timeout=1500)[0] for process in started]
    return printed[0].splitlines()


def _bytes(folder: Path) -> dict[str, str]:
    files = [path for path in sorted(folder.rglob("*.safetensors")) if "checkpoints" not in path.parts]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_in_every_stage_and_resumed_is_uninterrupted(tmp_path: Path) -> None:
    write_paper_data(tmp_path / "data")
    gte_mlm_base(tmp_path / "gte")
    assert len(list(qwen3_base(tmp_path / "qwen3", HIDDEN).glob("*.safetensors"))) > 1, "in several files"
    stages = [stage.kind for stage in load_run(find_config(NAME)).stage]
    assert _train(tmp_path, "whole", 1) == ["None 0 False True"]
    printed = _train(tmp_path, "killed", 1 + len(stages))
    assert [line.split()[0] for line in printed] == [*stages, "None"]
    assert all(line.split()[1:] == ["768", "True", "False"] for line in printed[:-1]), (
        "exit 3, one step kept, unfinished"
    )
    assert printed[-1] == "None 0 False True"
    whole, killed = _bytes(tmp_path / "whole"), _bytes(tmp_path / "killed")
    assert {path.split("/")[0] for path in whole} == {"base", *stages}
    assert killed == whole
