"""Processes, of one host or of two, see each other's candidates and end with the weights of one with all the batch."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from care_trainer import recipe
from care_trainer.config import Run
from care_trainer.distributed import free_memory
from safetensors.numpy import load_file

from tests.reliability.network import Network, may_build
from tests.trainer.tiny_run import environment, pairs, run_ranks, stage, tiny_run

STAGES = (
    stage("unsupervised", learn_temperature=True, max_steps=2, weight_decay=0.0),
    stage("document", max_steps=2, learning_rate=1e-2, hard_negatives=1),
    stage("align", max_steps=2),
    stage("joint", cached=True, max_steps=4, hard_negatives=1),
)
ADAPTER = "lora = { rank = 4, alpha = 8 }"
WITHOUT_DROPOUT = "query.scratch.dropout=0.0"
SCRIPT = """
import gc, sys
from pathlib import Path
from care_trainer import recipe
from care_trainer.config import load_run

gc.freeze()  # training asks for collections, and each would walk through all that is imported
recipe.run_stages(load_run(Path(sys.argv[1]), sys.argv[2:]))
"""
ENTER = """
import ctypes, os
with open(os.environ["NAMESPACE"]) as namespace:
    assert ctypes.CDLL(None).setns(namespace.fileno(), 0) == 0
"""


def _run(root: Path, batch_size: int, document: str) -> Run:
    stages = [{**values, "batch_size": batch_size} for values in STAGES]
    return tiny_run(root, *stages, overrides=[WITHOUT_DROPOUT], document=document)


def _two_processes(script: str, *arguments: str) -> list[str]:
    """Run a program on two processes, and return what each printed."""
    done = run_ranks(script, *arguments)
    assert [process.returncode for process in done] == [0, 0]
    return [process.stdout for process in done]


def _weights(run: Run, *sides: str) -> dict[str, np.ndarray]:
    folders = [Path(run.output) / item.kind / side for item in run.stage for side in sides]
    files = [file for folder in folders for file in sorted(folder.glob("*.safetensors"))]
    return {f"{file.relative_to(run.output)}: {key}": value for file in files for key, value in load_file(file).items()}


def _two_hosts(root: Path, *overrides: str) -> list[int]:
    """Run two processes on each of two hosts, in network namespaces, over a folder that both see."""
    with Network(2) as network:
        shared = {"MASTER_ADDR": network.address(0), "GLOO_SOCKET_IFNAME": "eth0"}
        hosts = [{**shared, "NAMESPACE": str(network.namespace(number))} for number in range(2)]
        done = run_ranks(ENTER + SCRIPT, str(root / "run.toml"), *overrides, hosts=hosts)
        return [process.returncode for process in done]


@pytest.fixture(scope="module")
def double(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two processes that torchrun starts, with adapters on the document side, uninterrupted."""
    root = tmp_path_factory.mktemp("two")
    run = _run(root, 8, ADAPTER)
    (root / "train.py").write_text(SCRIPT, encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [str(root / "train.py"), str(root / "run.toml"), WITHOUT_DROPOUT]
    subprocess.run(command, env=environment(), timeout=550, check=True)
    return run


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft asks for it
def test_two_processes_train_what_one_does(double: Run, tmp_path: Path) -> None:
    single = _run(tmp_path, 16, ADAPTER)
    recipe.run_stages(single)
    ours, theirs = _weights(double, "query", "document"), _weights(single, "query", "document")
    assert ours.keys() == theirs.keys() and any("lora_B" in name for name in ours)
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name], value, atol=3e-4, err_msg=name)
    temperatures = [recipe.read_record(Path(run.output) / "unsupervised")["temperature"] for run in (single, double)]
    assert temperatures[0] == pytest.approx(temperatures[1], rel=1e-3)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft asks for it
@pytest.mark.skipif(not may_build(), reason="network namespaces need root, and ip of iproute2")
def test_four_processes_on_two_hosts_train_what_two_do(double: Run, tmp_path: Path) -> None:
    run = _run(tmp_path, 4, ADAPTER)
    assert _two_hosts(tmp_path, WITHOUT_DROPOUT) == [0] * 4
    ours, theirs = _weights(run, "query", "document"), _weights(double, "query", "document")
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name], value, atol=3e-4, err_msg=name)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_processes_train_a_static_query_encoder_as_one_does(tmp_path: Path) -> None:
    """Its columns are flat: nothing is padded, and all that a process has is embedded at once."""
    static = "query={static=32,max_tokens=32}"
    runs = []
    for processes, batch_size in ((2, 8), (1, 16)):
        table = stage("static", batch_size=batch_size, compose=False)
        joint = stage("joint", batch_size=batch_size, hard_negatives=1, learning_rate=1e-2)
        root = tmp_path / str(processes)
        runs.append(tiny_run(root, table, joint, overrides=[static], document_pooling="mean"))
        if processes == 2:
            _two_processes(SCRIPT, str(root / "run.toml"), static)
        else:
            recipe.run_stages(runs[-1])
    ours, theirs = (_weights(run, "query", "document") for run in runs)
    assert ours.keys() == theirs.keys() and "joint/query/model.safetensors: embedding.weight" in ours
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name], value, atol=3e-4, err_msg=name)


