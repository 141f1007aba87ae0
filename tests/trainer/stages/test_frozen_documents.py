from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from care_trainer import pipeline
from care_trainer.config import Run
from care_trainer.config.presets import apply_preset
from care_trainer.export.checkpoint import export
from care_trainer.losses.objectives import Batch, FrozenDocuments, InfoNce, vector_keys
from care_trainer.models import towers
from sentence_transformers import SentenceTransformer

from care_qdrant.model import CareModel
from tests.trainer.tiny_run import pairs, stage, tiny_run

TEXTS = [row["query"] for row in pairs()[:6]]


def test_stored_documents_give_the_loss_of_documents_in_memory() -> None:
    torch.manual_seed(0)
    query, positive, negative = torch.randn(3, 5, 16)
    positive[3] = positive[1]  # the same document answers two queries: neither is the other's negative
    stored = torch.stack([positive, negative], dim=1).half()
    keys = [torch.arange(5), torch.tensor([10, 11, 12, 11, 14]), torch.arange(20, 25)]
    expected = InfoNce(0.05)(Batch([query, *stored.float().unbind(dim=1)], keys))
    found = FrozenDocuments(InfoNce(0.05))(Batch([query], keys[:1], stored))
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    alone = FrozenDocuments(InfoNce(0.05))(Batch([query], keys[:1], stored[:, 0]))
    assert alone.item() == pytest.approx(InfoNce(0.05)(Batch([query, stored[:, 0].float()], keys[:2])).item(), rel=1e-6)


def test_equal_vectors_and_only_they_have_equal_keys() -> None:
    vectors = torch.randn(50, 16).half()
    vectors[7] = vectors[3]
    vectors[8] = vectors[3][torch.arange(15, -1, -1)]
    keys = vector_keys(vectors)
    assert keys[7] == keys[3]
    assert len(set(keys.tolist())) == 49


@pytest.mark.parametrize("negatives", [0, 1])
def test_stage_two_with_frozen_documents_trains_the_query_encoder_alone(tmp_path: Path, negatives: int) -> None:
    run = tiny_run(tmp_path, stage("joint", freeze_document=True, hard_negatives=negatives))
    (record,) = pipeline.run_stages(run)
    assert list(record["trainable"]) == ["query"]
    before, after = Path(run.output) / "base/query", pipeline.newest(run, "query")
    assert pipeline.newest(run, "document") == Path(run.output) / "base/document"
    assert not np.allclose(towers.load(before).encode_query(TEXTS), towers.load(after).encode_query(TEXTS))


def test_a_static_query_encoder_goes_through_the_recipe(tmp_path: Path, document_folder: Path) -> None:
    """Beside a pretrained document encoder: the static table, Stage I and Stage II, all by the same commands."""
    run = _static_run(tmp_path, document_folder, stage("static"), stage("align"), stage("joint", freeze_document=True))
    records = pipeline.run_stages(run)
    assert [list(record["trainable"]) for record in records] == [["static"], ["query"], ["query"]]
    folders = [Path(run.output) / name / "query" for name in ("base", "static", "align", "joint")]
    found = [SentenceTransformer(str(folder)).encode_query(TEXTS) for folder in folders]
    np.testing.assert_allclose(np.linalg.norm(found[-1], axis=1), 1, atol=1e-5)
    assert not any(np.allclose(one, other) for one, other in pairwise(found))
    assert pipeline.newest(run, "document") == Path(run.output) / "base/document"

    card = export(run, "care-train run run.toml")
    assert card.onnx is not None and card.query.pooling == "static" and card.query.max_tokens == 32
    folder = Path(run.output) / run.name
    np.testing.assert_allclose(CareModel.load(folder, precision="fp32").encode_query(TEXTS), found[-1], atol=1e-5)
    np.testing.assert_allclose(SentenceTransformer(str(folder)).encode_query(TEXTS), found[-1], atol=1e-5)


@pytest.mark.parametrize("cached", [False, True])
def test_a_static_query_encoder_and_its_documents_train_together(
    tmp_path: Path, document_folder: Path, cached: bool
) -> None:
    run = _static_run(tmp_path, document_folder, stage("joint", cached=cached, hard_negatives=1))
    (record,) = pipeline.run_stages(run)
    assert list(record["trainable"]) == ["query", "document"]
    for side in ("query", "document"):
        before, after = (towers.load(Path(run.output) / name / side) for name in ("base", "joint"))
        assert not np.allclose(before.encode(TEXTS), after.encode(TEXTS)), f"the {side} side did not train"


def test_equal_compute_beside_a_static_query_encoder_spends_the_teachers_part(
    tmp_path: Path, document_folder: Path
) -> None:
    """A table costs next to nothing: what Stage I cost is the teacher's forward pass over 40 texts."""
    stages = stage("align"), stage("joint", max_steps=None, epochs=1)
    run = _static_run(tmp_path, document_folder, *stages)
    (record,) = pipeline.run_stages(apply_preset(run, "equal-compute"))
    forward_passes_of_a_row = 3  # of its document, in training
    assert record["metrics"]["epoch"] == pytest.approx(1 + 40 / 48 / forward_passes_of_a_row, rel=0.3)


def test_documents_are_encoded_once_for_runs_that_share_a_cache(
    tmp_path: Path, document_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = [f"teacher_cache={tmp_path / 'vectors'}"]
    stages = stage("align"), stage("joint", freeze_document=True)
    first = _static_run(tmp_path, document_folder, *stages, overrides=overrides)
    pipeline.run_stages(first)
    second = _static_run(
        tmp_path, document_folder, *stages, overrides=[*overrides, "seed=1", f"output={tmp_path / 'second'}"]
    )

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a text was encoded again")

    monkeypatch.setattr(SentenceTransformer, "encode_document", refuse)
    pipeline.run_stages(second)


def _static_run(root: Path, document: Path, *stages: dict[str, Any], overrides: Sequence[str] = ()) -> Run:
    """Return a run with token vectors for queries and a pretrained document encoder."""
    towers_of = [
        "query={ static = 32, max_tokens = 32 }",
        f'document={{ base = "{document}", pooling = "lasttoken", eos = "[EOS]", max_tokens = 48 }}',
    ]
    return tiny_run(root, *stages, overrides=[*towers_of, *overrides])
