"""Failed writes as one error: Python, safetensors and torch each report a full disk in their own way."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from safetensors import SafetensorError

from care_qdrant.errors import TrainingError


@contextmanager
def writing(what: str | Callable[[], str]) -> Iterator[None]:
    """Turn a failed write inside the block into a `TrainingError`."""
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "PytorchStreamWriter" not in str(error):
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise TrainingError(
            f"{what if isinstance(what, str) else what()} ({reason}). Make room, then go on with --resume."
        ) from error
