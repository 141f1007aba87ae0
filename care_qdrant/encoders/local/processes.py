"""One torch encoder in each of several processes, as on several GPUs; whichever is free takes the next batch."""

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, Literal

from care_qdrant.encoders import TokenCounter
from care_qdrant.encoders.ahead import Meter
from care_qdrant.encoders.batching import ALIKE
from care_qdrant.encoders.engine import Dtype
from care_qdrant.encoders.onnx import usable_cores
from care_qdrant.errors import EncodingError
from care_qdrant.types import Vectors


class ProcessEncoder:
    """A document encoder on several devices of this machine; they may differ in speed."""

    def __init__(
        self,
        folder: Path,
        side: Literal["query", "document"],
        devices: Sequence[str],
        counter: TokenCounter,
        *,
        dim: int,
        prompt: str,
        dtype: Dtype = "auto",
    ) -> None:
        """Start the processes, and wait until each has loaded the model."""
        self.dim, self.max_tokens, self.prompt, self._counter = dim, counter.max_tokens, prompt, counter
        self._devices, self.meter = tuple(devices), Meter(len(devices))
        self.calls = 2 * len(devices)
        self.alike = ALIKE if "cpu" in devices else 0.0
        context = multiprocessing.get_context("spawn")
        free: Queue[str] = context.Queue()
        for device in devices:
            free.put(device)
        threads = max(1, usable_cores() // len(devices))
        given = (free, context.Barrier(len(devices)), folder, side, prompt, counter.max_tokens, dtype, threads)
        self._pool = ProcessPoolExecutor(len(devices), context, _start, given)
        try:
            self._reports = list(self._pool.map(_loaded, range(len(devices))))
        except BrokenExecutor as error:
            raise EncodingError(
                f"an encoder died while it was loaded on {', '.join(devices)}, perhaps for lack of memory"
            ) from error
        except EncodingError:
            self.close()
            raise

    def encode(self, texts: Sequence[str], *, prompt: str | None = None) -> Vectors:
        """Encode texts into unit vectors, in order, in one of the processes: ``(len(texts), dim)`` float32."""
        try:
            with self.meter.running():
                vectors, counts = self._pool.submit(_run, list(texts), prompt).result()
        except BrokenExecutor as error:
            raise EncodingError(
                f"a process of the encoder on {', '.join(self._devices)} died, perhaps for lack of memory; what is "
                "stored stays: run the same command again"
            ) from error
        self.meter.count(*counts)
        return vectors

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return the uncut length of each text in tokens, special tokens and prompt included."""
        return self._counter.count_tokens(texts)

    def report(self) -> dict[str, Any]:
        """Return the devices, the kernels and the padding of the work."""
        dtypes = ",".join(sorted({report["dtype"] for report in self._reports}))
        where = {"device": ",".join(self._devices), "dtype": dtypes}
        return {**self._reports[0], **where, "padding": round(self.meter.padding, 4)}

    def close(self) -> None:
        """End the processes."""
        self._pool.shutdown(cancel_futures=True)


_encoder: Any = None
_failure = ""
_all_loaded: Any = None


def _start(
    free: "Queue[str]",
    all_loaded: Barrier,
    folder: Path,
    side: Literal["query", "document"],
    prompt: str,
    max_tokens: int,
    dtype: Dtype,
    threads: int,
) -> None:
    global _encoder, _failure, _all_loaded
    import torch

    from care_qdrant.encoders.local.torch import TorchEncoder, load_sentence_transformer

    torch.set_num_threads(threads)
    _all_loaded, device = all_loaded, free.get()
    try:
        model = load_sentence_transformer(folder, device, dtype)
        _encoder = TorchEncoder(model, side, prompt=prompt, max_tokens=max_tokens)
    except Exception as error:  # an error of the start has no other way to the first process than as an answer
        _failure = f"{device}: the encoder did not start: {error}"


def _loaded(_: int) -> dict[str, Any]:
    _all_loaded.wait()  # so that each process answers once
    if _failure:
        raise EncodingError(_failure)
    report: dict[str, Any] = _encoder.report()
    return report


def _run(texts: list[str], prompt: str | None) -> tuple[Vectors, tuple[int, int, int]]:
    meter = _encoder.meter
    before = meter.texts, meter.tokens, meter.padded_tokens
    vectors = _encoder.encode(texts, prompt=prompt)
    return vectors, (meter.texts - before[0], meter.tokens - before[1], meter.padded_tokens - before[2])
