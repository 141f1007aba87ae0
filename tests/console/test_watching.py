"""A signal ends a watch at whatever moment it arrives."""

import random
import select
import signal
import subprocess
import sys
import time

import pytest

SIGNALS = 3_000
WATCHES = """
import sys
from care_qdrant.console.watching import passes

def tell_once(stop):
    global is_first
    if is_first:
        is_first = False
        print(flush=True)

while True:
    is_first = True
    for _ in passes(tell_once, 1e-6):
        pass
"""
"""One watch after another, each of which says that its signal may come."""


@pytest.mark.skipif(sys.platform == "win32", reason="the signals come from another process")
def test_a_signal_at_any_moment_ends_a_watch() -> None:
    moments = random.Random(0)
    with subprocess.Popen([sys.executable, "-c", WATCHES], stdout=subprocess.PIPE, bufsize=0) as watching:
        try:
            assert watching.stdout is not None
            for _ in range(SIGNALS):
                ready, _, _ = select.select([watching.stdout], [], [], 30)
                assert ready and watching.stdout.read(1), "the watch before did not end"
                time.sleep(moments.uniform(0, 5e-4))
                watching.send_signal(signal.SIGTERM)
        finally:
            watching.kill()
