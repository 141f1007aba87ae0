"""The end of a training run on stored vectors: the written encoder is measured, and registered if it is good enough."""

import logging
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from qdrant_client import models

from care_qdrant import CareModel, Collection
from care_qdrant.contracts.contract import VectorContract
from care_qdrant.contracts.learned import PROBES, LearnedContract, agreement, probe_vectors, signs
from care_qdrant.model.card import Card
from care_qdrant.search.judged import KnownLabels, Questions
from care_qdrant.types import Vectors
from care_trainer.learn import quality
from care_trainer.learn.graph import GraphSearch, measure_graph
from care_trainer.learn.labelled import LabelledQuality, measure_labelled
from care_trainer.learn.reading import Sample, restored
from care_trainer.learn.split import HeldOut, Split
from care_trainer.learn.weak import Example, Kind, weak_kinds, worst_examples

logger = logging.getLogger(__name__)

_PROBED = 128
"""Points from which the probes are chosen: those whose vectors agree best with their texts."""
_SCRIPT_TEXTS = 100


@dataclass(frozen=True, slots=True)
class Training:
    """Size of a trained query encoder, and the steps of its training."""

    vocabulary: int
    tokens: str
    """Source of the tokens: "collection", "built-in", "earlier" after an update, "base" in the trainer."""
    layers: int
    """Layers of a transformer; 0 for a table of token vectors."""
    steps: int
    best_step: int


@dataclass(frozen=True, slots=True)
class Student:
    """A trained query encoder before it is written, and its vectors of the held-out questions."""

    training: Training
    trained_again: bool
    """Whether the encoder was trained again with the held-out documents after the measurement."""
    sentences: list[str]
    """The held-out documents' questions that have a token."""
    questions: Vectors
    """Vectors of the held-out documents' questions by the encoder that was trained without these documents."""
    rare: npt.NDArray[np.float64]
    """Share of each of these questions' tokens that are rare or unknown in the texts that it was trained on."""
    history: list[dict[str, float]]


@dataclass(frozen=True, slots=True)
class LearnReport:
    """The report of a training run: what was read, the quality of the query encoder, and whether it may be used."""

    collection: str
    vector_name: str
    folder: str
    contract: VectorContract = field(metadata={"printed": ("model", "fingerprint", "dim")})
    """Record of the query encoder."""
    sample: Sample = field(
        metadata={
            "printed": ("points", "texts", "without_text", "without_vector", "repeated", "text_field", "stand_ins")
        }
    )
    training: Training = field(metadata={"printed": ("vocabulary", "tokens", "layers", "steps", "best_step")})
    seconds: float
    cpu_seconds: float
    """CPU time of all threads of the main process."""
    trained_again: bool
    """Whether the written encoder was trained again with the held-out documents after the measurement."""
    held_out: HeldOut
    near_copies: int | None
    """Documents left out of the measured training as near-copies of held-out ones; None where most are, and stayed."""
    weak: list[Kind]
    """Kinds of held-out questions that find their documents less often than the others."""
    examples: list[Example]
    """Held-out questions that do worst: texts of the collection, which belong in the report of its folder alone."""
    agreement: quality.Agreement | None
    """Agreement with the old model on questions that were not trained on; None without a query log."""
    labelled: LabelledQuality | None
    """Quality on questions whose relevant documents are known; None without such questions."""
    new_documents: HeldOut | None
    """Quality of the encoder that is updated on documents that it has not seen, before the update; None otherwise."""
    alpha: float | None
    """Share of the dense score that suits a linear fusion with BM25."""
    graph: GraphSearch | None
    """Recall of a search of the collection's graph, by its width; None where it was not measured."""
    query_microseconds: float
    """CPU time of one query, in batches of 32."""
    onnx_bytes: int
    refused: str | None
    """Reason why the encoder is not good enough to be registered; None where it is."""
    registered: bool
    history: list[dict[str, float]]

    @property
    def kept(self) -> float | None:
        """Share of the old model's nDCG@10 on labelled questions; None where its vectors of them are missing."""
        if self.labelled is None or self.labelled.old_model is None or not self.labelled.old_model.ndcg_at_10.mean:
            return None
        return round(self.labelled.learned.ndcg_at_10.mean / self.labelled.old_model.ndcg_at_10.mean, 4)


