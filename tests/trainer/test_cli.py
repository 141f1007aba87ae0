import json
from pathlib import Path
from typing import Any

import pytest
from care_trainer.cli import care_train
from care_trainer.config import Data
from care_trainer.config.presets import PRESETS
from care_trainer.data.mining import MiningRule, mine_pairs
from care_trainer.data.read import iter_pairs
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from care_qdrant.errors import InputError
from tests.trainer.tiny_run import stage, tiny_run, write_jsonl

ROOT = Path(__file__).parents[2]


def _invoke(*arguments: str) -> str:
    result = CliRunner().invoke(care_train, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_shipped_configurations_and_presets_are_listed() -> None:
    assert {line.split()[0] for line in _invoke("configs").splitlines()} >= {"tiny", "nano", "small", "care-0.3b-4b"}
    assert {line.split()[0] for line in _invoke("presets").splitlines()} == set(PRESETS)


def test_a_shipped_configuration_is_printed() -> None:
    shipped = ROOT / "trainer/care_trainer/configs/nano.toml"
    assert _invoke("configs", "show", "nano") == shipped.read_text(encoding="utf-8")


def test_a_configuration_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match=r"neither a .toml file nor a shipped configuration"):
        _invoke("run", "none")


def test_a_whole_run_prints_the_folder_and_its_curves_and_can_be_resumed(tmp_path: Path) -> None:
    tiny_run(tmp_path, stage("joint", evaluate=True))
    arguments = ("run", str(tmp_path / "run.toml"), "--set", "export.fp32_onnx=false")
    folder = Path(_invoke(*arguments).strip().splitlines()[-1])
    assert folder == tmp_path / "out" / "tiny"
    assert (folder / "care.json").exists() and (tmp_path / "out" / "curves.png").exists()
    assert f"`care-train run {tmp_path / 'run.toml'}`" in (folder / "README.md").read_text(encoding="utf-8")
    assert Path(_invoke(*arguments).strip().splitlines()[-1]) == folder


def _figures(root: Path, *options: str) -> dict[str, Any]:
    """Return what is printed of data, leaked or not."""
    printed = CliRunner().invoke(care_train, ["data", "check", str(root / "run.toml"), "--json", *options]).stdout
    return dict(json.loads(printed))


def test_statistics_count_what_an_epoch_draws(tmp_path: Path) -> None:
    tiny_run(tmp_path, stage("joint"), stage("align"))
    found = _figures(tmp_path, "--set", "data.pairs.weights.b=0.5")
    assert found["joint"]["rows"] == 48
    assert found["joint"]["rows_an_epoch"] == 36
    assert found["joint"]["sources"]["b"] == {"rows": 24, "weight": 0.5}
    assert found["align"]["rows"] == 40


def test_statistics_leave_out_a_stage_that_reads_nothing(tmp_path: Path) -> None:
    tiny_run(tmp_path, {"kind": "prune", "layers": 1}, stage("joint"))
    assert list(_figures(tmp_path)) == ["joint"]


def test_a_leak_of_the_evaluation_set_is_refused(tmp_path: Path) -> None:
    tiny_run(tmp_path, stage("joint"))
    with pytest.raises(InputError, match="96 training texts are in the evaluation set"):
        _invoke("data", "check", str(tmp_path / "run.toml"), "--json")
    write_jsonl(tmp_path / "data/pairs.jsonl", [{"query": "另一个问题", "positive": "另一个回答"}])
    assert json.loads(_invoke("data", "check", str(tmp_path / "run.toml"), "--json"))["joint"]["rows"] == 1


def test_a_run_says_that_its_scores_are_leaked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tiny_run(tmp_path, stage("supervised", max_steps=1))
    with caplog.at_level("WARNING", logger="care_trainer"):
        _invoke("run", str(tmp_path / "run.toml"), "--stage", "supervised")
    assert any("96 training texts are in the evaluation set" in message for message in caplog.messages)


FIELDS = st.dictionaries(
    st.sampled_from(["license", "licence", "kind", "id", "year"]), st.text(max_size=5) | st.integers(), max_size=3
)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(others=FIELDS, scored=st.booleans(), prompt=st.sampled_from(["", "Retrieve: "]))
def test_what_a_command_does_not_change_goes_through(
    tmp_path: Path, others: dict[str, str | int], scored: bool, prompt: str
) -> None:
    texts = {"sentence1": "问", "sentence2": "答", "score": 0.25} if scored else {"query": "问", "positive": "答"}
    row = {**texts, "source": "clinic", **({"prompt": prompt} if prompt else {}), **others}
    source = write_jsonl(tmp_path / "pairs.jsonl", [row])
    read = list(iter_pairs(Data(files=(source.name,)), tmp_path))
    [mined] = mine_pairs(read, lambda queries, _: [[]] * len(queries), MiningRule(), None)
    assert row.items() <= mined.row().items()
