"""A learned query encoder as a CARE folder: a stock sentence-transformers model, ONNX, and a card."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize

from care_qdrant.encoders.torch import no_progress_bars
from care_qdrant.model.card import Card
from care_qdrant.model.export_onnx import export_query_encoder
from care_qdrant.model.folder import write_checkpoint
from care_qdrant.types import Vectors


@no_progress_bars()
def write_folder(
    folder: Path,
    encoder: SentenceTransformer,
    basis: Vectors | None,
    *,
    name: str,
    document: Path | None,
    probe_texts: Sequence[str],
    document_vectors: Vectors,
    temperature: float,
    stage: Mapping[str, Any],
    origin: Mapping[str, Any],
) -> Card:
    """Save a query encoder as a complete sentence-transformers model, export it and write the CARE folder."""
    with tempfile.TemporaryDirectory(prefix="care-learn-") as scratch:
        query = Path(scratch) / "query"
        _write_encoder(query, encoder, basis)
        onnx = export_query_encoder(query, probe_texts, document_vectors=document_vectors, keep_fp32=False)
        return write_checkpoint(
            folder,
            name=name,
            query=query,
            document=document,
            onnx=onnx,
            temperature=temperature,
            stages=[stage],
            bases=[origin],
            data=[{"source": origin["name"], "rows": stage["texts"], "license": "of the collection"}],
            model_card=_model_card(name, origin, stage),
        )


def _write_encoder(folder: Path, encoder: SentenceTransformer, basis: Vectors | None) -> None:
    modules: list[torch.nn.Module] = list(encoder.children())
    if basis is not None:
        width, dim = basis.shape
        dense = Dense(width, dim, bias=False, activation_function=torch.nn.Identity())
        with torch.no_grad():
            dense.linear.weight.copy_(torch.from_numpy(basis.T))
        modules.append(dense)
    model = SentenceTransformer(
        modules=[*modules, Normalize()],
        prompts={"query": encoder.prompts.get("query") or ""},
        similarity_fn_name="cosine",
        device="cpu",
    )
    model.save_pretrained(str(folder), create_model_card=False)


def _model_card(name: str, origin: Mapping[str, Any], stage: Mapping[str, Any]) -> str:
    return (
        f"# {name}\n\nA query encoder learned from {origin['name']}: {stage['texts']:,} texts and the vectors that are "
        "stored for them. It encodes queries only. What it finds, what a query costs and when not to use it is in "
        "`report.md`.\n"
    )
