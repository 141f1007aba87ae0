"""CPU that traces add to a search of `care serve`, against a real Qdrant server, in turns."""

import asyncio
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import click
import httpx
from qdrant_client import QdrantClient

from care_qdrant import CareModel
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.serve.app import Service
from care_qdrant.serve.settings import ServeSettings
from care_qdrant.serve.tracing import ENDPOINTS
from care_qdrant.types import Document
from tests.reliability.processes import QdrantServer

from .measured import output_option, save_measured

KEY = "a-key-for-this-measurement"
COLLECTOR = """
from http.server import *
class H(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"])); self.send_response(200); self.end_headers()
    def log_message(self, *_): pass
server = HTTPServer(("127.0.0.1", 0), H); print(server.server_port, flush=True); server.serve_forever()
"""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--binary", envvar="QDRANT_BINARY", required=True, help="Server program, which is started on loopback.")
@click.option("--turns", "count", type=click.IntRange(1), default=30, show_default=True, help="Turns of all variants.")
@click.option("--queries", type=click.IntRange(1), default=60, show_default=True, help="Of each variant in a turn.")
@output_option
def main(binary: str, count: int, queries: int, output: Path) -> None:
    """Compare the CPU time of searches with traces and without.

    Each query is asked of every variant, one after the other in random order. A turn is the mean of its queries, and
    the cost the median over the turns of the difference to the plain service in the same turn, with a 95 % bootstrap
    interval. Only this process is counted: the application without its HTTP server, so that the shares are larger than
    those of a whole service. The collector is a process of its own.

    \b
    Example:
      QDRANT_BINARY=qdrant python -m benchmarks.perf.serve_cost --output benchmarks/results/serve-cost.json
    """
    with tempfile.TemporaryDirectory() as folder, QdrantServer(binary, Path(folder)) as server:
        collector = subprocess.Popen([sys.executable, "-c", COLLECTOR], stdout=subprocess.PIPE, text=True)
        assert collector.stdout is not None
        try:
            port = collector.stdout.readline().strip()
            turns = asyncio.run(_measure(server.url, port, Path(folder), count, queries))
        finally:
            collector.terminate()
            collector.wait()
    plain = statistics.median(turn["plain"] for turn in turns)
    result = {
        "turns": count,
        "queries": queries,
        "cpu_ms_plain": round(plain, 4),
        "cost_percent": {
            name: _median_and_interval([100 * (turn[name] / turn["plain"] - 1) for turn in turns])
            for name in turns[0]
            if name != "plain"
        },
        "turns_cpu_ms": [{name: round(value, 4) for name, value in turn.items()} for turn in turns],
    }
    save_measured(output, result)


def _median_and_interval(values: list[float]) -> list[float]:
    chance = random.Random(0)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(2_000))
    return [round(value, 2) for value in (statistics.median(values), medians[50], medians[1949])]


async def _measure(url: str, collector: str, folder: Path, turns: int, queries: int) -> list[dict[str, float]]:
    model, qdrant = CareModel.load(), QdrantClient(url=url, check_compatibility=False, cloud_inference=True)
    texts = [f"高血压患者{number}饮食上要注意什么" for number in range(500)]
    ingest([Document(str(number), text) for number, text in enumerate(texts)], model, qdrant, "corpus")
    variants = {}
    for name, share in (
        ("plain", None),
        ("traces", "0.02"),
        ("every request traced", "1.0"),
    ):
        keys = folder / f"keys-{len(variants)}"
        keys.write_text(KEY)
        os.environ.pop(ENDPOINTS[0], None)
        if share is not None:
            os.environ |= {ENDPOINTS[0]: f"http://127.0.0.1:{collector}", "OTEL_TRACES_SAMPLER_ARG": share}
            os.environ["OTEL_TRACES_SAMPLER"] = "parentbased_traceidratio"
        settings = ServeSettings(
            load_models=lambda: [model],
            open_qdrant=lambda: nullcontext(qdrant),
            collections=("corpus",),
            keys_file=keys,
        )
        variants[name] = Service(settings, [model])
        await variants[name].load()
    chance, measured, http = random.Random(0), [], {}
    for name, service in variants.items():
        http[name] = httpx.AsyncClient(transport=httpx.ASGITransport(app=service.app), base_url="http://localhost")
        http[name].headers["authorization"] = f"Bearer {KEY}"
    order = list(variants)
    for turn in range(-2, turns):
        cpu = dict.fromkeys(variants, 0.0)
        for text in chance.sample(texts, queries):
            chance.shuffle(order)
            for name in order:
                started = time.process_time()
                (await http[name].post("/search", json={"query": text})).raise_for_status()
                cpu[name] += (time.process_time() - started) * 1e3 / queries
        if turn >= 0:  # the first two open connections
            measured.append(cpu)
    for client in http.values():
        await client.aclose()
    for service in variants.values():
        service.close()
    return measured


if __name__ == "__main__":
    main()
