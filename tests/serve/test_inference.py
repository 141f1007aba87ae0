"""POST /inference: the two sides of a pair for a Qdrant server, and what it refuses."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from care_qdrant.encoders.terms import bm25
from care_qdrant.model.card import TERM_WEIGHTS
from care_qdrant.model.care_model import CareModel
from care_qdrant.serve.embeddings import _terms
from care_qdrant.serve.refusal import Refusal
from care_qdrant.serve.schemas import InferenceInput
from tests import tiny
from tests.serve.conftest import asked, pair
from tests.tiny import TEXTS


async def test_search_takes_the_query_side_and_update_the_document_side(make_service, connect) -> None:
    model = pair()
    service = make_service(model, documents=True)
    await service.load()
    http = connect(service)
    for side, encode in (("search", model.encode_query), ("update", model.encode_document)):
        answer = await http.post("/inference", json=asked(*TEXTS, side=side))
        assert answer.status_code == 200
        assert answer.json()["usage"] is None
        assert np.array_equal(np.float32(answer.json()["embeddings"]), encode(TEXTS))


async def test_a_service_without_documents_refuses_them(make_service, connect) -> None:
    answer = await connect(make_service()).post("/inference", json=asked("高血压", side="update"))
    assert answer.status_code == 400
    assert answer.json()["code"] == "no_document_encoder"
    assert "care ingest" in answer.json()["error"]


async def test_the_built_in_pair_answers_documents_without_being_told(make_service, connect) -> None:
    model = CareModel.load()
    service = make_service(model)
    await service.load()
    http = connect(service)
    answer = await http.post("/inference", json=asked(*TEXTS, model=model.name, side="update"))
    assert np.allclose(answer.json()["embeddings"], model.encode_document(TEXTS), atol=1e-6)
    assert (await http.get("/health")).json()["models"][0]["documents"] is True


async def test_documents_that_are_still_loading_are_refused_and_queries_are_not(make_service, connect) -> None:
    http = connect(make_service(documents=True))
    assert (await http.post("/inference", json=asked("高血压", side="update"))).status_code == 503
    assert (await http.post("/inference", json=asked("高血压"))).status_code == 200
    assert (await http.get("/ready")).status_code == 503
    assert (await http.get("/health")).json()["status"] == "loading"


async def test_several_pairs_and_bm25_in_one_request_keep_their_order(make_service, connect, tmp_path: Path) -> None:
    tiny.TERM_WEIGHTS.save(tmp_path / TERM_WEIGHTS)
    one, two = pair("one", terms=tmp_path / TERM_WEIGHTS), pair("two")
    http = connect(make_service(one, two))
    body = asked("发烧", "咳嗽", "发烧", model="one")
    body["inputs"][1]["model"] = "two"
    body["inputs"].append({"data": "糖尿病怎么办", "data_type": "text", "model": "one/bm25", "options": None})
    embeddings = (await http.post("/inference", json=body)).json()["embeddings"]
    expected = [one.encode_query(["发烧"])[0], two.encode_query(["咳嗽"])[0], one.encode_query(["发烧"])[0]]
    assert np.array_equal(np.float32(embeddings[:3]), np.stack(expected))
    terms = one.query_terms("糖尿病怎么办")
    assert terms != bm25.query_vector("糖尿病怎么办")
    assert embeddings[3] == {"indices": terms.indices, "values": terms.values}


async def test_documents_of_bm25_need_the_constants_of_the_collection(make_service, connect) -> None:
    http = connect(make_service())
    missing = await http.post("/inference", json=asked("糖尿病", model="pair/bm25", side="update"))
    assert missing.status_code == 400
    assert "average_length" in missing.json()["error"]
    options: dict[str, float] = {"average_length": 20, "k1": 1.2, "b": 0.5}
    body = asked("糖尿病 糖尿病", model="pair/bm25", side="update", options=options)
    [found] = (await http.post("/inference", json=body)).json()["embeddings"]
    expected = bm25.document_vector("糖尿病 糖尿病", average_length=20.0, k1=1.2, b=0.5, lead=None)
    assert (found["indices"], found["values"]) == (expected.indices, expected.values)
    body = asked("糖尿病 糖尿病", model="pair/bm25", side="update", options=options | {"lead": 40})
    [found] = (await http.post("/inference", json=body)).json()["embeddings"]
    expected = bm25.document_vector("糖尿病 糖尿病", average_length=20.0, k1=1.2, b=0.5, lead=40.0)
    assert (found["indices"], found["values"]) == (expected.indices, expected.values)


@given(
    average_length=st.floats(-10, 1e3) | st.integers(-1, 10**7),
    k1=st.floats(-10, 1e3) | st.booleans(),
    b=st.floats(-10, 10) | st.sampled_from([0, 1]),
    lead=st.none() | st.floats(-10, 1e3),
)
@settings(max_examples=300)
def test_constants_of_bm25_that_are_accepted_give_weights(average_length, k1, b, lead) -> None:  # type: ignore[no-untyped-def]
    options = {"average_length": average_length, "k1": k1, "b": b, "lead": lead}
    item = InferenceInput(data="糖尿病 fever 糖尿病", model="pair/bm25", options=options)
    try:
        [found] = _terms(pair(), "document", [item], [item.data])
    except Refusal as refusal:
        assert refusal.code == "invalid_option"
    else:
        assert np.isfinite(found["values"]).all()
        assert min(found["values"]) > 0


async def test_a_name_with_a_fingerprint_is_that_pair_or_none(make_service, connect) -> None:
    first, second = pair("pair"), pair("pair", salt="trained again")
    http = connect(make_service(first, second))

    async def vector(name: str) -> tuple[int, object]:
        answer = await http.post("/inference", json=asked("发烧", model=name))
        return answer.status_code, answer.json().get("code") or np.float32(answer.json()["embeddings"][0]).tolist()

    exact = [await vector(f"pair@{model.fingerprint}") for model in (first, second)]
    assert exact == [(200, model.encode_query(["发烧"])[0].tolist()) for model in (first, second)]
    assert await vector("pair") == (400, "ambiguous_model")
    assert await vector("pair@ffff") == (400, "fingerprint_mismatch")
    assert await vector("pair@xyz") == (400, "invalid_model")
    assert await vector("other") == (404, "unknown_model")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (asked(" \n"), "blank_text"),
        (asked("长" * 101), "text_too_long"),
        (asked(*"一二三四五六七八九"), "batch_too_large"),
        (asked("发烧", data_type="image"), "not_a_text"),
        (asked("发烧") | {"inputs": [{"data": {"url": "x"}, "data_type": "object", "model": "pair"}]}, "not_a_text"),
        (asked("发烧", options={"prompt": "x"}), "unknown_option"),
        (asked("发烧", model="pair/bm25", side="update", options={"average_length": True}), "invalid_option"),
        (
            asked("发烧", model="pair/bm25", side="update", options={"average_length": 9, "k1": 1, "b": 4}),
            "invalid_option",
        ),
        (asked("发烧", model="pair/bm25", side="update", options={"analyzer": "x"}), "unknown_option"),
        (asked("发烧", model="pair/bm25", options={"analyzer": "x"}), "unknown_option"),
        (asked("发烧", model="pair/bm25", options={"language": "english"}), "unknown_option"),
        (asked("发烧", side="recommend"), "invalid_request"),
        (asked("发烧") | {"inference": None}, "invalid_request"),
        ({"inputs": 3}, "invalid_request"),
    ],
)
async def test_what_cannot_be_encoded_is_refused_with_the_reason(make_service, connect, body, code) -> None:
    service = make_service(limits={"query_characters": 100, "batch_texts": 8})
    answer = await connect(service).post("/inference", json=body)
    assert (answer.status_code // 100, answer.json()["code"]) == (4, code)
    assert isinstance(answer.json()["error"], str), "Qdrant passes a string on"


ZERO_WIDTH = "\u200b\u200d\ufeff"


@pytest.mark.parametrize("side", ["search", "update"])
async def test_a_text_of_zero_width_characters_alone_is_blank(make_service, connect, side: str) -> None:
    model = CareModel.load()
    service = make_service(model)
    await service.load()
    http = connect(service)
    for text, status in ((ZERO_WIDTH, 400), ("。", 200), (f"{ZERO_WIDTH}痛", 200)):
        answer = await http.post("/inference", json=asked("发烧", text, model=model.name, side=side))
        assert answer.status_code == status, answer.text
    refused = await http.post("/v1/embeddings", json={"model": model.name, "input": ["发烧", ZERO_WIDTH]})
    error = refused.json()["error"]
    assert (error["code"], error["message"].split(":")[0]) == ("blank_text", "text 1 is blank")


async def test_an_empty_request_has_an_empty_answer(make_service, connect) -> None:
    answer = await connect(make_service()).post("/inference", json=asked())
    assert answer.json() == {"embeddings": [], "usage": None}
