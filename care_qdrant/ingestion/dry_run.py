"""Estimates the cost of an ingestion without writing anything."""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing

from care_qdrant.contracts.payload import chunk_payload
from care_qdrant.encoders import Encoder
from care_qdrant.encoders.ahead import Meter, meter_of, run_ahead
from care_qdrant.ingestion.diff import ChunkTask, Diff
from care_qdrant.ingestion.pipeline import WINDOW_TEXTS, Maker, make_apart
from care_qdrant.ingestion.reservoir import Reservoir
from care_qdrant.ingestion.settings import Estimate, IngestReport
from care_qdrant.qdrant.quantization import DATATYPES
from care_qdrant.types import Chunk

MEASURED_SECONDS = 5.0
"""Longest time that a dry run encodes chunks of the corpus to measure the encoder; at least one batch is encoded."""


def estimate(
    diffs: Iterable[Diff],
    report: IngestReport,
    maker: Maker,
    encoder: Callable[[], Encoder],
    batch_tokens: int,
) -> Estimate:
    """Count what would be written, and measure the encoder for a few seconds on chunks from all over the corpus.

    ``report`` gets the counts, and ``encoder`` is called only if something would be encoded.
    """
    tokens, size, documents = 0, 0, 0
    sample = Reservoir[ChunkTask](WINDOW_TEXTS, seed=0)
    for diff in diffs:
        report.encoded += len(diff.encode)
        report.updated += len(diff.update)
        tokens += sum(task.chunk.tokens for task in diff.encode)
        documents += len({task.chunk.document.id for task in diff.encode})
        size += sum(payload_bytes(task.chunk, task.hashes) for task in (*diff.encode, *diff.update))
        sample.draw(diff.encode)
    size += round(report.encoded * maker.numbers * DATATYPES["float32"].bytes_per_number)
    points = report.encoded + report.updated
    if not sample.drawn:
        return Estimate(points, tokens, size, None)
    rate, padding, idle = _measure(sample.drawn, maker, encoder(), batch_tokens)
    hours = tokens / rate / 3_600
    return Estimate(
        points=points,
        tokens=tokens,
        bytes=size,
        seconds=rounded(3_600 * hours),
        hours=rounded(hours),
        tokens_per_second=rounded(rate),
        documents_per_second=rounded(rate * documents / tokens),
        padding=round(padding, 4),
        encoder_idle_fraction=round(idle, 4),
    )


def _measure(tasks: list[ChunkTask], maker: Maker, encoder: Encoder, batch_tokens: int) -> tuple[float, float, float]:
    """Return tokens per second, padding and idle fraction, measured on batches of all lengths until the time is up."""
    batches = [[tasks[index] for index in batch] for batch in maker.batches(tasks, batch_tokens)]
    # From both ends and the middle in turn: the longest batches come first, and their rate is not typical.
    order = sorted(range(len(batches)), key=lambda number: number * 0.618_034 % 1)
    make_apart(maker.make, sorted(tasks, key=lambda task: task.tokens)[:1])  # the first call also builds kernels
    meter = Meter()
    until = time.perf_counter() + MEASURED_SECONDS

    def timely() -> Iterator[list[ChunkTask]]:
        for count, number in enumerate(order):
            if count and time.perf_counter() > until:
                return
            yield batches[number]

    def run(batch: list[ChunkTask]) -> None:
        with meter.running([task.tokens for task in batch]):
            make_apart(maker.make, batch)

    device = meter_of(encoder, meter)
    device.reset()  # loading and the first call do not count as idle time in a long run
    with closing(run_ahead(timely(), run, maker.calls)) as done:
        for _ in done:
            pass
    return meter.tokens_per_second, meter.padding, device.idle_fraction


def rounded(value: float) -> float:
    """Round to three digits: a few seconds cannot predict hours more precisely."""
    return float(f"{value:.3g}")


def payload_bytes(chunk: Chunk, hashes: Mapping[str, str]) -> int:
    """Return the size of a payload as JSON."""
    return len(json.dumps(chunk_payload(chunk, hashes), ensure_ascii=False).encode())
