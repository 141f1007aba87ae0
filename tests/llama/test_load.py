"""The closed loop of ``benchmarks/perf/embedding.py``."""

import asyncio

from llama_index.core.base.embeddings.base import BaseEmbedding, Embedding
from llama_index.core.bridge.pydantic import PrivateAttr

from benchmarks.perf.load import TURNS, measure_loads


class CountingEmbedding(BaseEmbedding):
    """Notes how many queries it has at a time."""

    _running: int = PrivateAttr(default=0)
    _at_once: list[int] = PrivateAttr(default_factory=list)

    async def _aget_query_embedding(self, query: str) -> Embedding:
        self._running += 1
        self._at_once.append(self._running)
        await asyncio.sleep(0)
        self._running -= 1
        return [1.0]

    def _get_query_embedding(self, query: str) -> Embedding:
        raise NotImplementedError

    def _get_text_embedding(self, text: str) -> Embedding:
        raise NotImplementedError


def test_each_stack_gets_each_number_of_clients_and_no_more() -> None:
    stacks = {"one": CountingEmbedding(), "other": CountingEmbedding()}

    loads = measure_loads(stacks, ["耳鸣", "头痛"], [1, 3], seconds=0.04 * TURNS)

    assert [(load.stack, load.clients) for load in loads] == [("one", 1), ("other", 1), ("one", 3), ("other", 3)]
    for name, embedding in stacks.items():
        assert max(embedding._at_once) == 3
        # The turns that warm up are run and not counted.
        assert 0 < sum(load.queries for load in loads if load.stack == name) < len(embedding._at_once)
    assert all(load.p50_ms <= load.p99_ms for load in loads)
