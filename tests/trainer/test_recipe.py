import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from care_trainer import recipe
from care_trainer.export.checkpoint import export
from care_trainer.models import towers
from care_trainer.training.callbacks import METRICS_FILE, read_log
from care_trainer.training.loop import Interrupted
from safetensors.numpy import load_file
from sentence_transformers import SentenceTransformer

from care_qdrant.errors import InputError
from care_qdrant.model.care_model import CareModel
from care_qdrant.model.folder import verify_checkpoint
from tests.tiny import write_jsonl
from tests.trainer.tiny_run import pairs, stage, tiny_run

TEXTS = [row["query"] for row in pairs()[:8]]
RECIPE = (
    stage("retromae"),
    stage("unsupervised", learn_temperature=True, cached=True),
    stage("supervised", hard_negatives=1),
    stage("document", hard_negatives=1, matryoshka=[48, 32]),
    stage("align"),
    stage("joint", hard_negatives=1, document_learning_rate=5e-4, evaluate=True),
)


def test_the_recipe_runs_from_base_models_to_a_folder_that_is_what_was_trained(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, *RECIPE)
    records = recipe.run_stages(run)
    assert [record["stage"] for record in records] == [values["kind"] for values in RECIPE]
    assert records[-1]["trainable"].keys() == {"query", "document"}
    assert 0 <= records[-1]["evaluation"]["ndcg@10"] <= 1
    assert records[1]["temperature"] != 0.02, "learned"
    for record in records:
        folder = Path(run.output) / record["stage"]
        assert {"config.json", "data.json", "metrics.jsonl", "stage.json"} <= {path.name for path in folder.iterdir()}
        assert not (folder / "checkpoints").exists()

    export(run, "care-train run run.toml")
    folder = Path(run.output) / run.name
    card = verify_checkpoint(folder)
    assert [entry["stage"] for entry in card.stages] == [values["kind"] for values in RECIPE]
    query = towers.load(Path(run.output) / "joint/query").encode_query(TEXTS)
    document = towers.load(Path(run.output) / "joint/document").encode_document(TEXTS)
    stock = SentenceTransformer(str(folder))
    np.testing.assert_allclose(stock.encode_query(TEXTS), query, atol=1e-5)
    np.testing.assert_allclose(stock.encode_document(TEXTS), document, atol=1e-5)
    ours = CareModel.load(str(folder), precision="fp32")
    np.testing.assert_allclose(ours.encode_query(TEXTS), query, atol=1e-5)
    assert "care-train run run.toml" in (folder / "README.md").read_text(encoding="utf-8")


def test_single_texts_alone_train_a_query_encoder_and_are_its_probe(tmp_path: Path) -> None:
    overrides = ["data.texts.files=['texts.jsonl']", "vocabulary.data=texts"]
    run = tiny_run(tmp_path, stage("align"), overrides=overrides)
    write_jsonl(tmp_path / "data/texts.jsonl", ({"text": row["query"]} for row in pairs()))
    recipe.run_stages(run)
    export(run, "care-train run run.toml")
    assert CareModel.load(str(Path(run.output) / run.name)).encode_query(TEXTS).shape == (len(TEXTS), 32)


def test_each_stage_starts_where_the_one_before_ended(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, stage("supervised"), stage("document"), stage("align"), stage("joint"))
    recipe.run_stages(run)
    found = {side: recipe.newest(run, side, run.stage[:3]).parent.name for side in recipe.SIDES}
    assert found == {"query": "align", "document": "document"}


def test_a_finished_run_is_kept_by_the_same_command(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, stage("supervised"))
    (first,) = recipe.run_stages(run)
    (again,) = recipe.run_stages(run)
    assert json.loads(json.dumps(first)) == again


def test_other_settings_or_other_data_are_not_mixed_into_a_run(tmp_path: Path) -> None:
    recipe.run_stages(tiny_run(tmp_path, stage("supervised")))
    with pytest.raises(InputError, match=r"trained with other settings \(learning_rate\)"):
        recipe.run_stages(tiny_run(tmp_path, stage("supervised", learning_rate=2e-3)))
    with pytest.raises(InputError, match=r"trained with other settings \(dim, seed\)|other settings \(seed\)"):
        recipe.run_stages(tiny_run(tmp_path, stage("supervised"), overrides=["seed=1"]))
    with pytest.raises(InputError, match=r"out/base: was trained with other settings \(geometry\)"):
        recipe.run_stages(tiny_run(tmp_path, stage("supervised"), overrides=['geometry="cut"']))


