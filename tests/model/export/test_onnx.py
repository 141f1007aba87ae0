import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import CNN, Pooling
from transformers import GteConfig, GteModel, set_seed

from care_qdrant.encoders.onnx import OnnxEncoder
from care_qdrant.encoders.side import Side
from care_qdrant.errors import AlteredModel, InputError, ModelError
from care_qdrant.model.card import read_card
from care_qdrant.model.care_model import CareModel
from care_qdrant.model.export.onnx import (
    add_onnx,
    export_document_encoder,
    export_int8_weights,
    export_query_encoder,
)
from care_qdrant.model.folder import describe_side, verify_checkpoint, write_checkpoint
from care_qdrant.model.hub import BUILT_IN, find_folder
from care_qdrant.model.rewrite import to_int8
from tests import tiny
from tests.encoders.conftest import Exported
from tests.model.test_plain_models import BART, T5, transformer


def test_the_record_says_what_is_in_the_folder(exported: Exported) -> None:
    folder, files = exported("cls")

    assert files.fp32 is not None
    assert files.int8 is not None
    assert (folder / files.fp32).is_file()
    assert (folder / files.int8).stat().st_size < (folder / files.fp32).stat().st_size
    assert files.gate["probes"] == len(tiny.TEXTS)
    assert files.default == ("int8" if files.gate["passed"] else "fp32")
    json.dumps(dict(files.gate))
    assert not list(folder.glob(".onnx.*")), "the building place was left behind"


def test_documents_and_judgements_bring_the_ranking_figures(exported: Exported, tmp_path: Path) -> None:
    folder = shutil.copytree(exported("mean")[0], tmp_path / "query")
    documents = OnnxEncoder(folder, "onnx/model.onnx", Side("cls", 48), 32).encode(tiny.medical_texts(50))

    files = export_query_encoder(
        folder,
        tiny.TEXTS,
        document_vectors=documents,
        relevant=[[row] for row in range(len(tiny.TEXTS))],
        keep_fp32=False,
    )

    assert 0 <= files.gate["overlap_at_10"] <= 1
    assert 0 <= files.gate["ndcg_at_10_int8"] <= 1
    # A folder always keeps a graph that may be used.
    assert (files.fp32 is None) is files.gate["passed"]
    assert (folder / "onnx/model.onnx").exists() is not files.gate["passed"]


def test_no_probe_texts_are_refused(exported: Exported) -> None:
    with pytest.raises(InputError, match="probe texts"):
        export_query_encoder(exported("cls")[0], [])


def test_pooling_that_leaves_the_prompt_out_is_refused(exported: Exported, tmp_path: Path) -> None:
    folder = shutil.copytree(exported("mean")[0], tmp_path / "query")
    config = folder / "1_Pooling" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "include_prompt": False}))

    with pytest.raises(ModelError, match="prompt"):
        export_query_encoder(folder, tiny.TEXTS)


def test_an_encoder_with_rotary_positions_and_a_projection(tmp_path: Path) -> None:
    """The family of the paper's query encoder, gte-multilingual-base."""
    tokenizer = tiny.bert_tokenizer()
    set_seed(0)
    config = GteConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        pad_token_id=0,
    )
    GteModel(config).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    transformer = Transformer(str(tmp_path / "base"), max_seq_length=48)
    modules = [transformer, Pooling(32, "cls"), Dense(32, 16), Normalize()]
    stock = SentenceTransformer(modules=modules, device="cpu")
    stock.save_pretrained(str(tmp_path / "query"), create_model_card=False)

    export_query_encoder(tmp_path / "query", tiny.TEXTS)
    encoder = OnnxEncoder(tmp_path / "query", "onnx/model.onnx", Side("cls", 48), 16)

    texts = tiny.medical_texts(12)
    np.testing.assert_allclose(encoder.encode(texts), stock.encode_query(texts), atol=1e-5, rtol=0)


def test_a_weighted_mean_is_exported_with_its_weights(tmp_path: Path) -> None:
    folder = tiny.weighted_tower(tmp_path / "weighted")
    model = SentenceTransformer(str(folder), device="cpu")

    export_query_encoder(folder, tiny.TEXTS)

    vectors = OnnxEncoder(folder, "onnx/model.onnx", Side("cls", 48), 32).encode(tiny.TEXTS)
    np.testing.assert_allclose(vectors, model.encode(tiny.TEXTS), atol=1e-5)


def test_a_graph_that_reads_padding_is_refused_where_no_probe_text_is_padded(tmp_path: Path) -> None:
    """The texts are longer than the encoder reads, so all of them are cut to one length."""
    transformer = SentenceTransformer(str(tiny.query_tower(tmp_path / "bert")), device="cpu")[0]
    transformer.max_seq_length = 8
    modules = [transformer, CNN(32, out_channels=32, kernel_sizes=[3]), Pooling(32, "mean"), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(tmp_path / "q"), create_model_card=False)
    with pytest.raises(ModelError, match="gives other vectors than its weights"):
        export_query_encoder(tmp_path / "q", tiny.TEXTS)
    assert not (tmp_path / "q" / "onnx").exists()


@pytest.mark.parametrize("kind", ["t5", "led"])
def test_a_model_that_onnx_cannot_hold_is_named(tmp_path: Path, kind: str) -> None:
    settings = T5 if kind == "t5" else {**BART, "attention_window": 4, "eos_token_id": 3, "bos_token_id": 2}
    folder = transformer(tmp_path / kind, **settings)
    with pytest.raises(ModelError, match=r"torch 2.* cannot export it to ONNX \(\w+\), it only runs it"):
        export_query_encoder(folder, tiny.TEXTS)


