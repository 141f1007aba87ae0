"""The requests of OpenAI's clients."""

import base64

import numpy as np
import pytest

from tests.serve.conftest import pair
from tests.tiny import TEXTS


async def test_openai_gets_numbers_or_base64_of_the_side_that_it_names(make_service, connect) -> None:
    model = pair()
    service = make_service(model, documents=True)
    await service.load()
    http = connect(service)
    request = {"model": "pair", "input": TEXTS}
    plain = (await http.post("/v1/embeddings", json=request)).json()
    assert [row["index"] for row in plain["data"]] == list(range(len(TEXTS)))
    assert np.array_equal(np.float32([row["embedding"] for row in plain["data"]]), model.encode_query(TEXTS))
    assert plain["usage"]["prompt_tokens"] == sum(model.query_encoder.count_tokens(TEXTS))
    packed = request | {"encoding_format": "base64", "input_type": "document", "user": "someone", "dimensions": 32}
    rows = (await http.post("/v1/embeddings", json=packed)).json()["data"]
    decoded = [np.frombuffer(base64.b64decode(row["embedding"]), dtype="<f4") for row in rows]
    assert np.array_equal(np.stack(decoded), model.encode_document(TEXTS))


NULLS = ("encoding_format", "dimensions", "user", "input_type")


@pytest.mark.parametrize(
    "body",
    [
        # openai-python and openai-node, LiteLLM, Dify, Open WebUI with a prefix field, Vercel's AI SDK
        {"encoding_format": "base64"},
        dict.fromkeys(NULLS),
        {"encoding_format": "float", "user": "someone"},
        {"input_type": "search_query", "truncate": "END"},
        {"encoding_format": "float", "dimensions": 32, "user": None},
        {"embedding_type": "float", "late_chunking": False, "normalized": True, "instruction": None},
        *({name: None} for name in NULLS),
    ],
)
async def test_what_clients_of_openai_send_is_accepted(make_service, connect, body) -> None:
    http = connect(make_service())
    plain = (await http.post("/v1/embeddings", json={"model": "pair", "input": ["发烧"]})).json()["data"][0][
        "embedding"
    ]
    answer = await http.post("/v1/embeddings", json={"model": "pair", "input": ["发烧"]} | body)
    assert answer.status_code == 200, answer.text
    found = answer.json()["data"][0]["embedding"]
    assert (
        np.frombuffer(base64.b64decode(found), "<f4") if isinstance(found, str) else np.float32(found)
    ).tolist() == (np.float32(plain).tolist())


@pytest.mark.parametrize(("word", "side"), [("passage", "document"), ("search_document", "document"), (None, "query")])
async def test_the_words_of_others_name_the_sides(make_service, connect, word, side) -> None:
    model = pair()
    service = make_service(model, documents=True)
    await service.load()
    body = {"model": "pair", "input": "发烧", "input_type": word}
    [row] = (await connect(service).post("/v1/embeddings", json=body)).json()["data"]
    expected = model.encode_query(["发烧"]) if side == "query" else model.encode_document(["发烧"])
    assert np.array_equal(np.float32(row["embedding"]), expected[0])


@pytest.mark.parametrize(
    ("change", "status", "code", "param"),
    [
        ({"input": [1, 2]}, 400, "tokens_refused", "input"),
        ({"input": [[1, 2], [3]]}, 400, "tokens_refused", "input"),
        ({"dimensions": 16}, 400, "invalid_dimensions", "dimensions"),
        ({"model": "text-embedding-3-small"}, 404, "unknown_model", None),
        ({"encoding_format": "hex"}, 400, "invalid_request", "encoding_format"),
        ({"input_type": "classification"}, 400, "invalid_request", "input_type"),
        ({"input": None}, 400, "invalid_request", "input"),
        ({"model": None}, 400, "invalid_request", "model"),
        ({"input_type": "document"}, 400, "no_document_encoder", None),
        ({"input": []}, 400, "invalid_request", "input"),
        ({"input": ""}, 400, "blank_text", None),
    ],
)
async def test_openai_refusals_have_the_shape_that_its_clients_read(
    make_service, connect, change, status, code, param
) -> None:
    answer = await connect(make_service()).post("/v1/embeddings", json={"model": "pair", "input": "发烧"} | change)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert (error["code"], error["param"], error["type"]) == (code, param, "invalid_request_error")
    assert error["message"]


