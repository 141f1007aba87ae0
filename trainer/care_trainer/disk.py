"""A disk that is full, whoever notices it: Python, safetensors and torch each say so in their own way."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from safetensors import SafetensorError

from care_qdrant.errors import TrainingError


@contextmanager
def writing(what: str | Callable[[], str]) -> Iterator[None]:
    """Turn a failed write inside the block into a `TrainingError`.

    Args:
        what: Could not be written, and what is still there; a function is asked when it happens.
    """
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "PytorchStreamWriter" not in str(error):
            raise
        reason = str(error).strip().splitlines()[0]
        raise TrainingError(
            f"{what if isinstance(what, str) else what()} ({reason}). Make room, then go on with --resume."
        ) from error
