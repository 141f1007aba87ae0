"""A table of token vectors without torch: stock sentence-transformers and the ONNX graph give the same vectors."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from care_trainer.learn.token_table import TokenTable
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize

from care_qdrant.encoders.onnx import OnnxEncoder
from care_qdrant.model.folder import describe_side
from tests import tiny

LEARN_WITHOUT_TORCH = """
import sys
from pathlib import Path

for name in ("torch", "sentence_transformers", "transformers"):
    sys.modules[name] = None  # importing it fails, as where it is not installed
from care_trainer.learn.learn import learn
from qdrant_client import QdrantClient
from tests.trainer.learn.collections import WordModel, word_texts, write_langchain
from tests.trainer.learn.conftest import SETTINGS

client, texts = QdrantClient(":memory:"), word_texts(400)
write_langchain(client, texts, WordModel().encode(texts))
report = learn(client, "articles", Path(sys.argv[1]), settings=SETTINGS)
learn(client, "articles", Path(sys.argv[1]), settings=SETTINGS, start=Path(sys.argv[1]))
print(report.registered)
"""


def stock(folder: Path, *, dim: int | None, bias: bool = False) -> SentenceTransformer:
    """A table that sentence-transformers has saved, with a linear map behind it where ``dim`` is another one."""
    modules = list(SentenceTransformer(str(tiny.static_tower(folder / "plain")), device="cpu").children())
    if dim is not None:
        modules.insert(1, Dense(32, dim, bias=bias, activation_function=torch.nn.Identity()))
    prompts = {"query": "感冒：", "document": ""}
    model = SentenceTransformer(modules=modules, prompts=prompts, similarity_fn_name="cosine", device="cpu")
    model.save_pretrained(str(folder / "stock"), create_model_card=False)
    return model


@pytest.mark.parametrize("dim", [None, 20])
def test_a_table_reads_writes_and_exports_what_sentence_transformers_encodes(tmp_path: Path, dim: int | None) -> None:
    expected = stock(tmp_path, dim=dim).encode_query(tiny.TEXTS)
    table = TokenTable.load(tmp_path / "stock")
    assert table is not None
    np.testing.assert_allclose(table.encode(tiny.TEXTS), expected, atol=1e-6)
    table.save(tmp_path / "own")
    again = SentenceTransformer(str(tmp_path / "own"), device="cpu")
    np.testing.assert_allclose(again.encode_query(tiny.TEXTS), expected, atol=1e-6)
    assert [type(module) for module in again][-1] is Normalize
    table.write_graph(tmp_path / "own/model.onnx")
    side, width = describe_side(tmp_path / "own", "query")
    encoder = OnnxEncoder(tmp_path / "own", "model.onnx", side, width)
    np.testing.assert_allclose(encoder.encode(tiny.TEXTS), expected, atol=1e-6)


def test_other_encoders_are_no_tables(tmp_path: Path) -> None:
    stock(tmp_path, dim=20, bias=True)
    assert TokenTable.load(tmp_path / "stock") is None
    assert TokenTable.load(tiny.query_tower(tmp_path / "layers")) is None


@pytest.mark.timeout(300)
def test_a_collection_is_learned_where_torch_is_not_installed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LEARN_WITHOUT_TORCH, str(tmp_path / "queries")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert (done.returncode, done.stdout.split()) == (0, ["True"]), done.stderr
