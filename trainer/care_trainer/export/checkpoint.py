"""The export of a finished run as one CARE folder, checked to give the vectors of the trained encoders."""

import functools
import json
import logging
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from care_qdrant.encoders.agreement import LEAST_HALF_PRECISION, cosines
from care_qdrant.errors import InputError, TrainingError
from care_qdrant.model.card import CARD_FILE, Card, OnnxFiles, read_card
from care_qdrant.model.export.onnx import export_query_encoder
from care_qdrant.model.folder import copy_term_weights, write_checkpoint
from care_qdrant.model.hub import BUILT_IN, find_folder
from care_qdrant.model.rewrite import rewrite_weights
from care_qdrant.types import Vectors
from care_trainer import recipe
from care_trainer.config import Run, StoredDocuments, Tower, stage_name
from care_trainer.data.read import Pair, is_kept, license_of, read_rows
from care_trainer.data.table import pair_rows, scored, text_rows
from care_trainer.distributed import free_memory
from care_trainer.learn.learn import GATE_DOCUMENTS
from care_trainer.learn.outcome import Student, Training, conclude
from care_trainer.learn.report import write_report
from care_trainer.learn.settings import FOLDER
from care_trainer.learn.snapshot import Snapshot, load_snapshot, opened
from care_trainer.learn.stand_in import write_shift
from care_trainer.models import towers
from care_trainer.needs import holds_pairs, probe_data
from care_trainer.stages.context import rows_folder
from care_trainer.terms import give_terms

logger = logging.getLogger(__name__)

TOLERANCE = 1e-4
"""Largest accepted difference of a coordinate between trained and merged vectors, both float32; it is about 1e-6."""

_BUILDING = ".export."
"""Beginning of the name of the folder in which an export is built."""
_HISTORY = ("stage", "kind", "seed", "trainable", "temperature", "evaluation", "seconds", "settings")
"""Keys of a stage's record that the CARE folder keeps."""

_HEAD = """---
library_name: sentence-transformers
pipeline_tag: feature-extraction
tags: [asymmetric-retrieval, care]
{license}---

# {name}

An asymmetric model for retrieval: a small encoder for queries, a larger one for documents, one space of {dim}
dimensions. Recipe: arXiv 2604.10937, trained with care-qdrant.

```python
from care_qdrant import CareModel

model = CareModel.load("{name}")
queries, documents = model.encode_query(["..."]), model.encode_document(["..."])
```

Stock sentence-transformers also loads the folder: use `encode_query` and `encode_document`.
"""

_STUDENT_HEAD = """---
library_name: sentence-transformers
pipeline_tag: feature-extraction
tags: [asymmetric-retrieval, care]
{license}---

# {name}

A query encoder that has learned the {dim} dimensions of {collection}: its texts, and the vectors that are stored for
them (Stage I of arXiv 2604.10937, with care-qdrant). It encodes queries only. What it finds is in `learn/report.md`.
"""


def render(
    run: Run, records: Sequence[dict[str, Any]], data: Sequence[dict[str, Any]], onnx: OnnxFiles | None, command: str
) -> str:
    """Return the model card in Markdown."""
    license = f"license: {run.export.license}\n" if run.export.license else ""
    collection = _collection(run, run.document)
    parts = [
        (_STUDENT_HEAD if collection else _HEAD).format(
            name=run.name, dim=run.dim, license=license, collection=collection
        ),
        "## Encoders\n\n" + _encoders(run),
        "## Training\n\n" + f"`{command}`\n\n" + _stages(records),
        "## Data\n\n" + _table(["file", "source", "license", "rows"], data),
    ]
    if onnx is not None:
        figures = "\n".join(f"- {key}: {value}" for key, value in onnx.gate.items())
        heading = f"## The int8 query encoder\n\nDefault: {onnx.default}. Compared with float32 on probe queries:"
        parts.append(f"{heading}\n\n{figures}\n")
    parts.append("## Limits\n\nRetrieval of documents, not medical advice: a hit is a text that resembles an answer.\n")
    return "\n".join(parts)


def _encoders(run: Run) -> str:
    rows = [
        {
            "side": side,
            "base": tower.base or _collection(run, tower) or _shape(tower),
            "pooling": "–" if tower.collection else tower.pooling,
            "tokens": "–" if tower.collection else tower.max_tokens,
        }
        for side, tower in (("query", run.query), ("document", run.document))
    ]
    return _table(["side", "base", "pooling", "tokens"], rows)


def _shape(tower: Tower) -> str:
    if tower.static is not None:
        return f"from scratch, token vectors of {tower.static} dimensions, no layers"
    assert tower.scratch is not None
    return f"from scratch, {tower.scratch.layers} layer{'s' * (tower.scratch.layers > 1)} × {tower.scratch.hidden}"


