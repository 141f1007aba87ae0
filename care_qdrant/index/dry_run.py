"""What an ingestion would cost, without writing anything."""

import json
import time
from collections.abc import Callable, Iterable

from care_qdrant.encoders import Encoder
from care_qdrant.index.plan import Plan, Task, check_vectors
from care_qdrant.index.report import Estimate, Tally
from care_qdrant.qdrant.create import PointVectors
from care_qdrant.qdrant.payload import chunk_payload

SAMPLE_CHUNKS = 32
"""Encoded to measure the speed."""
BYTES_PER_NUMBER = 4


def estimate(
    plans: Iterable[Plan],
    tally: Tally,
    vectors: PointVectors,
    encoder: Callable[[], Encoder],
    price_per_hour: float | None = None,
) -> Estimate:
    """Count what would be written, and time the encoding of a few chunks.

    Args:
        plans: Of the whole corpus.
        tally: Gets the counts, as a real run would have them.
        vectors: What the points would carry.
        encoder: Loads the document encoder; called only if something would be encoded.
        price_per_hour: Of this machine; None leaves the cost out.
    """
    tokens, size = 0, 0
    sample: list[Task] = []
    for plan in plans:
        tally.encoded += len(plan.encode)
        tally.updated += len(plan.update)
        tally.deleted += len(plan.surplus)
        tokens += sum(task.chunk.tokens for task in plan.encode)
        size += sum(_payload_bytes(task) for task in (*plan.encode, *plan.update))
        sample += plan.encode[: SAMPLE_CHUNKS - len(sample)]
    size += tally.encoded * vectors.dense.dim * BYTES_PER_NUMBER
    seconds = tokens * _seconds_per_token(sample, vectors, encoder()) if sample else None
    hours = None if seconds is None else seconds / 3_600
    return Estimate(
        points=tally.encoded + tally.updated,
        tokens=tokens,
        bytes=size,
        seconds=_rounded(seconds),
        hours=_rounded(hours),
        cost=None if price_per_hour is None else _rounded((hours or 0) * price_per_hour),
    )


def _rounded(value: float | None) -> float | None:
    """Round to three digits: a first batch says no more about a night."""
    return None if value is None else float(f"{value:.3g}")


def _payload_bytes(task: Task) -> int:
    return len(json.dumps(chunk_payload(task.chunk, task.hashes), ensure_ascii=False).encode())


def _seconds_per_token(sample: list[Task], vectors: PointVectors, encoder: Encoder) -> float:
    texts = [task.chunk.embedded_text for task in sample]
    encoder.encode(texts[:1])
    start = time.perf_counter()
    check_vectors(encoder.encode(texts), sample, vectors.dense.dim)
    return (time.perf_counter() - start) / sum(task.chunk.tokens for task in sample)
