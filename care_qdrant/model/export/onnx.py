"""Export encoders to ONNX (extra ``onnx``): queries in float32 and int8, with what int8 costs; documents in float32.

The graph takes ``input_ids`` and ``attention_mask`` and gives unit vectors. Pooling and normalisation are inside, so
a machine that serves it needs only onnxruntime and tokenizers.
"""

import logging
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from care_qdrant.destinations import require_writable
from care_qdrant.encoders.agreement import LEAST_INT8_WEIGHTS
from care_qdrant.encoders.batching import read_tokenizer
from care_qdrant.encoders.local.torch import cuts_unit_vectors, load_sentence_transformer, require_same_tokens
from care_qdrant.encoders.local.weights import INT8, read_tensors, weight_files
from care_qdrant.encoders.onnx import OnnxEncoder
from care_qdrant.encoders.references import REFERENCE_TEXTS, Reference, make_references
from care_qdrant.errors import InputError, ModelError, needs_extra
from care_qdrant.model.card import FORMAT, SHARING_ONNX, Card, FileEntry, OnnxFiles, bind_references, read_card, sha256
from care_qdrant.model.engines import Role
from care_qdrant.model.export.gate import compare
from care_qdrant.model.export.int8 import quantize
from care_qdrant.model.folder import describe_side, geometry_of, verify_checkpoint
from care_qdrant.types import Vectors

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

FP32_FILE = "onnx/model.onnx"
INT8_FILE = "onnx/model_int8.onnx"
FP32_TOLERANCE = 1e-5
"""Largest difference of a coordinate from stock sentence-transformers; above it the export is refused."""

_PADDED = ("a", "a b", "a b c", "a b c d")
"""Texts of neighbouring lengths, most of which are padded: where a convolution reads padding, their vectors differ."""

logger = logging.getLogger(__name__)


