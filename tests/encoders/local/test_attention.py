"""Attention without cuDNN: switched off while anybody needs it, and back as it was."""

import threading
from itertools import permutations

import pytest
import torch

from care_qdrant.encoders.local.attention import without_cudnn_attention


@pytest.mark.parametrize("order", permutations(range(3)))
@pytest.mark.parametrize("before", [True, False])
def test_blocks_that_overlap_leave_the_switch_as_they_found_it(order: tuple[int, ...], before: bool) -> None:
    switch = torch.backends.cuda
    found = switch.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    switch.enable_cudnn_sdp(before)
    ends = [threading.Event() for _ in order]
    entered = threading.Semaphore(0)

    def block(end: threading.Event) -> None:
        with without_cudnn_attention():
            entered.release()
            end.wait()

    threads = [threading.Thread(target=block, args=(end,)) for end in ends]
    try:
        for thread in threads:
            thread.start()
            entered.acquire()
        for number in order:
            assert not switch.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
            ends[number].set()
            threads[number].join()
        assert switch.cudnn_sdp_enabled() == before  # type: ignore[no-untyped-call]
    finally:
        for end in ends:
            end.set()
        switch.enable_cudnn_sdp(found)
