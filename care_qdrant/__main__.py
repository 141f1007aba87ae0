"""The program ``care``, and ``python -m care_qdrant``."""

import gc
import sys

from care_qdrant.errors import INTERRUPTED_EXIT_CODE


def main() -> None:
    """Run `care`; Ctrl-C ends it without a traceback from the first import on."""
    # The modules of a search are a hundred thousand objects that stay: looking through them for garbage, as often as by
    # default while they are imported, took an eighth of its CPU time.
    gc.set_threshold(100_000, 20, 20)
    try:
        from care_qdrant.cli import main as run_care
    except KeyboardInterrupt:  # nothing has begun, and `console.run`, which says so of a command, is not there yet
        sys.exit(INTERRUPTED_EXIT_CODE)
    run_care()


if __name__ == "__main__":
    main()
