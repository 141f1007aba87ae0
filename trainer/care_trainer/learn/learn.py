"""Learns a query encoder from a collection: read, train, measure, write the folder, register it."""

import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from qdrant_client import QdrantClient, models
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize

from care_qdrant.encoders.torch import no_progress_bars
from care_qdrant.errors import needs_extra
from care_qdrant.model.card import Card
from care_qdrant.model.export_onnx import export_query_encoder
from care_qdrant.model.folder import write_checkpoint
from care_qdrant.model.hub import BUILT_IN
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.learned import PROBES, LearnedContract, agreement, probe_vectors, signs
from care_qdrant.qdrant.retry import RetryPolicy
from care_qdrant.types import Vectors
from care_trainer.learn import quality
from care_trainer.learn.graph import GraphSearch, measure_graph
from care_trainer.learn.held_out import HeldOut
from care_trainer.learn.labelled import KnownLabels, LabelledQuality, find_labels, measure_labelled
from care_trainer.learn.queries import QueryFile, Questions
from care_trainer.learn.reading import Pairs, dense_vector, read_pairs, restored
from care_trainer.learn.settings import LearnSettings
from care_trainer.learn.weak import Example, Kind, weak_kinds, worst_examples

if TYPE_CHECKING:
    from care_qdrant.model.pair import CareModel
    from care_trainer.learn.training import Split, Trained

logger = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]
"""Told the name of a part of the work, what is done of it and how much there is."""

_PROBED = 128
"""Points of which those become probes whose vectors agree best with their texts."""
_SCRIPT_TEXTS = 100
_GATE_DOCUMENTS = 1_000
"""Stored vectors among which the int8 form has to find what the full one finds."""


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


@dataclass(frozen=True, slots=True)
class LearnReport:
    """What a training run read, how good its query encoder is, and whether it may be used."""

    collection: str
    vector_name: str
    folder: str
    model: str
    fingerprint: str
    dim: int
    points: int
    texts: int
    without_text: int
    without_vector: int
    repeated: int
    text_field: str
    vocabulary: int
    tokens: str
    """Whose tokens have vectors: "collection", "built-in", or "earlier" after an update."""
    steps: int
    best_step: int
    seconds: float
    trained_again: bool
    """Whether the encoder that was written has then learned the held-out documents, too."""
    held_out: HeldOut
    near_copies: int | None
    """Documents left out of the measured training as near-copies of held-out ones; None where most are, and stayed."""
    weak: list[Kind]
    """Kinds of held-out questions that find their documents less often than the others."""
    examples: list[Example]
    """Held-out questions that do worst: texts of the collection, which belong in the report of its folder alone."""
    agreement: quality.Agreement | None
    """With the old model on questions that were not trained on; None without a query log."""
    labelled: LabelledQuality | None
    """On questions whose relevant documents are known; None without such questions."""
    new_documents: HeldOut | None
    """Quality of the encoder that is updated on documents that it has not seen, before the update; None otherwise."""
    alpha: float | None
    """Share of the dense score that suits a linear fusion with BM25."""
    graph: GraphSearch | None
    """What a search of the collection's graph finds of an exact one, by its width; None where it was not measured."""
    query_microseconds: float
    """CPU time of one query, in batches of 32."""
    onnx_bytes: int
    refused: str | None
    """Why the encoder is not good enough to be registered; None where it is."""
    registered: bool
    history: list[dict[str, float]]

    @property
    def kept(self) -> float | None:
        """Share of the old model's nDCG@10 on labelled questions; None where its vectors of them are missing."""
        if self.labelled is None or self.labelled.old_model is None or not self.labelled.old_model.ndcg_at_10.mean:
            return None
        return round(self.labelled.learned.ndcg_at_10.mean / self.labelled.old_model.ndcg_at_10.mean, 4)


