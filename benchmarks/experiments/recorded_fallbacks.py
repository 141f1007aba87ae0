"""Measures how many queries still have to go to the old model after an update from those that it answered.

Six sources are collections whose vectors the document encoder of the included pair made; it is the old model. A
query encoder is learned from each, and the share of queries of which it is least sure goes to the old model, as
`--fallback` sends it. Those of a log are recorded with their vectors; the update learns from them.
"""

import json
import random
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt
from care_trainer.learn.learn import learn
from care_trainer.learn.settings import LearnSettings
from qdrant_client import QdrantClient, models

from benchmarks.experiments.learn_from_vectors import COLLECTION, write_collection
from benchmarks.experiments.pretrained_texts import read_rows
from benchmarks.experiments.single_answer import Bm25, Judged, Scores
from benchmarks.perf.measured import output_option, save_measured
from care_qdrant.encoders.terms.analyser import DEFAULT
from care_qdrant.model.care_model import CareModel
from care_qdrant.search.fallback import deviations
from care_qdrant.search.judged import QueryFile, Questions
from care_qdrant.types import Vectors

SOURCES = {
    "huatuo_llama": "generated questions",
    "caregpt_drug": "questions on medicines",
    "disease_graph": "templates",
    "toyhom_im": "real consultations",
    "smilechat": "dialogues",
    "tcm_books": "titles of old books",
}
"""Sources with more than 7,000 questions, and their kinds."""
DOCUMENTS, QUESTIONS, LOG = 3_000, 500, 25_000
SHARES = (0.0, 0.05, 0.1, 0.2, 1.0)
SENT = 0.2
"""Share of the log that was sent to the old model, and so recorded."""
DENSE_SHARE = 0.7


@dataclass(frozen=True, slots=True)
class Source:
    """One collection, its judged questions and its log, encoded by the old model."""

    judged: Judged
    log: list[str]
    documents: Vectors
    questions: Vectors
    logged: Vectors
    sparse: Scores
    """BM25 of the judged questions, (questions, documents)."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The part of the old model's nDCG@10 that is kept when a share of the queries goes to it, by that share."""

    dense: Mapping[str, float]
    with_bm25: Mapping[str, float]
    """Part of the nDCG@10 of the old model with BM25."""


@dataclass(frozen=True, slots=True)
class Run:
    """One source and seed."""

    source: str
    seed: int
    log: int
    recorded: int
    old_model: float
    """nDCG@10 of the old model alone."""
    old_model_with_bm25: float
    before: Kept
    after: Kept
    """After an update with the recorded questions; half of them were trained on."""
    after_all: Kept
    """The same as if the whole log had been recorded."""


def read_source(rows: Sequence[dict[str, str]], name: str) -> tuple[Judged, list[str]]:
    """Return the collection of a source with 500 questions, and its other questions."""
    random.Random(3).shuffle(rows := [row for row in rows if row["source"] == name])
    documents = list(dict.fromkeys(row["positive"] for row in rows))[:DOCUMENTS]
    places = {text: place for place, text in enumerate(documents)}
    asked = {row["query"]: places[row["positive"]] for row in reversed(rows) if row["positive"] in places}
    judged = list(dict.fromkeys(row["query"] for row in rows if row["query"] in asked))[:QUESTIONS]
    log = list(dict.fromkeys(row["query"] for row in rows if row["query"] not in {*judged}))
    # What users ask is about the collection; questions on other documents of the source fill the log up.
    log.sort(key=lambda question: question not in asked)
    return Judged(name, judged, documents, np.array([asked[question] for question in judged])), log[:LOG]


def encode(judged: Judged, log: list[str], old: CareModel, cache: Path) -> Source:
    """Encode a source by the old model; its vectors are kept in the cache."""
    cache.mkdir(parents=True, exist_ok=True)
    made = []
    for side, prompt, texts in (
        ("documents", None, judged.documents),
        ("questions", "query: ", judged.questions),
        ("log", "query: ", log),
    ):
        if not (file := cache / f"{judged.name}-{side}.npy").is_file():
            np.save(file, old.document_encoder.encode(texts, prompt=prompt))
        made.append(np.load(file))
    return Source(judged, log, *made, Bm25(DEFAULT).scores(judged))


