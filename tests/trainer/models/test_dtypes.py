"""Weights that train are float32, and frozen ones keep the dtype of their base, also after reloading."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from care_trainer.config import Lora, Tower
from care_trainer.losses.retromae import masked_head
from care_trainer.models import towers
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from torch.nn import functional

from care_qdrant.errors import InputError, MissingExtra
from tests.trainer import bases

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft asks
TEXTS = ["高血压吃什么好？", "糖尿病的检查", "哮喘", "急性阑尾炎的典型表现", "发烧三天", "心悸、多汗", "肺癌", "低血糖"]
STEPS, LEARNING_RATE, LEFT_IN_FLOAT32 = 150, 1e-4, 0.16
"""Steps, learning rate, and highest error that is left in float32; in bfloat16 a fifth is left, since the updates are
smaller than half of the weights' last bit."""


@pytest.fixture(scope="module")
def document_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bases.qwen3_base(tmp_path_factory.mktemp("bases") / "qwen3", hidden=64)


@pytest.fixture(scope="module")
def query_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bases.gte_mlm_base(tmp_path_factory.mktemp("bases") / "gte")


def _document(base: Path) -> SentenceTransformer:
    tower = Tower(base=str(base), pooling="lasttoken", lora=Lora(rank=8, alpha=16))
    torch.manual_seed(0)
    return towers.build_document(str(base), tower, 32)


def _error_left(document: SentenceTransformer) -> float:
    """Train the trainable parameters towards fixed vectors, and return the part of the error that is left."""
    trained = [parameter for parameter in document.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE, weight_decay=0)
    torch.manual_seed(1)
    target = functional.normalize(torch.randn(len(TEXTS), 32), dim=1)
    features = document.preprocess(TEXTS)
    errors = []
    for _ in range(STEPS):
        error = (document(dict(features))["sentence_embedding"].float() - target).square().sum(dim=1).mean()
        optimizer.zero_grad()
        error.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        errors.append(error.item())
    return errors[-1] / errors[0]


def test_adapters_of_a_bfloat16_base_learn_at_the_rate_of_the_recipe(document_base: Path) -> None:
    document = _document(document_base)
    towers.make_trainable(document, side="document", lora=True)
    found = {(parameter.requires_grad, parameter.dtype) for parameter in document.parameters()}
    assert found == {(True, torch.float32), (False, torch.bfloat16)}
    assert _error_left(document) < LEFT_IN_FLOAT32

    rounded = _document(document_base)
    towers.make_trainable(rounded, side="document", lora=True)
    for parameter in rounded.parameters():
        parameter.data = parameter.data.bfloat16()
    assert _error_left(rounded) > LEFT_IN_FLOAT32, "the problem would not notice bfloat16 adapters"


def test_a_half_precision_query_base_trains_in_float32(query_base: Path) -> None:
    query = towers.build_query(str(query_base), Tower(base=str(query_base)), 768)
    assert {parameter.dtype for parameter in query.parameters()} == {torch.float16}
    towers.make_trainable(query, side="query", lora=False)
    assert {parameter.dtype for parameter in query.parameters()} == {torch.float32}


def test_reloading_rounds_no_adapter_and_a_merge_is_exact_in_float32(document_base: Path, tmp_path: Path) -> None:
    document = _document(document_base)
    with torch.no_grad():
        for name, parameter in document.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.1)
    document.save_pretrained(str(tmp_path / "document"), create_model_card=False)
    reloaded = towers.load(tmp_path / "document")
    again = dict(reloaded.named_parameters())
    for name, parameter in document.named_parameters():
        torch.testing.assert_close(again[name].detach(), parameter.detach(), rtol=0, atol=0)
    expected = reloaded.float().encode_document(TEXTS)
    merged = towers.load_merged(tmp_path / "document")
    assert {parameter.dtype for parameter in merged.parameters()} == {torch.float32}
    np.testing.assert_allclose(merged.encode_document(TEXTS), expected, atol=1e-5)
    assert towers.base_dtype(tmp_path / "document") == torch.bfloat16


