"""Counters for Prometheus, summed over the worker processes of a service. No label holds text of a request."""

import os

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from care_qdrant.serve.settings import DIRECTORY_VARIABLE

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Metrics:
    """What a worker counts."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter("care_requests", "Requests that were answered.", ["route", "status"], registry=registry)
        self.seconds = Histogram(
            "care_request_seconds",
            "Time from the last byte of a request's head to its answer.",
            ["route"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.refusals = Counter("care_refusals", "Requests that were refused, by reason.", ["code"], registry=registry)
        self.texts = Counter("care_texts", "Texts that were encoded.", ["model", "side"], registry=registry)
        self.cut_texts = Counter(
            "care_cut_texts",
            "Texts that /v1/embeddings and /embed cut at the encoder's token limit.",
            ["model", "side"],
            registry=registry,
        )
        self.batch = Histogram(
            "care_batch_texts", "Texts of one run of an encoder.", ["side"], buckets=_TEXTS, registry=registry
        )
        self.encode_seconds = Histogram(
            "care_encode_seconds", "Time of one run of an encoder.", ["side"], buckets=_SECONDS, registry=registry
        )
        self.waiting = Gauge(
            "care_waiting_texts",
            "Texts that were accepted and are not encoded yet.",
            ["side"],
            multiprocess_mode="livesum",
            registry=registry,
        )

    def render(self) -> bytes:
        """Return all counters in the text format; those of all workers where there are several."""
        if DIRECTORY_VARIABLE not in os.environ:
            return generate_latest(self._registry)
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)
