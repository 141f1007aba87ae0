"""Exports a finished run as one CARE folder, and checks that its vectors are those of the trained encoders."""

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from care_qdrant.errors import InputError, TrainingError
from care_qdrant.model.card import Card, OnnxFiles
from care_qdrant.model.export_onnx import export_query_encoder
from care_qdrant.model.folder import write_checkpoint
from care_qdrant.model.rewrite import rewrite_weights
from care_qdrant.types import Vectors
from care_trainer import pipeline
from care_trainer.config import Run, Tower, stage_name
from care_trainer.data.read import Pair, is_kept, license_of, read_rows
from care_trainer.data.table import pair_rows, scored
from care_trainer.distributed import free_memory
from care_trainer.models import towers
from care_trainer.stages.context import rows_folder

TOLERANCE = 1e-4
"""Largest accepted difference of a coordinate between trained and merged vectors, both float32; it is about 1e-6."""
LEAST_COSINE = 0.999
"""Least accepted cosine between trained and exported vectors where the weights are stored in half precision."""

_HEAD = """---
language: zh
library_name: sentence-transformers
pipeline_tag: feature-extraction
tags: [asymmetric-retrieval, medical, care]
{license}---

# {name}

An asymmetric pair for retrieval: a small encoder for queries, a larger one for documents, one space of {dim}
dimensions. Recipe: arXiv 2604.10937, trained with care-qdrant.

```python
from care_qdrant import CareModel

model = CareModel.load("{name}")
queries, documents = model.encode_query(["..."]), model.encode_document(["..."])
```

Stock sentence-transformers loads the folder, too: use `encode_query` and `encode_document`.
"""


def render(
    run: Run, records: Sequence[dict[str, Any]], data: Sequence[dict[str, Any]], onnx: OnnxFiles | None, command: str
) -> str:
    """Return the model card in Markdown."""
    license = f"license: {run.export.license}\n" if run.export.license else ""
    parts = [
        _HEAD.format(name=run.name, dim=run.dim, license=license),
        "## Encoders\n\n" + _encoders(run),
        "## Training\n\n" + f"`{command}`\n\n" + _stages(records),
        "## Data\n\n" + _table(["file", "source", "license", "rows"], data),
        *(["## The int8 query encoder\n\n" + _gate(onnx)] if onnx else []),
        "## Limits\n\nRetrieval of documents, not medical advice: a hit is a text that resembles an answer.\n",
    ]
    return "\n".join(parts)


def _encoders(run: Run) -> str:
    rows = [
        {
            "side": side,
            "base": tower.base or _shape(tower),
            "pooling": tower.pooling,
            "tokens": tower.max_tokens,
        }
        for side, tower in (("query", run.query), ("document", run.document))
    ]
    return _table(["side", "base", "pooling", "tokens"], rows)


def _shape(tower: Tower) -> str:
    if tower.static is not None:
        return f"from scratch, token vectors of {tower.static} dimensions, no layers"
    assert tower.scratch is not None
    return f"from scratch, {tower.scratch.layers} layers × {tower.scratch.hidden}"


def _stages(records: Sequence[dict[str, Any]]) -> str:
    rows = [
        {
            "stage": record["stage"],
            "parameters": ", ".join(f"{side} {count:,}" for side, count in record["trainable"].items()),
            "minutes": round(record["seconds"] / 60, 1),
            "nDCG@10": _measure(record, "ndcg@10"),
            "recall@100": _measure(record, "recall@100"),
        }
        for record in records
    ]
    return _table(["stage", "parameters", "minutes", "nDCG@10", "recall@100"], rows)


def _measure(record: dict[str, Any], name: str) -> str:
    return f"{record['evaluation'][name]:.4f}" if record.get("evaluation") else "–"


def _gate(onnx: OnnxFiles) -> str:
    figures = "\n".join(f"- {key}: {value}" for key, value in onnx.gate.items())
    return f"Default: {onnx.default}. Compared with float32 on probe queries:\n\n{figures}\n"


