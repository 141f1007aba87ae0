"""Attention on a GPU without cuDNN, which makes a plan for every new shape of a batch.

Texts make batches of ever new shapes. On an H200 padded batches of a Qwen3 of 0.6B took 7.5 s with the plans and 3.5 s
without (docs/evidence/experiments.md).
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_LOCK = threading.Lock()
_USERS: list[bool] = []
"""Whether cuDNN was allowed when each block that is under way began."""


@contextmanager
def without_cudnn_attention() -> Iterator[None]:
    """Let torch choose among its other kernels in this block, in all threads of the process."""
    import torch

    with _LOCK:
        _USERS.append(torch.backends.cuda.cudnn_sdp_enabled())  # type: ignore[no-untyped-call]
        torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        with _LOCK:
            before = _USERS[0]
            _USERS.pop()
            if not _USERS:
                torch.backends.cuda.enable_cudnn_sdp(before)
