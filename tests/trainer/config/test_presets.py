from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from care_trainer import recipe
from care_trainer.config import Align, Contrastive, Diversify, Joint, Run
from care_trainer.config.presets import PRESETS, apply_preset
from care_trainer.export.checkpoint import export
from care_trainer.export.curves import draw_curves
from care_trainer.models import towers
from sentence_transformers import SentenceTransformer
from transformers import Qwen3Config

from care_qdrant.errors import InputError
from tests.tiny import query_tower
from tests.trainer.tiny_run import pairs, stage, tiny_run

TEXTS = [row["query"] for row in pairs()[:6]]
RECIPE = ("retromae", "unsupervised", "supervised", "document", "align", "joint")


@pytest.fixture
def whole(tmp_path: Path) -> Run:
    return tiny_run(tmp_path, *(stage(kind, epochs=2 if kind == "align" else 1) for kind in RECIPE))


def _kinds(run: Run) -> list[str]:
    return [item.kind for item in run.stage]


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_changes_the_run_and_gives_it_its_own_place(whole: Run, name: str) -> None:
    changed = apply_preset(whole, name)
    assert (changed.name, changed.output) == (f"tiny-{name}", f"{whole.output}-{name}")
    same = ("stage", "query", "symmetric", "dim")
    assert any(getattr(changed, field) != getattr(whole, field) for field in same)
    plain = {key: replace(data, diversify=None) for key, data in changed.data.items()}
    assert plain == whole.data and changed.seed == whole.seed


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("without-query-init", ["document", "align", "joint"]),
        ("without-document-init", ["retromae", "unsupervised", "supervised", "align", "joint"]),
        ("without-align", ["retromae", "unsupervised", "supervised", "document", "joint"]),
        ("fine-tuning-data", ["retromae", "unsupervised", "supervised", "document", "align", "joint"]),
        ("fine-tuning-data-only", ["retromae", "unsupervised", "supervised", "document", "align"]),
        ("symmetric-query", ["retromae", "unsupervised", "supervised"]),
        ("symmetric-document", ["document"]),
        ("pruned", ["document", "prune", "align"]),
        ("fine-tuning-only", ["supervised"]),
        ("retromae-fine-tuning", ["retromae", "supervised"]),
    ],
)
def test_the_stages_that_are_left(whole: Run, name: str, left: list[str]) -> None:
    assert _kinds(apply_preset(whole, name)) == left


def test_what_changes_inside_a_stage(whole: Run) -> None:
    def find(name: str, kind: str) -> object:
        return next(item for item in apply_preset(whole, name).stage if item.kind == kind)

    align = find("without-mse", "align")
    assert isinstance(align, Align) and (align.contrastive_weight, align.mse_weight) == (1.0, 0.0)
    pruned = find("pruned", "align")
    assert isinstance(pruned, Align) and pruned == whole.stage[4], "the student changes, not what it learns"
    first = find("fine-tuning-data", "align")
    assert isinstance(whole.stage[4], Align) and whole.stage[4].data == "texts"
    assert first == replace(whole.stage[4], data="pairs", pairs=True), "table 20's batch and loss, other data"
    doubled = find("symmetric-query", "supervised")
    assert isinstance(doubled, Contrastive) and doubled.epochs == 2
    longer = find("longer-joint", "joint")
    assert isinstance(longer, Joint) and longer.epochs == 3


def test_a_query_encoder_from_layers_has_the_width_of_the_document_encoder(whole: Run, tmp_path: Path) -> None:
    Qwen3Config(hidden_size=2560).save_pretrained(tmp_path / "4b")
    run = replace(whole, dim=768, document=replace(whole.document, base=str(tmp_path / "4b"), scratch=None))
    changed = apply_preset(run, "pruned")
    assert (changed.dim, changed.query.projection) == (2560, True)


