"""Measure what `care learn` refuses as mixed vectors, on healthy collections and on ones that are mixed on purpose.

python -m benchmarks.experiments.mixed_vectors CACHE --output mixed-vectors.json
"""

import json
from dataclasses import asdict
from pathlib import Path

import click
import numpy as np
from care_benchmarks.machine import describe_machine
from care_trainer.learn.checks import chance_share
from care_trainer.learn.settings import LearnSettings
from care_trainer.models.tokens import tokenize, train_collection_tokenizer

from care_qdrant.types import Vectors

from .learn_data import SOURCES, TEACHERS, read_texts, read_vectors


def mixtures(vectors: Vectors, seed: int) -> dict[str, Vectors]:
    """Return vectors as they are, half of them shuffled among themselves, and a share of them rotated."""
    generator, count = np.random.default_rng(seed), len(vectors)
    rotation = np.linalg.qr(generator.normal(size=(vectors.shape[1], vectors.shape[1])))[0].astype(np.float32)
    result = {"healthy": vectors, "half shuffled": vectors.copy()}
    half = generator.permutation(count)[: count // 2]
    result["half shuffled"][half] = vectors[generator.permutation(half)]
    for name, every in (("half rotated", 2), ("third rotated", 3), ("tenth rotated", 10)):
        result[name] = vectors.copy()
        result[name][::every] = vectors[::every] @ rotation
    return result


@click.command()
@click.argument("cache_folder", metavar="CACHE", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--sources", default=",".join(SOURCES), show_default=True, help="Collections, as in learn_data.")
@click.option("--teachers", default="e5,built-in,e5-cone", show_default=True, help=f"Of {', '.join(TEACHERS)}.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="JSON file to write.")
def main(cache_folder: Path, sources: str, teachers: str, output: Path) -> None:
    """Write the share of vectors at chance of each collection that learn_data left in CACHE.

    \b
    Example:
      python -m benchmarks.experiments.mixed_vectors CACHE --output mixed-vectors.json
    """
    settings, runs = LearnSettings(), []
    for source in sources.split(","):
        texts = read_texts(cache_folder, source).documents
        tokenizer = train_collection_tokenizer(texts, settings.vocabulary, settings.max_tokens)
        tokens, size = tokenize(tokenizer, texts), tokenizer.get_vocab_size()
        for teacher in teachers.split(","):
            vectors = read_vectors(cache_folder, source, teacher).documents
            shares = {
                kind: chance_share(mixed, tokens, size) for kind, mixed in mixtures(vectors, settings.seed).items()
            }
            runs.append({"source": source, "teacher": teacher, "texts": len(texts), "at_chance": shares})
            output.write_text(
                json.dumps({"machine": asdict(describe_machine()), "runs": runs}, indent=1) + "\n", "utf-8"
            )
            click.echo(json.dumps(runs[-1]))


if __name__ == "__main__":
    main()