def test_an_interrupted_stage_goes_on_with_the_settings_that_it_began_with(tmp_path: Path) -> None:
    begun = stage("joint", max_steps=6)
    with pytest.raises(Interrupted):
        recipe.run_stages(tiny_run(tmp_path, begun), deadline=time.monotonic())
    with pytest.raises(InputError, match=r"joint: was trained with other settings \(learning_rate\)"):
        recipe.run_stages(tiny_run(tmp_path, {**begun, "learning_rate": 2e-3}))
    (record,) = recipe.run_stages(tiny_run(tmp_path, {**begun, "mini_batch_size": 2}))  # less memory, same rows a step
    assert record["metrics"]["steps"] == 6


def test_a_stage_is_not_kept_when_what_it_started_from_was_trained_again(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, stage("supervised"), stage("joint"))
    recipe.run_stages(run)
    shutil.rmtree(Path(run.output) / "supervised")
    with pytest.raises(InputError, match=r"joint: was trained with other settings \(starts_from.query\)"):
        recipe.run_stages(run)


def test_a_static_table_follows_from_the_seed_and_not_from_what_ran_before(tmp_path: Path) -> None:
    found = []
    for name in ("whole", "resumed"):
        run = tiny_run(tmp_path / name, stage("static", max_steps=1), document_pooling="mean")
        if name == "resumed":  # killed after the base models, and continued in a process of its own
            recipe.run_stages(replace(run, stage=()))
            torch.manual_seed(1)
        recipe.run_stages(run)
        found.append((Path(run.output) / "static/query/model.safetensors").read_bytes())
    assert found[0] == found[1]


def test_a_log_that_was_cut_at_any_byte_does_not_stop_a_resume(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, stage("supervised", max_steps=4))
    with pytest.raises(Interrupted):
        recipe.run_stages(run, deadline=time.monotonic())
    log = Path(run.output) / "supervised" / METRICS_FILE
    whole = log.read_bytes()
    for size in range(len(whole) + 1):
        log.write_bytes(whole[:size])
        lines = [line for line in whole[:size].splitlines(keepends=True) if line.endswith(b"\n")]
        assert read_log(log) == list(map(json.loads, lines))
    log.write_bytes(whole[:-1])
    (record,) = recipe.run_stages(run)
    assert record["metrics"]["steps"] == 4
    assert [row["step"] for row in read_log(log)] == [1, 2, 3, 4, 4], "the line of the end, of step 1, was cut"


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("corpus", {"text": None}, "dev/corpus.jsonl:2: expected 'text' to be a string, found None"),
        ("queries", {"text": 5}, "dev/queries.jsonl:2: expected 'text' to be a string, found 5"),
        ("qrels", {"score": "x"}, "dev/qrels.jsonl:2: expected 'score' to be a finite number, found 'x'"),
        ("qrels", {"document_id": "none"}, "dev/qrels.jsonl:2: document 'none' is not in the corpus"),
    ],
)
def test_a_bad_line_of_the_evaluation_set_is_named_before_a_stage_trains(
    tmp_path: Path, name: str, change: dict[str, Any], problem: str
) -> None:
    run = tiny_run(tmp_path, stage("supervised", evaluate=True))
    file = tmp_path / f"data/dev/{name}.jsonl"
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    write_jsonl(file, [rows[0], {**rows[1], **change}, *rows[2:]])
    with pytest.raises(InputError, match=problem):
        recipe.run_stages(run)
    assert not (Path(run.output) / "supervised").exists()


def test_a_single_stage_needs_those_before_it(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, stage("supervised"), stage("joint"))
    with pytest.raises(InputError, match="stage supervised: is not finished"):
        recipe.run_stages(run, only="joint")
    recipe.run_stages(run, only="supervised")
    (record,) = recipe.run_stages(run, only="joint")
    assert record["stage"] == "joint"
    with pytest.raises(InputError, match="unknown stage"):
        recipe.run_stages(run, only="none")


def test_each_side_learns_at_its_own_rate(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, stage("joint", document_learning_rate=0.0))
    (record,) = recipe.run_stages(run)
    assert record["trainable"]["document"] > 0
    moved = {}
    for side in recipe.SIDES:
        files = [Path(run.output) / folder / side / "model.safetensors" for folder in ("base", "joint")]
        before, after = map(load_file, files)
        moved[side] = any(not np.array_equal(before[name], after[name]) for name in before)
    assert moved == {"query": True, "document": False}


