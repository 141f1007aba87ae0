"""The command ``care learn``: read a collection, train a query encoder, measure it, write its folder, register it."""

import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from care_qdrant import Collection
from care_qdrant.encoders.local.weights import check_model
from care_qdrant.errors import ModelError, needs_extra
from care_qdrant.model.card import CARD_FILE, Card
from care_qdrant.model.export.onnx import export_query_encoder
from care_qdrant.model.folder import describe_side, require_destination, write_checkpoint
from care_qdrant.model.hub import BUILT_IN
from care_qdrant.qdrant.public import accepts_client
from care_qdrant.search.judged import QueryFile, find_labels
from care_qdrant.types import Vectors
from care_trainer.learn.earlier import load_earlier, save_seen
from care_trainer.learn.outcome import LearnReport, conclude
from care_trainer.learn.quality import verdict
from care_trainer.learn.reading import dense_vector, read_pairs, restored
from care_trainer.learn.settings import LearnSettings
from care_trainer.learn.split import Split
from care_trainer.learn.stand_in import write_shift
from care_trainer.learn.token_table import TokenTable
from care_trainer.learn.training import train

logger = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]
"""Function that is told the name of a part of the work, how much of it is done, and how much there is."""

_STAGE = "learn"
GATE_DOCUMENTS = 1_000
"""Stored vectors among which the int8 encoder must find the same as the float32 one."""


def write_folder(
    folder: Path,
    table: TokenTable,
    split: Split,
    *,
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
        table.save(query)
        if document is None:
            write_shift(query, split, table.encode)
        onnx = export_query_encoder(query, probe_texts, document_vectors=document_vectors, keep_fp32=False, own=table)
        return write_checkpoint(
            folder,
            name=folder.name,
            query=query,
            document=document,
            onnx=onnx,
            temperature=temperature,
            stages=[stage],
            bases=[origin],
            data=[{"source": origin["name"], "rows": stage["texts"], "license": "of the collection"}],
            model_card=_model_card(folder.name, origin, stage),
        )


def _model_card(name: str, origin: Mapping[str, Any], stage: Mapping[str, Any]) -> str:
    return (
        f"# {name}\n\nA query encoder learned from {origin['name']}: {stage['texts']:,} texts and the vectors that are "
        "stored for them. It encodes queries only. What it finds, what a query costs and when not to use it is in "
        "`report.md`.\n"
    )


def _require_document(folder: Path, dim: int, vector_name: str) -> None:
    """Refuse a folder that is not a document encoder, or has another dimension than the stored vectors."""
    _, own_dim = describe_side(folder, "document")
    check_model(folder)
    if own_dim != dim:
        raise ModelError(
            f"{folder}: gives {own_dim} dimensions, and vector {vector_name!r} has {dim}; another model made it"
        )


@accepts_client
def learn(
    place: Collection,
    output: Path,
    *,
    vector_name: str | None = None,
    settings: LearnSettings | None = None,
    text_field: str | None = None,
    document: Path | None = None,
    questions: Callable[[int, str], QueryFile] | None = None,
    start: Path | None = None,
    force: bool = False,
    on_progress: Progress = lambda _part, _done, _total: None,
) -> LearnReport:
    """Learn a query encoder from one vector of a collection, write it to a CARE folder and register it.

    Nothing of the collection but its metadata is changed. An interrupted training run is continued by the same call.
    An encoder that is not good enough does not replace an earlier one: it goes into the folder ``OUTPUT-refused``.

    With ``start``, the folder of an earlier encoder, training continues from that, with less training
    (`LearnSettings.continued`); where fewer than 100 documents are new to it, or another model made the vectors since,
    it starts anew, with all of it.
    """
    began, cpu_began = time.monotonic(), time.process_time()
    with needs_extra("learn", "learning a query encoder"):
        import onnx  # noqa: F401  # the export at the end needs it

    require_destination(output, stages=[_STAGE])
    settings = settings or LearnSettings()
    collection = place.whole()
    vector_name, params = dense_vector(collection.schema, vector_name)
    if document is not None:
        _require_document(document, params.size, vector_name)
    collection.require_changeable()
    asked = (
        QueryFile(None, None) if questions is None else questions(params.size, collection.schema.origin(vector_name))
    )
    where = f"vector {vector_name!r} of collection {collection.name!r}"
    earlier = None if start is None else load_earlier(start)
    if earlier is not None and not earlier.fits(collection, vector_name, text_field):
        logger.warning("%s: does not fit %s, which another model made since; learning anew", start, where)
        earlier = None
    pairs = read_pairs(
        collection,
        vector_name,
        settings,
        text_field=text_field,
        basis=None if earlier is None else earlier.table.basis,
        on_progress=lambda done, total: on_progress("reading", done, total),
    )
    labels = None if asked.labelled is None else find_labels(collection, pairs.layout, asked.labelled)
    split = Split.of(pairs, settings, earlier)
    new_documents = None if earlier is None else split.drift(earlier, settings)
    if split.continues:
        settings = settings.continued
    else:  # an encoder that has learned from the held-out documents would be measured on them
        earlier = None
    state = output.with_name(f".{output.name}.learning")
    trained = train(
        split, asked.log, settings, where, earlier, state, lambda done, total: on_progress("training", done, total)
    )
    student = trained.student
    stage = {
        "name": _STAGE,
        "texts": len(split.texts),
        "settings": asdict(settings),
        "best_step": student.training.best_step,
        "held_out": asdict(split.score(student.questions)),
        "start": BUILT_IN if trained.built_in_start else "random",
        "tokens": student.training.tokens,
    }
    folder = output
    if (output / CARD_FILE).exists() and not force and verdict(split.score(student.questions)) is not None:
        folder = output.with_name(f"{output.name}-refused")  # searches still need the encoder that is there
    on_progress("export", 0, 1)
    folder.parent.mkdir(parents=True, exist_ok=True)
    card = write_folder(
        folder,
        trained.table,
        split,
        document=document,
        probe_texts=student.sentences,
        document_vectors=restored(split.candidates[:GATE_DOCUMENTS], pairs.basis),
        temperature=settings.temperature,
        stage=stage,
        origin={"side": "document", "name": where},
    )
    on_progress("export", 1, 1)
    save_seen(folder, pairs.read)
    report = conclude(
        collection,
        vector_name,
        split,
        student,
        card,
        folder,
        seconds=time.monotonic() - began,
        cpu_seconds=time.process_time() - cpu_began,
        labels=labels,
        log=asked.log,
        new_documents=new_documents,
        seed=settings.seed,
        force=force,
    )
    shutil.rmtree(state, ignore_errors=True)
    return report
