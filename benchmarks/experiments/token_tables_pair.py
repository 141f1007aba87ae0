"""The tables of one variant as a CARE folder: both sides are the same static encoder, stored as int8 rows with scales.

Stock sentence-transformers loads each side: the file has model2vec's names (``embeddings``, ``weights``).
"""

import json
import tempfile
from collections import Counter
from pathlib import Path

import click
import numpy as np
import torch
from safetensors.numpy import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer

from benchmarks.experiments.token_tables import VARIANTS, Counted, Vectors, built_in_tokenizer, joined, read_task
from care_qdrant.model.export_onnx import export_document_encoder, export_query_encoder
from care_qdrant.model.folder import write_checkpoint

MAX_TOKENS = {"query": 64, "document": 160}
LICENSE = "CC-BY-4.0"
PROBES = 256
LEVELS = 127


def write_side(table: Vectors, tokenizer: Tokenizer, folder: Path, max_tokens: int) -> Path:
    """Save a table as a complete sentence-transformers model with int8 rows."""
    tokenizer = Tokenizer.from_str(json.dumps({**json.loads(tokenizer.to_str()), "post_processor": None}))
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_tokens)
    scales = np.maximum(np.abs(table).max(axis=1), 1e-12) / LEVELS
    rows = np.rint(table / scales[:, None]).astype(np.int8)
    module = StaticEmbedding(tokenizer, embedding_weights=torch.from_numpy(rows * scales[:, None]))
    SentenceTransformer(modules=[module, Normalize()], similarity_fn_name="cosine", device="cpu").save_pretrained(
        str(folder), create_model_card=False
    )
    save_file({"embeddings": rows, "weights": scales.astype(np.float32)}, folder / "model.safetensors")
    return folder


def write_pair(counted: Counted, table: Vectors, folder: Path, name: str, variant: str, seed: int) -> None:
    """Export both sides and assemble the CARE folder."""
    pairs = counted.task.pairs[:: max(1, len(counted.task.pairs) // PROBES)][:PROBES]
    with tempfile.TemporaryDirectory() as scratch:
        sides = {
            side: write_side(table, counted.tokenizer, Path(scratch) / side, limit)
            for side, limit in MAX_TOKENS.items()
        }
        documents = SentenceTransformer(str(sides["document"]), device="cpu").encode_document(
            [row["positive"] for row in pairs]
        )
        onnx = export_query_encoder(
            sides["query"],
            [row["query"] for row in pairs],
            document_vectors=documents,
            relevant=[[number] for number in range(len(pairs))],
            keep_fp32=False,
        )
        sources = Counter((row["source"], row["licence"]) for row in counted.task.pairs)
        data = [
            {"file": "pairs_open.jsonl.gz", "source": source, "license": license, "rows": rows}
            for (source, license), rows in sorted(sources.items())
        ]
        write_checkpoint(
            folder,
            name=name,
            query=sides["query"],
            document=sides["document"],
            onnx=onnx,
            document_onnx=export_document_encoder(sides["document"]),
            temperature=VARIANTS[variant][0].temperature,
            license=LICENSE,
            stages=[{"stage": "token tables", "kind": "static", "variant": variant, "seed": seed}],
            bases=[{"side": side, "name": "random weights", "revision": ""} for side in sides],
            data=data,
        )


@click.command()
@click.argument("data", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--work", type=click.Path(path_type=Path), required=True, help="Folder of trained tables.")
@click.option("--variant", type=click.Choice(list(VARIANTS)), required=True, help="Variant of token_tables.")
@click.option("--seed", default=0, show_default=True, help="Seed.")
@click.option("--name", default="care-nano", show_default=True, help="Name of the pair.")
def main(data: Path, folder: Path, work: Path, variant: str, seed: int, name: str) -> None:
    """Write the variant, trained on all publishable pairs of DATA, as the CARE folder FOLDER.

    \b
    Example:
      python -m benchmarks.experiments.token_tables_pair DATA runs/care-nano --work tables --variant "three cuts"
    """
    counted = Counted(read_task(data, "dev"), built_in_tokenizer())
    write_pair(counted, joined(counted, VARIANTS[variant], seed, work, "dev"), folder, name, variant, seed)


if __name__ == "__main__":
    main()