def test_every_text_has_its_prompt_while_the_document_encoder_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A negative without the positive's prompt would be told from it at a glance."""
    read: list[tuple[str, str]] = []
    preprocess = SentenceTransformer.preprocess

    def listen(self: SentenceTransformer, inputs: list[str], prompt: str | None = None, **options: Any) -> Any:
        read.extend((prompt or "", text) for text in inputs)
        return preprocess(self, inputs, prompt, **options)

    monkeypatch.setattr(SentenceTransformer, "preprocess", listen)
    document = stage("document", hard_negatives=1, query_prompt="问题：")
    recipe.run_stages(tiny_run(tmp_path, document, document='prompt = "资料："'))
    queries = {row["query"] for row in pairs()}
    asked = [prompt for prompt, text in read if text in queries]
    answers = [prompt for prompt, text in read if text not in queries]
    assert len(answers) == 2 * len(asked), "a positive and a negative"
    assert set(asked) == {"问题："} and set(answers) == {"资料："}


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft asks for it
def test_adapters_train_through_the_stages_and_are_merged_at_the_end(tmp_path: Path) -> None:
    stages = (stage("document", learning_rate=1e-2), stage("align"), stage("joint", learning_rate=1e-2))
    run = tiny_run(tmp_path, *stages, document="lora = { rank = 4, alpha = 8 }")
    records = recipe.run_stages(run)
    assert records[0]["trainable"]["document"] == records[2]["trainable"]["document"] > 0
    after = [
        towers.load(Path(run.output) / name / "document").encode_document(TEXTS)
        for name in ("base", "document", "joint")
    ]
    assert np.abs(after[0] - after[1]).max() > 1e-3
    assert np.abs(after[1] - after[2]).max() > 1e-3, "the trap: a reloaded adapter that stays frozen"
    adapter = json.loads((Path(run.output) / "joint/document/adapter_config.json").read_text(encoding="utf-8"))
    assert adapter["target_modules"] == sorted(adapter["target_modules"]), "the trap: the order of a set"
    export(run, "care-train run run.toml")
    folder = Path(run.output) / run.name
    assert not list(folder.rglob("adapter*"))
    np.testing.assert_allclose(SentenceTransformer(str(folder)).encode_document(TEXTS), after[2], atol=1e-4)


def test_half_weights_load_as_float32_and_are_half_the_size(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, stage("joint"), overrides=["export.half_weights=true", "export.fp32_onnx=false"])
    recipe.run_stages(run)
    export(run, "care-train run run.toml")
    folder = Path(run.output) / run.name
    trained = Path(run.output) / "joint"
    halved = (folder / "document/model.safetensors").stat().st_size
    assert halved < 0.6 * (trained / "document/model.safetensors").stat().st_size
    stock = SentenceTransformer(str(folder))
    assert {parameter.dtype.itemsize for parameter in stock.parameters()} == {4}
    np.testing.assert_allclose(
        stock.encode_document(TEXTS), towers.load(trained / "document").encode_document(TEXTS), atol=5e-3
    )


def test_the_rows_are_read_once_for_all_stages_and_all_runs_with_one_cache(tmp_path: Path) -> None:
    cache = f"teacher_cache={tmp_path / 'cache'}"
    recipe.run_stages(tiny_run(tmp_path, stage("supervised"), overrides=[cache]))
    written = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "cache/rows").iterdir()}
    again = tiny_run(tmp_path, stage("supervised"), stage("joint"), overrides=[cache, f"output={tmp_path / 'again'}"])
    recipe.run_stages(again)
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "cache/rows").iterdir()} == written != {}
    assert not list(Path(again.output).rglob("*.arrow"))


def test_a_run_without_stages_has_nothing_to_export(tmp_path: Path) -> None:
    run = tiny_run(tmp_path)
    recipe.run_stages(run)
    with pytest.raises(InputError, match="has no stage"):
        export(run, "")


def test_what_a_later_stage_lacks_is_said_before_the_first(tmp_path: Path) -> None:
    overrides = ["data.other={ files = ['other.jsonl'] }", "stage.joint.data=other"]
    run = tiny_run(tmp_path, stage("align"), stage("joint"), overrides=overrides)
    with pytest.raises(InputError, match=r"other.jsonl: no such file; set data_root"):
        recipe.run_stages(run)
    assert not Path(run.output).exists()
    wide = tiny_run(tmp_path, stage("align"), stage("document", matryoshka=[64, 32]))
    with pytest.raises(InputError, match=r"stage.document.matryoshka: 64 is more than the 48 dimensions"):
        recipe.run_stages(wide)