BY_SOURCE = """
import json, sys
from pathlib import Path
from care_trainer import recipe
from care_trainer.config import load_run
from care_trainer.data.collators import PairCollator

collate, batches = PairCollator.__call__, []

def noting(self, features):
    batches.append(sorted({row["source"] for row in features}))
    return collate(self, features)

PairCollator.__call__ = noting
steps = []
report = lambda name, step, of_all, *_: steps.append([step, of_all])
recipe.run_stages(load_run(Path(sys.argv[1]), ["dataloader_workers=0"]), report=report)
print(json.dumps({"batches": batches, "steps": steps}), flush=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_processes_take_batches_of_the_same_source_for_as_many_steps_as_planned(tmp_path: Path) -> None:
    settings = stage("unsupervised", batch_size=5, batch_by_source=True, max_steps=None, epochs=2)
    run = tiny_run(tmp_path, settings)
    printed = [json.loads(line) for line in _two_processes(BY_SOURCE, str(tmp_path / "run.toml"))]
    sizes = Counter(pair["source"] for pair in pairs())
    # sentence-transformers leaves out the short last step of each source on several processes.
    steps = int(run.stage[0].epochs) * sum(size // 10 for size in sizes.values())
    assert printed[0]["steps"][-1] == [steps, steps]
    first, second = (process["batches"] for process in printed)
    assert first == second
    assert len(first) == steps
    assert all(len(sources) == 1 for sources in first)


TEACHER = """
import sys
from pathlib import Path
from care_trainer.models import teacher, towers

folder, out = Path(sys.argv[1]), Path(sys.argv[2])
teacher.PIECE_ROWS = 4
texts = [f"第{at}个问题" for at in range(18)]
encoded = 0

forward = teacher.TorchEncoder.forward

def counting(self, piece):
    global encoded
    encoded += len(piece)
    return forward(self, piece)

teacher.TorchEncoder.forward = counting
vectors = teacher.teacher_vectors(lambda: towers.load(folder), folder, texts, out, dim=32)
print(f"encoded {encoded} of {len(vectors)}", flush=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_teachers_vectors_are_shared_out_and_whole(
    document_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from care_trainer.models import teacher, towers

    printed = _two_processes(TEACHER, str(document_folder), str(tmp_path / "vectors"))
    assert sorted(printed) == ["encoded 10 of 18\n", "encoded 8 of 18\n"]
    texts = [f"第{at}个问题" for at in range(18)]
    monkeypatch.setattr(teacher, "PIECE_ROWS", 4)

    def load() -> NoReturn:
        pytest.fail("all vectors are there")

    found = teacher.teacher_vectors(load, document_folder, texts, tmp_path / "vectors", dim=32)
    np.testing.assert_allclose(found, towers.load(document_folder).encode_document(texts), atol=1e-3)


BEST = """
import os, sys
from pathlib import Path
from care_trainer import recipe
from care_trainer.config import load_run
from care_trainer.stages import contrastive
from care_trainer.stages.context import Context
from safetensors.torch import save_file

scores = iter(enumerate([0.1, 0.3, 0.2, 0.25, 0.9]))
trained, root = contrastive.fit, Path(sys.argv[1]).parent

def save(model, name):
    weights = {key: value.detach().clone() for key, value in model.named_parameters()}
    save_file(weights, root / f"{name}.safetensors")

def scoring(self, model):
    def score():
        number, value = next(scores)
        save(model(), f"evaluation-{number}")
        return value
    return score

def fit(context, model, *rest, **options):
    metrics = trained(context, model, *rest, **options)
    save(model, f"process-{os.environ['RANK']}")
    return metrics

Context.scoring = scoring

contrastive.fit = fit
recipe.run_stages(load_run(Path(sys.argv[1]), sys.argv[2:]))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_processes_end_early_with_the_same_best_weights(tmp_path: Path) -> None:
    """Only the main process scores; the other one has to follow it to its best weights, and to its early end."""
    settings = {"learning_rate": 1e-2, "batch_size": 8, "schedule": "constant_with_warmup", "warmup": 0.0}
    stops = {"max_steps": 5, "evaluate_steps": 1, "patience": 2}
    tiny_run(tmp_path, stage("supervised", **settings, **stops), overrides=[WITHOUT_DROPOUT])
    _two_processes(BEST, str(tmp_path / "run.toml"), WITHOUT_DROPOUT)
    assert len(list(tmp_path.glob("evaluation-*"))) == 4, "two were no better than the second"
    best, last = (load_file(tmp_path / f"evaluation-{number}.safetensors") for number in (1, 3))
    for rank in range(2):
        ended = load_file(tmp_path / f"process-{rank}.safetensors")
        for key, value in best.items():
            np.testing.assert_array_equal(ended[key], value, err_msg=key)
    assert any(not np.array_equal(last[key], value) for key, value in best.items())


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the resident set is read from Linux's /proc")
def test_freed_matrices_go_back_to_the_system() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    np.ones(100_000)  # glibc takes blocks of a size that was freed once from its own heap
    free_memory()
    before = resident()
    matrices = [np.ones(100_000) for _ in range(300)]
    kept = matrices[::50]  # between the freed ones: the heap cannot shrink from its end
    del matrices
    free_memory()
    assert resident() < before + 10 * sum(matrix.nbytes for matrix in kept)  # a fifth of all
