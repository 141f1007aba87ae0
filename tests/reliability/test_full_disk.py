"""A real server whose disk is full: writing waits, and goes on when there is room again."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.reliability.ingestion import full_disk_trial, make_source
from tests.reliability.processes import BINARY, QdrantServer
from tests.reliability.ready_model import write_corpus


@pytest.mark.server
def test_an_ingestion_waits_for_room(tmp_path: Path) -> None:
    if BINARY is None:
        pytest.skip("QDRANT_BINARY names no qdrant server program")
    may_mount = ["unshare", "--map-root-user", "--mount", "true"]
    if shutil.which("unshare") is None or subprocess.run(may_mount, check=False, capture_output=True).returncode:
        pytest.skip("this system gives no process a file system of its own")
    source = make_source(write_corpus(tmp_path / "corpus.jsonl", 2_000), 256)
    with QdrantServer(BINARY, tmp_path).with_disk(mib=300) as server:
        trial = full_disk_trial(source, server)
    assert trial.was_disturbed
    assert trial.is_good, trial.violations