async def test_models_are_listed_under_names_that_can_be_asked_for(make_service, connect) -> None:
    http = connect(make_service(pair("one"), pair("two")))
    names = [model["id"] for model in (await http.get("/v1/models")).json()["data"]]
    assert [name.partition("@")[0] for name in names] == ["one", "two"]
    for name in names:
        assert (await http.post("/v1/embeddings", json={"model": name, "input": "发烧"})).status_code == 200


async def test_a_cut_text_is_named_and_counted(make_service, connect) -> None:
    http = connect(make_service())
    body = {"model": "pair", "input": ["短", "长" * 80, "短"]}  # the encoder reads 64 tokens
    assert (await http.post("/v1/embeddings", json=body)).json()["truncated"] == [1]
    assert (await http.post("/v1/embeddings", json=body | {"input": "短"})).json()["truncated"] == []
    await http.post("/v1/embeddings", json=body)
    counters = (await http.get("/metrics")).text
    assert 'care_cut_texts_total{model="pair",side="query"} 2.0' in counters


@pytest.mark.parametrize(
    ("fields", "may_cut"),
    [
        ({}, True),
        ({"truncate": "END"}, True),
        ({"truncate": True}, True),
        ({"truncation": None}, True),
        ({"truncate": "NONE"}, False),  # Cohere and NVIDIA
        ({"truncate": False}, False),  # Text Embeddings Inference and Jina
        ({"truncation": False}, False),  # Voyage
        ({"truncate": "START"}, False),
    ],
)
async def test_a_text_is_not_cut_where_the_request_forbids_it(make_service, connect, fields, may_cut) -> None:
    http = connect(make_service())
    body = {"model": "pair", "input": ["短", "长" * 80]} | fields  # the encoder reads 64 tokens
    answer = await http.post("/v1/embeddings", json=body)
    assert answer.status_code == (200 if may_cut else 400)
    if not may_cut:
        assert answer.json()["error"]["message"].startswith("text 1 has 82 tokens, and the encoder reads 64")
    assert (await http.post("/v1/embeddings", json=body | {"input": "短"})).status_code == 200


@pytest.mark.parametrize(
    ("fields", "side"),
    [
        ({"task": "retrieval.passage"}, "document"),
        ({"task": "retrieval.query"}, "query"),
        ({"task_type": "RETRIEVAL_DOCUMENT"}, "document"),
        ({"prompt_name": "document"}, "document"),
        ({"input_type": "passage", "task": "retrieval.passage"}, "document"),
        ({"task": None, "input_type": "search_query"}, "query"),
        ({"task": "text-matching"}, None),
        ({"task_type": "CLUSTERING"}, None),
        ({"prompt_name": "web_search_query"}, None),
        ({"task": "retrieval.passage", "input_type": "query"}, None),
        ({"task": 3}, None),
        # Fields of other services that name a side, a text in front, or another form of the vector
        ({"prompt": "passage: "}, None),
        ({"instruction": "passage"}, None),
        ({"text_type": "document"}, None),
        ({"inputType": "document"}, None),
        ({"extra_body": {"input_type": "document"}}, None),
        ({"output_dimension": 16}, None),
        ({"embedding_type": "binary"}, None),
    ],
)
async def test_the_side_is_read_in_the_words_of_others_or_refused(make_service, connect, fields, side) -> None:
    model = pair()
    service = make_service(model, documents=True)
    await service.load()
    http = connect(service)
    expected = {"query": model.encode_query, "document": model.encode_document}
    answer = await http.post("/v1/embeddings", json={"model": "pair", "input": "发烧"} | fields)
    assert answer.status_code == (400 if side is None else 200), answer.text
    if side is not None:
        vector = answer.json()["data"][0]["embedding"]
        assert np.array_equal(np.float32(vector), expected[side](["发烧"])[0])
