"""Collections on which the choices of `care learn` are made, with the vectors of several old models.

A collection is one source of a folder of pairs (``pairs_*.jsonl.gz``: query, positive, source): its different positives
are the documents; `QUESTIONS` of its queries are questions with known answers, and `LOG` others are a query log without
answers. Old models: a sentence-transformers model, of which every layer's mean is kept, and the built-in pair. Wider
models are made of several layers side by side, whitened on the documents (`WIDE`).

    python -m benchmarks.experiments.learn_data DATA/train E5 --cache CACHE
"""

import gzip
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from care_qdrant.model.pair import CareModel
from care_qdrant.types import Vectors

SOURCES = ("toyhom_im", "cmedir", "cpsycoun", "tcm_books", "haimol_tcm", "huatuo_llama", "smilechat", "disease_graph")
"""Consultations, titles, counselling, classical books, exam explanations, short answers, dialogues, articles."""
DOCUMENTS, QUESTIONS, LOG = 2_000, 200, 500
"""Largest numbers of one collection."""
WIDE = {"e5-1024": (1_024, 0.0), "e5-3072": (3_072, 0.0), "e5-cone": (384, 0.8)}
"""Made-up old models: dimensions, and the cosine of two random vectors (a common mean is added)."""
TEACHERS = ("e5", "built-in", *WIDE)
_PARTS = {"documents": "passage: ", "questions": "query: ", "log": "query: "}
_MAX_TOKENS = {"documents": 48, "questions": 32, "log": 32}
_BATCH = 32


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
    """Return the texts of a collection that `main` has prepared."""
    return Texts(**json.loads((cache / f"{source}.json").read_text("utf-8")))


def read_vectors(cache: Path, source: str, teacher: str) -> Vectorised:
    """Return the vectors of an old model for a collection, wide ones computed from the layers of the model."""
    name = "built-in" if teacher == "built-in" else "layers"
    stored = {part: np.load(cache / f"{source}-{name}-{part}.npy", mmap_mode="r") for part in _PARTS}
    if teacher == "built-in":
        return Vectorised(**{part: _unit(np.asarray(found)) for part, found in stored.items()})
    if teacher == "e5":
        return Vectorised(**{part: _unit(np.asarray(found[:, -1], np.float32)) for part, found in stored.items()})
    dim, common = WIDE[teacher]
    layers = -(-dim // stored["documents"].shape[2])
    flat = {
        part: np.asarray(found[:, -layers:], np.float32).reshape(len(found), -1)[:, -dim:]
        for part, found in stored.items()
    }
    if common:
        centre = _unit(flat["documents"]).mean(axis=0)
        away = {part: _unit(_unit(found) - centre) for part, found in flat.items()}
        pull = np.sqrt(common / (1 - common)) * centre / np.linalg.norm(centre)
        return Vectorised(**{part: _unit(found + pull) for part, found in away.items()})
    mean = flat["documents"].mean(axis=0)
    centred = flat["documents"] - mean
    values, directions = np.linalg.eigh((centred.T @ centred / len(centred)).astype(np.float64))
    # The floor keeps directions that hold rounding alone from being blown up to the length of the others.
    scale = directions / np.sqrt(np.maximum(values, 0) + 0.01 * values.mean())
    return Vectorised(**{part: _unit(((found - mean) @ scale).astype(np.float32)) for part, found in flat.items()})


def _unit(vectors: Vectors) -> Vectors:
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9), dtype=np.float32)


def _pairs(folder: Path, source: str) -> Iterator[tuple[str, str]]:
    for file in sorted(folder.glob("pairs_*.jsonl.gz")):
        with gzip.open(file, "rt", encoding="utf-8") as stream:
            for line in stream:
                row = json.loads(line)
                if row["source"] == source:
                    yield row["query"], row["positive"]


def collect(pairs: Sequence[tuple[str, str]], seed: int = 0) -> Texts:
    """Draw documents, questions whose answers are among them, and a log of other questions."""
    pairs = sorted(set(pairs))
    random.Random(seed).shuffle(pairs)
    documents = list(dict.fromkeys(positive for _, positive in pairs))[:DOCUMENTS]
    rows = {text: row for row, text in enumerate(documents)}
    answers: dict[str, list[int]] = {}
    for query, positive in pairs:
        if positive in rows:
            answers.setdefault(query, []).append(rows[positive])
    questions = list(answers)[:QUESTIONS]
    asked = set(questions)
    log = list(dict.fromkeys(query for query, _ in pairs if query not in asked))[:LOG]
    return Texts(documents, questions, [answers[question] for question in questions], log)


def encode_layers(model: SentenceTransformer, texts: Sequence[str], prompt: str, max_tokens: int) -> Vectors:
    """Return the mean of each layer's token vectors, (texts, layers + 1, width), as float16."""
    transformer = model[0].auto_model
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
    found: list[Vectors | None] = [None] * len(texts)
    for start in range(0, len(order), _BATCH):
        rows = order[start : start + _BATCH]
        inputs = model.tokenizer(
            [prompt + texts[row] for row in rows],
            padding=True,
            truncation=True,
            max_length=max_tokens,
            return_tensors="pt",
        )
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            states = transformer(**inputs, output_hidden_states=True).hidden_states
        mask = inputs["attention_mask"][:, :, None].float()
        means = torch.stack([(state.float() * mask).sum(1) / mask.sum(1) for state in states], dim=1)
        for row, layers in zip(rows, means.numpy().astype(np.float16), strict=True):
            found[row] = layers
    return np.stack([layers for layers in found if layers is not None])


@click.command()
@click.argument("pairs", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("model", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--cache", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder to write.")
@click.option("--sources", default=",".join(SOURCES), show_default=True, help="Values of `source` in the pairs.")
def main(pairs: Path, model: Path, cache: Path, sources: str) -> None:
    """Make collections of the PAIRS folder, and encode them with the sentence-transformers folder MODEL into --cache.

    What is there already is kept, so an interrupted run goes on.

    \b
    Example:
      python -m benchmarks.experiments.learn_data DATA/train e5 --cache CACHE
    """
    cache.mkdir(parents=True, exist_ok=True)
    encoder, built_in = SentenceTransformer(str(model), device="cpu"), CareModel.load()
    for source in sources.split(","):
        texts = collect(list(_pairs(pairs, source)))
        (cache / f"{source}.json").write_text(
            json.dumps({name: getattr(texts, name) for name in Texts.__slots__}, ensure_ascii=False), encoding="utf-8"
        )
        for part, prompt in _PARTS.items():
            asked: list[str] = getattr(texts, part)
            file = cache / f"{source}-built-in-{part}.npy"
            if not file.is_file():
                np.save(file, built_in.encode_document(asked) if part == "documents" else built_in.encode_query(asked))
            file = cache / f"{source}-layers-{part}.npy"
            if not file.is_file():
                np.save(file, encode_layers(encoder, asked, prompt, _MAX_TOKENS[part]))
            click.echo(f"{source} {part} {len(asked)}")


if __name__ == "__main__":
    main()
