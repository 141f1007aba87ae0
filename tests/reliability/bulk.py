"""Bulk jobs under kills: an array of jobs, a Ray cluster, and encoders and loaders beside a real cluster."""

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from qdrant_client import QdrantClient

from care_qdrant.bulk.encode import encode_unit
from care_qdrant.bulk.job import Job, Manifest
from care_qdrant.bulk.load import load
from care_qdrant.bulk.load import verify as compare
from care_qdrant.bulk.units import plan
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.settings import IngestSettings
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import open_client
from care_qdrant.qdrant.create import Storage
from tests.reliability.processes import QdrantCluster
from tests.reliability.ready_model import ReadyModel, write_corpus
from tests.reliability.replicas import await_settled, compare_replicas
from tests.reliability.sample_collection import Contents, differing, point_contents
from tests.reliability.trials import END_SECONDS, FORKSERVER, GONE_SECONDS, Trial

SHARES = 3
UNIT_ROWS = 8
DIM = 64
UNITS = 8
TEXTS_PER_SECOND = 400.0
"""Speed of the encoder of a job on a cluster, which sleeps, so that kills fall into its work."""
LOAD_SECONDS = 3.0
"""Longest time until a loader is killed; loading takes about as long."""


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
            violations_of(place, whole, report) | {"encoded without need": int(report["encoded"] > most)},
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
    os.environ["RAY_ADDRESS"] = cluster.address
    try:
        for number in range(trials):
            victim = ("actor", "node", "driver")[number % 3]
            place = folder / f"ray-{number}"
            shutil.copytree(job, place)
            run = care_bulk("encode", str(place), "--runner", "ray", "--workers", "2")
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
            violations = violations_of(place, whole, report)
            if victim != "driver":
                violations["not finished by itself"] = int(first["encoded"] != len(whole))
            observed = {"encoded": first["encoded"], "again": report["encoded"]}
            yield Trial(f"Ray: {victim} killed", round(after, 2), was_running, observed, violations)
            shutil.rmtree(place)
    finally:
        cluster.shutdown()


def cluster_trials(folder: Path, documents: int, trials: int, seed: int, binary: str) -> Iterator[Trial]:
    """Kill encoders, then a loader, a node of a real cluster of three, or both; the end is that of direct ingestion."""
    draw = random.Random(seed)
    corpus = write_corpus(folder / "corpus.jsonl", documents, sentences=3)
    model, storage = ReadyModel(DIM, texts_per_second=TEXTS_PER_SECOND), Storage(shards=3, replicas=2)
    job = Job(f"{folder}/job")
    draft = Manifest(
        "ready", model.name, model.contract().fingerprint, DIM, "Cosine", model.name, unit_rows=documents // UNITS
    )
    plan([str(corpus)], job, draft, model.document_tokenizer, sparse=True)
    (servers := folder / "cluster").mkdir()
    with QdrantCluster(binary, servers) as cluster:
        with open_client(url=cluster.url) as client:
            ingest(
                str(corpus), ReadyModel(DIM), client, "direct", settings=IngestSettings(sparse=True), storage=storage
            )
            wanted, state = _contents(client, "direct"), _settings(client, "direct")
        for number in range(trials):
            victim = ("loader", "node", "loader and node")[number % 3]
            name = f"bulk-{number}"
            shutil.copytree(folder / "job", folder / name)
            place = f"{folder}/{name}"
            encoders = [_process(_encode_share, place, share) for share in (1, 2)]
            while not part_hashes(Path(place)):  # how long processes start depends on what else the machine does
                time.sleep(0.01)
            time.sleep(draw.uniform(0.0, 0.4 * documents / TEXTS_PER_SECOND))
            encoders[number % 2].kill()
            for encoder in encoders:
                encoder.join()
            parts = len(part_hashes(Path(place)))
            for share in (1, 2):
                _encode_share(place, share)
            loaders = [_process(_load_share, place, cluster.url, name, share) for share in (1, 2)]
            time.sleep(after := draw.uniform(0.0, LOAD_SECONDS))
            was_running = all(loader.is_alive() for loader in loaders)
            if "node" in victim:
                cluster.kill()
            if "loader" in victim:
                loaders[number % 2].kill()
            if "node" in victim:
                time.sleep(draw.uniform(*GONE_SECONDS))
                cluster.start()
            for loader in loaders:
                loader.join(END_SECONDS)
            gave_up = [loader.exitcode for loader in loaders].count(1) + sum(each.is_alive() for each in loaders)
            for share in (1, 2) if "loader" in victim else ():
                _load_share(place, cluster.url, name, share)
            await_settled(cluster.urls)
            with open_client(url=cluster.url) as client:
                found = _contents(client, name)
                verified = compare(Job(place), Collection(client, name))
                same_settings = _settings(client, name) == state
            violations = {
                "missing points": len(wanted.keys() - found.keys()),
                "wrong points": differing(found, wanted),
                "gave up": gave_up,
                "problems that verify found": len(verified.problems),
                "index or storage not as direct ingestion leaves them": int(not same_settings),
            }
            observed = {"parts after the kill": parts, "points": len(found)}
            yield Trial(f"bulk on a cluster: {victim} killed", round(after, 2), was_running, observed, violations)
            shutil.rmtree(place)
        points, unequal = compare_replicas(cluster.urls)
        yield Trial("replicas compared", 0, False, {"points": points}, {"unequal points": unequal})


def _process(run: Callable[..., None], *arguments: Any) -> Any:
    process = FORKSERVER.Process(target=run, args=arguments)
    process.start()
    return process


def _encode_share(place: str, share: int) -> None:
    """Encode every second unit that has no part yet."""
    work, model = Job(place), ReadyModel(DIM, texts_per_second=TEXTS_PER_SECOND)
    manifest, done = work.manifest(), work.receipts()
    for unit in manifest.units[share - 1 :: 2]:
        if unit.name not in done:
            encode_unit(work, manifest, unit, model, 16_384)


def _load_share(place: str, url: str, collection: str, share: int) -> None:
    with open_client(url=url) as client:
        load(Job(place), Collection(client, collection), part=(share, 2), storage=Storage(shards=3, replicas=2))


def _contents(client: QdrantClient, name: str) -> Contents:
    records, _ = client.scroll(name, limit=1_000_000, with_payload=True, with_vectors=True, consistency="all")
    return {record.id: point_contents(record) for record in records}


def _settings(client: QdrantClient, name: str) -> dict[str, Any]:
    """Return how a collection is set up: a load that was not finished leaves its index deferred."""
    config = client.get_collection(name).config.model_dump()
    del config["metadata"]
    return config


def violations_of(place: Path, whole: dict[str, str], report: dict[str, Any]) -> dict[str, int]:
    """Compare the parts of a job with those of one process, by what may be wrong."""
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


def care_bulk(*arguments: str, **settings: Any) -> "subprocess.Popen[str]":
    """Start a command of ``care bulk``."""
    command = [sys.executable, "-c", "from care_qdrant.cli import main; main()", "bulk", *arguments, "--json"]
    return subprocess.Popen(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True, **settings
    )


def report_of(run: "subprocess.Popen[str]") -> dict[str, Any]:
    """Wait for a command, and return its report."""
    output, _ = run.communicate(timeout=600)
    report: dict[str, Any] = json.loads(output.splitlines()[-1])
    return report
