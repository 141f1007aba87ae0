"""Progress of a long run: a bar that fits a terminal, and lines without frames anywhere else."""

import os
import pty
import re
import subprocess
import sys
import termios

import pytest

INGESTING = """
import time
from care_qdrant.progress import Progress, progress_bar
state = dict(documents=9, stored=123_456, encoded=9, rejected=17, tokens_per_second=12_345.6,
    documents_per_second=321.5, padding=1.07, idle_fraction=0.02, share_read=0.1)
with progress_bar("a-collection-with-a-rather-long-name-of-2026") as show:
    show(Progress(**state, total=1_234_567, seconds_left=27_000.0))
    time.sleep(1.2)
"""
PARTS = """
import time
from care_qdrant.progress import parts_bar
with parts_bar() as show:
    for part in ("reading texts of a collection", "training"):
        show(part, 0, 1_000)
        time.sleep(0.2)
        show(part, 100, 1_000)
        time.sleep(1.0)
"""


def on_a_terminal(code: str, columns: int) -> list[str]:
    """Return the frames that a program draws on a terminal of so many columns."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    with subprocess.Popen([sys.executable, "-c", code], stderr=theirs, env=os.environ | {"TQDM_DISABLE": "0"}):
        os.close(theirs)
        drawn = b""
        try:
            while part := os.read(ours, 65_536):
                drawn += part
        except OSError:  # the other end is closed
            pass
    os.close(ours)
    frames = re.split(r"[\r\n]+|\x1b\[[0-9;]*[A-Z]", drawn.decode())
    return [frame for frame in frames if frame.strip()]


@pytest.mark.parametrize("code", [INGESTING, PARTS], ids=["ingestion", "parts"])
@pytest.mark.parametrize("columns", [80, 120])
def test_the_time_to_go_fits_a_terminal(code: str, columns: int) -> None:
    frames = on_a_terminal(code, columns)
    assert max(map(len, frames)) <= columns
    timed = [frame for frame in frames if " left" in frame]
    assert timed != [], frames
    assert all(frame.rstrip().endswith("]") for frame in timed), "nothing is cut off"
    if code is INGESTING:
        assert "7 h 30 min left" in timed[-1] and timed[-1].startswith("a-coll")


def test_a_label_is_whole_where_it_fits() -> None:
    frames = on_a_terminal(INGESTING, 140)
    assert all(frame.startswith("a-collection-with-a-rather-long-name-of-2026: ") for frame in frames)
    assert "17 rejected" in frames[-1]
    notes = [frame for frame in on_a_terminal(INGESTING, 120) if " left" in frame]
    assert all("long-name-of-2026: " in frame and "tokens/s" not in frame for frame in notes), "notes go first"


@pytest.mark.parametrize("code", [INGESTING, PARTS], ids=["ingestion", "parts"])
def test_a_pipe_gets_no_frames(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, env=os.environ | {"TQDM_DISABLE": "0"}
    )
    assert b"\r" not in done.stderr and b"%|" not in done.stderr
