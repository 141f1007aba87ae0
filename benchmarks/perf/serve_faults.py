"""Send mixed requests to `care serve`, a third of them faulty, and check every answer."""

import asyncio
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import click
import httpx
import numpy as np

from care_qdrant import CareModel
from care_qdrant.types import Vectors

from .measured import output_option, save_measured

KEY = "a-key-for-this-measurement"
CLIENTS = 32
TEXTS = [f"高血压患者{number}饮食上要注意什么" for number in range(200)]
JSON = {"content-type": "application/json"}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--requests", type=click.IntRange(1), default=10_000, show_default=True, help="Requests, all kinds.")
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True, help="Processes of care serve.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the order and the faults.")
@output_option
def main(requests: int, workers: int, seed: int, output: Path) -> None:
    """Count requests that went wrong, and the memory of the workers before and after.

    A request is lost (no answer), crossed (an answer that belongs to another request), or answered with another status
    than its kind must have.

    \b
    Example:
      python -m benchmarks.perf.serve_faults --output benchmarks/results/serve-faults.json
    """
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder, "keys")
        keys.write_text(f"{KEY}\n")
        log = Path(folder, "log")
        command = [sys.executable, "-c", "from care_qdrant.cli import main; main()"]
        command += ["serve", "--port", "0", "--workers", str(workers), "--keys", str(keys), "--documents"]
        with log.open("wb") as errors:
            process = subprocess.Popen(command, stderr=errors)
        try:
            url = wait_for_address(log, process)
            result = asyncio.run(Run(url, process.pid, seed).all(requests))
        finally:
            process.terminate()
            code = process.wait(90)
        lines = log.read_text().splitlines()
        failures = [line for line in lines if '"level": "error"' in line or line.startswith("Traceback")]
    result |= {"exit_code": code, "errors_in_the_log": failures, "seed": seed, "workers": workers}
    save_measured(output, result)


def wait_for_address(log: Path, process: "subprocess.Popen[bytes]") -> str:
    """Return the address that a service prints when it is ready."""
    while process.poll() is None:
        if found := re.search(r"serving on (\S+)", log.read_text()):
            return found[1]
        time.sleep(0.1)
    raise SystemExit(log.read_text())


