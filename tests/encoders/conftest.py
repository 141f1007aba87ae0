"""Tiny query encoders, exported once."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from sentence_transformers import SentenceTransformer

from care_qdrant.model.card import OnnxFiles
from care_qdrant.model.export.onnx import export_query_encoder
from tests import tiny

Exported = Callable[[str], tuple[Path, OnnxFiles]]
PROMPT = "查询："


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Give, by pooling, a random BERT query encoder with its ONNX files. Never write into it: copy it."""

    @cache
    def export(pooling: str) -> tuple[Path, OnnxFiles]:
        folder = tiny.query_tower(tmp_path_factory.mktemp(pooling) / "query", pooling=pooling)
        _roughen(folder)
        return folder, export_query_encoder(folder, tiny.TEXTS)

    return export


def _roughen(folder: Path) -> None:
    """Draw the weights wide enough for layers to matter, and let every query have a prompt."""
    model = SentenceTransformer(str(folder), device="cpu", prompts={"query": PROMPT})
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "LayerNorm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.2)
            else:
                parameter.copy_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(str(folder), create_model_card=False)