def conclude(
    collection: Collection,
    vector_name: str,
    split: Split,
    student: Student,
    card: Card,
    folder: Path,
    *,
    seconds: float,
    cpu_seconds: float,
    labels: KnownLabels | None = None,
    log: Questions | None = None,
    new_documents: HeldOut | None = None,
    seed: int = 0,
    force: bool = False,
) -> LearnReport:
    """Measure the encoder that lies in a CARE folder, and register it in the collection if it is good enough."""
    pairs, model, held_out = split.pairs, CareModel.load(folder), split.score(student.questions)
    ranks, refused = split.ranks(student.questions), quality.verdict(held_out)
    fusion = split.train[: quality.FUSION_DOCUMENTS]
    alpha = quality.fusion_alpha(
        split.questions, student.questions, [split.texts[row] for row in fusion], pairs.vectors[fusion]
    )
    graph = measure_graph(collection, vector_name, model.encode_query(student.sentences))
    agreed = labelled = None
    if log is not None:
        half = len(log.texts) // 2  # the others were trained on
        rest = Questions(log.texts[half:], log.vectors[half:])
        documents = restored(split.candidates, pairs.basis)
        agreed = quality.agreement(model.encode_query(rest.texts), rest, documents)
    if labels is not None:
        learned, hnsw_ef = model.encode_query(labels.questions.texts), None if graph is None else graph.hnsw_ef
        labelled = measure_labelled(collection, vector_name, labels, learned, alpha, hnsw_ef, seed)
    report = LearnReport(
        collection=collection.name,
        vector_name=vector_name,
        folder=str(folder),
        contract=model.contract(),
        sample=pairs.sample,
        training=student.training,
        seconds=round(seconds, 1),
        cpu_seconds=round(cpu_seconds, 1),
        trained_again=student.trained_again,
        held_out=held_out,
        near_copies=None if split.has_copies_in_training else len(split.copies),
        weak=weak_kinds(
            split.questions, ranks, student.rare, [split.texts[row] for row in split.train[:_SCRIPT_TEXTS]]
        ),
        examples=worst_examples(split.questions, ranks),
        agreement=agreed,
        labelled=labelled,
        new_documents=new_documents,
        alpha=alpha,
        graph=graph,
        query_microseconds=_query_microseconds(model, student.sentences),
        onnx_bytes=card.files["query/onnx/model_int8.onnx"].bytes,
        refused=refused,
        registered=refused is None or force,
        history=student.history,
    )
    if report.registered:
        if (warning := quality.loss_warning(report.kept)) is not None:
            logger.warning("collection %r: %s", collection.name, warning)
        deviations = quality.held_out_deviations(student.questions, split.candidates)
        collection.write_learned(vector_name, _contract(model, collection, split, report, deviations))
    return report


def _query_microseconds(model: CareModel, questions: list[str]) -> float:
    encoder, asked = model.query_encoder, questions[:256]
    encoder.encode(asked[:32])
    began = time.process_time()
    for start in range(0, len(asked), 32):
        encoder.encode(asked[start : start + 32])
    return round((time.process_time() - began) / len(asked) * 1e6, 1)


def _contract(
    model: CareModel,
    collection: Collection,
    split: Split,
    report: LearnReport,
    held_out_deviations: str,
) -> LearnedContract:
    pairs, vector_name = split.pairs, report.vector_name
    params = collection.schema.dense[vector_name]
    stored = restored(pairs.vectors[:_PROBED], pairs.basis)
    agreeing = np.argsort(-agreement(model.encode_query(pairs.texts[:_PROBED]), stored))
    probes = [pairs.ids[row] for row in agreeing[:PROBES]]
    records = collection.retrieve(probes, payload=False, vectors=[vector_name])
    documents = collection.schema.contracts.get(vector_name)
    measured = report.graph or collection.schema.learned.get(vector_name)  # else what an earlier run recorded
    return LearnedContract(
        fingerprint=report.contract.fingerprint,
        model=report.contract.model,
        dim=report.contract.dim,
        distance=params.distance.value,
        probes={key: signs(vector) for key, vector in probe_vectors(records.values(), vector_name).items()},
        documents=None if documents is None else documents.fingerprint,
        alpha=report.alpha,
        hnsw_ef=None if measured is None else measured.hnsw_ef,
        held_out_deviations=held_out_deviations if params.distance is models.Distance.COSINE else None,
        text_field=pairs.layout.text_field,
    )
