import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from care_trainer import recipe
from care_trainer.config import Align, Lora, Run, Tower
from care_trainer.models import towers
from care_trainer.stages.context import Context
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense

from care_qdrant.errors import AlteredModel, InputError
from care_qdrant.model.care_model import CareModel
from tests import tiny

OWN = Tower(base="base", pooling="own")
TEXTS = ["高血压吃什么好？", "糖尿病的检查：可以做血常规、超声和影像学检查来明确诊断。" * 5, "哮喘"]


def _bases(base: Run) -> tuple[str, str]:
    return str(Path(base.output) / "base/query-base"), str(Path(base.output) / "base/document-base")


def _lora_document(base: Run, folder: Path) -> Path:
    tower = replace(base.document, lora=Lora(rank=4, alpha=8))
    document = towers.build_document(_bases(base)[1], tower, base.dim)
    with torch.no_grad():
        for name, parameter in document.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1)
    document.save_pretrained(str(folder), create_model_card=False)
    return folder


def test_every_text_ends_with_the_marker_also_a_cut_one_also_after_reloading(document_folder: Path) -> None:
    tokenizer = towers.load(document_folder).tokenizer
    for text in [*TEXTS, ""]:
        ids = tokenizer(text, truncation=True)["input_ids"]
        assert ids[-1] == tokenizer.eos_token_id
        assert len(ids) <= tokenizer.model_max_length == 48


def test_the_slice_is_exact_and_vectors_have_unit_length(document_folder: Path) -> None:
    model = towers.load(document_folder)
    whole = torch.nn.functional.normalize(torch.tensor(towers.unsliced(model).encode(TEXTS))[:, :32], dim=1).numpy()
    vectors = model.encode_document(TEXTS)
    assert vectors.shape == (3, 32)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(vectors, whole, atol=1e-6)


@pytest.mark.parametrize(
    ("side", "change", "dim", "problem"),
    [
        ("document", {}, 64, "gives 48 dimensions, fewer than dim = 64"),
        ("query", {}, 16, "gives 32 dimensions, but dim is 16"),
        ("document", {"eos": "<|none|>"}, 32, "does not know the marker"),
    ],
)
def test_sides_that_do_not_fit_are_refused(
    base: Run, side: str, change: dict[str, str], dim: int, problem: str
) -> None:
    query_base, document_base = _bases(base)
    with pytest.raises(InputError, match=problem):
        if side == "query":
            towers.build_query(query_base, base.query, dim)
        else:
            towers.build_document(document_base, replace(base.document, **change), dim)


