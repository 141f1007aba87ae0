"""The main job as people run it, with each engine of this machine: thousands of documents, all cores, built-in pair."""

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from care_qdrant.model.care_model import CareModel
from care_qdrant.qdrant.connection import open_client
from care_qdrant.types import embedded_text
from tests import tiny
from tests.forks import FORKS

SAMPLE = Path(__file__).parents[2] / "examples" / "sample" / "corpus.jsonl"
DOCUMENTS = 5_000
RUNS = 5
OFTEN = """
import sys
from care_qdrant.cli.ingest import command
corpus, engine, *databases = sys.argv[1:]
for path in databases:
    command.main([corpus, "--engine", engine, "--path", path], standalone_mode=False)
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of the sample's sentences, as long as real answers: 120 characters on average, some of them 400."""
    texts = "".join(json.loads(line)["text"] for line in SAMPLE.read_text(encoding="utf-8").splitlines())
    sentences = re.findall(r"[^。？！]+[。？！]", texts)
    rng, rows = random.Random(0), []
    for number in range(DOCUMENTS):
        length, text = min(400, rng.lognormvariate(4.65, 0.5)), ""
        while len(text) < length:
            text += rng.choice(sentences)
        rows.append({"id": f"d{number}", "text": text[:400]})
    return tiny.write_jsonl(tmp_path_factory.mktemp("main-job") / "corpus.jsonl", rows)


@pytest.fixture(scope="module")
def alone(corpus: Path, engine: str) -> dict[str, np.ndarray]:
    """Vectors of the documents from one thread of an engine, by the documents' ids."""
    rows = [json.loads(line) for line in corpus.read_text(encoding="utf-8").splitlines()]
    vectors = CareModel.load(device="cpu" if engine == "torch" else None).encode_document(
        [embedded_text("", row["text"]) for row in rows]
    )
    return {row["id"]: vector for row, vector in zip(rows, vectors, strict=True)}


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("engine", ["onnx", "torch"], scope="module")
def test_every_run_stores_the_vectors_of_a_single_thread(
    engine: str, corpus: Path, alone: dict[str, np.ndarray], tmp_path: Path
) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    databases = [tmp_path / f"qdrant-{run}" for run in range(RUNS)]
    program = [sys.executable, "-c", OFTEN, str(corpus), engine, *map(str, databases)]
    done = subprocess.run(program, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    for path in databases:
        with open_client(path=path) as client:
            points, _ = client.scroll("corpus", limit=2 * DOCUMENTS, with_vectors=True, with_payload=["doc_id"])
        # A document of more than one chunk has a vector of each; those of one chunk are compared.
        found: dict[str, list[np.ndarray]] = {}
        for point in points:
            found.setdefault(point.payload["doc_id"], []).append(np.array(point.vector["care-small"]))  # type: ignore
        assert found.keys() == alone.keys()
        whole = {name: vectors[0] for name, vectors in found.items() if len(vectors) == 1}
        assert len(whole) > DOCUMENTS // 3
        lowest = min(float(vector @ alone[name]) for name, vector in whole.items())
        assert lowest > 1 - 1e-4, f"{engine}, {path.name}: a stored vector has a cosine of {lowest:.5f}"


def test_a_device_that_is_not_here_leaves_nothing(tmp_path: Path) -> None:
    command = [str(FORKS.commands / "care-ingest"), str(SAMPLE), "--device", "cuda:99", "--rejects", "rejects.jsonl"]
    refused = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert refused.returncode == 2 and "device 'cuda:99'" in refused.stderr
    assert list(tmp_path.iterdir()) == []
