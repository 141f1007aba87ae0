"""Collections on which the choices of `care learn` are made, with the vectors of several old models.

A collection is one source of a folder of pairs (``pairs_*.jsonl.gz``: query, positive, source): its different positives
are the documents; `QUESTIONS` of its queries are questions with known answers, and `LOG` others are a query log without
answers. Old models: a sentence-transformers model (e5), the built-in pair, and models made of e5's vectors: wide, cut,
rounded and in a narrow cone (`TEACHERS`).

    python -m benchmarks.experiments.learn_data DATA/train E5 --cache CACHE
"""

import gzip
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import click
import numpy as np
from care_trainer.learn.reading import principal_directions
from sentence_transformers import SentenceTransformer

from care_qdrant.model.care_model import CareModel
from care_qdrant.types import Vectors

SOURCES = ("toyhom_im", "cmedir", "cpsycoun", "tcm_books", "haimol_tcm", "huatuo_llama", "smilechat", "disease_graph")
"""Consultations, titles, counselling, classical books, exam explanations, short answers, dialogues, articles."""
ALL = "all"
"""One collection of every source."""
QUESTIONS, LOG = 200, 500
"""Largest numbers of one collection."""
CONES = {"e5-cone": 0.8}
"""Old models whose vectors share a mean: the cosine of two random documents."""
WIDE = {"wide-1024": (1_024, 1.0), "wide-3072": (3_072, 1.0), "wide-3072-curved": (3_072, 1.5)}
"""Wide old models of full rank, made of random Fourier features of e5's vectors: dimensions and scale. Their products
are those of a Gaussian kernel, which orders documents as e5's cosines do, up to noise that falls with the width; the
larger the scale, the less of them lies in few directions (Rahimi and Recht, NIPS 2007)."""
TEACHERS = ("e5", "built-in", *CONES, *WIDE, "cut-256", "e5-int8")
"""Old models; among them the first 256 dimensions of a Matryoshka model ("wide-3072" turned to its principal
directions), and e5 stored as whole numbers from -127 to 127."""
_PARTS = {"documents": "passage: ", "questions": "query: ", "log": "query: "}
_MAX_TOKENS = {"documents": 48, "questions": 32, "log": 32}


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts of one collection."""

    documents: list[str]
    questions: list[str]
    relevant: list[list[int]]
    """Rows of each question's documents."""
    log: list[str]


@dataclass(frozen=True, slots=True)
class Vectorised:
    """Unit vectors of one old model for a collection's texts, each (texts, dim)."""

    documents: Vectors
    questions: Vectors
    log: Vectors


def read_texts(cache: Path, source: str) -> Texts:
    """Return the texts of a collection that `main` has prepared, or of several as one: "toyhom_im+cmedir"."""
    found = Texts([], [], [], [])
    for part in source.split("+"):
        texts = Texts(**json.loads((cache / f"{part}.json").read_text("utf-8")))
        found.relevant.extend([len(found.documents) + row for row in rows] for rows in texts.relevant)
        found.documents.extend(texts.documents)
        found.questions.extend(texts.questions)
        found.log.extend(texts.log)
    return found


def read_vectors(cache: Path, source: str, teacher: str) -> Vectorised:
    """Return the vectors of an old model for a collection, or for several as one."""
    name, sources = "built-in" if teacher == "built-in" else "e5", source.split("+")
    stored = {part: [np.load(cache / f"{one}-{name}-{part}.npy") for one in sources] for part in _PARTS}
    own = {part: _unit(np.concatenate(found)) for part, found in stored.items()}
    if teacher == name:
        return Vectorised(**own)
    if teacher == "e5-int8":
        scale = np.abs(own["documents"]).max() / 127
        return Vectorised(**own | {"documents": _unit(np.round(own["documents"] / scale).astype(np.float32))})
    centres = {part: found.mean(axis=0) for part, found in own.items()}
    away = {part: _unit(found - centres[part]) for part, found in own.items()}
    if teacher in CONES:
        common = CONES[teacher]
        pull = np.sqrt(common / (1 - common)) * _unit(centres["documents"][None])
        return Vectorised(**{part: _unit(found + pull) for part, found in away.items()})
    dim, scale = WIDE["wide-3072" if teacher == "cut-256" else teacher]
    turn = scale * np.random.default_rng(0).normal(size=(away["documents"].shape[1], dim // 2)).astype(np.float32)
    wide = {
        part: _unit(np.concatenate([np.cos(found @ turn), np.sin(found @ turn)], 1)) for part, found in away.items()
    }
    if teacher == "cut-256":
        basis = principal_directions(wide["documents"], 256)
        wide = {part: _unit(found @ basis.T) for part, found in wide.items()}
    return Vectorised(**wide)


def _unit(vectors: Vectors) -> Vectors:
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9), dtype=np.float32)