def run(source: Source, seed: int, scratch: Path) -> Run:
    """Learn from a source, record what its log sends, update, and score both encoders."""
    client, judged = QdrantClient(":memory:"), source.judged
    write_collection(client, judged.documents, source.documents, np.arange(len(judged.documents)))
    first = scratch / "first"
    learn(client, COLLECTION, first, settings=LearnSettings(seed=seed), force=True)
    sample = np.random.default_rng(seed).choice(len(source.documents), min(1_000, len(source.documents)), replace=False)
    sure = confidence(CareModel.load(first).encode_query(source.log), source, sample)
    recorded = np.argsort(sure)[: round(SENT * len(sure))]
    every = np.arange(len(sure))

    def updated(name: str, rows: npt.NDArray[np.int64]) -> Kept:
        asked = QueryFile(Questions([source.log[row] for row in rows], source.logged[rows]), None)
        settings = LearnSettings(seed=seed)
        learn(client, COLLECTION, scratch / name, settings=settings, questions=lambda _: asked, start=first, force=True)
        return score(scratch / name, source, sample)

    old = source.questions @ source.documents.T
    old_scores = [round(float(judged.ndcg_at_10(each).mean()), 4) for each in (old, with_bm25(old, source.sparse))]
    return Run(
        judged.name,
        seed,
        len(source.log),
        len(recorded),
        *old_scores,
        score(first, source, sample),
        updated("recorded", recorded),
        updated("all", every),
    )


def confidence(vectors: Vectors, source: Source, sample: npt.NDArray[np.int64]) -> Scores:
    """Return how far the best document of each query stands out, as `Fallback` measures it."""
    best = [float((source.documents @ vector).max()) for vector in vectors]
    return np.array(deviations(best, vectors, source.documents[sample], models.Distance.COSINE))


def score(folder: Path, source: Source, sample: npt.NDArray[np.int64]) -> Kept:
    """Return what a learned encoder keeps of the old model when its least sure queries go there."""
    vectors, judged = CareModel.load(folder).encode_query(source.judged.questions), source.judged
    learned, old = vectors @ source.documents.T, source.questions @ source.documents.T
    order = np.argsort(confidence(vectors, source, sample))

    def kept(by_learned: Scores, by_old: Scores) -> dict[str, float]:
        ours, theirs = judged.ndcg_at_10(by_learned), judged.ndcg_at_10(by_old)
        shares = {}
        for share in SHARES:
            sent = np.isin(np.arange(len(order)), order[: round(share * len(order))])
            shares[str(share)] = round(float(np.where(sent, theirs, ours).mean() / theirs.mean()), 4)
        return shares

    return Kept(kept(learned, old), kept(with_bm25(learned, source.sparse), with_bm25(old, source.sparse)))


def with_bm25(dense: Scores, sparse: Scores) -> Scores:
    """Return the fusion of both scores, each in deviations, as a hybrid search with a learned encoder weighs them."""
    return DENSE_SHARE * standardised(dense) + (1 - DENSE_SHARE) * standardised(sparse)


def standardised(scores: Scores) -> Scores:
    """Return scores in deviations above their mean, row by row."""
    spread = np.maximum(scores.std(axis=1, keepdims=True), 1e-9)
    return np.asarray((scores - scores.mean(axis=1, keepdims=True)) / spread)


@click.command()
@click.argument("data", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--cache", type=click.Path(path_type=Path), required=True, help="Folder of vectors and finished runs.")
@click.option("--seeds", default="0,1,2", show_default=True, help="Seeds of learning, by commas.")
@output_option
def main(data: Path, cache: Path, seeds: str, output: Path) -> None:
    """Measure what recorded fallbacks are worth on six sources of DATA.

    \b
    Example:
      python -m benchmarks.experiments.recorded_fallbacks data --cache build/recorded \\
        --output benchmarks/results/recorded-fallbacks.json
    """
    old = CareModel.load("built-in")
    rows = [row for name in ("research", "open") for row in read_rows(data / "train" / f"pairs_{name}.jsonl.gz")]
    cache, runs = cache.resolve() / old.fingerprint[:12], []
    for seed in map(int, seeds.split(",")):
        for name in SOURCES:
            if not (file := cache / f"{name}-{seed}.json").is_file():
                source = encode(*read_source(rows, name), old, cache)
                with tempfile.TemporaryDirectory() as scratch:
                    done = run(source, seed, Path(scratch))
                file.write_text(json.dumps(asdict(done)), encoding="utf-8")
            runs.append(json.loads(file.read_text(encoding="utf-8")))
            click.echo(json.dumps(runs[-1]), err=True)
    save_measured(output, {"sources": SOURCES, "sent": SENT, "runs": runs})


if __name__ == "__main__":
    main()
