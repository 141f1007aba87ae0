"""Requests for vectors in the formats of Qdrant (``/inference``) and OpenAI (``/v1/embeddings``).

OpenAI has no two sides. The query side answers unless the request names the document side (``input_type``, ``task``,
``task_type``, ``prompt_name``), and a service without document encoders refuses that.

``POST /inference`` is what a Qdrant server asks where its `inference.address` names this service: it posts here
whenever a client sent ``Document{text, model}`` instead of a vector. ``search`` (queries) and ``update`` (points that
are written) are the two sides of the model, so no client can take the wrong one. The protocol is that of Qdrant 1.18
(``src/common/inference/service.rs``): vectors in the order of the inputs, and a 400 whose ``error`` reaches the client
of the server as a 400. The names ``bm25`` and ``qdrant/bm25`` never arrive: the server answers them itself.
"""

import asyncio
import base64
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from care_qdrant.encoders.terms import bm25
from care_qdrant.encoders.terms.analyser import DEFAULT, Analyser, find_analyser
from care_qdrant.model.care_model import CareModel
from care_qdrant.serve.admission import Side
from care_qdrant.serve.models import BM25_SUFFIX, ServedModels, check_texts
from care_qdrant.serve.refusal import Refusal
from care_qdrant.serve.schemas import (
    InferenceInput,
    InferenceRequest,
    OpenAIModel,
    OpenAIModels,
    OpenAIRequest,
)
from care_qdrant.serve.settings import Limits

SIDES: Mapping[str, Side] = {"search": "query", "update": "document"}
_BM25_OPTIONS = {"average_length": (1, 1e6), "k1": (0, 1e6), "b": (0, 1), "lead": (1, 1e6)}
"""Constants of a contract, with the least and the largest value; the last one may be absent."""


