"""Concurrent queries of all kinds to one `CareEmbedding`: no answer is lost or swapped, and memory does not grow."""

import asyncio
import gc
import logging
import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from llama_index.embeddings.care import CareEmbedding

from benchmarks.perf.random_pair import MAX_TOKENS, sample_queries
from care_qdrant.errors import InputError, UnusableText
from care_qdrant.model.care_model import CareModel
from tests.reliability.trials import Trial

TOLERANCE = 1e-4
"""Largest difference of a coordinate from the vector that the query has alone."""
CLIENTS = 64
WIDTH = 128
"""Width of the model, small: the code around the model is tested."""
KINDS = {"plain": 70, "duplicate": 12, "empty": 4, "too long": 4, "not text": 4, "cancelled": 6}
"""Kind of query → its percentage."""


def soak_trial(model: Path, queries: int, seed: int) -> Trial:
    """Send queries from `CLIENTS` coroutines to one embedding whose worker batches them."""
    logging.getLogger("llama_index.embeddings.care").setLevel(logging.ERROR)
    alone = CareModel.load(model, precision="fp32")
    expected = {text: alone.encode_query([text])[0] for text in sample_queries()}
    settings = {"model": str(model), "precision": "fp32", "on_truncation": "error", "query_cache_size": 64}
    return asyncio.run(_soak(CareEmbedding.from_dict(settings), expected, queries, seed))


async def _soak(
    embedding: CareEmbedding, expected: Mapping[str, npt.NDArray[np.float32]], queries: int, seed: int
) -> Trial:
    rng = random.Random(seed)
    texts = list(expected)
    outcomes: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    memory: list[float] = []
    remaining = iter(range(queries))

    async def client() -> None:
        for number in remaining:
            if number % max(1, queries // 10) == 0:
                memory.append(_memory_mib())
            (kind,) = rng.choices(list(KINDS), list(KINDS.values()))
            kinds[kind] += 1
            outcomes[await _ask(embedding, kind, rng.choice(texts), texts[0], expected)] += 1

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    memory.append(_memory_mib())
    answered, cancelled, refused = (outcomes[name] for name in ("answered", "cancelled", "refused"))
    observed = {"queries": queries, "answered": answered, "cancelled": cancelled, "refused": refused}
    observed |= {f"sent {kind}": count for kind, count in kinds.items()}
    # The first tenth fills caches and allocators.
    observed["memory_growth_mib"] = round(memory[-1] - memory[min(1, len(memory) - 1)])
    return Trial("soak", 0.0, False, observed, {"wrong": queries - answered - cancelled - refused})


async def _ask(
    embedding: CareEmbedding, kind: str, text: str, common: str, expected: Mapping[str, npt.NDArray[np.float32]]
) -> str:
    """Send one query, and return its outcome: answered, cancelled, refused, or wrong."""
    long = "长" * (MAX_TOKENS + len(text))
    sent = {"duplicate": common, "empty": "", "too long": long, "not text": 7}.get(kind, text)
    task = asyncio.create_task(embedding.aget_query_embedding(sent))  # type: ignore[arg-type]  # 7 is no text
    if kind == "cancelled":
        await asyncio.sleep(0)
        task.cancel()
    try:
        vector = await task
    except asyncio.CancelledError:
        return "cancelled" if kind == "cancelled" else "wrong"
    except UnusableText:
        return "refused" if kind == "empty" else "wrong"
    except InputError as error:
        return "refused" if kind == "too long" and f"{len(long) + 2} tokens" in str(error) else "wrong"
    except Exception:
        return "refused" if kind == "not text" else "wrong"
    is_right = (
        kind not in ("not text", "empty") and float(np.abs(np.asarray(vector) - expected[str(sent)]).max()) < TOLERANCE
    )
    return "answered" if is_right else "wrong"


def _memory_mib() -> float:
    gc.collect()
    status = Path("/proc/self/status").read_text().splitlines()
    return float(next(line.split()[1] for line in status if line.startswith("VmRSS"))) / 1024
