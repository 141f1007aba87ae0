"""Files that are written whole, and failed writes as one error: each library reports a full disk in its own way."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from care_qdrant.errors import TrainingError


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON; a crash leaves the file complete or unchanged."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    partial.replace(path)


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
            f"{what if isinstance(what, str) else what()} ({reason}). Free some space, then run the same command to "
            "resume."
        ) from error
