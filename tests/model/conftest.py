"""Encoders as the tests of encoding have them."""

import shutil
from pathlib import Path

import pytest

from tests.encoders.conftest import exported
from tests.trainer import bases

__all__ = ["exported"]


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both encoders as they are published: float16 and ``model_type: new``; bfloat16 in several files. Read only."""
    folder = tmp_path_factory.mktemp("published")
    bases.gte_mlm_base(folder / "query_encoder")
    bases.qwen3_base(folder / "doc_encoder", hidden=1024)
    assert len(list((folder / "doc_encoder").glob("model-*.safetensors"))) > 1
    (folder / "README.md").write_text("---\nlicense: cc-by-nc-sa-4.0\n---\n# A pair\n", encoding="utf-8")
    return folder


@pytest.fixture
def copy(pair_folder: Path, tmp_path: Path) -> Path:
    """A copy of the tiny pair to damage."""
    return Path(shutil.copytree(pair_folder, tmp_path / "copy"))
