"""The model card of an exported pair: its encoders, training, data, scores and limits."""

from collections.abc import Sequence
from typing import Any

from care_qdrant.model.card import OnnxFiles
from care_trainer.config import Run, Tower

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
