"""The first folder of a run: both encoders before any training."""

from pathlib import Path

from sentence_transformers import SentenceTransformer
from transformers import set_seed

from care_qdrant.errors import InputError
from care_trainer.config import Run, stage_name
from care_trainer.config.stages import PairStage
from care_trainer.data.table import text_rows
from care_trainer.learn.snapshot import take_snapshot
from care_trainer.models import scratch, towers
from care_trainer.models.static import random_static, static_module
from care_trainer.stages.context import rows_folder
from care_trainer.training.context import Report


def build(run: Run, folder: Path, report: Report) -> dict[str, SentenceTransformer]:
    """Build the encoders by side, pretrained or with random weights; where a collection has the documents, read it."""
    if run.document.collection is not None:
        take_snapshot(
            run.document.collection,
            run.collection_folder,
            dim=run.dim,
            seed=run.seed,
            on_progress=lambda done, points: report("reading", done, points, float("nan"), 0),
        )
    set_seed(run.seed)
    query_base, document_base, static = run.query.base, run.document.base, None
    if run.vocabulary is not None:
        rows = text_rows(run.data_set(run.vocabulary.data), Path(run.data_root), rows_folder(run))
        step = -(-len(rows) // run.vocabulary.max_texts)  # every n-th: all sources are there in proportion
        texts = rows.columns.select(range(0, len(rows), step))["text"]
        tokenizer = scratch.train_tokenizer(run.vocabulary, texts)
        if run.query.scratch is not None:
            query_base = str(folder / "query-base")
            scratch.write_base(run.query, "query", tokenizer, Path(query_base))
        if run.query.static is not None:
            static = random_static(tokenizer, run.query.static, texts, run.query.max_tokens)
        if run.document.scratch is not None:
            document_base = str(folder / "document-base")
            scratch.write_base(run.document, "document", tokenizer, Path(document_base))
    encoders = {}
    if document_base is not None:
        encoders["document"] = towers.build_document(document_base, run.document, run.dim, run.geometry)
        _require_widths(run, encoders["document"])
    if static is not None:
        query = towers.build_static(static_module(static), run.query, run.dim)
    else:
        assert query_base is not None
        query = towers.build_query(query_base, run.query, run.dim)
    if run.symmetric == "query":  # it encodes documents as well, by their prompt
        query.prompts["document"] = run.document.prompt
    return {**encoders, "query": query}


def _require_widths(run: Run, document: SentenceTransformer) -> None:
    """Refuse nested dimensions above the width of the encoder: a slice would end there without a word."""
    width = towers.transformer_of(document).get_embedding_dimension()
    for stage in run.stage:
        widest = max(stage.matryoshka, default=0) if isinstance(stage, PairStage) else 0
        allowed = width if stage.kind == "document" else run.dim
        if widest > allowed:
            raise InputError(f"stage.{stage_name(stage)}.matryoshka: {widest} is more than the {allowed} dimensions")