def test_a_base_that_is_not_there_is_one_clear_error(base: Run, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be loaded"):
        towers.build_query(str(tmp_path / "none"), base.query, 32)


def test_without_adapters_all_but_slice_and_pooler_trains(query_folder: Path, document_folder: Path) -> None:
    document, query = towers.load(document_folder), towers.load(query_folder)
    towers.make_trainable(document, side="document", lora=False)
    towers.make_trainable(query, side="query", lora=False)
    (slice_,) = [module for module in document.modules() if isinstance(module, Dense)]
    assert not slice_.linear.weight.requires_grad
    frozen = [name for name, p in query.named_parameters() if not p.requires_grad]
    assert frozen and all("pooler" in name for name in frozen)


def test_a_side_with_nothing_to_train_is_refused(document_folder: Path) -> None:
    with pytest.raises(InputError, match="no trainable parameter"):
        towers.make_trainable(towers.load(document_folder), side="document", lora=True)


def test_a_joined_pair_routes_by_task_and_refuses_to_guess(query_folder: Path, document_folder: Path) -> None:
    query, document = towers.load(query_folder), towers.load(document_folder)
    model = towers.pair(query, document)
    np.testing.assert_allclose(model.encode_query(TEXTS), query.encode_query(TEXTS), atol=1e-6)
    np.testing.assert_allclose(model.encode_document(TEXTS), document.encode_document(TEXTS), atol=1e-6)
    with pytest.raises(ValueError, match="route"):
        model.encode(TEXTS)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft asks for it
def test_a_teacher_has_its_adapters_in_its_weights(base: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _lora_document(base, tmp_path / "document")
    expected, loaded, load = towers.load(folder).encode_document(TEXTS), [], towers.load

    def noting(*arguments: Any) -> SentenceTransformer:
        loaded.append(load(*arguments))
        return loaded[-1]

    monkeypatch.setattr(towers, "load", noting)
    context = Context(run=base, stage=Align(kind="align"), folder=tmp_path / "stage", query=folder, document=folder)
    np.testing.assert_allclose(context.stored_vectors(TEXTS, "text"), expected, atol=1e-3)
    assert len(loaded) == 1 and not any("lora_" in name for name, _ in loaded[0].named_parameters())
    half = replace(context, stage=Align(kind="align", bf16=True), folder=tmp_path / "half")
    assert half._teacher().dtype == torch.bfloat16
    np.testing.assert_allclose(half.stored_vectors(TEXTS, "text"), expected, atol=2e-2)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft asks for it
def test_an_adapter_over_another_base_of_the_same_shape_is_refused_or_said(
    base: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    document = towers.load(_lora_document(base, tmp_path / "source"))
    caplog.clear()
    recipe._save({"document": document}, tmp_path)
    np.testing.assert_array_equal(towers.load(tmp_path / "document").encode(TEXTS), document.encode(TEXTS))
    [own, other] = [tmp_path / "document/adapter_config.json", shutil.copytree(_bases(base)[1], tmp_path / "other")]
    weights = load_file(other / "model.safetensors")
    save_file({name: value.flip(0) for name, value in weights.items()}, other / "model.safetensors", {"format": "pt"})
    config = json.loads(own.read_text(encoding="utf-8"))
    own.write_text(json.dumps({**config, "base_model_name_or_path": str(other)}), encoding="utf-8")
    with pytest.raises(AlteredModel, match="another model of the same shape"):
        towers.load(tmp_path / "document")
    assert "not checked" not in caplog.text
    (tmp_path / "document/check_vectors.json").unlink()
    towers.load(tmp_path / "document")
    assert "cannot be told from it" in caplog.text


@pytest.mark.parametrize("side", ["query", "document"])
def test_a_base_keeps_its_own_pooling_weights_and_layers(side: str) -> None:
    """The built-in pair's queries are a table, its documents layers in 8 bits: as a base it is what it was."""
    prompt = CareModel.load().card.document.prompt if side == "document" else ""
    tower = Tower(base="built-in", pooling="own", max_tokens=512, prompt=prompt)
    build = towers.build_query if side == "query" else towers.build_document
    encoder = build("built-in", tower, CareModel.load().dim)
    model = CareModel.load(device="cpu")
    expected = model.encode_query(TEXTS) if side == "query" else model.encode_document(TEXTS)
    np.testing.assert_allclose(encoder.encode(TEXTS, prompt=tower.prompt), expected, atol=1e-6)
    assert towers.make_trainable(encoder, side=side, lora=False) > 0


def test_a_table_is_a_base_of_queries_and_of_no_documents(tmp_path: Path) -> None:
    folder = tiny.static_tower(tmp_path / "table")
    own = replace(OWN, base=str(folder))
    encoder = towers.build_query(str(folder), own, 32)
    np.testing.assert_allclose(encoder.encode(TEXTS), SentenceTransformer(str(folder)).encode(TEXTS), atol=1e-6)
    assert towers.make_trainable(encoder, side="query", lora=False) > 0
    with pytest.raises(InputError, match="expected a transformer"):
        towers.build_document(str(folder), own, 32)


def test_a_dense_layer_of_a_base_trains_and_is_no_slice(base: Run, tmp_path: Path) -> None:
    inner = towers.build_query(_bases(base)[0], base.query, base.dim)
    dense = Dense(32, 24, bias=True, activation_function=torch.nn.Tanh())
    SentenceTransformer(modules=[*list(inner.children())[:2], dense]).save_pretrained(str(tmp_path / "base"))
    encoder = towers.build_query(str(tmp_path / "base"), replace(OWN, base=str(tmp_path / "base")), 24)
    expected = SentenceTransformer(str(tmp_path / "base")).encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=1e-6)
    towers.make_trainable(encoder, side="query", lora=False)
    assert any(parameter.requires_grad for parameter in list(encoder.children())[2].parameters())


def test_own_pooling_needs_a_base_that_has_one(base: Run) -> None:
    with pytest.raises(InputError, match=r"has no modules\.json"):
        towers.build_query(_bases(base)[0], OWN, 32)
