"""The requests of others for embeddings: OpenAI's ``/v1/embeddings``, and ``/embed`` of text-embeddings-inference.

Neither has two sides. The query side answers unless the request names the document side (``input_type``,
``prompt_name``), and a service without document encoders refuses that.
"""

import base64
from typing import Any

import numpy as np

from care_qdrant.serve.lines import SLICE_TEXTS
from care_qdrant.serve.pairs import Pairs, ServedPair
from care_qdrant.serve.refusal import Refusal
from care_qdrant.serve.schemas import EmbedRequest, OpenAIModel, OpenAIModels, OpenAIRequest, TEIInfo
from care_qdrant.serve.settings import Limits
from care_qdrant.version import __version__


async def openai_embeddings(pairs: Pairs, request: OpenAIRequest) -> dict[str, Any]:
    """Return OpenAI's answer: vectors in the order of the texts, as numbers or as base64 of little-endian float32."""
    texts = _texts(request)
    pair = pairs.find(request.model)
    if request.dimensions not in (None, pair.dim):
        raise Refusal(
            400,
            "invalid_dimensions",
            f"dimensions is {request.dimensions}; vectors of {pair.name} have {pair.dim}, as those in the collections "
            "that they search. Leave it out",
            param="dimensions",
        )
    vectors = await pair.encode(texts, request.input_type)
    counts = await pair.count_tokens(texts, request.input_type)
    tokens = sum(counts)
    if request.encoding_format == "base64":
        rows = [base64.b64encode(row).decode() for row in np.ascontiguousarray(vectors, dtype="<f4")]
    else:
        rows = vectors.tolist()
    return {
        "object": "list",
        "data": [{"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(rows)],
        "model": request.model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "truncated": pair.cut_texts(counts, request.input_type),
    }


def openai_models(pairs: Pairs) -> OpenAIModels:
    """Return the names that ``/v1/embeddings`` and ``/inference`` take, with their fingerprints."""
    return OpenAIModels(data=[OpenAIModel(id=f"{pair.name}@{pair.fingerprint[:12]}") for pair in pairs])


async def tei_embed(pairs: Pairs, request: EmbedRequest) -> list[list[float]]:
    """Return the vectors of the default pair, in the order of the texts."""
    if not request.normalize:
        raise Refusal(400, "invalid_request", "normalize is false; the vectors of a pair always have unit length")
    texts = [request.inputs] if isinstance(request.inputs, str) else request.inputs
    pair, side = pairs.default, request.prompt_name or "query"
    vectors = await pair.encode(texts, side)
    counts = await pair.count_tokens(texts, side)
    if request.truncate:
        pair.cut_texts(counts, side)
    elif long := [index for index, count in enumerate(counts) if count > pair.max_tokens(side)]:
        reason = (
            f"text {long[0]} has {counts[long[0]]} tokens; {pair.max_tokens(side)} are read: cut it, or pass truncate"
        )
        raise Refusal(413, "too_many_tokens", reason)
    rows: list[list[float]] = vectors.tolist()
    return rows


def tei_info(pair: ServedPair, limits: Limits) -> TEIInfo:
    """Return what clients of text-embeddings-inference ask a server about itself."""
    return TEIInfo(
        model_id=pair.name,
        model_sha=pair.fingerprint,
        model_type={"embedding": {"pooling": pair.model.card.query.pooling if pair.model.card is not None else ""}},
        max_concurrent_requests=limits.waiting_texts,
        max_input_length=pair.max_tokens("query"),
        max_batch_tokens=pair.max_tokens("query") * SLICE_TEXTS,
        max_batch_requests=SLICE_TEXTS,
        max_client_batch_size=limits.batch_texts,
        version=__version__,
    )


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
