"""The published gte-multilingual family is read as transformers' own architecture, and no code of the hub runs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import GteConfig, GteModel

from care_qdrant.encoders.local.architecture import native_config, native_folder
from care_qdrant.errors import ModelError
from care_qdrant.model.care_model import CareModel
from tests import tiny
from tests.trainer import bases

ROOT = Path(__file__).parents[3]
PUBLISHED: dict[str, Any] = {
    "model_type": "new",
    "architectures": ["NewModel"],
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 1,
    "rope_theta": 20000,
    "rope_scaling": {"type": "ntk", "factor": 8.0},
    "vocab_size": 50,
}


@pytest.mark.parametrize("scaling", [None, {"type": "ntk", "factor": 8.0}])
def test_rotary_frequencies_are_those_of_the_family(scaling: dict[str, Any] | None) -> None:
    config = GteConfig(**native_config(PUBLISHED | {"rope_scaling": scaling}, Path("config.json")))
    found = GteModel(config).rotary_emb.inv_freq.numpy()
    factor, head_size = scaling["factor"] if scaling else 1.0, 12
    base = (20000 * factor) ** (np.arange(0, head_size, 2) / head_size)
    np.testing.assert_allclose(found, 1 / base / factor ** (2 / head_size), rtol=1e-6)


@pytest.mark.parametrize(
    "change",
    [
        {"layer_norm_type": "rms_norm"},
        {"position_embedding_type": "absolute"},
        {"logn_attention_scale": True},
        {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
        {"rope_scaling": {"type": "ntk", "factor": 2.0, "mixed_b": 0.6}},
    ],
)
def test_a_setting_that_would_be_lost_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=next(iter(change))):
        native_config(PUBLISHED | change, Path("config.json"))


def test_other_models_are_read_where_they_are(pair_folder: Path) -> None:
    with native_folder(pair_folder / "query") as folder:
        assert folder == pair_folder / "query"


def test_a_published_model_loads_with_its_weights_and_without_its_code(tmp_path: Path) -> None:
    """Its code would leave a file behind, if anything ran it."""
    base, symmetric = bases.gte_mlm_base(tmp_path / "base"), tmp_path / "gte-multilingual-base"
    with native_folder(base) as native:
        transformer = Transformer(str(native), max_seq_length=64)
    model = SentenceTransformer(modules=[transformer, Pooling(768, "cls"), Normalize()], device="cpu")
    model.save_pretrained(str(symmetric), create_model_card=False)
    expected = model.float().encode(tiny.TEXTS)
    code = f"open({str(tmp_path / 'ran')!r}, 'w')\nraise RuntimeError('code from the hub')\n"
    (symmetric / "configuration.py").write_text(code, encoding="utf-8")
    bases.as_published(symmetric)
    config = json.loads((symmetric / "config.json").read_text(encoding="utf-8"))
    config["auto_map"] = {"AutoConfig": "configuration.NewConfig", "AutoModel": "configuration.NewModel"}
    (symmetric / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert any(name.startswith("new.") for name in load_file(base / "model.safetensors"))
    found = CareModel.load(symmetric).encode_document(tiny.TEXTS)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert not (tmp_path / "ran").exists()
    assert model.dtype == torch.float32


def test_remote_code_is_never_asked_for() -> None:
    sources = [
        path
        for area in ("care_qdrant", "trainer", "benchmarks", "llama_integration")
        for path in (ROOT / area).rglob("*.py")
    ]
    setting = "trust_remote_code"
    assert sources
    assert not [path for path in sources if f"{setting}=True" in path.read_text(encoding="utf-8").replace(" ", "")]
