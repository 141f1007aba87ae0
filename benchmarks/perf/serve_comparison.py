"""Compare `care serve` with other embeddings servers that hold the same weights, over `/v1/embeddings`."""

import base64
import http.client
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path

import click
import numpy as np
import psutil

from benchmarks.perf.measured import output_option, plain, save_measured, shown
from benchmarks.perf.serve_latency import SAMPLE
from care_qdrant import CareModel
from care_qdrant.types import Vectors
from tests.reliability.processes import free_port

OURS = "care-{precision}"
PROGRAM = (sys.executable, "-c", "from care_qdrant.cli import main; main()")
START_SECONDS = 300
LEAST_COSINE = 0.999
PATH = "/v1/embeddings"


@dataclass(frozen=True, slots=True)
class Server:
    """A running embeddings server."""

    name: str
    command: str
    port: int
    process: psutil.Process
    model: str
    prompt: str
    """Text before a query: ours adds the prompt itself."""

    def body(self, text: str) -> bytes:
        """Return the request for one query, as OpenAI's client writes it."""
        return json.dumps({"model": self.model, "input": [self.prompt + text], "encoding_format": "base64"}).encode()

    def cpu_seconds(self) -> float:
        """Return the CPU time that the server and its processes have used."""
        times = [process.cpu_times() for process in [self.process, *self.process.children(recursive=True)]]
        return sum(each.user + each.system for each in times)


@dataclass(frozen=True, slots=True)
class Turns:
    """All turns of one server with one number of clients."""

    server: str
    clients: int
    queries: int
    queries_per_second: float
    """Median over the turns."""
    range_of_turns: tuple[float, float]
    """Queries per second of the slowest and the fastest turn."""
    cpu_ms_per_query: float
    """CPU milliseconds of the server for a query, median over the turns."""
    p50_ms: float
    p99_ms: float


@dataclass(slots=True)
class _Measured:
    took: list[float] = field(default_factory=list)
    speeds: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--model", type=click.Path(path_type=Path, exists=True), required=True, help="CARE folder.")
@click.option(
    "--precision",
    "precisions",
    multiple=True,
    default=("fp32", "int8"),
    show_default=True,
    help="Precision of the query encoder of care serve; repeat for several servers.",
)
@click.option(
    "--server",
    "others",
    type=(str, str),
    multiple=True,
    help="Name and command of another server; {port} stands for its port. Repeatable.",
)
@click.option(
    "--clients",
    multiple=True,
    type=click.IntRange(1),
    default=(1, 8, 32),
    show_default=True,
    help="Numbers of clients.",
)
@click.option("--turns", type=click.IntRange(1), default=5, show_default=True, help="Timed turns of each server.")
@click.option("--seconds", type=float, default=6.0, show_default=True, help="Duration of one turn.")
@output_option
def main(
    model: Path,
    precisions: tuple[str, ...],
    others: tuple[tuple[str, str], ...],
    clients: tuple[int, ...],
    turns: int,
    seconds: float,
    output: Path,
) -> None:
    """Compare care serve with other embeddings servers that hold the same weights.

    Each server runs on one core, the same for all, with OMP_NUM_THREADS=1; the clients have the others. It answers the
    same queries and must give the same vectors before anything is timed. Then all take short turns in random order, so
    that other work on the machine meets all of them, with one request of one query in flight for each client.

    \b
    Example:
      python -m benchmarks.perf.serve_comparison --model ./my-pair \\
        --server infinity "infinity_emb v2 --model-id ./my-bert --engine torch --port {port} --url-prefix /v1" \\
        --output benchmarks/results/serve-comparison.json
    """
    texts = [json.loads(line)["text"] for line in (SAMPLE / "queries.jsonl").read_text(encoding="utf-8").splitlines()]
    encoder = CareModel.load(model, precision="fp32").query_encoder
    expected = encoder.encode(texts)
    cores = os.sched_getaffinity(0)
    core = max(cores)
    os.sched_setaffinity(0, cores - {core} or cores)
    with ExitStack() as stack:
        servers = [
            stack.enter_context(running(OURS.format(precision=precision), _ours(model, precision), "", core))
            for precision in precisions
        ]
        servers += [stack.enter_context(running(name, command, encoder.prompt, core)) for name, command in others]
        cosines = {server.name: _least_cosine(server, texts, expected) for server in servers}
        shown(cosines)
        if far := {name: cosine for name, cosine in cosines.items() if cosine < LEAST_COSINE}:
            raise SystemExit(f"these servers do not hold the same weights: least cosines {far}")
        result = {
            "queries": len(texts),
            "commands": {server.name: re.sub(r"/\S*/", "", server.command) for server in servers},
            "least_cosine_to_fp32": cosines,
            "turns": plain([shown(each) for each in measure(servers, texts, clients, turns, seconds)]),
        }
    save_measured(output, result)