def test_adapters_on_a_base_that_a_reload_would_not_find_are_refused(query_base: Path) -> None:
    tower = Tower(base=str(query_base), lora=Lora(rank=8, alpha=16))
    with pytest.raises(InputError, match=r"not transformers' own.*leave lora out"):
        towers.build_document(str(query_base), tower, 32)


def _moved_on(base: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make a hub cache whose branch ``main`` has moved on, with other weights; return the commit of ``base``."""
    repository, pinned, newest = folder / "models--someone--base", "a" * 40, "b" * 40
    for commit, scale in ((pinned, 1.0), (newest, 3.0)):
        snapshot = repository / "snapshots" / commit
        shutil.copytree(base, snapshot)
        for file in snapshot.glob("*.safetensors"):
            weights = {name: value * scale for name, value in load_file(file).items()}
            save_file(weights, file, metadata={"format": "pt"})
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text(newest, encoding="ascii")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder))
    return pinned


def test_every_reload_is_of_the_revision_of_the_settings(
    document_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned = _moved_on(document_base, tmp_path, monkeypatch)
    expected = towers.build_document(
        str(document_base), Tower(base="b", dtype="float32", pooling="lasttoken"), 32
    ).encode(TEXTS)
    own = Tower(base="someone/base", dtype="float32", pooling="lasttoken", lora=Lora(rank=8, alpha=16))
    tower = replace(own, revision=pinned)
    document = towers.build_document("someone/base", tower, 32)
    document.save_pretrained(str(tmp_path / "document"), create_model_card=False)
    for found in (document, towers.load(tmp_path / "document", tower), towers.load_merged(tmp_path / "document")):
        assert (found.encode(TEXTS) * expected).sum(axis=1).min() > 0.999
    moved = towers.build_document("someone/base", own, 32)
    assert (moved.encode(TEXTS) * expected).sum(axis=1).min() < 0.99, "the test would not see another revision"


def test_the_vocabulary_head_is_of_the_revision_of_the_settings(
    query_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned = _moved_on(query_base, tmp_path, monkeypatch)
    model = towers.build_query(str(query_base), Tower(base=str(query_base)), 768)

    def weights(base: str, revision: str | None = None) -> list[torch.Tensor]:
        head = masked_head(model, base, revision).state_dict()
        return [value for name, value in sorted(head.items()) if name.endswith("dense.weight")]

    expected = weights(str(query_base))
    assert expected
    torch.testing.assert_close(weights("someone/base", pinned), expected)
    assert not torch.equal(weights("someone/base")[0], expected[0]), "the test would not see another revision"


def test_dtype_and_attention_are_those_of_the_settings_when_reloaded(document_base: Path, tmp_path: Path) -> None:
    own = {"dtype": "float32", "attn_implementation": "eager"}
    tower = Tower(base=str(document_base), pooling="lasttoken", lora=Lora(rank=8, alpha=16), **own)
    document = towers.build_document(str(document_base), tower, 32)
    document.save_pretrained(str(tmp_path / "document"), create_model_card=False)
    for encoder in (document, towers.load(tmp_path / "document", tower)):
        assert {parameter.dtype for parameter in encoder.parameters()} == {torch.float32}
        assert towers.transformer_of(encoder).model.config._attn_implementation == "eager"
    plain = {parameter.dtype for parameter in towers.load(tmp_path / "document").parameters()}
    assert plain == {torch.float32, torch.bfloat16}


def test_a_quantised_base_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    tower = Tower(base="somewhere", quantization="nf4", lora=Lora())
    monkeypatch.setattr(towers.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(towers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="needs bitsandbytes: pip install bitsandbytes"):
        towers.loading_options(tower)
    monkeypatch.setattr(towers.importlib.util, "find_spec", lambda name: name)
    with pytest.raises(InputError, match="needs a GPU; leave it out to train on a CPU"):
        towers.loading_options(tower)