async def openai_embeddings(models: ServedModels, request: OpenAIRequest) -> dict[str, Any]:
    """Return OpenAI's answer: vectors in the order of the texts, as numbers or as base64 of little-endian float32."""
    texts = _texts(request)
    served = models.find(request.model)
    if request.dimensions not in (None, served.dim):
        raise Refusal(
            400,
            "invalid_dimensions",
            f"dimensions is {request.dimensions}; vectors of {served.name} have {served.dim}, as those in the "
            "collections that they search. Leave it out",
            param="dimensions",
        )
    vectors = await served.encode(texts, request.side)
    counts = await served.count_tokens(texts, request.side)
    longest, most, tokens = max(counts), served.max_tokens(request.side), sum(counts)
    if longest > most and not request.may_cut:
        reason = f"text {counts.index(longest)} has {longest} tokens, and the encoder reads {most}"
        raise Refusal(400, "text_too_long", f"{reason}: split it, or let it be cut (truncate)", param="input")
    if request.encoding_format == "base64":
        rows = [base64.b64encode(row).decode() for row in np.ascontiguousarray(vectors, dtype="<f4")]
    else:
        rows = vectors.tolist()
    return {
        "object": "list",
        "data": [{"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(rows)],
        "model": request.model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "truncated": served.cut_texts(counts, request.side),
    }


def openai_models(models: ServedModels) -> OpenAIModels:
    """Return the names that ``/v1/embeddings`` and ``/inference`` take, with their fingerprints."""
    return OpenAIModels(data=[OpenAIModel(id=f"{served.name}@{served.fingerprint[:12]}") for served in models])


def _texts(request: OpenAIRequest) -> list[str]:
    if isinstance(request.input, str):
        return [request.input]
    texts = [text for text in request.input if isinstance(text, str)]
    if len(texts) != len(request.input):
        raise Refusal(
            400,
            "tokens_refused",
            "input holds token numbers, which belong to the tokenizer of another model; send texts. In LangChain: "
            "OpenAIEmbeddings(check_embedding_ctx_length=False)",
            param="input",
        )
    return texts


async def infer(models: ServedModels, limits: Limits, request: InferenceRequest) -> dict[str, Any]:
    """Return one vector for each input, in order: a list of numbers, or indices and values for BM25."""
    side = SIDES[request.inference]
    texts = [_text(number, item) for number, item in enumerate(request.inputs)]
    check_texts(texts, side, limits)
    by_model: dict[str, list[int]] = defaultdict(list)
    for number, item in enumerate(request.inputs):
        by_model[item.model].append(number)
    answers = await asyncio.gather(
        *(
            _encode(models, model, side, [request.inputs[number] for number in numbers], [texts[n] for n in numbers])
            for model, numbers in by_model.items()
        )
    )
    embeddings: list[Any] = [None] * len(texts)
    for numbers, vectors in zip(by_model.values(), answers, strict=True):
        for number, vector in zip(numbers, vectors, strict=True):
            embeddings[number] = vector
    return {"embeddings": embeddings, "usage": None}


async def _encode(
    models: ServedModels, model: str, side: Side, items: Sequence[InferenceInput], texts: Sequence[str]
) -> Sequence[Any]:
    if model.endswith(BM25_SUFFIX):
        served = models.find(model.removesuffix(BM25_SUFFIX))
        with served.query.queue.admitted(len(texts)):
            return await asyncio.to_thread(_terms, served.model, side, items, texts)
    served = models.find(model)
    if unread := next((item.options for item in items if item.options), None):
        raise Refusal(400, "unknown_option", f"model {model!r} reads no options, and was given {', '.join(unread)}")
    vectors: list[list[float]] = (await served.encode(texts, side)).tolist()
    return vectors


def _text(number: int, item: InferenceInput) -> str:
    if item.data_type != "text" or not isinstance(item.data, str):
        kind = "" if item.data_type == "text" else f" ({item.data_type[:100]})"
        raise Refusal(400, "not_a_text", f"input {number} is not a text{kind}; this service encodes texts only")
    return item.data


def _terms(model: CareModel, side: Side, items: Sequence[InferenceInput], texts: Sequence[str]) -> list[dict[str, Any]]:
    vectors = (
        model.query_terms(text, _analyser(item))
        if side == "query"
        else bm25.document_vector(text, analyser=_analyser(item), **_constants(item))
        for item, text in zip(items, texts, strict=True)
    )
    return [{"indices": vector.indices, "values": vector.values} for vector in vectors]


def _analyser(item: InferenceInput) -> Analyser:
    """Return the analyser that the client names, as the collection's record does; that for Chinese for none."""
    given, known = item.options or {}, (*_BM25_OPTIONS, "analyser")
    if unknown := given.keys() - set(known):  # of a query as well: with `analyzer`, its terms would be Chinese
        listed = ", ".join(sorted(unknown))
        raise Refusal(400, "unknown_option", f"options of {item.model!r}: {listed}; known: {', '.join(known)}")
    name = given.get("analyser", DEFAULT.name)
    analyser = find_analyser(name) if isinstance(name, str) else None
    if analyser is None:
        raise Refusal(
            400,
            "invalid_option",
            f"option 'analyser' of {item.model!r} is {name!r}; expected the fingerprint in the collection's record of "
            "BM25: care status --json",
        )
    return analyser


def _constants(item: InferenceInput) -> dict[str, Any]:
    """Return the constants of BM25 that the client gives: they are the collection's, which this service never sees."""
    given = item.options or {}
    constants = {name: given.get(name) for name in _BM25_OPTIONS if name != "lead" or given.get(name) is not None}
    for name, value in constants.items():
        least, largest = _BM25_OPTIONS[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= largest:
            raise Refusal(
                400,
                "invalid_option",
                f"a document of {item.model!r} needs the option {name!r}, a number from {least} to {largest:,.0f} "
                f"(found: {value!r}). It is in the collection's record of BM25: care status --json",
            )
    return {"lead": None} | constants
