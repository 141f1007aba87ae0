"""Sequences of ingestions that are killed, of corpora that change: what is stored at the end is what the corpus says.

The check uses qdrant-client and this file only, and the rules of the documentation; the encoder alone is shared.
"""

import argparse
import os
import random
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from qdrant_client import QdrantClient

from benchmarks.perf.measured import save_measured
from care_qdrant.corpus.chunking import Overflow
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.settings import IngestSettings
from care_qdrant.types import Document
from tests.reliability.processes import BINARY, QdrantServer
from tests.standin import StandIn
from tests.tiny import HashEncoder, HashModel

COLLECTION = "corpus"
LEAST_COSINE = 0.9999
SECONDS_PER_TEXT = 0.0015
"""Slows the encoder down, so that signals fall between its batches."""

PIPE_BYTES = 60_000
"""Less than a pipe holds, so that a child that has failed can end before anybody reads why."""

Rows = dict[str, tuple[str, str, int]]
"""Document id to title, text and a number for the metadata."""
Open = Callable[[], QdrantClient]


class RunEnded(RuntimeError):
    """An ingestion that was not killed ended with an error."""


class _SlowEncoder(HashEncoder):
    def encode(self, texts: Any, *, prompt: str | None = None) -> Any:
        time.sleep(SECONDS_PER_TEXT * len(texts))
        return super().encode(texts, prompt=prompt)


@dataclass(slots=True)
class Outcome:
    """Outcome of one sequence."""

    seed: int
    runs: int = 0
    kills: int = 0
    points: int = 0
    faults: list[str] = field(default_factory=list)
    """Empty where every point is right."""


def run_sequence(seed: int, open_client: Open) -> Outcome:
    """Kill ingestions of a changing corpus, finish the last one, and check every point."""
    outcome = Outcome(seed)
    try:
        _run(outcome, random.Random(seed), ChangingCorpus(seed), open_client)
    except RunEnded as error:
        outcome.faults.append(str(error))
    return outcome


def _run(outcome: Outcome, chance: random.Random, rows: "ChangingCorpus", open_client: Open) -> None:
    for _ in range(chance.randint(1, 5)):
        rows.edit(chance)
        settings = IngestSettings(
            overflow=chance.choice(["split", "truncate"]), batch_tokens=chance.choice([60, 400, 16_384]), sync=True,
            max_delete_fraction=1.0,
        )  # fmt: skip
        limit = chance.choice([12, 30, 64])
        outcome.runs += 1
        outcome.kills += run_killed(open_client, rows.rows, settings, limit, chance.uniform(0.01, 0.6))
    overflow: Overflow = chance.choice(["split", "truncate"])
    last, limit = IngestSettings(overflow=overflow, sync=True, max_delete_fraction=1.0), chance.choice([12, 30, 64])
    run_killed(open_client, rows.rows, last, limit, None)
    outcome.runs += 1
    client = open_client()
    try:
        outcome.points, outcome.faults = check_points(client, rows.rows, overflow, limit)
    finally:
        client.close()


class ChangingCorpus:
    """Rows that are added, edited, shortened and removed."""

    def __init__(self, seed: int) -> None:
        """Start without rows."""
        self._next, self.rows = 0, Rows()
        self._words = random.Random(~seed)

    def edit(self, chance: random.Random) -> None:
        """Change some rows, at least one."""
        for _ in range(chance.randint(1, 40) if self.rows else chance.randint(5, 80)):
            known = list(self.rows)
            change = chance.choice(["add", "add", "text", "title", "number", "remove"])
            if change == "add" or len(known) < 3:
                self.rows[f"文档/{self._next}"] = (chance.choice(["", "标题"]), self._text(), 0)
                self._next += 1
                continue
            name = chance.choice(known)
            title, text, number = self.rows[name]
            if change == "remove":
                del self.rows[name]
            else:
                self.rows[name] = (
                    "改题" if change == "title" else title,
                    self._text() if change == "text" else text,
                    number + 1 if change == "number" else number,
                )

    def _text(self) -> str:
        sentence = "".join(self._words.choices("高血压糖尿病头痛咳嗽发热", k=self._words.randint(2, 9)))
        return "。".join(f"{sentence}{n}" for n in range(self._words.choice([1, 1, 2, 6]))) + "。"


