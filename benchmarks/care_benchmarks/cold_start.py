"""What a serving process costs before its first answer. Run as a program, in a fresh process, without torch."""

import json
import resource
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ColdStart:
    """From the start of the interpreter to the first query vector."""

    wall_seconds: float
    cpu_seconds: float
    peak_memory_mib: float


def main() -> None:
    """Load a model, encode one query, print a `ColdStart` as JSON. Arguments: model, precision, query, start time."""
    from care_qdrant.model import CareModel

    model, precision, query, started = sys.argv[1:]
    CareModel.load(model, precision=precision).encode_query([query])  # type: ignore[arg-type]  # checked by load
    usage = resource.getrusage(resource.RUSAGE_SELF)
    result = ColdStart(
        wall_seconds=time.time() - float(started),
        cpu_seconds=usage.ru_utime + usage.ru_stime,
        peak_memory_mib=peak_memory_mib(),
    )
    print(json.dumps(asdict(result)))


def peak_memory_mib() -> float:
    """Give the most memory that this program has held.

    Linux's ru_maxrss begins with that of the process that forked this one, so it is not used where there is a better.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2


if __name__ == "__main__":
    main()