def _stages(records: Sequence[dict[str, Any]]) -> str:
    scores = [record.get("evaluation") or {} for record in records]
    shown = {label: key for key, label in recipe.SHOWN_SCORES.items() if any(key in measured for measured in scores)}
    rows = [
        {
            "stage": record["stage"],
            "parameters": ", ".join(f"{side} {count:,}" for side, count in record["trainable"].items()),
            "minutes": round(record["seconds"] / 60, 1),
            **{label: f"{measured[key]:.4f}" if key in measured else "–" for label, key in shown.items()},
        }
        for record, measured in zip(records, scores, strict=True)
    ]
    return _table(["stage", "parameters", "minutes", *shown], rows)


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
    output, stored = Path(run.output), run.document.collection
    snapshot = None if stored is None else load_snapshot(run.collection_folder)
    for left in output.glob(f"{_BUILDING}*"):  # whole encoders, by an export that was killed
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=output, prefix=_BUILDING) as temporary:
        query, document = Path(temporary) / "query", Path(temporary) / "document"
        if snapshot is None:
            pairs = _probe_pairs(run)
            queries = [pair.query for pair in pairs]
            documents = _write_side(run, document, [pair.positive for pair in pairs])
        else:  # its candidates begin with the documents of the questions
            queries = snapshot.split.questions[: run.export.probe_texts]
            documents = snapshot.split.candidates[:GATE_DOCUMENTS]
        _write_side(run, query, queries)
        if snapshot is not None:
            write_shift(query, snapshot.split, functools.partial(_encode, towers.load(query), "query"))
        onnx = None
        if _exports(query):
            onnx = export_query_encoder(
                query,
                queries,
                document_vectors=documents,
                relevant=[[row] for row in range(len(queries))],
                keep_fp32=run.export.fp32_onnx,
            )
        records = [recipe.read_record(output / stage_name(stage)) for stage in run.stage]
        data = _data_sources(run)
        card = write_checkpoint(
            output / run.name,
            name=run.name,
            query=query,
            document=document if snapshot is None else None,
            onnx=onnx,
            temperature=records[-1]["temperature"] or run.stage[-1].__dict__.get("temperature", 0.02),
            query_tasks={name: task.query for name, task in run.tasks.items()},
            document_tasks={name: task.document for name, task in run.tasks.items() if task.document},
            license=run.export.license,
            alpha=_alpha(run),
            stages=[{key: record[key] for key in _HISTORY if key in record} for record in records],
            bases=[
                {
                    "side": side,
                    "name": tower.base or _collection(run, tower) or "random weights",
                    "revision": tower.revision or "",
                }
                for side, tower in (("query", run.query), ("document", run.document))
            ],
            data=data,
            model_card=render(run, records, data, onnx, command),
        )
    if snapshot is None:
        card = _give_terms(run, card)
    else:
        assert stored is not None
        _register(run, stored, snapshot, card, records)
    if run.teacher_cache is None:
        shutil.rmtree(rows_folder(run), ignore_errors=True)
    return card


def _give_terms(run: Run, card: Card) -> Card:
    """Give the model BM25 term weights learned from its pairs, or else the weights of the model it started from."""
    folder = Path(run.output) / run.name
    data, root = probe_data(run), Path(run.data_root)
    try:
        if not holds_pairs(data, root):
            raise InputError("single texts do not say which terms of a query count")
        with_terms, gate = give_terms(folder, data, root, rows_folder(run), seed=run.seed)
        logger.info(
            "weights of BM25 terms %s. %s", "written" if with_terms else "not written, since they gain nothing", gate
        )
        if with_terms is not None:
            return with_terms
    except InputError as error:
        logger.info("no weights of BM25 terms: %s", error)
    return copy_term_weights(_base(run) or folder, folder) or card


def _base(run: Run) -> Path | None:
    """Return the folder of the model that the query encoder started from; None for one from scratch."""
    return find_folder(BUILT_IN) if run.query.base == BUILT_IN else Path(run.query.base) if run.query.base else None


def _alpha(run: Run) -> float | None:
    """Return the share of the dense score set in the run, or else the share of the model it started from."""
    base = _base(run)
    if run.export.alpha is not None or base is None or not (base / CARD_FILE).is_file():
        return run.export.alpha
    return read_card(base).alpha


def _register(
    run: Run, stored: StoredDocuments, snapshot: Snapshot, card: Card, records: Sequence[dict[str, Any]]
) -> None:
    """Measure the exported query encoder, write its report, and register it in the collection that taught it."""
    folder, model = Path(run.output) / run.name, towers.load(recipe.newest(run, "query"))
    is_table = towers.is_static(model)
    steps = round(sum(record["metrics"].get("steps", 0) for record in records))
    student = Student(
        training=Training(
            vocabulary=len(model.tokenizer.get_vocab()),
            tokens="base",
            layers=0 if is_table else towers.transformer_of(model).model.config.num_hidden_layers,
            steps=steps,
            best_step=steps,
        ),
        trained_again=False,
        sentences=snapshot.split.questions,
        questions=snapshot.questions(model),
        rare=snapshot.rare,
        history=[],
    )
    with opened(stored) as collection:
        report = conclude(
            collection,
            snapshot.vector_name,
            snapshot.split,
            student,
            card,
            folder,
            seconds=sum(record["seconds"] for record in records),
            cpu_seconds=sum(record["cpu_seconds"] for record in records),
            seed=run.seed,
            force=run.export.force,
        )
    write_report(folder, report)
    logger.info("report: %s", folder / FOLDER / "report.md")
    if not report.registered:
        raise InputError(
            f"{folder}: was written but not registered: {report.refused}. Register it nevertheless with: "
            "--set export.force=true"
        )