class Run:
    """One run of mixed requests."""

    def __init__(self, url: str, pid: int, seed: int) -> None:
        """Encode what the answers must be."""
        self._url, self._pid, self._random = url, pid, random.Random(seed)
        model = CareModel.load()
        self._model = model.name
        self._expected = {"search": model.encode_query(TEXTS), "update": model.encode_document(TEXTS)}
        self._kinds: dict[str, Counter[str]] = {}
        self._crossed = 0

    async def all(self, requests: int) -> dict[str, Any]:
        """Send all requests and return the counts."""
        numbers = iter(range(requests))
        kinds = [self.query] * 8 + [self.batch] * 2 + [self.openai] * 2 + [self.document]
        kinds += [self.wrong_key, self.malformed, self.oversized, self.blank, self.cancelled, self.half_a_body]
        memory: list[float] = []

        async def client() -> None:
            async with httpx.AsyncClient(
                base_url=self._url, timeout=60, headers={"authorization": f"Bearer {KEY}"}
            ) as http:
                for number in numbers:
                    if number % max(1, requests // 10) == 0:
                        memory.append(self.memory())
                    kind = self._random.choice(kinds)
                    counts = self._kinds.setdefault(kind.__name__, Counter())
                    try:
                        counts[await kind(http)] += 1
                    except httpx.HTTPError as error:
                        counts[f"lost: {type(error).__name__}"] += 1

        started = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(CLIENTS)))
        seconds = time.perf_counter() - started
        memory.append(self.memory())
        lost = sum(n for counts in self._kinds.values() for key, n in counts.items() if key.startswith("lost"))
        wrong = sum(n for counts in self._kinds.values() for key, n in counts.items() if key.startswith("wrong"))
        return {
            "requests": requests,
            "seconds": round(seconds, 1),
            "lost": lost,
            "crossed": self._crossed,
            "wrong_status": wrong,
            "by_kind": {name: dict(counts) for name, counts in sorted(self._kinds.items())},
            "worker_rss_mb": memory,
        }

    def memory(self) -> float:
        """Return the private and shared memory of all workers in MB."""
        children = Path(f"/proc/{self._pid}/task/{self._pid}/children").read_text().split()
        pages = sum(int(Path(f"/proc/{child}/statm").read_text().split()[1]) for child in children)
        return round(pages * 4096 / 1e6, 1)

    def pick(self, count: int) -> list[int]:
        """Return the numbers of some texts."""
        return [self._random.randrange(len(TEXTS)) for _ in range(count)]

    def body(self, numbers: list[int], side: str = "search") -> dict[str, Any]:
        """Return what Qdrant posts for texts."""
        inputs = [{"data": TEXTS[n], "data_type": "text", "model": self._model, "options": None} for n in numbers]
        return {"inputs": inputs, "inference": side, "token": None}

    def judge(self, answer: httpx.Response, status: int, vectors: Any = None, expected: Vectors | None = None) -> str:
        """Return the status, after comparing it and the vectors with what they must be."""
        if answer.status_code != status:
            return f"wrong: {answer.status_code} instead of {status}"
        if expected is not None and not np.allclose(np.float32(vectors), expected, atol=1e-5):
            self._crossed += 1
        return str(status)

    async def query(self, http: httpx.AsyncClient) -> str:
        """Ask for one query."""
        return await self.infer(http, 1, "search")

    async def batch(self, http: httpx.AsyncClient) -> str:
        """Ask for several queries."""
        return await self.infer(http, self._random.randint(2, 40), "search")

    async def document(self, http: httpx.AsyncClient) -> str:
        """Ask for some documents."""
        return await self.infer(http, self._random.randint(1, 8), "update")

    async def infer(self, http: httpx.AsyncClient, count: int, side: str) -> str:
        """Ask as Qdrant does."""
        numbers = self.pick(count)
        answer = await http.post("/inference", json=self.body(numbers, side))
        vectors = answer.json().get("embeddings") if answer.status_code == 200 else None
        return self.judge(answer, 200, vectors, self._expected[side][numbers])

    async def openai(self, http: httpx.AsyncClient) -> str:
        """Ask as OpenAI's clients do."""
        numbers = self.pick(3)
        answer = await http.post("/v1/embeddings", json={"model": self._model, "input": [TEXTS[n] for n in numbers]})
        vectors = [row["embedding"] for row in answer.json()["data"]] if answer.status_code == 200 else None
        return self.judge(answer, 200, vectors, self._expected["search"][numbers])

    async def wrong_key(self, http: httpx.AsyncClient) -> str:
        """Show a key that is not accepted."""
        headers = {"authorization": "Bearer not-a-key-of-this-service"}
        return self.judge(await http.post("/inference", json=self.body(self.pick(1)), headers=headers), 401)

    async def malformed(self, http: httpx.AsyncClient) -> str:
        """Send a body that is no JSON."""
        return self.judge(await http.post("/inference", content=b'{"inputs": [', headers=JSON), 400)

    async def oversized(self, _http: httpx.AsyncClient) -> str:
        """Declare a body that is larger than the limit, and send a part of it."""
        parts = self._url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(parts[0], int(parts[1]))
        head = f"POST /inference HTTP/1.1\r\nhost: {parts[0]}\r\nauthorization: Bearer {KEY}\r\n"
        writer.write(f"{head}content-type: application/json\r\ncontent-length: 100000000\r\n\r\n{'x' * 1000}".encode())
        await writer.drain()
        status = (await reader.read(4096)).split(b" ")[1:2]
        writer.close()
        return "413" if status == [b"413"] else f"wrong: {status}"

    async def blank(self, http: httpx.AsyncClient) -> str:
        """Send a text without content."""
        return self.judge(await http.post("/search", json={"query": " "}), 400)

    async def cancelled(self, http: httpx.AsyncClient) -> str:
        """Leave before the answer comes."""
        try:
            await asyncio.wait_for(
                http.post("/inference", json=self.body(self.pick(40))), timeout=self._random.uniform(0, 0.02)
            )
        except TimeoutError:
            return "left"
        return "answered before"

    async def half_a_body(self, _http: httpx.AsyncClient) -> str:
        """Close the connection in the middle of the body."""
        parts = self._url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(parts[0], int(parts[1]))
        head = f"POST /inference HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
        writer.write(f"{head}content-type: application/json\r\ncontent-length: 100\r\n\r\n{{".encode())
        await writer.drain()
        writer.close()
        return "left"


if __name__ == "__main__":
    main()
