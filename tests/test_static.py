"""A query encoder that is a table of token vectors goes the way of any other: folder, onnxruntime, torch, refusals."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from sentence_transformers import SentenceTransformer

from care_qdrant.cli import care
from care_qdrant.encoders.side import UNLIMITED
from care_qdrant.errors import EncodingError, ModelError
from care_qdrant.model.adopt.importing import join_encoders
from care_qdrant.model.care_model import CareModel
from care_qdrant.model.folder import describe_side, verify_checkpoint
from tests import tiny

TEXTS = [*tiny.TEXTS, "".join(tiny.TEXTS)]
"""The last one is longer than the encoder reads."""


@pytest.fixture(scope="module")
def static_pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("static")
    query, document = tiny.static_tower(root / "query"), tiny.document_tower(root / "document")
    join_encoders(query, document, root / "pair", name="static", probe_texts=tiny.TEXTS)
    return root / "pair"


def test_the_card_says_what_a_static_encoder_reads(static_pair: Path) -> None:
    side = verify_checkpoint(static_pair).query
    assert (side.pooling, side.max_tokens, side.special_tokens) == ("static", 12, False)
    shown = CliRunner().invoke(care, ["model", "info", str(static_pair)]).output
    assert "static pooling, 12 tokens" in shown


def test_a_card_without_a_limit_says_so(tmp_path: Path) -> None:
    query = tiny.static_tower(tmp_path / "query", max_tokens=None)
    join_encoders(query, tiny.document_tower(tmp_path / "document"), tmp_path / "pair", name="static")
    shown = CliRunner().invoke(care, ["model", "info", str(tmp_path / "pair")]).output
    assert "static pooling, any number of tokens" in shown


def test_the_vectors_are_those_of_stock_sentence_transformers(static_pair: Path) -> None:
    stock = SentenceTransformer(str(static_pair), device="cpu")
    expected = stock.encode_query(TEXTS)
    np.testing.assert_allclose(CareModel.load(static_pair, precision="fp32").encode_query(TEXTS), expected, atol=1e-6)
    int8 = CareModel.load(static_pair, precision="int8").query_encoder
    assert np.einsum("qd,qd->q", int8.encode(TEXTS), expected).min() > 0.999
    alone = np.concatenate([int8.encode([text]) for text in TEXTS])
    np.testing.assert_allclose(int8.encode(TEXTS), alone, atol=1e-6)


def test_tokens_are_counted_without_markers_and_without_the_cut(static_pair: Path) -> None:
    encoder = CareModel.load(static_pair).query_encoder
    tokenizer = SentenceTransformer(str(static_pair / "query"), device="cpu").tokenizer
    tokenizer.no_truncation()
    lengths = [len(tokenizer.encode(text, add_special_tokens=False).ids) for text in TEXTS]
    assert lengths[-1] > encoder.max_tokens
    assert encoder.count_tokens(TEXTS) == lengths


def test_it_answers_without_torch(static_pair: Path) -> None:
    script = (
        "import sys\nfrom care_qdrant.model.care_model import CareModel\n"
        f"CareModel.load({str(static_pair)!r}).encode_query(['高血压'])\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_text_without_a_token_is_refused(static_pair: Path) -> None:
    with pytest.raises(EncodingError, match="has no tokens"):
        CareModel.load(static_pair).encode_query(["高血压", " "])


def test_without_onnx_it_runs_on_torch(tmp_path: Path) -> None:
    query, document = tiny.static_tower(tmp_path / "query"), tiny.document_tower(tmp_path / "document")
    join_encoders(query, document, tmp_path / "pair", name="static")
    encoder = CareModel.load(tmp_path / "pair").query_encoder
    expected = SentenceTransformer(str(query), device="cpu").encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=1e-6)
    assert encoder.max_tokens == 12 and encoder.count_tokens(TEXTS)[-1] > 12


def test_one_that_reads_everything_stands_in_on_both_sides(tmp_path: Path) -> None:
    folder = tiny.static_tower(tmp_path / "query", max_tokens=None)
    model = CareModel.load(folder)
    assert model.document_tokenizer.max_tokens == model.document_encoder.max_tokens == UNLIMITED
    assert model.document_tokenizer.count_tokens(TEXTS) == model.document_encoder.count_tokens(TEXTS)
    expected = SentenceTransformer(str(folder), device="cpu").encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(model.encode_document(TEXTS), expected, atol=1e-6)


def test_weights_without_a_table_are_refused(tmp_path: Path) -> None:
    folder = tiny.static_tower(tmp_path / "query")
    (folder / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    with pytest.raises(ModelError, match="holds no table of token vectors"):
        describe_side(folder, "query")


@pytest.mark.parametrize("text", ["", " ", "\n"])
@pytest.mark.parametrize("device", [None, "cpu"])
def test_a_table_has_no_vector_of_nothing(static_pair: Path, device: str | None, text: str) -> None:
    """onnxruntime and torch refuse it alike; the advice is about the text, not about the model."""
    with pytest.raises(EncodingError, match="has no token") as caught:
        CareModel.load(static_pair, device=device).encode_query(["高血压", text])
    assert "care model verify" not in str(caught.value)
