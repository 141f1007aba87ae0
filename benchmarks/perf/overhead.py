"""CPU time of a query outside of the model: LlamaIndex's events, our code, the tokenizer."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import unwrap
from pathlib import Path

import numpy as np
import onnxruntime  # type: ignore[import-untyped]
from llama_index.embeddings.care import CareEmbedding
from tokenizers import Tokenizer

from care_qdrant.model.care_model import CareModel


@dataclass(frozen=True, slots=True)
class Overhead:
    """Milliseconds of CPU time per query, as medians of paired differences."""

    rounds: int
    run_ms: float
    """The bare onnxruntime session on ready token ids."""
    encoder_ms: float
    """Added by `OnnxEncoder`: tokenizer, arrays, the check of the vector."""
    embedding_ms: float
    """Added to that by `CareEmbedding`: token count, cache, micro-batching queue, list of floats."""
    llama_index_ms: float
    """Added to that by LlamaIndex: spans, events, callbacks."""
    ours_ms: float
    """Sum of encoder and embedding."""


def measure_overhead(model: Path, queries: Sequence[str], rounds: int) -> Overhead:
    """Time the four layers on the same query, one after the other; a small model keeps the noise small."""
    care = CareModel.load(model, precision="fp32")
    embedding = CareEmbedding.from_dict({"model": str(model), "precision": "fp32", "query_cache_size": 0})
    # Without its span, which is LlamaIndex's.
    inner_call = unwrap(type(embedding)._get_query_embedding)
    layers: list[Callable[[str], object]] = [
        _bare_run(model, queries),
        lambda query: care.encode_query([query]),
        lambda query: inner_call(embedding, query),
        embedding.get_query_embedding,
    ]
    times = np.array([[_cpu_ms(layer, query) for layer in layers] for query in _cycle(queries, rounds + 20)])[20:]
    encoder, inner, outer = (float(step) for step in np.median(np.diff(times, axis=1), axis=0))
    return Overhead(rounds, float(np.median(times[:, 0])), encoder, inner, outer, ours_ms=encoder + inner)


def _bare_run(model: Path, queries: Sequence[str]) -> Callable[[str], object]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(model / "query" / "onnx" / "model.onnx"), options)
    tokenizer = Tokenizer.from_file(str(model / "query" / "tokenizer.json"))
    tokenizer.no_padding()
    ids = {query: np.array([tokenizer.encode(query).ids], dtype=np.int64) for query in queries}
    ready = {query: {"input_ids": row, "attention_mask": np.ones_like(row)} for query, row in ids.items()}
    return lambda query: session.run(None, ready[query])


def _cpu_ms(layer: Callable[[str], object], query: str) -> float:
    began = time.process_time()
    layer(query)
    return (time.process_time() - began) * 1e3


def _cycle(queries: Sequence[str], count: int) -> list[str]:
    return [queries[number % len(queries)] for number in range(count)]
