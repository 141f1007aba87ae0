"""The counters of a service for Prometheus, summed over its workers. No label holds text of a request."""

import os

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from care_qdrant.serve.settings import DIRECTORY_VARIABLE

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_ANSWERS = {True: "yes", False: "no", None: "unknown"}


class Metrics:
    """The counters of one process: a worker, or the supervisor, which counts reloads and workers that died."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.build_info = Gauge(
            "care_build_info",
            "Always 1: the version, and a model that is served, with its fingerprint.",
            ["version", "model", "fingerprint"],
            multiprocess_mode="livemax",
            registry=registry,
        )
        self.requests = Counter("care_requests", "Requests that were answered.", ["route", "status"], registry=registry)
        self.seconds = Histogram(
            "care_request_seconds",
            "Time from the last byte of a request's head to its answer.",
            ["route"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.refusals = Counter("care_refusals", "Requests that were refused, by reason.", ["code"], registry=registry)
        self.asked_texts = Counter(
            "care_asked_texts",
            "Texts of accepted requests; a search is one. The key is the first eight digits of its hash, empty without "
            "keys; the collection is empty for requests for vectors.",
            ["key", "scope", "collection"],
            registry=registry,
        )
        self._searches = Counter(
            "care_searches",
            "Searches that were answered, and whether the best hit was a good match (yes, no, unknown).",
            ["collection", "mode", "good_match"],
            registry=registry,
        )
        self.qdrant_seconds = Histogram(
            "care_qdrant_seconds",
            "Time in which a search waited for Qdrant, the check of the model record included.",
            ["collection"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.texts = Counter("care_texts", "Texts that were encoded.", ["model", "side"], registry=registry)
        self.cut_texts = Counter(
            "care_cut_texts",
            "Texts that /v1/embeddings cut at the encoder's token limit.",
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
        self._reloads = Counter("care_reloads", "Reloads, done and failed.", ["outcome"], registry=registry)
        self.died = Counter("care_workers_died", "Workers that died and were replaced.", registry=registry)
        # Prometheus sees an increase only of a counter that was there before.
        for outcome in ("done", "failed"):
            self._reloads.labels(outcome)
        for code in ("contract_mismatch", "fingerprint_mismatch", "qdrant_unreachable", "queue_full"):
            self.refusals.labels(code)

    def searched(self, collection: str, mode: str, *, is_good: bool | None) -> None:
        """Count a search, by whether its best hit is a good match; None is unknown."""
        self._searches.labels(collection, mode, _ANSWERS[is_good]).inc()

    def reloaded(self, *, is_done: bool) -> None:
        """Count a reload."""
        self._reloads.labels("done" if is_done else "failed").inc()

    def render(self) -> bytes:
        """Return the counters of all workers in the text format of Prometheus."""
        if DIRECTORY_VARIABLE not in os.environ:
            return generate_latest(self._registry)
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)
