"""A run of the harness whose documents an embeddings server encodes."""

from pathlib import Path

import pytest
from care_benchmarks.cli import care_bench
from care_benchmarks.results import load_result
from click.testing import CliRunner

from tests.encoders.remote.test_server import EmbeddingServer

# Whole runs import torch, mteb and LlamaIndex: minutes where other work holds the cores.
pytestmark = pytest.mark.timeout(600)


def test_a_run_over_a_server_scores_like_the_pair_alone(
    pair_folder: Path, task_directory: Path, tmp_path: Path
) -> None:
    shared = ["run", str(task_directory), "--model", str(pair_folder), "--speed", "none"]
    with EmbeddingServer.serving(pair_folder / "document") as server:
        remote = ["--endpoint", server.url]
        remote += ["--output", str(tmp_path / "remote")]
        for options in (remote, ["--output", str(tmp_path / "local")]):
            assert (
                CliRunner(env={"CARE_ENDPOINT_TOKENS": "60"})
                .invoke(care_bench, [*shared, *options], catch_exceptions=False)
                .exit_code
                == 0
            )
    assert len(server.requests) > 4
    checks = 2  # all references, then one of them several times
    several = [request["input"][:-1] for request in server.requests[checks:] if len(request["input"]) > 2]
    assert max(len(batch) * max(map(len, batch)) for batch in several) <= 60
    one, other = (load_result(tmp_path / name).systems[0] for name in ("remote", "local"))
    for mine, theirs in zip(one.scores, other.scores, strict=True):
        assert mine.value == pytest.approx(theirs.value, abs=1e-4)