def test_the_settings_of_table_11_differ_in_what_is_left_out_alone(whole: Run) -> None:
    runs = {name: apply_preset(whole, name) for name in ("diversified", "diversified-queries", "undiversified")}
    assert [run.data["pairs"].diversify for run in runs.values()] == [
        Diversify(sides="both"),
        Diversify(sides="query"),
        Diversify(sides="none"),
    ]
    assert {run.stage for run in runs.values()} == {apply_preset(whole, "symmetric-query").stage}
    own = replace(whole, data={**whole.data, "pairs": replace(whole.data["pairs"], diversify=Diversify(encoder="e"))})
    assert apply_preset(own, "undiversified").data["pairs"].diversify == Diversify(encoder="e", sides="none")


@pytest.mark.parametrize("table", ["5", "6", "11", "12"])
def test_the_papers_tables_have_a_preset_for_each_row(whole: Run, table: str) -> None:
    rows = {"5": 6, "6": 3, "11": 3, "12": 3}[table]
    own = [name for name, preset in PRESETS.items() if table in preset.table.split(", ")]
    assert len(own) >= rows
    assert len({apply_preset(whole, name).stage for name in own}) == (1 if table == "11" else len(own))


def test_a_preset_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, stage("supervised"))
    with pytest.raises(InputError, match="has no stage 'align'"):
        apply_preset(run, "pruned")
    with pytest.raises(InputError, match="unknown preset"):
        apply_preset(run, "none")


@pytest.mark.parametrize(
    "name",
    ["pruned", "fine-tuning-data-only", pytest.param("symmetric-document", marks=pytest.mark.slow)],
)
def test_a_baseline_runs_to_its_exported_folder(tmp_path: Path, name: str) -> None:
    run = apply_preset(tiny_run(tmp_path, *(stage(kind) for kind in RECIPE[2:])), name)
    records = recipe.run_stages(run)
    card = export(run, "")
    folder = Path(run.output) / run.name
    stock = SentenceTransformer(str(folder))
    sides = {side: recipe.newest(run, run.symmetric or side) for side in recipe.SIDES}
    np.testing.assert_allclose(stock.encode_query(TEXTS), towers.load(sides["query"]).encode_query(TEXTS), atol=1e-4)
    assert card.dim == run.dim
    if name == "pruned":
        assert len(towers.transformer_of(towers.load(sides["query"])).model.layers) == 1
    assert draw_curves(run).read_bytes().startswith(b"\x89PNG")
    assert records[-1]["seconds"] >= 0


def test_beside_a_pretrained_document_encoder_the_bag_is_the_querys_initialisation(tmp_path: Path) -> None:
    overrides = ["query={ static = 32, max_tokens = 32 }", 'document={ base = "somewhere", pooling = "mean" }']
    stages = stage("static", epochs=2), stage("align", teacher_prompt="query: "), stage("joint", freeze_document=True)
    run = tiny_run(tmp_path, *stages, overrides=overrides)
    assert _kinds(apply_preset(run, "without-query-init")) == ["align", "joint"]
    small, large = apply_preset(run, "symmetric-query"), apply_preset(run, "symmetric-document")
    assert [(item.kind, item.epochs) for item in small.stage] == [("static", 4)] and small.symmetric == "query"
    assert large.stage == () and large.symmetric == "document", "it is trained already"


def test_three_layers_of_a_bert_become_the_query_encoder(tmp_path: Path) -> None:
    base = query_tower(tmp_path / "bert", layers=4, pooling="mean")
    tower = f'{{ base = "{base}", pooling = "mean", max_tokens = 32 }}'
    run = apply_preset(tiny_run(tmp_path, stage("align"), overrides=[f"query={tower}", f"document={tower}"]), "pruned")
    recipe.run_stages(run)
    query, document = (towers.load(recipe.newest(run, side)) for side in recipe.SIDES)
    assert [len(towers.transformer_of(model).model.encoder.layer) for model in (query, document)] == [3, 4]