def _write_side(run: Run, folder: Path, texts: list[str]) -> Vectors:
    """Save one encoder, reload it, and return its vectors of the texts, checked against the trained encoder's.

    Adapters are merged and compared in float32: rounding to the dtype of the base would hide an error of the merge.
    At most one float32 copy of the weights is held at any time, besides the file that is being read or written.
    """
    side: Any = folder.name
    source = recipe.newest(run, run.symmetric or side)
    dtype = torch.float16 if run.export.half_weights and not _is_static(source) else towers.base_dtype(source)
    model = towers.load(source).float()
    trained = _encode(model, side, texts)
    towers.merge(model)
    _require_same(source, side, trained, _encode(model, side, texts))
    model.save_pretrained(str(folder), create_model_card=False)
    del model
    free_memory()
    if dtype != torch.float32:
        _store_as(folder, dtype)
    exported = _encode(towers.load(folder).float(), side, texts)
    free_memory()
    _require_same(source, side, trained, exported, dtype)
    return exported


def _require_same(
    source: Path, side: str, trained: Vectors, exported: Vectors, dtype: torch.dtype = torch.float32
) -> None:
    """Refuse other vectors than the trained encoder's; half precision is measured by the cosine."""
    if dtype == torch.float32:
        difference = float(np.abs(trained - exported).max())
        is_same = difference <= TOLERANCE
        measured = f"largest difference {difference:.1e}, allowed {TOLERANCE:.0e}"
    else:
        lowest = float(cosines(exported, trained).min())
        is_same = lowest >= LEAST_HALF_PRECISION
        measured = f"least cosine {lowest:.5f}, at least {LEAST_HALF_PRECISION} expected of weights in {dtype}"
    if not is_same:  # also where a value is not a number
        raise TrainingError(
            f"{source}: the exported {side} encoder gives other vectors than the trained one ({measured}); nothing was "
            "written"
        )


def _exports(folder: Path) -> bool:
    """Return whether a model is static or bidirectional; decoders (baselines) have no ONNX export."""
    if _is_static(folder):
        return True
    model_type = json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"]
    return towers.reads_both_ways(model_type)


def _encode(model: SentenceTransformer, side: str, texts: list[str]) -> Vectors:
    encode = model.encode_query if side == "query" else model.encode_document
    vectors: Vectors = encode(texts, show_progress_bar=False, convert_to_numpy=True)
    return vectors


def _is_static(folder: Path) -> bool:
    return not (folder / "config.json").exists()


def _store_as(folder: Path, dtype: torch.dtype) -> None:
    """Store the weights in half precision.

    For float16 the configuration says float32, so that they load as float32; for bfloat16 its base said the same.
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
    """Return pairs from all over a data set, whose queries and documents test the int8 query encoder.

    Of single texts each is its own document.
    """
    data, root, folder = probe_data(run), Path(run.data_root), rows_folder(run)
    if not holds_pairs(data, root):
        texts = text_rows(data, root, folder).columns
        step = max(1, len(texts) // run.export.probe_texts)
        return [Pair(text, text) for text in texts[::step]["text"][: run.export.probe_texts]]
    rows = pair_rows(data, root, folder, by_source=True)
    pairs = np.flatnonzero(~scored(rows)) if not scored(rows).all() else np.arange(len(rows))
    step = max(1, len(pairs) // run.export.probe_texts)
    chosen = rows.columns.select(pairs[::step][: run.export.probe_texts])
    return [Pair(query, positive) for query, positive in zip(chosen["query"], chosen["positive"], strict=True)]


def _collection(run: Run, tower: Tower) -> str:
    """Return the name of the stored vectors that replace an encoder; empty for an encoder with weights."""
    if tower.collection is None:
        return ""
    return f"vector {load_snapshot(run.collection_folder).vector_name!r} of collection {tower.collection.name!r}"


def _data_sources(run: Run) -> list[dict[str, Any]]:
    """Count the rows of each source and license, over all data sets that a stage or the tokenizer used."""
    used = {stage.data for stage in run.stage if stage.data} | ({run.vocabulary.data} if run.vocabulary else set())
    counts: Counter[tuple[str, str, str]] = Counter()
    seen: set[tuple[str, tuple[str, ...]]] = set()
    for name in sorted(used):
        data = run.data_set(name)
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
