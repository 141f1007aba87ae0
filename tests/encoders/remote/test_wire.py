"""Answers of embeddings servers: usable vectors in the order of the texts, or a sentence on what came instead."""

import json
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from care_qdrant.encoders.remote.wire import embed, read_vectors
from care_qdrant.errors import EncodingError
from care_qdrant.http_client import Client

REQUEST = httpx.Request("POST", "http://127.0.0.1:1/v1/embeddings")
NUMBERS = st.floats(width=64) | st.integers(-(10**400), 10**400) | st.none() | st.booleans() | st.text(max_size=3)
EMBEDDINGS = st.lists(NUMBERS, max_size=3) | st.lists(st.floats(-2, 2), min_size=2, max_size=2) | NUMBERS
ROWS = st.fixed_dictionaries({}, optional={"embedding": EMBEDDINGS, "index": st.integers(-1, 3) | NUMBERS})
ANYTHING = st.recursive(
    NUMBERS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=2)
)
ANSWERS = st.fixed_dictionaries({"data": st.lists(ROWS, max_size=4) | ANYTHING}) | ANYTHING


def answered(content: bytes) -> httpx.Response:
    return httpx.Response(200, content=content, request=REQUEST)


@given(answer=ANSWERS, count=st.integers(1, 3))
def test_an_answer_gives_usable_vectors_or_is_refused(answer: Any, count: int) -> None:
    try:
        vectors = read_vectors(answered(json.dumps(answer).encode()), count)
    except EncodingError:
        return
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
    assert vectors.ndim == 2 and len(vectors) == count and np.isfinite(lengths).all() and (lengths > 0).all()


@pytest.mark.parametrize("content", [b"[" * 200_000, b"", b"<html>", b'{"data": "\xff"}'])
def test_what_is_not_json_is_refused(content: bytes) -> None:
    with pytest.raises(EncodingError, match="is not a list of embeddings"):
        read_vectors(answered(content), 1)


def test_an_error_with_status_200_is_shown() -> None:
    with pytest.raises(EncodingError, match="model is loading"):
        read_vectors(answered(b'{"error": "model is loading"}'), 1)


def test_requests_with_other_dimensions_are_refused() -> None:
    widths = iter((2, 3))

    def answer(request: httpx.Request) -> httpx.Response:
        width = next(widths)
        data = [{"embedding": [1.0] * width} for _ in json.loads(request.content)["input"]]
        return httpx.Response(200, json={"data": data})

    client = Client(base_url="http://server/v1", transport=httpx.MockTransport(answer))
    with client, pytest.raises(EncodingError, match="of 2 and then of 3 dimensions"):
        embed(client, "model", ["text"] * 65)