def _table(columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(str(row[column]) for column in columns) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def export(run: Run, command: str) -> Card:
    """Write the CARE folder of a finished run to ``output/name``.

    Both sides are saved, reloaded and compared with the trained encoders on probe texts before the folder appears.
    """
    if not run.stage:
        raise InputError(f"{run.name}: has no stage, so there is nothing to export; add a [[stage]]")
    sources = {side: pipeline.newest(run, run.symmetric or side) for side in pipeline.SIDES}
    pairs = _probe_pairs(run)
    output = Path(run.output)
    with tempfile.TemporaryDirectory(dir=output, prefix=".export.") as temporary:
        folders = {side: Path(temporary) / side for side in pipeline.SIDES}
        _write_side(run, sources["query"], folders["query"], [pair.query for pair in pairs])
        documents = _write_side(run, sources["document"], folders["document"], [pair.positive for pair in pairs])
        onnx = _write_onnx(run, folders["query"], pairs, documents) if _exports(folders["query"]) else None
        records = [pipeline.read_record(output / stage_name(stage)) for stage in run.stage]
        data = _data_sources(run)
        if run.teacher_cache is None:
            shutil.rmtree(rows_folder(run), ignore_errors=True)
        return write_checkpoint(
            output / run.name,
            name=run.name,
            query=folders["query"],
            document=folders["document"],
            onnx=onnx,
            temperature=records[-1]["temperature"] or run.stage[-1].__dict__.get("temperature", 0.02),
            query_tasks={name: task.query for name, task in run.tasks.items()},
            document_tasks={name: task.document for name, task in run.tasks.items() if task.document},
            license=run.export.license,
            stages=[_history(record) for record in records],
            bases=_bases(run),
            data=data,
            model_card=render(run, records, data, onnx, command),
        )


def _write_side(run: Run, source: Path, folder: Path, texts: list[str]) -> Vectors:
    """Save one encoder, reload it, and return its vectors of the texts, checked against the trained encoder's.

    Adapters are merged and compared in float32: rounding to the dtype of the base would hide an error of the merge.
    At most one float32 copy of the weights is held at any time, beside the file that is being read or written.
    """
    side = folder.name
    dtype = torch.float16 if run.export.half_weights and not _is_static(source) else towers.base_dtype(source)
    model = towers.load(source).float()
    trained = _encode(model, side, texts)
    towers.merge(model)
    _require_close(source, side, trained, _encode(model, side, texts))
    model.save_pretrained(str(folder), create_model_card=False)
    del model
    free_memory()
    if dtype != torch.float32:
        _store_as(folder, dtype)
    exported = _encode(towers.load(folder).float(), side, texts)
    free_memory()
    if dtype == torch.float32:
        _require_close(source, side, trained, exported)
    elif not (lowest := float(_cosine(trained, exported).min())) >= LEAST_COSINE:
        raise TrainingError(
            f"{source}: the exported {side} encoder gives other vectors than the trained one (least cosine "
            f"{lowest:.5f}, at least {LEAST_COSINE} expected of weights in {dtype}); nothing was written"
        )
    return exported


def _cosine(trained: Vectors, found: Vectors) -> Vectors:
    lengths = np.linalg.norm(trained, axis=1) * np.linalg.norm(found, axis=1)
    cosine: Vectors = (trained * found).sum(axis=1) / lengths
    return cosine


def _require_close(source: Path, side: str, trained: Vectors, found: Vectors) -> None:
    difference = float(np.abs(trained - found).max())
    if not difference <= TOLERANCE:
        raise TrainingError(
            f"{source}: the exported {side} encoder gives other vectors than the trained one (largest difference "
            f"{difference:.1e}, allowed {TOLERANCE:.0e}); nothing was written"
        )


def _exports(folder: Path) -> bool:
    """Return whether a model is static or bidirectional; decoders (baselines) have no ONNX export."""
    if _is_static(folder):
        return True
    model_type = json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"]
    return towers.reads_both_ways(model_type)


def _write_onnx(run: Run, folder: Path, pairs: list[Pair], documents: Vectors) -> OnnxFiles:
    return export_query_encoder(
        folder,
        [pair.query for pair in pairs],
        document_vectors=documents,
        relevant=[[row] for row in range(len(pairs))],
        keep_fp32=run.export.fp32_onnx,
    )


def _encode(model: SentenceTransformer, side: str, texts: list[str]) -> Vectors:
    encode = model.encode_query if side == "query" else model.encode_document
    vectors: Vectors = encode(texts, show_progress_bar=False, convert_to_numpy=True)
    return vectors


def _is_static(folder: Path) -> bool:
    return not (folder / "config.json").exists()


def _store_as(folder: Path, dtype: torch.dtype) -> None:
    """Store the weights in half precision.

    For float16 the configuration says float32, so that they load as float32; bfloat16 is what its base said, too.
    """
    for file in list(folder.rglob("*.safetensors")):
        partial = file.with_suffix(".partial")
        rewrite_weights(file, partial, dtype=dtype)
        partial.replace(file)
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    loaded_as = "bfloat16" if dtype == torch.bfloat16 else "float32"
    path.write_text(json.dumps({**config, "dtype": loaded_as}, indent=2) + "\n", encoding="utf-8")


def _probe_pairs(run: Run) -> list[Pair]:
    """Return pairs from all over a data set, whose queries and documents test the int8 query encoder."""
    data = run.data[run.export.probe or next(stage.data for stage in reversed(run.stage) if stage.data)]
    rows = pair_rows(data, Path(run.data_root), rows_folder(run), by_source=True)
    pairs = np.flatnonzero(~scored(rows)) if not scored(rows).all() else np.arange(len(rows))
    step = max(1, len(pairs) // run.export.probe_texts)
    chosen = rows.columns.select(pairs[::step][: run.export.probe_texts])
    return [Pair(query, positive) for query, positive in zip(chosen["query"], chosen["positive"], strict=True)]


def _history(record: dict[str, Any]) -> dict[str, Any]:
    kept = ("stage", "kind", "seed", "trainable", "temperature", "evaluation", "seconds", "settings")
    return {key: record[key] for key in kept if key in record}


def _bases(run: Run) -> list[dict[str, Any]]:
    towers_of = {"query": run.query, "document": run.document}
    return [
        {"side": side, "name": tower.base or "random weights", "revision": tower.revision or ""}
        for side, tower in towers_of.items()
    ]


def _data_sources(run: Run) -> list[dict[str, Any]]:
    """Count the rows of each source and license, over all data sets that a stage or the tokenizer used."""
    used = {stage.data for stage in run.stage if stage.data} | ({run.vocabulary.data} if run.vocabulary else set())
    counts: Counter[tuple[str, str, str]] = Counter()
    seen: set[tuple[str, tuple[str, ...]]] = set()
    for name in sorted(used):
        data = run.data[name]
        for file in data.files:
            if (file, data.licenses_excluded) in seen:
                continue
            seen.add((file, data.licenses_excluded))
            for row, where in read_rows(Path(run.data_root) / file):
                if is_kept(row, where, data):
                    counts[Path(file).name, str(row.get("source", "")), license_of(row)] += 1
    return [
        {"file": file, "source": source, "license": license, "rows": rows}
        for (file, source, license), rows in sorted(counts.items())
    ]