def run_killed(open_client: Open, rows: Rows, settings: IngestSettings, limit: int, seconds: float | None) -> bool:
    """Ingest in a child process and kill it after some seconds, None for never; return whether it was killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            model = HashModel(max_tokens=limit)
            model._encoder = _SlowEncoder(model.dim, limit)
            documents = [Document(name, text, title, {"n": n}) for name, (title, text, n) in rows.items()]
            client = open_client()
            ingest(documents, model, client, COLLECTION, settings=settings)
            client.close()
            code = 0
        except Exception:
            os.write(writing, traceback.format_exc().encode()[-PIPE_BYTES:])
        finally:
            os._exit(code)
    os.close(writing)
    deadline = None if seconds is None else time.monotonic() + seconds
    with os.fdopen(reading, "rb") as errors:
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                if code := os.waitstatus_to_exitcode(status):
                    raise RunEnded(f"an ingestion that was not killed ended with {code}: {errors.read().decode()}")
                return False
            if deadline is not None and time.monotonic() >= deadline:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return True
            time.sleep(0.002)


def check_points(client: QdrantClient, rows: Rows, overflow: str, limit: int) -> tuple[int, list[str]]:
    """Return the number of points, and what is wrong with them."""
    records: list[Any] = client.scroll(COLLECTION, limit=100_000, with_payload=True, with_vectors=True)[0]
    parts: dict[str, list[Any]] = {name: [] for name in rows}
    faults = [f"extra: {each.payload['doc_id']}" for each in records if each.payload["doc_id"] not in rows]
    for each in records:
        parts.setdefault(each.payload["doc_id"], []).append(each)
    encoder = HashEncoder(32, limit)
    for name, (title, text, number) in rows.items():
        found = sorted(parts[name], key=lambda each: each.payload["_care"]["chunk"])
        numbers = [each.payload["_care"]["chunk"] for each in found]
        if numbers != list(range(len(found))) or not found:
            faults.append(f"missing or repeated: {name} has parts {numbers}")
            continue
        texts = [each.payload["text"] for each in found]
        if overflow == "truncate" and texts != [text]:
            faults.append(f"wrong text: {name}")
        if overflow == "split" and "".join("".join(texts).split()) != text:
            faults.append(f"wrong parts: {name}: {texts} of {text!r}")
        if any(each.payload["_care"].get("chunks", 1) != len(found) for each in found):
            faults.append(f"wrong number of parts: {name}")
        if any(each.payload.get("title", "") != title or each.payload["n"] != number for each in found):
            faults.append(f"wrong title or metadata: {name}")
        for each in found:
            made = encoder.encode([f"{title} {each.payload['text']}".strip()])[0]
            stored = np.asarray(each.vector["hash-model"])
            if not stored @ made / np.linalg.norm(stored) >= LEAST_COSINE:
                faults.append(f"wrong vector: {name}")
    repeated = [name for name, count in Counter(str(each.id) for each in records).items() if count > 1]
    return len(records), faults + [f"repeated: {each}" for each in repeated]


@contextmanager
def databases(kind: str, url: str | None = None) -> Iterator[Open]:
    """Return what opens an empty database: a folder, or a server (the stand-in, or one at a URL)."""
    with tempfile.TemporaryDirectory() as folder:
        if kind == "folder":
            yield lambda: QdrantClient(path=str(Path(folder) / "qdrant"))
            return
        if url is not None:
            client = QdrantClient(url=url, check_compatibility=False)
            client.delete_collection(COLLECTION)
            client.close()
            yield lambda: QdrantClient(url=url, check_compatibility=False)
            return
        with StandIn() as server:
            yield lambda: QdrantClient(url=server.url, check_compatibility=False)


def main() -> None:
    """Run sequences over a folder and a server in turn, and write what each met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=200, help="Number of sequences. Default: 200.")
    parser.add_argument("--seed", type=int, default=20261122, help="Seed of the first one. Default: 20261122.")
    parser.add_argument("--url", help="A Qdrant server whose collection 'corpus' is deleted. Default: the stand-in.")
    parser.add_argument(
        "--real-server", action="store_true", help="Start the server that QDRANT_BINARY names, and take that."
    )
    parser.add_argument("--output", type=Path, required=True, help="JSON file of the result.")
    asked = parser.parse_args()
    start, outcomes = time.perf_counter(), {"folder": list[Outcome](), "server": list[Outcome]()}
    with ExitStack() as stack:
        url = asked.url
        if asked.real_server:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            url = stack.enter_context(
                QdrantServer(BINARY or parser.error("QDRANT_BINARY is not set"), Path(folder))
            ).url
        for number in range(asked.sequences):
            kind = ("folder", "server")[number % 2]
            with databases(kind, url) as open_client:
                outcomes[kind].append(run_sequence(asked.seed + number, open_client))
    result = {
        "sequences": asked.sequences,
        "seed": asked.seed,
        "server_is": "a Qdrant server" if url else "the stand-in of tests",
        "seconds": round(time.perf_counter() - start, 1),
        **{
            kind: {
                "sequences": len(each),
                "runs": sum(one.runs for one in each),
                "kills": sum(one.kills for one in each),
                "points_checked": sum(one.points for one in each),
                "faults": [asdict(one) for one in each if one.faults],
            }
            for kind, each in outcomes.items()
        },
    }
    save_measured(asked.output, result)


if __name__ == "__main__":
    main()
