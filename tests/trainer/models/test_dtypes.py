"""What trains is float32 and what is frozen keeps the dtype of its base, also after reloading."""

from pathlib import Path

import numpy as np
import pytest
import torch
from care_trainer.config import Lora, Tower
from care_trainer.models import towers
from sentence_transformers import SentenceTransformer
from torch.nn import functional

from tests.trainer import bases

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft asks
TEXTS = ["高血压吃什么好？", "糖尿病的检查", "哮喘", "急性阑尾炎的典型表现", "发烧三天", "心悸、多汗", "肺癌", "低血糖"]
STEPS, LEARNING_RATE, LEFT_IN_FLOAT32 = 150, 1e-4, 0.16
"""In bfloat16 a fifth of the error is left, since the updates are smaller than half of the weights' last bit."""


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
    assert _error_left(document) < LEFT_IN_FLOAT32

    rounded = _document(document_base)
    towers.make_trainable(rounded, side="document", lora=True)
    for parameter in rounded.parameters():
        parameter.data = parameter.data.bfloat16()
    assert _error_left(rounded) > LEFT_IN_FLOAT32, "the problem would not notice bfloat16 adapters"


def test_adapters_and_all_that_trains_are_float32_and_a_frozen_base_is_not(document_base: Path) -> None:
    document = _document(document_base)
    towers.make_trainable(document, side="document", lora=True)
    found = {(parameter.requires_grad, parameter.dtype) for parameter in document.parameters()}
    assert found == {(True, torch.float32), (False, torch.bfloat16)}


def test_reloading_rounds_no_adapter(document_base: Path, tmp_path: Path) -> None:
    document = _document(document_base)
    with torch.no_grad():
        for name, parameter in document.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.1)
    document.save_pretrained(str(tmp_path / "document"), create_model_card=False)
    reloaded = dict(towers.load(tmp_path / "document").named_parameters())
    for name, parameter in document.named_parameters():
        torch.testing.assert_close(reloaded[name].detach(), parameter.detach(), rtol=0, atol=0)


def test_a_half_precision_query_base_trains_in_float32(query_base: Path) -> None:
    query = towers.build_query(str(query_base), Tower(base=str(query_base)), 768)
    assert {parameter.dtype for parameter in query.parameters()} == {torch.float16}
    towers.make_trainable(query, side="query", lora=False)
    assert {parameter.dtype for parameter in query.parameters()} == {torch.float32}


def test_a_merge_is_exact_in_float32(document_base: Path, tmp_path: Path) -> None:
    document = _document(document_base)
    with torch.no_grad():
        for name, parameter in document.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.1)
    document.save_pretrained(str(tmp_path / "document"), create_model_card=False)
    expected = towers.load(tmp_path / "document").float().encode_document(TEXTS)
    merged = towers.load_merged(tmp_path / "document")
    assert {parameter.dtype for parameter in merged.parameters()} == {torch.float32}
    np.testing.assert_allclose(merged.encode_document(TEXTS), expected, atol=1e-5)
    assert towers.base_dtype(tmp_path / "document") == torch.bfloat16