def learn(
    client: QdrantClient,
    collection_name: str,
    output: Path,
    *,
    vector_name: str | None = None,
    settings: LearnSettings | None = None,
    text_field: str | None = None,
    name: str | None = None,
    document: Path | None = None,
    questions: Callable[[int], QueryFile] | None = None,
    start: Path | None = None,
    force: bool = False,
    policy: RetryPolicy | None = None,
    on_progress: Progress = lambda _part, _done, _total: None,
) -> LearnReport:
    """Learn a query encoder from one vector of a collection, write it to a CARE folder and register it.

    Nothing of the collection but its metadata is changed. An interrupted training run is continued by the same call.
    """
    began = time.monotonic()
    with needs_extra("learn", "learning a query encoder"):
        import onnxscript  # noqa: F401  # the export at the end needs it
        import torch

    settings = settings or LearnSettings()
    torch.manual_seed(settings.seed)
    collection = Collection(client, collection_name, policy).resolve()
    vector_name, params = dense_vector(collection.schema, vector_name)
    asked = QueryFile(None, None) if questions is None else questions(params.size)
    from care_qdrant.model.pair import CareModel
    from care_trainer.learn.earlier import load_earlier, save_seen
    from care_trainer.learn.training import Split, train

    earlier = None if start is None else load_earlier(start)
    pairs = read_pairs(
        collection,
        vector_name,
        settings,
        text_field=text_field,
        basis=None if earlier is None else earlier.basis,
        on_progress=lambda done, total: on_progress("reading", done, total),
    )
    labels = None if asked.labelled is None else find_labels(collection, pairs.layout, asked.labelled)
    split = Split.of(pairs, settings, earlier)
    where = f"vector {vector_name!r} of collection {collection.name!r}"
    new_documents = None if earlier is None else split.drift(earlier, settings)
    state = output.with_name(f".{output.name}.learning")
    trained = train(
        split, asked.log, settings, where, earlier, state, lambda done, total: on_progress("training", done, total)
    )
    refused = quality.verdict(trained.held_out)
    stage = {
        "name": "learn",
        "texts": len(split.texts),
        "settings": asdict(settings),
        "best_step": trained.best_step,
        "held_out": asdict(trained.held_out),
        "start": BUILT_IN if trained.built_in_start else "random",
        "tokens": trained.tokens,
    }
    alpha = quality.fusion_alpha(
        split.questions,
        trained.questions,
        [split.texts[row] for row in split.train],
        pairs.vectors[split.train],
    )
    sentences = [text for text in split.questions if trained.tokenizer.encode(text, add_special_tokens=False).ids]
    on_progress("export", 0, 1)
    card = _write(output, trained, split, sentences, name or output.name, document, settings, stage, where)
    on_progress("export", 1, 1)
    model = CareModel.load(output)
    graph = measure_graph(collection, vector_name, model.encode_query(sentences))
    ranks = split.ranks(trained.questions)
    report = LearnReport(
        collection=collection.name,
        vector_name=vector_name,
        folder=str(output),
        model=card.name,
        fingerprint=card.fingerprint,
        dim=card.dim,
        points=pairs.points,
        texts=len(pairs.texts),
        without_text=pairs.without_text,
        without_vector=pairs.without_vector,
        repeated=pairs.repeated,
        text_field=pairs.layout.text_field,
        vocabulary=trained.tokenizer.get_vocab_size(),
        tokens=trained.tokens,
        steps=trained.steps,
        best_step=trained.best_step,
        seconds=round(time.monotonic() - began, 1),
        trained_again=trained.trained_again,
        held_out=trained.held_out,
        near_copies=None if split.has_copies_in_training else len(split.copies),
        weak=weak_kinds(
            split.questions, ranks, trained.rare, [split.texts[row] for row in split.train[:_SCRIPT_TEXTS]]
        ),
        examples=worst_examples(split.questions, ranks),
        agreement=_agreement(model, asked.log, split),
        labelled=_labelled(model, collection, vector_name, labels, alpha, graph, settings.seed),
        new_documents=new_documents,
        alpha=alpha,
        graph=graph,
        query_microseconds=_query_microseconds(model, sentences),
        onnx_bytes=card.files["query/onnx/model_int8.onnx"].bytes,
        refused=refused,
        registered=refused is None or force,
        history=trained.history,
    )
    save_seen(output, pairs.read)
    if report.registered:
        if (warning := quality.loss_warning(report.kept)) is not None:
            logger.warning("collection %r: %s", collection.name, warning)
        best_scores = quality.best_scores(trained.questions, split.candidates)
        contract = _contract(model, collection, vector_name, pairs, report, best_scores)
        collection.write_learned(vector_name, contract)
    shutil.rmtree(state, ignore_errors=True)
    return report


