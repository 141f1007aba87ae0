"""Bulk encoding under kills: jobs of an array, and a Ray cluster that loses actors, a node and its driver."""

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.reliability.trials import Trial

SHARES = 3
UNIT_ROWS = 8


def make_job(folder: Path, documents: int) -> tuple[Path, dict[str, str], float]:
    """Plan a job of the built-in pair; return it, the parts that one process makes of it, and how long that took."""
    from tests.tiny import TEXTS

    draw = random.Random(0)
    lines = [
        json.dumps({"id": f"d{n}", "text": "".join(draw.choices(TEXTS, k=4)) + str(n)}, ensure_ascii=False)
        for n in range(documents)
    ]
    (folder / "corpus.jsonl").write_text("\n".join(lines), encoding="utf-8")
    care_bulk("plan", f"{folder}/corpus.jsonl", f"{folder}/job", "--unit-rows", str(UNIT_ROWS)).communicate()
    shutil.copytree(folder / "job", folder / "whole")
    start = time.monotonic()
    care_bulk("encode", f"{folder}/whole").communicate()
    return folder / "job", part_hashes(folder / "whole"), time.monotonic() - start


def part_hashes(job: Path) -> dict[str, str]:
    """Return the hash of each part; a draft that a kill has left is none."""
    files = [file for file in (job / "parts").glob("*") if not file.name.startswith(".")]
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def array_trials(folder: Path, documents: int, trials: int, seed: int) -> Iterator[Trial]:
    """Kill the jobs of an array at random moments; one more run has to end in the same bytes."""
    draw = random.Random(seed)
    job, whole, seconds = make_job(folder, documents)
    for number in range(trials):
        place = folder / f"trial-{number}"
        shutil.copytree(job, place)
        # Two of them have the same share: they work on the same units.
        shares = [f"{share}/{SHARES}" for share in range(1, SHARES + 1)] + [f"1/{SHARES}"]
        runs = [care_bulk("encode", str(place), "--shard", share) for share in shares]
        start = time.monotonic()
        # Half of them once a part is there: how long the imports take depends on what else the machine does.
        while number % 2 and not part_hashes(place) and any(run.poll() is None for run in runs):
            time.sleep(0.02)
        time.sleep(draw.uniform(0.0, 2.0 if number % 2 else seconds))
        after = time.monotonic() - start
        alive = [run for run in runs if run.poll() is None]
        for run in alive:
            os.killpg(run.pid, signal.SIGKILL)
        for run in runs:
            run.communicate()
        before = len(part_hashes(place))
        report = report_of(care_bulk("encode", str(place)))
        most = len(whole) - before + len(runs)  # a part without its receipt is made again
        yield Trial(
            "array of jobs",
            round(after, 2),
            bool(alive),
            {"parts after the kill": before, "encoded again": report["encoded"]},
            _violations(place, whole, report) | {"encoded without need": int(report["encoded"] > most)},
        )
        shutil.rmtree(place)


def ray_trials(folder: Path, documents: int, trials: int, seed: int) -> Iterator[Trial]:
    """Kill an actor, a node or the driver of a cluster of three nodes; the run, or one more, ends in the same bytes."""
    from ray.cluster_utils import Cluster

    draw = random.Random(seed)
    job, whole, _ = make_job(folder, documents)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    cluster.wait_for_nodes()
    try:
        for number in range(trials):
            victim = ("actor", "node", "driver")[number % 3]
            place = folder / f"ray-{number}"
            shutil.copytree(job, place)
            run = care_bulk("encode", str(place), "--runner", "ray", "--address", cluster.address, "--workers", "2")
            deadline = time.monotonic() + 120
            while not part_hashes(place) and run.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            after = draw.uniform(0.0, 1.5)
            time.sleep(after)
            was_running = run.poll() is None
            if victim == "driver":
                os.killpg(run.pid, signal.SIGKILL)
            elif victim == "actor":
                _kill_actor()
            else:
                cluster.remove_node(nodes.pop(), allow_graceful=False)
                nodes.append(cluster.add_node(num_cpus=1))
            first = report_of(run) if victim != "driver" else run.communicate() and {"failed": {}, "encoded": 0}
            report = report_of(care_bulk("encode", str(place)))
            violations = _violations(place, whole, report)
            if victim != "driver":
                violations["not finished by itself"] = int(first["encoded"] != len(whole))
            observed = {"encoded": first["encoded"], "retries": first.get("retries", 0), "again": report["encoded"]}
            yield Trial(f"Ray: {victim} killed", round(after, 2), was_running, observed, violations)
            shutil.rmtree(place)
    finally:
        cluster.shutdown()


def _violations(place: Path, whole: dict[str, str], report: dict[str, Any]) -> dict[str, int]:
    parts = part_hashes(place)
    return {
        "failed units": len(report["failed"]),
        "missing parts": len(whole.keys() - parts.keys()),
        "other bytes": sum(parts.get(name) not in (None, digest) for name, digest in whole.items()),
        "unknown parts": len(parts.keys() - whole.keys()),
    }


def _kill_actor() -> None:
    """Kill one process in which Ray runs an encoder."""
    for entry in Path("/proc").iterdir():
        try:
            name = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if name.startswith(b"ray::_Encoder"):
            os.kill(int(entry.name), signal.SIGKILL)
            return


def care_bulk(*arguments: str) -> "subprocess.Popen[str]":
    """Start a command of ``care bulk``."""
    command = [sys.executable, "-c", "from care_qdrant.cli import main; main()", "bulk", *arguments]
    return subprocess.Popen(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )


def report_of(run: "subprocess.Popen[str]") -> dict[str, Any]:
    """Wait for a command, and return its report."""
    output, _ = run.communicate(timeout=600)
    report: dict[str, Any] = json.loads(output.splitlines()[-1])
    return report
