"""A trained table of token vectors as a CARE folder: a stock sentence-transformers model, ONNX, and a card."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer

from care_qdrant.checkpoint.card import Card
from care_qdrant.checkpoint.folder import write_checkpoint
from care_qdrant.export.onnx import export_query_encoder
from care_qdrant.types import Vectors

_UNSEEN = 1e-3
"""Length of the vector of a token that no text has, in that of an average one: an unknown word alone finds something
average instead of ending in a division by zero."""


def write_encoder(folder: Path, tokenizer: Tokenizer, table: Vectors, basis: Vectors | None) -> None:
    """Save a query encoder as a complete sentence-transformers model.

    Args:
        folder: Destination.
        tokenizer: Of the table.
        table: Token vectors, (tokens, width).
        basis: Orthonormal rows (width, dim) that lead to the dimensions of the collection; None for the same ones.
    """
    modules: list[torch.nn.Module] = [StaticEmbedding(tokenizer, embedding_weights=torch.from_numpy(table))]
    if basis is not None:
        width, dim = basis.shape
        dense = Dense(width, dim, bias=False, activation_function=torch.nn.Identity())
        with torch.no_grad():
            dense.linear.weight.copy_(torch.from_numpy(basis.T))
        modules.append(dense)
    model = SentenceTransformer(modules=[*modules, Normalize()], similarity_fn_name="cosine", device="cpu")
    model.save_pretrained(str(folder), create_model_card=False)


def write_folder(
    folder: Path,
    encoder: Path,
    *,
    name: str,
    document: Path | None,
    probe_texts: Sequence[str],
    document_vectors: Vectors,
    temperature: float,
    stage: Mapping[str, Any],
    origin: Mapping[str, Any],
    model_card: str,
) -> Card:
    """Export a saved query encoder to ONNX and write the CARE folder.

    Args:
        folder: Destination; a CARE folder there is replaced.
        encoder: The saved query encoder.
        name: Of the pair.
        document: Folder of the model that made the vectors; None where it is not to hand.
        probe_texts: Questions on which the int8 form has to pass its gate.
        document_vectors: Stored vectors, (n, dim), for the same gate.
        temperature: Of the contrastive loss.
        stage: Settings and figures of the training run.
        origin: The collection and the vector that it was learned from.
        model_card: Content of README.md.
    """
    with tempfile.TemporaryDirectory(prefix="care-learn-") as scratch:
        query = Path(scratch) / "query"
        SentenceTransformer(str(encoder), device="cpu").save_pretrained(str(query), create_model_card=False)
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
            model_card=model_card,
        )


def finished(table: Vectors, counts: Vectors, mean: Vectors) -> Vectors:
    """Return the table in which tokens that no text has point a little towards the mean stored vector.

    Args:
        table: Token vectors, (tokens, width).
        counts: How often the texts have each token, (tokens,).
        mean: Mean stored vector, (width,).
    """
    lengths = torch.from_numpy(table).norm(dim=1).numpy()
    seen = counts > 0
    average = float(lengths[seen].mean()) if seen.any() else 1.0
    table = table.copy()
    table[~seen] = _UNSEEN * average * mean / max(float((mean**2).sum() ** 0.5), 1e-9)
    return table