def smaller(texts: Texts, vectors: Vectorised, limit: int) -> tuple[Texts, Vectorised]:
    """Return a collection with fewer documents: those of the questions, and the first of the others."""
    answers = {row for rows in texts.relevant for row in rows}
    others = (row for row in range(len(texts.documents)) if row not in answers)
    kept = sorted(answers) + list(islice(others, max(0, limit - len(answers))))
    places = {row: place for place, row in enumerate(kept)}
    relevant = [[places[row] for row in rows] for rows in texts.relevant]
    fewer = Texts([texts.documents[row] for row in kept], texts.questions, relevant, texts.log)
    return fewer, replace(vectors, documents=vectors.documents[kept])


def _pairs(folder: Path, source: str) -> Iterator[tuple[str, str]]:
    for file in sorted(folder.glob("pairs_*.jsonl.gz")):
        with gzip.open(file, "rt", encoding="utf-8") as stream:
            for line in stream:
                row = json.loads(line)
                if source in (ALL, row["source"]):
                    yield row["query"], row["positive"]


def collect(pairs: Sequence[tuple[str, str]], limit: int, seed: int = 0) -> Texts:
    """Draw at most `limit` documents, questions whose answers are among them, and a log of other questions."""
    pairs = sorted(set(pairs))
    random.Random(seed).shuffle(pairs)
    documents = list(dict.fromkeys(positive for _, positive in pairs))[:limit]
    rows = {text: row for row, text in enumerate(documents)}
    answers: dict[str, list[int]] = {}
    for query, positive in pairs:
        if positive in rows:
            answers.setdefault(query, []).append(rows[positive])
    questions = list(answers)[:QUESTIONS]
    asked = set(questions)
    log = list(dict.fromkeys(query for query, _ in pairs if query not in asked))[:LOG]
    return Texts(documents, questions, [answers[question] for question in questions], log)


@click.command()
@click.argument("pairs", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("model", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--cache", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder to write.")
@click.option(
    "--sources", default=",".join(SOURCES), show_default=True, help="Values of `source` in the pairs, or all."
)
@click.option("--documents", default=2_000, show_default=True, help="Most documents of a collection.")
@click.option("--old-models", default="built-in,e5", show_default=True, help="Which of the two encode them.")
def main(pairs: Path, model: Path, cache: Path, sources: str, documents: int, old_models: str) -> None:
    """Make collections of the PAIRS folder, and encode them with the sentence-transformers folder MODEL into --cache.

    What is there already is kept, so an interrupted run goes on.

    \b
    Example:
      python -m benchmarks.experiments.learn_data DATA/train e5 --cache CACHE
      python -m benchmarks.experiments.learn_data DATA/train e5 --cache LARGE --sources all --documents 100000 \\
        --old-models built-in
    """
    cache.mkdir(parents=True, exist_ok=True)
    encoder, built_in = SentenceTransformer(str(model), device="cpu"), CareModel.load()
    for source in sources.split(","):
        texts = collect(list(_pairs(pairs, source)), documents)
        (cache / f"{source}.json").write_text(
            json.dumps({name: getattr(texts, name) for name in Texts.__slots__}, ensure_ascii=False), encoding="utf-8"
        )
        for part, prompt in _PARTS.items():
            asked: list[str] = getattr(texts, part)
            file = cache / f"{source}-built-in-{part}.npy"
            if "built-in" in old_models and not file.is_file():
                np.save(file, built_in.encode_document(asked) if part == "documents" else built_in.encode_query(asked))
            file = cache / f"{source}-e5-{part}.npy"
            if "e5" in old_models and not file.is_file():
                encoder.max_seq_length = _MAX_TOKENS[part]
                np.save(file, encoder.encode(asked, prompt=prompt, normalize_embeddings=True))
            click.echo(f"{source} {part} {len(asked)}")


if __name__ == "__main__":
    main()
