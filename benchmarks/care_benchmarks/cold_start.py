"""Program that measures the cost of a serving process up to its first query vector, in a fresh process without torch.

Arguments: model, precision, query, start time in seconds since the epoch. It prints the fields of
`care_benchmarks.results.ColdStart` as JSON.
"""

import json
import resource
import sys
import time
from pathlib import Path


def main() -> None:
    """Load a model, encode one query and print the cost."""
    from care_qdrant import CareModel

    model, precision, query, started = sys.argv[1:]
    CareModel.load(model, precision=precision).encode_query([query])  # type: ignore[arg-type]  # checked by load
    usage = resource.getrusage(resource.RUSAGE_SELF)
    cost = {
        "wall_seconds": time.time() - float(started),
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_memory_mib": peak_memory_mib(),
    }
    print(json.dumps(cost))


def peak_memory_mib() -> float:
    """Return the peak resident memory of this program.

    Linux's ru_maxrss starts with the value of the process that forked this one, so it is only the fallback.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2


if __name__ == "__main__":
    main()