def _write(
    output: Path,
    trained: "Trained",
    split: "Split",
    sentences: Sequence[str],
    name: str,
    document: Path | None,
    settings: LearnSettings,
    stage: Mapping[str, Any],
    where: str,
) -> Card:

    output.parent.mkdir(parents=True, exist_ok=True)
    return write_folder(
        output,
        trained.encoder,
        split.pairs.basis,
        name=name,
        document=document,
        probe_texts=sentences,
        document_vectors=restored(split.candidates[:_GATE_DOCUMENTS], split.pairs.basis),
        temperature=settings.temperature,
        stage=stage,
        origin={"side": "document", "name": where},
    )


def _agreement(model: "CareModel", log: Questions | None, split: "Split") -> quality.Agreement | None:
    if log is None:
        return None
    half = len(log.texts) // 2
    rest = Questions(log.texts[half:], log.vectors[half:])
    return quality.agreement(model.encode_query(rest.texts), rest, restored(split.candidates, split.pairs.basis))


def _labelled(
    model: "CareModel",
    collection: Collection,
    vector_name: str,
    labels: KnownLabels | None,
    alpha: float | None,
    graph: GraphSearch | None,
    seed: int,
) -> LabelledQuality | None:
    if labels is None:
        return None
    learned, hnsw_ef = model.encode_query(labels.questions.texts), None if graph is None else graph.hnsw_ef
    return measure_labelled(collection, vector_name, labels, learned, alpha, hnsw_ef, seed)


def _query_microseconds(model: "CareModel", questions: list[str]) -> float:
    encoder, asked = model.query_encoder, questions[:256]
    encoder.encode(asked[:32])
    began = time.process_time()
    for start in range(0, len(asked), 32):
        encoder.encode(asked[start : start + 32])
    return round((time.process_time() - began) / len(asked) * 1e6, 1)


def _contract(
    model: "CareModel",
    collection: Collection,
    vector_name: str,
    pairs: Pairs,
    report: LearnReport,
    best_scores: str,
) -> LearnedContract:
    params = collection.schema.dense[vector_name]
    stored = restored(pairs.vectors[:_PROBED], pairs.basis)
    agreeing = np.argsort(-agreement(model.encode_query(pairs.texts[:_PROBED]), stored))
    probes = [pairs.ids[row] for row in agreeing[:PROBES]]
    records = collection.retrieve(probes, payload=False, vectors=[vector_name])
    documents = collection.schema.contracts.get(vector_name)
    measured = report.graph or collection.schema.learned.get(vector_name)  # else what an earlier run recorded
    return LearnedContract(
        fingerprint=report.fingerprint,
        model=report.model,
        dim=report.dim,
        distance=params.distance.value,
        probes={key: signs(vector) for key, vector in probe_vectors(records.values(), vector_name).items()},
        documents=None if documents is None else documents.fingerprint,
        alpha=report.alpha,
        hnsw_ef=None if measured is None else measured.hnsw_ef,
        best_scores=best_scores if params.distance is models.Distance.COSINE else None,
        text_field=pairs.layout.text_field,
    )
