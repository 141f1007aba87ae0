"""One run on several processes (torchrun, accelerate): the main one decides and writes, the others wait."""

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
from accelerate import PartialState  # type: ignore[import-untyped]
from torch import nn

PATIENCE = timedelta(days=7)
"""Longest wait of a process for the others. A process that has died needs no timeout: torchrun then ends them all.
PyTorch's own ten to thirty minutes would end a run while one process reads sixty million rows or saves to a slow disk.
"""


def processes() -> PartialState:
    """Return accelerate's view of the processes; a single one when nothing launched more.

    Do not keep it: transformers resets accelerate's shared state whenever it makes training arguments.
    """
    return PartialState(cpu=not torch.cuda.is_available(), timeout=PATIENCE)


@contextmanager
def main_process_first() -> Iterator[bool]:
    """Run the block in the main process before the others; the value is whether this is the main one."""
    is_main = processes().is_main_process
    if not is_main:
        processes().wait_for_everyone()
    yield is_main
    if is_main:
        processes().wait_for_everyone()


def agree(decisions: list[bool]) -> list[bool]:
    """Return the main process's decisions on all processes: clocks differ, and a step taken alone waits forever."""
    state = processes()
    if state.num_processes == 1:
        return decisions
    shared = torch.tensor(decisions, dtype=torch.int32, device=state.device)
    torch.distributed.broadcast(shared, src=0)
    return [bool(decision) for decision in shared.tolist()]


def share_parameters(parameters: list[nn.Parameter]) -> None:
    """Take the main process's values of parameters outside the wrapped model."""
    if processes().num_processes > 1:
        for parameter in parameters:
            torch.distributed.broadcast(parameter.data, src=0)


def average_gradients(parameters: list[nn.Parameter]) -> None:
    """Average gradients over all processes, for parameters outside the wrapped model."""
    state = processes()
    if state.num_processes == 1:
        return
    for parameter in parameters:
        if parameter.grad is not None:
            torch.distributed.all_reduce(parameter.grad)
            parameter.grad /= state.num_processes


def free_memory() -> None:
    """Return the memory of unused models to the system: the training loop leaves them in reference cycles.

    glibc keeps freed blocks of up to 32 MB for itself, most matrices of a small encoder, until it is told to trim.
    """
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)
