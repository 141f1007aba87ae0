"""Time and memory of `care learn` by the number of points on a server."""

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
from care_trainer.learn import training  # noqa: F401  # so that reading does not wait for torch
from care_trainer.learn.learn import learn
from care_trainer.learn.settings import LearnSettings
from qdrant_client import QdrantClient, models

from care_qdrant.qdrant.connection import open_client
from care_qdrant.types import Vectors

from .measured import output_option, save_measured
from .memory import Peak, watched_memory

COLLECTION = "care-bench-learning"
SYLLABLES = [first + second for first in "bdfghklmnprstvz" for second in "aeiou"]
WORDS = [f"{first}{second}{last}" for first in SYLLABLES for second in SYLLABLES for last in "lrnst"][:11_000]
WORDS_OF_A_TEXT = 40
PAGE = 2_000


@dataclass(frozen=True, slots=True)
class Learning:
    """One run over made-up texts, in a process of its own."""

    points: int
    dim: int
    sample: int
    """Points that are read at most."""
    upload_seconds: float
    reading_seconds: float
    training_seconds: float
    """Steps, measurements of held-out documents and the tokenizer."""
    export_seconds: float
    """ONNX, the report and the contract."""
    cpu_seconds: float
    """Of this process, from reading to export."""
    before: Peak
    """The trainer imported, the points written."""
    after: Peak
    texts: int
    steps: int
    recall_at_10: float
    """Held-out sentences that find their own document among up to 20,000."""


class Words:
    """A made-up model: the normalised sum of random word vectors, frequent words being shorter."""

    def __init__(self, dim: int) -> None:
        generator = np.random.default_rng(0)
        lengths = np.log(2 + np.arange(len(WORDS)))[:, None]
        self._vectors = (generator.normal(size=(len(WORDS), dim)) * lengths).astype(np.float32)
        self._chances = 1 / np.arange(10, len(WORDS) + 10)
        self._chances /= self._chances.sum()

    def pages(self, points: int) -> Iterator[tuple[range, list[str], Vectors]]:
        """Yield the numbers, texts and vectors of some points at a time."""
        for start in range(0, points, PAGE):
            numbers = range(start, min(points, start + PAGE))
            generator = np.random.default_rng([1, start])
            chosen = generator.choice(len(WORDS), size=(len(numbers), WORDS_OF_A_TEXT), p=self._chances)
            sums = self._vectors[chosen].sum(axis=1)
            yield numbers, [_text(row) for row in chosen], sums / np.linalg.norm(sums, axis=1, keepdims=True)


def _text(chosen: Sequence[int]) -> str:
    words = [WORDS[number] for number in chosen]
    return " ".join(" ".join(words[at : at + 8]) + "." for at in range(0, len(words), 8))


def upload(client: QdrantClient, points: int, dim: int) -> float:
    """Write the collection in LangChain's layout without an index, and return the seconds that it took."""
    began = time.monotonic()
    client.delete_collection(COLLECTION)
    client.create_collection(
        COLLECTION,
        models.VectorParams(size=dim, distance=models.Distance.COSINE, on_disk=True),
        hnsw_config=models.HnswConfigDiff(m=0),
        optimizers_config=models.OptimizersConfigDiff(indexing_threshold=0),
        on_disk_payload=True,
    )
    for numbers, texts, vectors in Words(dim).pages(points):
        payloads = [{"page_content": text, "metadata": {}} for text in texts]
        batch = models.Batch(ids=list(numbers), vectors=vectors.tolist(), payloads=payloads)
        client.upsert(COLLECTION, batch, wait=numbers.stop == points)
    return time.monotonic() - began


def measure(client: QdrantClient, points: int, dim: int, settings: LearnSettings, scratch: Path) -> Learning:
    """Write a collection, learn from it and delete it."""
    seconds: dict[str, float] = {}
    upload_seconds = upload(client, points, dim)
    clock = time.monotonic()

    def note(part: str, _done: int, _total: int) -> None:
        nonlocal clock
        now = time.monotonic()
        seconds[part] = seconds.get(part, 0) + now - clock
        clock = now

    with watched_memory() as peak:
        before = Peak(**asdict(peak))
        cpu = time.process_time()
        report = learn(client, COLLECTION, scratch / "queries", settings=settings, force=True, on_progress=note)
        cpu = time.process_time() - cpu
    seconds["export"] += time.monotonic() - clock
    client.delete_collection(COLLECTION)
    return Learning(
        points=points,
        dim=dim,
        sample=settings.sample,
        upload_seconds=round(upload_seconds, 1),
        reading_seconds=round(seconds["reading"], 1),
        training_seconds=round(seconds["training"], 1),
        export_seconds=round(seconds["export"], 1),
        cpu_seconds=round(cpu, 1),
        before=before,
        after=peak,
        texts=report.texts,
        steps=report.steps,
        recall_at_10=report.held_out.recall_at_10,
    )


@click.command()
@click.option("--url", required=True, help="URL of a Qdrant server; its collection care-bench-learning is replaced.")
@click.option("--points", type=click.IntRange(1), default=100_000, show_default=True, help="Size of the collection.")
@click.option("--dim", type=click.IntRange(1), default=384, show_default=True, help="Dimensions of the vectors.")
@click.option(
    "--max-steps",
    type=click.IntRange(1),
    default=LearnSettings().max_steps,
    show_default=True,
    help="Training steps at most; fewer measure the reading, whose time alone grows beyond the sample.",
)
@output_option
def main(url: str, points: int, dim: int, max_steps: int, output: Path) -> None:
    """Learn a query encoder from made-up texts on a server, and measure seconds and peak memory.

    Measure one size per process, since the figures are peaks.

    \b
    Example:
      python -m benchmarks.perf.learning --url http://localhost:6333 --points 1000000 --output learning-1000000.json
    """
    with tempfile.TemporaryDirectory() as scratch, open_client(url=url) as client:
        save_measured(output, asdict(measure(client, points, dim, LearnSettings(max_steps=max_steps), Path(scratch))))


if __name__ == "__main__":
    main()