@pytest.mark.parametrize("pooling", ["mean", pytest.param("cls", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "zero",
    [
        ("attention.output", "output"),
        pytest.param(("attention.output",), marks=pytest.mark.slow),
        pytest.param(("output",), marks=pytest.mark.slow),
    ],
)
def test_what_projections_of_zeros_add_is_not_computed(
    exported: Exported, tmp_path: Path, pooling: str, zero: tuple[str, ...]
) -> None:
    """The layers of a table of token vectors that is stored as a BERT."""
    folder = shutil.copytree(exported(pooling)[0], tmp_path / "query")
    weights = load_file(folder / "model.safetensors")
    ends = tuple(f".layer.1.{name}.dense.{kind}" for name in zero for kind in ("weight", "bias"))
    assert sum(name.endswith(ends) for name in weights) == 2 * len(zero)
    weights = {name: torch.zeros_like(value) if name.endswith(ends) else value for name, value in weights.items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    before = Counter(node.op_type for node in onnx.load(folder / "onnx/model.onnx").graph.node)

    export_query_encoder(folder, tiny.TEXTS)

    after = Counter(node.op_type for node in onnx.load(folder / "onnx/model.onnx").graph.node)
    assert before["Attention"] - after["Attention"] == ("attention.output" in zero)
    assert before["Gelu"] - after["Gelu"] == ("output" in zero)
    texts = tiny.medical_texts(12)
    stock = SentenceTransformer(str(folder), device="cpu").encode_query(texts)
    vectors = OnnxEncoder(folder, "onnx/model.onnx", *describe_side(folder, "query")).encode(texts)
    np.testing.assert_allclose(vectors, stock, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "precision",
    ["bfloat16", *(pytest.param(precision, marks=pytest.mark.slow) for precision in ("float16", "float32"))],
)
def test_a_document_encoder_is_exported_without_a_second_copy_of_its_weights(tmp_path: Path, precision: str) -> None:
    folder = tiny.document_tower(tmp_path / "document")
    weights = load_file(folder / "model.safetensors")
    kind = getattr(torch, precision)
    save_file({name: value.to(kind) for name, value in weights.items()}, folder / "model.safetensors", {"format": "pt"})

    files = export_document_encoder(folder)

    assert files.fp32 == "model.onnx"
    assert (folder / "model.onnx").stat().st_size < (folder / "model.safetensors").stat().st_size
    stock = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})
    texts = tiny.medical_texts(12)
    vectors = OnnxEncoder(folder, "model.onnx", Side("cls", 96), 32, workers=2).encode(texts)
    np.testing.assert_allclose(vectors, stock.encode_document(texts), atol=1e-5, rtol=0)
    assert not list(folder.glob(".model.onnx*"))


def test_a_folder_gets_its_document_encoder_and_keeps_its_fingerprint(tmp_path: Path) -> None:
    folder = tiny.care_folder(tmp_path / "pair", onnx=True)
    before = read_card(folder)

    add_onnx(folder)
    card = add_onnx(folder)

    assert card.fingerprint == before.fingerprint == verify_checkpoint(folder).fingerprint
    model, stock = CareModel.load(folder), CareModel.load(folder, device="cpu")
    assert isinstance(model.document_encoder, OnnxEncoder)
    texts = [*tiny.TEXTS, "很长" * 100]
    np.testing.assert_allclose(model.encode_document(texts), stock.encode_document(texts), atol=1e-5, rtol=0)


def test_the_queries_of_the_included_pair_are_a_lookup_and_its_documents_twelve_layers_of_integers() -> None:
    operators = {
        side: Counter(node.op_type for node in onnx.load(find_folder(BUILT_IN) / side / "model.onnx").graph.node)
        for side in ("query", "document")
    }
    assert operators["query"]["Gather"] and not operators["query"].keys() & {"MatMul", "Attention", "Gelu", "Softmax"}
    assert operators["document"]["Attention"] == operators["document"]["Gelu"] == 12
    assert operators["document"]["MatMulIntegerToFloat"] == 72 and not operators["document"]["MatMul"]


def test_weights_of_eight_bits_serve_both_engines(tmp_path: Path) -> None:
    """A folder without float weights: onnxruntime reads their levels, torch what they stand for, others nothing."""
    sides = {"query": tiny.static_tower(tmp_path / "query"), "document": tiny.query_tower(tmp_path / "document")}
    exact = {side: SentenceTransformer(str(folder), device="cpu").encode(tiny.TEXTS) for side, folder in sides.items()}
    files = {}
    for side, folder in sides.items():
        to_int8(folder)
        files[side] = export_int8_weights(folder, side, tiny.TEXTS)  # type: ignore[arg-type]
        with pytest.raises(Exception, match=r"model\.safetensors|weights"):
            SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    folder = tmp_path / "pair"
    write_checkpoint(folder, name="pair", **sides, onnx=files["query"], document_onnx=files["document"])  # type: ignore[arg-type]
    model, torch_model = CareModel.load(folder), CareModel.load(folder, device="cpu")
    assert isinstance(model.query_encoder, OnnxEncoder) and isinstance(model.document_encoder, OnnxEncoder)
    for found in (model.encode_document(tiny.TEXTS), torch_model.encode_document(tiny.TEXTS)):
        assert (found * exact["document"]).sum(axis=1).min() > 0.995
    assert (model.encode_query(tiny.TEXTS) * exact["query"]).sum(axis=1).min() > 0.995
    before = read_card(folder)
    assert add_onnx(folder).fingerprint == before.fingerprint

    (folder / "query/int8.safetensors").write_bytes((folder / "query/int8.safetensors").read_bytes()[:-1] + b"?")
    with pytest.raises(AlteredModel, match=r"int8\.safetensors is not the file"):
        CareModel.load(folder).encode_query(tiny.TEXTS)
