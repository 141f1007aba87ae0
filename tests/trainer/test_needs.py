"""Whatever a run needs and does not find is named at once, alone or with others, before torch is imported."""

import gzip
import itertools
import json
import random
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from care_trainer.config import Run, Tower, load_run, shipped_configs
from care_trainer.needs import missing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from tests.tiny import broken
from tests.trainer.tiny_run import environment

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
ROW = {
    "query": "痛风吃什么",
    "positive": "少吃海鲜。",
    "negatives": ["多喝水。"],
    "id": "d",
    "text": "少吃海鲜。",
    "query_id": "q",
    "document_id": "d",
    "score": 1,
}
"""A row of any file: configurations use some as pairs, as texts, and as documents or questions of an evaluation."""
OTHER = {"body": "x"}
Break = tuple[Path, Callable[[], object], str]
"""A path, a function that spoils it, and what is then said of it."""


def _write(path: Path, row: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(row).encode()
    path.write_bytes(gzip.compress(line) if path.suffix == ".gz" else line)


def _write_base(folder: Path, run: Run, tower: Tower) -> None:
    folder.mkdir(parents=True)
    config = {"model_type": "bert", "hidden_size": run.dim, "num_hidden_layers": 40}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "modules.json").write_text(json.dumps([{"type": "Transformer", "path": ""}]), encoding="utf-8")
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, "[UNK]"))
    tokenizer.add_tokens([tower.eos or "[EOS]"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "[EOS]"}), encoding="utf-8")
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")


def _world(root: Path, config: Path) -> tuple[Run, list[Break]]:
    """Write all that a configuration needs; return the run, and the ways to spoil it."""
    run = load_run(config)
    breaks: list[Break] = []
    used = {stage.data for stage in run.stage if stage.data} | {run.export.probe} - {None}
    used |= {run.vocabulary.data} if run.vocabulary else set()
    data = root / "data"
    for file in {file for name in used for file in run.data[str(name)].files}:
        _write(data / file, ROW)
        breaks.append((data / file, (data / file).unlink, f"{data / file}: no such file"))
        breaks.append((data / file, lambda path=data / file: _write(path, OTHER), f"{Path(file).name}:1: "))  # type: ignore[misc]
    if run.evaluation is not None:
        folder = data / run.evaluation.retrieval
        for name in ("corpus", "queries", "qrels"):
            path = folder / f"{name}.jsonl"
            if path in {found for found, *_ in breaks}:
                continue
            _write(path, ROW)
            breaks.append((path, path.unlink, f"holds neither {name}.jsonl"))
            breaks.append((path, lambda path=path: _write(path, OTHER), f"{name}.jsonl:1: lacks "))  # type: ignore[misc]
    towers = {}
    for side, tower in (("query", run.query), ("document", run.document)):
        if tower.base is None:
            continue
        folder = root / side
        _write_base(folder, run, tower)
        towers[side] = replace(tower, base=str(folder))
        names = {
            "tokenizer.json": "has no tokenizer",
            "model.safetensors": "has no weights",
            "config.json": "has no config",
        }
        breaks += [(folder, (folder / name).unlink, f"{folder}: {said}") for name, said in names.items()]
        breaks.append((folder, lambda folder=folder: shutil.rmtree(folder), f"{folder}: there is no such folder"))  # type: ignore[misc]
    return replace(run, data_root=str(data), output=str(root / "out"), teacher_cache=None, **towers), breaks


@pytest.fixture(params=[path.stem for path in shipped_configs()] + ["recipe.toml"])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A shipped configuration, or the one of the page."""
    if request.param != "recipe.toml":
        return next(path for path in shipped_configs() if path.stem == request.param)
    (text,) = re.findall(
        r'```toml title="recipe\.toml"\n(.*?)```', (PAGES / "train-recipe.md").read_text("utf-8"), re.S
    )
    (tmp_path / "recipe.toml").write_text(text, encoding="utf-8")
    return tmp_path / "recipe.toml"


def _spoiled(breaks: list[Break], most: int) -> Iterator[tuple[Break, ...]]:
    for count in range(1, most + 1):
        for chosen in itertools.combinations(breaks, count):
            if len({path for path, *_ in chosen}) == count:
                yield chosen


def test_everything_that_a_run_lacks_is_named_at_once(tmp_path: Path, config: Path) -> None:
    sound = tmp_path / "sound"
    run, breaks = _world(sound, config)
    assert list(missing(run)) == []
    shutil.copytree(sound, tmp_path / "copy")
    for chosen in _spoiled(breaks, 2):
        for _, spoil, _ in chosen:
            spoil()
        problems = list(missing(run))
        for path, _, said in chosen:
            assert [problem for problem in problems if said in problem], (path, said, problems)
        for path, *_ in chosen:
            whole = tmp_path / "copy" / path.relative_to(sound)
            if whole.is_dir():
                shutil.copytree(whole, path, dirs_exist_ok=True)
            else:
                shutil.copy(whole, path)


@pytest.mark.parametrize("pooling", ["own", "lasttoken"])
@given(
    name=st.sampled_from(["config.json", "modules.json", "tokenizer.json", "tokenizer_config.json"]),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_files_of_a_base_are_problems_as_well(tmp_path: Path, pooling: str, name: str, seed: int) -> None:
    run, _ = _world(tmp_path / str(uuid4()), next(path for path in shipped_configs() if path.stem == "care-0.3b-4b"))
    file = Path(str(run.document.base)) / name
    file.write_text(json.dumps(broken(json.loads(file.read_text(encoding="utf-8")), random.Random(seed))))
    if seed % 5 == 0:
        file.write_bytes(file.read_bytes()[: seed % 100])
    assert all(
        isinstance(problem, str) for problem in missing(replace(run, document=replace(run.document, pooling=pooling)))
    )


PROGRAM = """
import sys
from care_trainer.cli import care_train

try:
    care_train(sys.argv[1:], standalone_mode=False)
except Exception as error:
    print(error)
print("torch" in sys.modules)
"""


@pytest.mark.parametrize("command", ["run", "rehearse"])
def test_a_run_that_lacks_files_says_so_before_torch_is_imported(tmp_path: Path, command: str) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    arguments = [command, "care-0.3b-4b", "--set", f"output={tmp_path / 'out'}", "--set", f"data_root={tmp_path}"]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], env=environment(), capture_output=True, text=True, check=True
    )
    first, *problems, torch_is_loaded = done.stdout.splitlines()
    assert first == "care-0.3b-4b: 7 problems" and len(problems) == 7
    assert torch_is_loaded == "False"
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 3, "seconds of CPU time"