def measure(
    servers: Sequence[Server], texts: Sequence[str], clients: Sequence[int], turns: int, seconds: float
) -> Iterator[Turns]:
    """Yield the figures of every server with every number of clients; a first turn of each is not counted."""
    order = random.Random(0)
    for number in clients:
        found = {server.name: _Measured() for server in servers}
        for turn in range(turns + 1):
            for server in order.sample(servers, len(servers)):
                began, began_cpu = time.perf_counter(), server.cpu_seconds()
                took = _closed_loop(server, texts, number, seconds)
                if turn:
                    measured = found[server.name]
                    measured.took += took
                    measured.speeds.append(len(took) / (time.perf_counter() - began))
                    measured.cpu_ms.append((server.cpu_seconds() - began_cpu) / len(took) * 1e3)
        for server in servers:
            measured = found[server.name]
            p50, p99 = np.percentile(np.asarray(measured.took) * 1e3, [50, 99])
            yield Turns(
                server=server.name,
                clients=number,
                queries=len(measured.took),
                queries_per_second=round(float(np.median(measured.speeds)), 1),
                range_of_turns=(round(min(measured.speeds), 1), round(max(measured.speeds), 1)),
                cpu_ms_per_query=round(float(np.median(measured.cpu_ms)), 2),
                p50_ms=round(float(p50), 2),
                p99_ms=round(float(p99), 2),
            )


def _closed_loop(server: Server, texts: Sequence[str], clients: int, seconds: float) -> list[float]:
    """Return the seconds of each query; each client waits for its answer before it asks again."""
    bodies = [server.body(text) for text in texts]
    until = time.perf_counter() + seconds

    def client(number: int) -> list[float]:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        took: list[float] = []
        while (sent := time.perf_counter()) < until:
            _answer(connection, bodies[(number + len(took)) % len(bodies)])
            took.append(time.perf_counter() - sent)
        connection.close()
        return took

    with ThreadPoolExecutor(clients) as pool:
        return [second for took in pool.map(client, range(clients)) for second in took]


def _answer(connection: http.client.HTTPConnection, body: bytes) -> bytes:
    connection.request("POST", PATH, body, {"content-type": "application/json"})
    response = connection.getresponse()
    answer = response.read()
    if response.status != 200:
        raise SystemExit(f"{response.status}: {answer[:500].decode(errors='replace')}")
    return answer


def _least_cosine(server: Server, texts: Sequence[str], expected: Vectors) -> float:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    rows = [json.loads(_answer(connection, server.body(text)))["data"][0]["embedding"] for text in texts]
    connection.close()
    vectors = np.stack([np.frombuffer(base64.b64decode(row), dtype="<f4") for row in rows])
    return float(np.min(np.sum(vectors * expected, axis=1) / np.linalg.norm(vectors, axis=1)))


def _ours(model: Path, precision: str) -> str:
    options = ("serve", "--model", str(model), "--port", "{port}")
    return shlex.join(("env", f"CARE_PRECISION={precision}", *PROGRAM, *options))


@contextmanager
def running(name: str, command: str, prompt: str, core: int | None) -> Iterator[Server]:
    """Run a server, on one core or on all, until the block ends; ready when it lists its models or has no list."""
    port = free_port()
    with tempfile.NamedTemporaryFile() as log:
        process = subprocess.Popen(
            [part.replace("{port}", str(port)) for part in shlex.split(command)],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=None if core is None else partial(os.sched_setaffinity, 0, {core}),
        )
        try:
            until = time.monotonic() + START_SECONDS
            while (model := _first_model(port)) is None:
                if process.poll() is not None or time.monotonic() > until:
                    raise SystemExit(f"{name} did not start:\n{Path(log.name).read_text()}")
                time.sleep(0.2)
            yield Server(name, command, port, psutil.Process(process.pid), model, prompt)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait()


def _first_model(port: int) -> str | None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/v1/models")
        response = connection.getresponse()
        if response.status == HTTPStatus.NOT_FOUND:
            return "the only one"
        models: list[dict[str, str]] = json.loads(response.read())["data"]
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return next((model["id"] for model in models), None)


if __name__ == "__main__":
    main()