class Exportable(Protocol):
    """An encoder that writes its own graph."""

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Encode texts into unit vectors, in order."""

    def write_graph(self, file: Path) -> None:
        """Write the float32 graph, from token ids and mask to unit vectors."""


def add_onnx(folder: Path) -> Card:
    """Export the document encoder of a CARE folder to ONNX, and bind the ONNX files of both sides to its fingerprint.

    The fingerprint stays, and with it every collection that the model made. The folder is usable at any moment but one
    between writing the graph and writing the card, when it is refused; calling this again repairs that.
    """
    require_writable(folder / "document")
    path = f"document/{SHARING_ONNX}"
    if path not in read_card(folder).files:
        (folder / path).unlink(missing_ok=True)
    card = verify_checkpoint(folder)
    query = card.onnx and replace(card.onnx, references=_references(_load_tower(folder / "query"), "query"))
    document = export_document_encoder(folder / "document")
    card = replace(
        card,
        files={**card.files, path: FileEntry(sha256(folder / path), (folder / path).stat().st_size)},
        onnx=query,
        document_onnx=document,
        references_sha256=bind_references(card.fingerprint, query, document),
        format=FORMAT,
    )
    card.save(folder)
    return card


def export_query_encoder(
    query_folder: str | Path,
    probe_texts: Sequence[str],
    *,
    document_vectors: Vectors | None = None,
    relevant: Sequence[Collection[int]] | None = None,
    keep_fp32: bool = True,
    own: Exportable | None = None,
) -> OnnxFiles:
    """Write ``onnx/model.onnx`` and ``onnx/model_int8.onnx`` into a saved sentence-transformers query encoder.

    int8 becomes the default only where it passes the gate (`care_qdrant.model.export.gate`).

    Args:
        query_folder: A complete sentence-transformers model.
        probe_texts: Real queries, at least one; a few hundred make the gate's figures mean something.
        document_vectors: (n, dim) unit rows; with them the gate also compares the ten best documents.
        relevant: For each probe the rows of the documents that answer it; with them the gate also compares nDCG@10.
        keep_fp32: Leave the float32 graph in the folder; without it the folder is four bytes a parameter smaller.
        own: The encoder that was saved there, where it needs no torch; None loads the folder with torch.

    Raises:
        MissingExtra: Onnx is not installed, or torch where ``own`` is None.
        InputError: There are no probe texts.
        ModelError: The model cannot be exported, or the exported graph gives other vectors.
    """
    query_folder = Path(query_folder)
    if not probe_texts:
        raise InputError("an export needs probe texts: give real queries, a few hundred if you have them")
    encode: Callable[[Sequence[str]], Vectors]
    write: Callable[[Path], None]
    if own is None:
        tower = _load_tower(query_folder)
        encode, write = partial(_encode_stock, tower, "query"), partial(_export_fp32, tower)
    else:
        encode, write = own.encode, own.write_graph
    # Built in a temporary folder: a failed export leaves no graph that would be served.
    with tempfile.TemporaryDirectory(dir=query_folder, prefix=".onnx.") as building:
        fp32, int8 = Path(building) / "fp32.onnx", Path(building) / "int8.onnx"
        write(fp32)
        exact = _encode(query_folder, "query", fp32, probe_texts)
        _check_equal(query_folder, exact, encode(probe_texts))
        if own is None:
            _check_padding(tower, query_folder, "query", fp32)
        quantize(fp32, int8)
        gate = compare(exact, _encode(query_folder, "query", int8, probe_texts), document_vectors, relevant)
        logger.info(
            "int8 query encoder: %s (cosine with float32 on %d probe queries: mean %.4f, lowest %.4f)",
            "close enough, and the default" if gate.passed else "too far from float32, which stays the default",
            gate.probes,
            gate.mean_cosine,
            gate.min_cosine,
        )
        keep_fp32 = keep_fp32 or not gate.passed
        (query_folder / FP32_FILE).parent.mkdir(exist_ok=True)
        (query_folder / FP32_FILE).unlink(missing_ok=True)
        if keep_fp32:
            fp32.replace(query_folder / FP32_FILE)
        int8.replace(query_folder / INT8_FILE)
    return OnnxFiles(
        fp32=FP32_FILE if keep_fp32 else None,
        int8=INT8_FILE,
        default="int8" if gate.passed else "fp32",
        gate={**asdict(gate), "passed": gate.passed},
        references=make_references(encode),
    )


def export_document_encoder(document_folder: Path, probe_texts: Sequence[str] = REFERENCE_TEXTS) -> OnnxFiles:
    """Write ``model.onnx`` into a saved sentence-transformers document encoder.

    The graph is small: it reads the weights of ``model.safetensors`` next to it (`model.export.shared_weights`).
    Weights that are stored in 8 bits give an int8 graph (`export_int8_weights`). Others do not: documents are encoded
    once, and the loss would affect every query.
    """
    if (document_folder / INT8).is_file():
        return export_int8_weights(document_folder, "document", probe_texts)
    tower = _load_tower(document_folder)
    table = read_tensors(weight_files(document_folder)).get("embeddings")
    is_int8 = table is not None and table.dtype == "I8"  # rows of int8, as model2vec saves them: int8 is exact
    with _sharing_graph(tower, document_folder, int8=is_int8) as building:
        vectors = _encode(document_folder, "document", building, probe_texts)
        _check_equal(document_folder, vectors, _encode_stock(tower, "document", probe_texts))
        _check_padding(tower, document_folder, "document", building)
    return OnnxFiles(fp32=SHARING_ONNX, int8=None, default="fp32", references=_references(tower, "document"))


def export_int8_weights(folder: Path, side: Role, probe_texts: Sequence[str]) -> OnnxFiles:
    """Write ``model.onnx`` into an encoder whose weights are stored in 8 bits; it has no float32 graph.

    Args:
        folder: Folder of the encoder, with weights by `care_qdrant.model.rewrite.to_int8`.
        side: The side that it encodes.
        probe_texts: Texts of that side, at least one; a few hundred make the gate's figures mean something.

    Raises:
        ModelError: Rounding activations as well changes a vector too much.
    """
    tower = _load_tower(folder)
    with _sharing_graph(tower, folder, int8=True) as building:
        gate = compare(_encode_stock(tower, side, probe_texts), _encode(folder, side, building, probe_texts))
        # Not by the gate's mean: it is for int8 queries among float32 documents, and here one graph makes all vectors.
        if not gate.min_cosine >= LEAST_INT8_WEIGHTS:
            raise ModelError(
                f"{folder}: its int8 graph is too far from its weights (lowest cosine {gate.min_cosine}, expected "
                f"{LEAST_INT8_WEIGHTS} or more), so it was not written; keep the weights in float32"
            )
    return OnnxFiles(
        fp32=None,
        int8=SHARING_ONNX,
        default="int8",
        gate={**asdict(gate), "passed": gate.passed},
        references=_references(tower, side),
    )


@contextmanager
def _sharing_graph(tower: "SentenceTransformer", folder: Path, *, int8: bool) -> Iterator[Path]:
    """Yield a graph that reads the weights in its folder; move it into place if the block succeeds."""
    import onnx

    from care_qdrant.model.export.shared_weights import share_weights

    # Built next to its destination, since onnxruntime reads external weights only below the folder of the graph.
    building = folder / f".{SHARING_ONNX}.partial"
    try:
        with tempfile.TemporaryDirectory(prefix="care-onnx-") as scratch:
            whole = Path(scratch) / "whole.onnx"
            _export_fp32(tower, whole)
            if int8:
                quantize(whole, whole)  # exact: the rows have these levels already
            model = onnx.load(whole)
        share_weights(model, folder)
        for node in model.graph.node:
            del node.metadata_props[:]  # where in which source each node was traced: most of the file
        building.write_bytes(model.SerializeToString())
        yield building
        building.replace(folder / SHARING_ONNX)
    finally:
        building.unlink(missing_ok=True)


def _load_tower(folder: Path) -> "SentenceTransformer":
    with needs_extra("onnx", "the ONNX export"):
        import onnxscript  # noqa: F401  # torch's exporter needs it

    settings, _ = describe_side(folder, "query")  # refuses modules that make no single vector of a text
    tower = load_sentence_transformer(folder, "cpu", "float32")
    if settings.special_tokens:
        tokenizer = read_tokenizer(folder)
        tokenizer.no_padding()
        tokenizer.enable_truncation(settings.max_tokens)
        require_same_tokens(tower, tokenizer.encode, settings.max_tokens, "query")
    if not all(getattr(module, "include_prompt", True) for module in tower):
        raise ModelError(
            f"{folder}: pools without its prompt, which the exported graph cannot; pool over the prompt too"
        )
    return tower


def _export_fp32(tower: "SentenceTransformer", file: Path) -> None:
    import torch

    from care_qdrant.model.export.shared_weights import QueryGraph, is_static

    input_ids = torch.ones((2, 8), dtype=torch.int64)
    attention_mask = torch.tensor([[1] * 8, [1] * 5 + [0] * 3])
    longest = None if is_static(tower) else tower.max_seq_length
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=longest)}
    graph = QueryGraph(tower).eval()
    # It warns that torchvision is missing, which no query encoder needs.
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    try:
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
    except Exception as error:  # the exporter's own kinds, and those of any layer that it cannot trace
        name = type(getattr(tower[0], "model", tower[0])).__name__
        raise ModelError(
            f"{name}: torch {torch.__version__} cannot export it to ONNX ({type(error).__name__}), it only runs it"
        ) from error


def _references(tower: "SentenceTransformer", side: str) -> tuple[Reference, ...]:
    return make_references(lambda texts: _encode_stock(tower, side, texts))


def _encode_stock(tower: "SentenceTransformer", side: str, texts: Sequence[str]) -> Vectors:
    encode = tower.encode_query if side == "query" else tower.encode_document
    # One by one: a tokenizer that pads on the left gives a BERT other positions in a batch, which the graph never does.
    vectors: Vectors = encode(
        list(texts), batch_size=1, normalize_embeddings=not cuts_unit_vectors(tower), show_progress_bar=False
    )
    return vectors


def _encode(folder: Path, side: str, onnx_file: Path, texts: Sequence[str]) -> Vectors:
    settings, dim = describe_side(folder, side)
    geometry = geometry_of(folder)
    return OnnxEncoder(folder, str(onnx_file.resolve()), settings, dim, geometry=geometry).encode(texts)


def _check_padding(tower: "SentenceTransformer", folder: Path, side: Role, file: Path) -> None:
    """Refuse a graph that reads padding, which probe texts need not show: cut at the limit, they have none."""
    from care_qdrant.model.export.shared_weights import is_static

    if not is_static(tower):  # which has no layers, and perhaps no token for these
        _check_equal(folder, _encode(folder, side, file, _PADDED), _encode_stock(tower, side, _PADDED))


def _check_equal(folder: Path, exported: Vectors, expected: Vectors) -> None:
    difference = float(np.abs(exported - expected).max())
    if not difference <= FP32_TOLERANCE:
        raise ModelError(
            f"{folder}: its ONNX graph gives other vectors than its weights (largest difference "
            f"{difference:.1e}, allowed {FP32_TOLERANCE:.0e}), so it was not written; report the model's architecture"
        )
