"""Time and memory of `care learn` by the number of points on a server, and what its queries find by the graph there."""

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click
import numpy as np
from care_trainer.learn import training  # noqa: F401  # so that reading does not wait for torch
from care_trainer.learn.graph import Width, recall, search
from care_trainer.learn.learn import learn
from care_trainer.learn.settings import LearnSettings
from qdrant_client import QdrantClient, models

from care_qdrant.model.care_model import CareModel
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import open_client
from care_qdrant.search.resolved import StoreConfig, resolve_vectors
from care_qdrant.types import Vectors

from .measured import output_option, save_measured, shown
from .memory import Peak, watched_memory

COLLECTION = "care-bench-learning"
SYLLABLES = [first + second for first in "bdfghklmnprstvz" for second in "aeiou"]
WORDS = [f"{first}{second}{last}" for first in SYLLABLES for second in SYLLABLES for last in "lrnst"][:11_000]
WORDS_OF_A_TEXT = 40
TOPICS, WORDS_OF_A_TOPIC = 500, 40
"""Half of the words of a text are of its topic: where texts share no words, vectors do not follow them (refused)."""
WORDS_OF_A_SENTENCE = 8
PAGE = 2_000
QUERIES, WIDTHS = 200, (16, 32, 64, 128, 256, 512)
"""First sentences of documents that are asked, and how wide the graph is searched for them."""
LONGEST_SECONDS = 7_200
"""Longest time that building the graph may take."""


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
    """CPU seconds of this process, from reading to export."""
    before: Peak
    """The trainer imported, the points written."""
    after: Peak
    texts: int
    steps: int
    recall_at_10: float
    """Held-out sentences that find their own document among up to 20,000."""
    graph_seconds: float | None = None
    """Seconds that building the graph took; None where it was not built."""
    graph: dict[str, list[Width]] = field(default_factory=dict)
    """Recall of a search of the graph against an exact one, for queries of the made-up model and for learned ones."""


class Words:
    """A made-up model: the normalised sum of random word vectors, frequent words being shorter."""

    def __init__(self, dim: int) -> None:
        generator = np.random.default_rng(0)
        lengths = np.log(2 + np.arange(len(WORDS)))[:, None]
        self._vectors = (generator.normal(size=(len(WORDS), dim)) * lengths).astype(np.float32)
        self._chances = 1 / np.arange(10, len(WORDS) + 10)
        self._chances /= self._chances.sum()

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of texts, (texts, dim)."""
        rows = {word: row for row, word in enumerate(WORDS)}
        sums = np.stack([sum(self._vectors[rows[word.strip(".")]] for word in text.split()) for text in texts])
        return np.asarray(sums / np.linalg.norm(sums, axis=1, keepdims=True), dtype=np.float32)

    def pages(self, points: int) -> Iterator[tuple[range, list[str], Vectors]]:
        """Yield the numbers, texts and vectors of some points at a time."""
        for start in range(0, points, PAGE):
            numbers = range(start, min(points, start + PAGE))
            generator = np.random.default_rng([1, start])
            chosen = generator.choice(len(WORDS), size=(len(numbers), WORDS_OF_A_TEXT), p=self._chances)
            topics = generator.integers(TOPICS, size=(len(numbers), 1)) * WORDS_OF_A_TOPIC
            of_topic = (topics + generator.integers(WORDS_OF_A_TOPIC, size=chosen.shape)) % len(WORDS)
            chosen = np.where(generator.random(chosen.shape) < 0.5, of_topic, chosen)
            sums = self._vectors[chosen].sum(axis=1)
            yield numbers, [_text(row) for row in chosen], sums / np.linalg.norm(sums, axis=1, keepdims=True)


def _text(chosen: Sequence[int]) -> str:
    words = [WORDS[number] for number in chosen]
    return " ".join(
        " ".join(words[at : at + WORDS_OF_A_SENTENCE]) + "." for at in range(0, len(words), WORDS_OF_A_SENTENCE)
    )


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


def build_graph(client: QdrantClient) -> float:
    """Let the server build its usual graph, which it then always searches, and return the seconds that it took."""
    began = time.monotonic()
    client.update_collection(
        COLLECTION,
        hnsw_config=models.HnswConfigDiff(m=16, ef_construct=100, full_scan_threshold=10),
        optimizers_config=models.OptimizersConfigDiff(indexing_threshold=10_000),
    )
    collection = Collection(client, COLLECTION)
    while not collection.refresh().has_index:  # the server does not begin at once
        time.sleep(1)
    collection.wait_for_optimizer(LONGEST_SECONDS, 1.0)
    return time.monotonic() - began


def search_graph(client: QdrantClient, model: CareModel, points: int, dim: int) -> dict[str, list[Width]]:
    """Search the graph at several widths for sentences that the made-up model and the learned encoder encode."""
    collection, words = Collection(client, COLLECTION), Words(dim)
    resolved = resolve_vectors(collection, collection.refresh(), StoreConfig(vector_name=""), checked_at=0.0)
    wanted = set(range(0, points, max(1, points // QUERIES)))
    pages = words.pages(points)
    asked = [texts[row - numbers.start].split(".")[0] for numbers, texts, _ in pages for row in wanted & {*numbers}]
    found = {}
    for name, vectors in (("model", words.encode(asked)), ("learned", model.encode_query(asked))):
        queries = vectors.tolist()
        exact, _ = search(resolved, queries, models.SearchParams(exact=True))
        found[name] = []
        for hnsw_ef in WIDTHS:
            ids, ms = search(resolved, queries, models.SearchParams(hnsw_ef=hnsw_ef))
            found[name].append(shown(Width(hnsw_ef, recall(ids, exact), round(ms, 2))))
    return found


def measure(
    client: QdrantClient, points: int, dim: int, settings: LearnSettings, scratch: Path, *, graph: bool
) -> Learning:
    """Write a collection, learn from it, search its graph and delete it."""
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
    graph_seconds = round(build_graph(client), 1) if graph else None
    found = search_graph(client, CareModel.load(scratch / "queries"), points, dim) if graph else {}
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
        texts=report.sample.texts,
        steps=report.training.steps,
        recall_at_10=report.held_out.recall_at_10,
        graph_seconds=graph_seconds,
        graph=found,
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
@click.option("--graph", is_flag=True, help="Then build the graph and search it at several widths.")
@output_option
def main(url: str, points: int, dim: int, max_steps: int, graph: bool, output: Path) -> None:
    """Learn a query encoder from made-up texts on a server, and measure seconds and peak memory.

    Measure one size per process, since the figures are peaks.

    \b
    Example:
      python -m benchmarks.perf.learning --url http://localhost:6333 --points 1000000 --output learning-1000000.json
    """
    with tempfile.TemporaryDirectory() as scratch, open_client(url=url) as client:
        settings = LearnSettings(max_steps=max_steps)
        save_measured(output, asdict(measure(client, points, dim, settings, Path(scratch), graph=graph)))


if __name__ == "__main__":
    main()
