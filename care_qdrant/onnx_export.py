"""Export a query encoder to ONNX, in float32 and in int8, and measure what int8 costs (extra ``onnx``).

The graph takes ``input_ids`` and ``attention_mask`` and gives unit vectors. Pooling and normalisation are inside, so
the serving side needs only onnxruntime and tokenizers.
"""

import logging
import warnings
from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from care_qdrant.card import OnnxFiles
from care_qdrant.checkpoint import describe_side
from care_qdrant.encoders.onnx import OnnxEncoder
from care_qdrant.errors import InputError, ModelError, needs_extra
from care_qdrant.onnx_gate import Gate, compare
from care_qdrant.onnx_int8 import quantize
from care_qdrant.types import Vectors

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

FP32_FILE = "onnx/model.onnx"
INT8_FILE = "onnx/model_int8.onnx"
FP32_TOLERANCE = 1e-5
"""Largest difference of a coordinate from stock sentence-transformers; above it the export is refused."""
logger = logging.getLogger(__name__)


def export_query_encoder(
    query_folder: Path,
    probe_texts: Sequence[str],
    *,
    document_vectors: Vectors | None = None,
    relevant: Sequence[Collection[int]] | None = None,
    keep_fp32: bool = True,
) -> OnnxFiles:
    """Write ``onnx/model.onnx`` and ``onnx/model_int8.onnx`` into a saved sentence-transformers query encoder.

    int8 becomes the default only where it passes the gate (`care_qdrant.onnx_gate`).

    Args:
        query_folder: A complete sentence-transformers model.
        probe_texts: Real queries, at least one; a few hundred make the gate's figures mean something.
        document_vectors: (n, dim) unit rows; with them the gate also compares the ten best documents.
        relevant: For each probe the rows of the documents that answer it; with them the gate also compares nDCG@10.
        keep_fp32: Leave the float32 graph in the folder; without it the folder is four bytes a parameter smaller.

    Raises:
        MissingExtra: torch, sentence-transformers or onnx are not installed.
        InputError: there are no probe texts.
        ModelError: the model cannot be exported, or the exported graph gives other vectors.
    """
    if not probe_texts:
        raise InputError("an export needs probe texts: give real queries, a few hundred if you have them")
    tower = _load_tower(query_folder)
    fp32, int8 = query_folder / FP32_FILE, query_folder / INT8_FILE
    fp32.parent.mkdir(exist_ok=True)
    _export_fp32(tower, fp32)
    stock = tower.encode_query(list(probe_texts), convert_to_numpy=True, normalize_embeddings=True)
    exact = _encode(query_folder, FP32_FILE, probe_texts)
    _check_equal(fp32, exact, stock)
    quantize(fp32, int8)
    gate = compare(exact, _encode(query_folder, INT8_FILE, probe_texts), document_vectors, relevant)
    logger.info("int8 gate of %s: %s", query_folder, gate)
    return _settle(fp32, gate, keep_fp32)


def _load_tower(folder: Path) -> "SentenceTransformer":
    with needs_extra("onnx", "the ONNX export"):
        import onnx  # noqa: F401
        import torch
        from sentence_transformers import SentenceTransformer

    tower = SentenceTransformer(
        str(folder),
        device="cpu",
        local_files_only=True,
        model_kwargs={"dtype": torch.float32, "attn_implementation": "sdpa"},
    )
    if not all(getattr(module, "include_prompt", True) for module in tower):
        raise ModelError(
            f"{folder}: pools without its prompt, which the exported graph cannot; pool over the prompt too"
        )
    return tower.eval()


def _export_fp32(tower: "SentenceTransformer", file: Path) -> None:
    import torch

    from care_qdrant.onnx_graph import QueryGraph

    input_ids = torch.ones((2, 8), dtype=torch.int64)
    attention_mask = torch.tensor([[1] * 8, [1] * 5 + [0] * 3])
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=tower.max_seq_length)}
    graph = QueryGraph(tower).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns about its own internals
        torch.onnx.export(
            graph,
            (input_ids, attention_mask),
            file,
            input_names=["input_ids", "attention_mask"],
            output_names=["sentence_embedding"],
            dynamic_shapes=(axes, axes),
            opset_version=graph.opset,
            external_data=False,
            dynamo=True,
            verbose=False,
        )


def _encode(folder: Path, onnx_file: str, texts: Sequence[str]) -> Vectors:
    side, dim = describe_side(folder, "query")
    encoder = OnnxEncoder(folder, onnx_file, dim=dim, max_tokens=side.max_tokens, prompt=side.prompt)
    return encoder.encode(texts)


def _check_equal(file: Path, found: Vectors, expected: Vectors) -> None:
    difference = float(np.abs(found - expected).max())
    if not difference <= FP32_TOLERANCE:
        raise ModelError(
            f"{file}: gives other vectors than sentence-transformers (largest difference {difference:.1e}, allowed "
            f"{FP32_TOLERANCE:.0e}), so it must not be used; report the model's architecture"
        )


def _settle(fp32: Path, gate: Gate, keep_fp32: bool) -> OnnxFiles:
    """Keep what the gate allows."""
    if gate.passed and not keep_fp32:
        fp32.unlink()
    return OnnxFiles(
        fp32=FP32_FILE if fp32.exists() else None,
        int8=INT8_FILE,
        default="int8" if gate.passed else "fp32",
        gate={**asdict(gate), "passed": gate.passed},
    )
