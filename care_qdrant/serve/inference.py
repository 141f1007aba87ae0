"""``POST /inference``: what a Qdrant server asks where its `inference.address` names this service.

The server posts here whenever a client sent ``Document{text, model}`` instead of a vector. ``search`` (queries) and
``update`` (points that are written) are the two sides of the pair, so no client can take the wrong one. The protocol is
that of Qdrant 1.18 (``src/common/inference/service.rs``): vectors in the order of the inputs, and a 400 whose ``error``
reaches the client of the server as a 400. The model names ``bm25`` and ``qdrant/bm25`` never arrive: the server answers
them itself.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from care_qdrant.encoders import bm25
from care_qdrant.serve.lines import Side
from care_qdrant.serve.pairs import BM25_SUFFIX, Pairs, check_texts
from care_qdrant.serve.refusal import Refusal
from care_qdrant.serve.schemas import InferenceInput, InferenceRequest
from care_qdrant.serve.settings import Limits

SIDES: Mapping[str, Side] = {"search": "query", "update": "document"}
_BM25_OPTIONS = {"average_length": None, "k1": bm25.DEFAULT_K1, "b": bm25.DEFAULT_B}


async def infer(pairs: Pairs, limits: Limits, request: InferenceRequest) -> dict[str, Any]:
    """Return one vector for each input, in order: a list of numbers, or indices and values for BM25."""
    side = SIDES[request.inference]
    texts = [_text(number, item) for number, item in enumerate(request.inputs)]
    check_texts(texts, side, limits)
    by_model: dict[str, list[int]] = defaultdict(list)
    for number, item in enumerate(request.inputs):
        by_model[item.model].append(number)
    answers = await asyncio.gather(
        *(
            _encode(pairs, model, side, [request.inputs[number] for number in numbers], [texts[n] for n in numbers])
            for model, numbers in by_model.items()
        )
    )
    embeddings: list[Any] = [None] * len(texts)
    for numbers, vectors in zip(by_model.values(), answers, strict=True):
        for number, vector in zip(numbers, vectors, strict=True):
            embeddings[number] = vector
    return {"embeddings": embeddings, "usage": None}


async def _encode(
    pairs: Pairs, model: str, side: Side, items: Sequence[InferenceInput], texts: Sequence[str]
) -> Sequence[Any]:
    if model.endswith(BM25_SUFFIX):
        pairs.find(model.removesuffix(BM25_SUFFIX))
        return await asyncio.to_thread(_terms, side, items, texts)
    pair = pairs.find(model)
    if unread := next((item.options for item in items if item.options), None):
        raise Refusal(400, "unknown_option", f"model {model!r} reads no options, and was given {', '.join(unread)}")
    vectors: list[list[float]] = (await pair.encode(texts, side)).tolist()
    return vectors


def _text(number: int, item: InferenceInput) -> str:
    if item.data_type != "text" or not isinstance(item.data, str):
        raise Refusal(400, "not_a_text", f"input {number} is of type {item.data_type}; this service encodes texts")
    return item.data


def _terms(side: Side, items: Sequence[InferenceInput], texts: Sequence[str]) -> list[dict[str, Any]]:
    vectors = (
        bm25.query_vector(text) if side == "query" else bm25.document_vector(text, **_constants(item))
        for item, text in zip(items, texts, strict=True)
    )
    return [{"indices": vector.indices, "values": vector.values} for vector in vectors]


def _constants(item: InferenceInput) -> dict[str, float]:
    """Return the constants of BM25 that the client gives: they are the collection's, which this service never sees."""
    given = item.options or {}
    if unknown := set(given) - set(_BM25_OPTIONS):
        known = ", ".join(_BM25_OPTIONS)
        raise Refusal(400, "unknown_option", f"options of {item.model!r}: {', '.join(sorted(unknown))}; known: {known}")
    constants = _BM25_OPTIONS | given
    for name, value in constants.items():
        lowest = 0 if name != "average_length" else 1
        if isinstance(value, bool) or not isinstance(value, int | float) or not lowest <= value < 1e6:
            raise Refusal(
                400,
                "invalid_option",
                f"a document of {item.model!r} needs the option {name!r}, a number of at least {lowest} (found: "
                f"{value!r}). It is in the contract of the collection: care collections --json",
            )
    return {name: float(value) for name, value in constants.items() if value is not None}
