from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from care_trainer import recipe
from care_trainer.config import Data, Run
from care_trainer.data.collators import TeacherCollator
from care_trainer.data.read import text_key
from care_trainer.data.table import Documents, pair_rows
from care_trainer.export.checkpoint import export
from care_trainer.losses.objectives import Batch, FrozenDocuments, InfoNce
from care_trainer.models import towers
from sentence_transformers import SentenceTransformer

from care_qdrant.model.care_model import CareModel
from tests.trainer.tiny_run import pairs, stage, tiny_run, write_jsonl

TEXTS = [row["query"] for row in pairs()[:6]]


def test_stored_documents_give_the_loss_of_documents_in_memory() -> None:
    torch.manual_seed(0)
    query, positive, negative = torch.randn(3, 5, 16)
    positive[3] = positive[1]  # the same document answers two queries: neither is the other's negative
    stored = torch.stack([positive, negative], dim=1).half()
    keys = [torch.arange(5), torch.tensor([10, 11, 12, 11, 14]), torch.arange(20, 25)]
    expected = InfoNce(0.05)(Batch([query, *stored.float().unbind(dim=1)], keys))
    label_keys = torch.stack(keys[1:], dim=1)
    found = FrozenDocuments(InfoNce(0.05))(Batch([query], keys[:1], stored, label_keys))
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    alone = FrozenDocuments(InfoNce(0.05))(Batch([query], keys[:1], stored[:, 0], label_keys[:, :1]))
    assert alone.item() == pytest.approx(InfoNce(0.05)(Batch([query, stored[:, 0].float()], keys[:2])).item(), rel=1e-6)


def test_documents_are_stored_once_and_equal_texts_have_equal_keys_whatever_their_vectors_bits(tmp_path: Path) -> None:
    rows = [
        {"query": "q1", "positive": "p1", "negatives": ["n1", "p2"]},
        {"query": "q2", "positive": "p2", "negatives": ["n1"]},
        {"query": "p1", "positive": "p3"},
    ]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    table = pair_rows(Data(files=("rows.jsonl",)), tmp_path, tmp_path / "rows")
    documents = Documents(table)
    assert list(documents) == documents[:] == ["p1", "n1", "p2", "p3"]
    assert [documents.of_row(row).tolist() for row in range(3)] == [[0, 1, 2], [2, 1], [3]]
    vectors = torch.randn(4, 8).half().numpy()
    collator = TeacherCollator(documents=(documents, vectors), negatives=2, preprocess_fn=_ids)
    batch = collator([{**table.columns[at]} for at in range(3)])
    assert batch["query_label_keys"][1].tolist() == [text_key("p2"), text_key("n1"), text_key("p2")]
    assert batch["query_keys"][2] == batch["query_label_keys"][0, 0], "this question is the other row's document"
    np.testing.assert_array_equal(batch["label"][1].numpy(), vectors[[2, 1, 2]])


def _ids(texts: list[str], **_: Any) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.tensor([[ord(text[0])] for text in texts])}


@pytest.mark.parametrize("negatives", [0, 1])
def test_stage_two_with_frozen_documents_trains_the_query_encoder_alone(tmp_path: Path, negatives: int) -> None:
    run = tiny_run(tmp_path, stage("joint", freeze_document=True, hard_negatives=negatives))
    (record,) = recipe.run_stages(run)
    assert list(record["trainable"]) == ["query"]
    before, after = Path(run.output) / "base/query", recipe.newest(run, "query")
    assert recipe.newest(run, "document") == Path(run.output) / "base/document"
    assert not np.allclose(towers.load(before).encode_query(TEXTS), towers.load(after).encode_query(TEXTS))


def test_a_static_query_encoder_goes_through_the_recipe(tmp_path: Path, document_folder: Path) -> None:
    """Beside a pretrained document encoder: the static table, Stage I and Stage II, all by the same commands."""
    run = _static_run(tmp_path, document_folder, stage("static"), stage("align"), stage("joint", freeze_document=True))
    records = recipe.run_stages(run)
    assert [list(record["trainable"]) for record in records] == [["static"], ["query"], ["query"]]
    folders = [Path(run.output) / name / "query" for name in ("base", "static", "align", "joint")]
    found = [SentenceTransformer(str(folder)).encode_query(TEXTS) for folder in folders]
    np.testing.assert_allclose(np.linalg.norm(found[-1], axis=1), 1, atol=1e-5)
    assert not any(np.allclose(one, other) for one, other in pairwise(found))
    assert recipe.newest(run, "document") == Path(run.output) / "base/document"

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
    (record,) = recipe.run_stages(run)
    assert list(record["trainable"]) == ["query", "document"]
    for side in ("query", "document"):
        before, after = (towers.load(Path(run.output) / name / side) for name in ("base", "joint"))
        assert not np.allclose(before.encode(TEXTS), after.encode(TEXTS)), f"the {side} side did not train"


def test_documents_are_encoded_once_for_runs_that_share_a_cache(
    tmp_path: Path, document_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = [f"teacher_cache={tmp_path / 'vectors'}"]
    stages = stage("align"), stage("joint", freeze_document=True)
    first = _static_run(tmp_path, document_folder, *stages, overrides=overrides)
    recipe.run_stages(first)
    second = _static_run(
        tmp_path, document_folder, *stages, overrides=[*overrides, "seed=1", f"output={tmp_path / 'second'}"]
    )

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a text was encoded again")

    monkeypatch.setattr(SentenceTransformer, "encode_document", refuse)
    recipe.run_stages(second)


def _static_run(root: Path, document: Path, *stages: dict[str, Any], overrides: Sequence[str] = ()) -> Run:
    """Return a run with token vectors for queries and a pretrained document encoder."""
    towers_of = [
        "query={ static = 32, max_tokens = 32 }",
        f'document={{ base = "{document}", pooling = "lasttoken", eos = "[EOS]", max_tokens = 48 }}',
    ]
    return tiny_run(root, *stages, overrides=[*towers_of, *overrides])
