"""POST /search and GET /collections: the same hits as `Retriever`, with its checks."""

import asyncio
import json
import math
import re
import threading
import unicodedata
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json
from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import ResponseHandlingException

from care_qdrant.contracts.metadata import GOOD_MATCH
from care_qdrant.errors import Unreachable
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.qdrant.collection import Collection
from care_qdrant.search.retriever import Retriever
from care_qdrant.serve import catalogue, documents, marks, schemas
from care_qdrant.serve.backend import View
from care_qdrant.serve.marks import mark
from care_qdrant.serve.refusal import Refusal
from care_qdrant.serve.schemas import SearchRequest
from care_qdrant.serve.searching import _filter
from care_qdrant.types import Document
from tests.serve.conftest import aligned, pair
from tests.serve.test_admission import leave
from tests.tiny import TEXTS, medical_texts, point_alias


@pytest.mark.parametrize("mode", ["auto", "dense", "sparse", "hybrid"])
async def test_hits_are_those_of_the_retriever(make_service, connect, filled: QdrantClient, mode: str) -> None:
    model = aligned()
    service = make_service(model, collections=("corpus",), over=filled)
    query = f"第3篇 {TEXTS[3]}"
    answer = await connect(service).post("/search", json={"query": query, "mode": mode, "top_k": 5})
    assert answer.status_code == 200
    found = answer.json()
    [expected] = Retriever(filled, "corpus", None if mode == "sparse" else model, mode=mode).search([query], 5)
    assert [hit["document_id"] for hit in found["hits"]] == [hit.document_id for hit in expected]
    assert [hit["score"] for hit in found["hits"]] == pytest.approx([hit.score for hit in expected], abs=1e-6)
    assert (found["hits"][0]["text"], found["hits"][0]["title"]) == (TEXTS[3], "第3篇")
    assert found["mode"] == ("hybrid" if mode == "auto" else mode)
    assert found["fingerprint"] == (None if mode == "sparse" else model.fingerprint)
    times = found["timing_ms"]
    assert times["total"] == pytest.approx(times["wait"] + times["encode"] + times["search"], abs=0.01)


async def test_conditions_and_a_filter_of_qdrant_narrow_together(make_service, connect, filled: QdrantClient) -> None:
    http = connect(make_service(aligned(), collections=("corpus",), over=filled))

    async def numbers(**fields: object) -> list[int]:
        answer = await http.post("/search", json={"query": TEXTS[0], **fields})
        return sorted(hit["metadata"]["n"] for hit in answer.json()["hits"])

    assert await numbers(conditions=["dept=内科", "n>=3"]) == [3, 5, 7]
    fewer = {"must_not": [{"key": "n", "match": {"value": 5}}]}
    assert await numbers(conditions=["dept=内科", "n>=3"], filter=fewer) == [3, 7]


async def test_hits_come_by_group_and_with_a_least_score(make_service, connect, filled: QdrantClient) -> None:
    model = aligned()
    http = connect(make_service(model, collections=("corpus",), over=filled))
    asked = {"query": TEXTS[3], "mode": "dense", "group_by": "dept", "group_size": 2}
    answer = (await http.post("/search", json=asked)).json()
    [expected] = Retriever(filled, "corpus", model, mode="dense").search([TEXTS[3]], group_by="dept", group_size=2)
    found = [(hit["document_id"], hit["group"]) for hit in answer["hits"]]
    assert found == [(hit.document_id, hit.group) for hit in expected]
    assert {group for _, group in found} == {"内科", "外科"}
    few = await http.post("/search", json={**asked, "score_threshold": expected[0].score - 1e-6})
    assert [hit["document_id"] for hit in few.json()["hits"]] == [expected[0].document_id]
    none = (await http.post("/search", json={**asked, "score_threshold": 2})).json()
    assert (none["hits"], none["good_match"]) == ([], False)


async def test_null_is_what_nobody_gave(make_service, connect, filled: QdrantClient) -> None:
    http = connect(make_service(aligned(), collections=("corpus",), over=filled))
    plain = (await http.post("/search", json={"query": TEXTS[0]})).json()
    nulls = {name: None for name, each in SearchRequest.model_fields.items() if not each.is_required()}
    answer = await http.post("/search", json={"query": TEXTS[0], **nulls})
    scored = [hit | {"score": pytest.approx(hit["score"], abs=1e-6)} for hit in plain["hits"]]  # numpy's last bit moves
    assert (answer.status_code, answer.json()["hits"]) == (200, scored)
    assert (await http.post("/search", json={"query": None})).status_code == 400, "what has to be given"
    assert (await http.post("/search", json={"query": TEXTS[0], "limit": None})).status_code == 400, "a misspelt field"


async def test_keys_are_sent_back_as_they_are_offered(make_service, connect, filled: QdrantClient) -> None:
    """Also those with a dot, which Qdrant would take for a path, and numbers that JSON holds as 2020.0."""
    [first, *others], _ = filled.scroll("corpus", limit=100)
    values = {"source.system": "new", "入院 日期": "2024-03-01", "a=b": 1, "year": 2020.0}
    filled.set_payload("corpus", values, [first.id])
    http = connect(make_service(aligned(), collections=("corpus",), over=filled))

    async def search(*conditions: str) -> tuple[set[str], str | None]:
        answer = await http.post("/search", json={"query": TEXTS[0], "top_k": 50, "conditions": list(conditions)})
        return {hit["point_id"] for hit in answer.json()["hits"]}, answer.json()["note"]

    [state] = (await http.get("/collections")).json()["collections"]
    offered = {key: found[0] for key, found in state["keys"].items() if key not in ("n", "dept")}
    assert offered == {"source.system": "new", "入院 日期": "2024-03-01", '"a=b"': 1, "year": 2020}
    rest = {str(point.id) for point in others}
    for key, value in offered.items():
        assert await search(f"{key}={value}") == ({str(first.id)}, None)
        assert await search(f"{key}!={value}") == (rest, None)
    assert await search("入院 日期>=2024-02-01", "year<2020.5") == ({str(first.id)}, None)
    found, note = await search("source.name!=new")
    assert len(found) == len(TEXTS)
    assert note is not None and "no point of 'corpus' has 'source.name'" in note and "rules nothing out" in note
    found, note = await search("source.name=new")
    assert found == set()
    assert note is not None and note.startswith("no point of 'corpus' has 'source.name' (some keys: a=b, dept, n, ")


async def test_a_question_in_the_other_script_is_told_beside_what_a_condition_lets_through(
    make_service, connect, filled: QdrantClient
) -> None:
    http = connect(make_service(aligned(), collections=("corpus",), over=filled))

    async def note(query: str, *conditions: str) -> str | None:
        answer = await http.post("/search", json={"query": query, "conditions": list(conditions)})
        return answer.json()["note"]

    assert await note("高血压患者饮食上要注意什么") is None
    assert "convert the question" in (await note("高血壓患者飲食上要注意什麼") or "")
    both = await note("高血壓患者飲食上要注意什麼", "ward!=内科") or ""
    assert "convert the question" in both and "'ward!=内科' rules nothing out" in both


async def test_a_pair_that_did_not_make_the_vectors_is_refused(make_service, connect, filled: QdrantClient) -> None:
    again = pair("pair", salt="trained again")
    service = make_service(aligned(), aligned("other"), again, collections=("corpus",), over=filled)
    http = connect(service)
    for name, status, code, reason in (
        ("other", 400, "invalid_request", "no vector 'other'"),
        (f"pair@{again.fingerprint}", 409, "contract_mismatch", "was made by pair"),
    ):
        refused = await http.post("/search", json={"query": "发烧", "model": name})
        assert (refused.status_code, refused.json()["code"]) == (status, code)
        assert reason in refused.json()["error"]
    [state] = (await http.get("/collections")).json()["collections"]
    assert state["models"] == [f"pair@{aligned().fingerprint[:12]}"]
    assert state["sparse"] is True


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"query": " "}, 400),
        ({"query": "发烧", "top_k": 0}, 400),
        ({"query": "发烧", "top_k": 1001}, 400),
        ({"query": "发烧", "topk": 3}, 400),
        ({"query": "发烧", "group_by": "department"}, 400),
        ({"query": "发烧", "group_size": 2}, 400),
        ({"query": "发烧", "group_by": "dept", "group_size": 101}, 400),
        ({"query": "发烧", "fusion": "rrf", "score_threshold": 0.1}, 400),
        ({"query": "发烧", "fusion": "dbsf", "alpha": 0.1}, 400),
        ({"query": "发烧", "mode": "dense", "alpha": 0.1}, 400),
        ({"query": "发烧", "mode": "sparse", "fusion": "rrf"}, 400),
        ({"query": "发烧", "alpha": 2}, 400),
        ({"query": "发烧", "conditions": ["nonsense"]}, 400),
        ({"query": "发烧", "filter": {"must": [{"nonsense": 1}]}}, 400),
        ({"query": "发烧", "collection": "another"}, 404),
        ({"query": "发烧", "model": "another"}, 404),
    ],
)
async def test_what_cannot_be_searched_is_refused(
    make_service, connect, filled: QdrantClient, body: dict[str, object], status: int
) -> None:
    service = make_service(aligned(), collections=("corpus",), over=filled)
    answer = await connect(service).post("/search", json=body)
    assert answer.status_code == status
    assert answer.json()["error"]


@pytest.mark.parametrize(
    "condition",
    [
        {"key": "n", "range": {"gte": True}},
        {"key": "n", "range": {"gte": "5"}},
        {"key": "date", "range": {"gte": "20240301"}},
        {"key": "date", "range": {"gte": "2024"}},
        {"key": "n", "values_count": {"gt": True}},
        {"key": "n", "is_null": "no"},
        {"key": "n"},
        {"key": "n", "match": None},
        {"nested": {"key": "a", "filter": {"must": {"key": "n"}}}},
    ],
)
async def test_a_filter_that_qdrant_refuses_is_not_read_in_another_way(
    make_service, connect, filled: QdrantClient, condition
) -> None:
    http = connect(make_service(aligned(), over=filled))
    for group in ("must", "must_not", "should"):
        answer = await http.post("/search", json={"query": "发烧", "filter": {group: [condition]}})
        assert answer.status_code == 400
        assert answer.json()["error"].startswith("filter: ")


WORDS, NUMBERS = st.text(max_size=5), st.integers(-(2**60), 2**60)
BOUNDS = st.none() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.one_of(
    st.builds(models.MatchValue, value=WORDS | NUMBERS | st.booleans()),
    st.builds(models.MatchAny, any=st.lists(WORDS) | st.lists(NUMBERS)),
    st.builds(lambda values: models.MatchExcept(**{"except": values}), st.lists(WORDS) | st.lists(NUMBERS)),
    st.builds(models.MatchText, text=WORDS),
)
CONDITIONS = st.one_of(
    st.builds(models.FieldCondition, key=WORDS, match=VALUES),
    st.builds(models.FieldCondition, key=WORDS, range=st.builds(models.Range, gte=BOUNDS, lt=BOUNDS)),
    st.builds(models.FieldCondition, key=WORDS, range=st.builds(models.DatetimeRange, gt=st.datetimes())),
    st.builds(models.FieldCondition, key=WORDS, is_null=st.booleans()),
    st.builds(models.FieldCondition, key=WORDS, values_count=st.builds(models.ValuesCount, gt=st.none() | NUMBERS)),
    st.builds(models.IsEmptyCondition, is_empty=st.builds(models.PayloadField, key=WORDS)),
    st.builds(models.HasIdCondition, has_id=st.lists(st.integers(0, 2**64 - 1) | st.uuids().map(str))),
)
FILTERS = st.recursive(
    CONDITIONS,
    lambda inner: st.one_of(
        st.builds(models.Filter, must=st.lists(inner, max_size=3), must_not=st.none() | inner, should=st.just([])),
        st.builds(lambda it: models.Filter(min_should=models.MinShould(conditions=[it], min_count=1)), inner),
        st.builds(
            lambda it: models.NestedCondition(nested=models.Nested(key="a", filter=models.Filter(must=it))), inner
        ),
    ),
    max_leaves=8,
).map(lambda condition: models.Filter(must=condition))


@given(FILTERS)
def test_a_filter_as_its_class_writes_it_is_read_unchanged(written: models.Filter) -> None:
    body = written.model_dump(mode="json", by_alias=True, exclude_none=True)
    read = _filter(SearchRequest(query="发烧", filter=body))
    assert read is not None
    assert read.model_dump(mode="json", by_alias=True, exclude_none=True) == body


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "Infinity"])
async def test_a_filter_with_a_number_that_json_does_not_hold_is_refused(
    make_service, connect, filled: QdrantClient, number: str
) -> None:
    """qdrant-client sends null for it, and a server leaves such a bound out."""
    http = connect(make_service(aligned(), collections=("corpus",), over=filled))
    body = json.dumps({"query": "发烧", "filter": {"must": [{"should": [{"key": "n", "range": {"gte": "?"}}]}]}})
    body = body.replace('"?"', number)
    refused = await http.post("/search", content=body.encode(), headers={"content-type": "application/json"})
    assert refused.status_code == 400
    assert refused.json()["error"].startswith("filter: the condition on 'n' holds NaN or an infinite number")


@pytest.mark.parametrize("number", [True, False, 10**400])
@pytest.mark.parametrize("field", ["top_k", "group_size", "alpha", "score_threshold"])
async def test_a_number_is_none_of_true_and_false_and_no_long_one_is_repeated(
    make_service, connect, filled: QdrantClient, field: str, number: int
) -> None:
    http = connect(make_service(aligned(), collections=("corpus",), over=filled))
    refused = await http.post("/search", json={"query": "发烧", "group_by": "dept", field: number})
    assert refused.status_code == 400 and len(refused.text) < 300
    assert field in refused.text and "expected a" in refused.text


async def test_searches_share_an_attempt_to_open_qdrant(make_service, connect) -> None:
    """Else they take turns, each with the whole patience of a client, where a server accepts and does not answer."""
    entered, gate, attempts = threading.Event(), threading.Event(), 0

    def open_qdrant() -> Any:
        nonlocal attempts
        attempts += 1
        entered.set()
        assert gate.wait(20)
        raise Unreachable("no Qdrant server answers there")

    limits = {"search_threads": 4}
    http = connect(make_service(aligned(), collections=("corpus",), open_qdrant=open_qdrant, limits=limits))
    body = {"query": "发烧", "mode": "sparse"}
    asking = [asyncio.create_task(http.post("/search", json=body)) for _ in range(4)]
    assert await asyncio.to_thread(entered.wait, 20)
    while sum(thread.name.startswith("care-search") for thread in threading.enumerate()) < 4:
        await asyncio.sleep(0.01)
    gate.set()
    assert [(await task).status_code for task in asking] == [503] * 4
    assert attempts < 4
    before = attempts
    assert (await http.post("/search", json=body)).status_code == 503
    assert attempts == before + 1, "a later search tries again"


async def test_a_qdrant_that_comes_later_is_found(make_service, connect, filled: QdrantClient) -> None:
    up = False

    def open_qdrant():
        if not up:
            raise Unreachable("http://qdrant:6333: no Qdrant server answers there")
        return nullcontext(filled)

    http = connect(make_service(aligned(), collections=("corpus",), open_qdrant=open_qdrant))
    refused = await http.post("/search", json={"query": "发烧"})
    assert (refused.status_code, refused.json()["code"]) == (503, "qdrant_unreachable")
    assert (await http.get("/ready")).status_code == 200, "Qdrant itself may wait for this service"
    assert "no Qdrant" in (await http.get("/collections")).json()["collections"][0]["problem"]
    up = True
    assert (await http.post("/search", json={"query": "发烧"})).status_code == 200


async def test_searches_beyond_the_limit_are_refused(make_service, connect, filled: QdrantClient) -> None:
    service = make_service(aligned(), collections=("corpus",), over=filled, limits={"searches": 1})
    http = connect(service)
    backend = service._backend
    assert backend._room.acquire(blocking=False)
    refused = await http.post("/search", json={"query": "发烧"})
    assert (refused.status_code, refused.json()["code"]) == (429, "queue_full")
    backend._room.release()
    for _ in range(3):
        assert (await http.post("/search", json={"query": "发烧"})).status_code == 200


@pytest.mark.parametrize(
    ("query", "text", "marked"),
    [
        ("糖尿病人", "二型糖尿病是病", ["糖尿病"]),
        ("病", "二型糖尿病", ["病"]),
        ("IL6 升高", "血清 IL-6 与 IL-60、il6", ["IL-6", "il6"]),
        ("5mg", "每次 5 mg，不是 15 mg", ["5 mg"]),
        ("ＨｂＡ１ｃ", "糖化 HbA1c 6.5%", ["HbA1c"]),
        ("头皮痒", "𠀀𠀀头皮𠀀", ["头皮"]),
        ("кот", "котлета и Кот中文", ["Кот"]),
        ("straße", "Straßenbahn, Straße", ["Straße"]),
        ("...", "没有词", []),
        ("(a", "a (a) [a", ["a", "a", "a"]),
    ],
)
def test_terms_are_found_in_the_spelling_of_the_text(query: str, text: str, marked: list[str]) -> None:
    [spans] = mark(query, [text])
    assert [text[start:end] for start, end in spans] == marked


@given(st.text(st.characters(codec="utf-8"), max_size=30) | st.text("İßﬁ①ａ가ᄀ\u0301é", max_size=8))
def test_a_text_is_normalized_as_its_characters_are(text: str) -> None:
    expected = [(unicodedata.normalize("NFKC", one).lower(), place) for place, one in enumerate(text)]
    normal, places = marks._normalized(text)
    assert normal == "".join(one for one, _ in expected)
    assert list(places) == [place for one, place in expected for _ in one]


TITLED = [Document(f"t{n}", text, title=f"第 {n} 问怎么办") for n, text in enumerate(medical_texts(64))]


async def test_a_good_match_score_is_measured_to_its_end_where_callers_leave(
    make_service, connect, client: QdrantClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first caller leaves, and Qdrant fails once after that: who asks later gets the answer."""
    ingest(TITLED, aligned(), client, "corpus")
    scroll, gone, failed = client.scroll, threading.Event(), []

    def late(*args: Any, **kwargs: Any) -> Any:
        gone.wait(30)
        if not failed:
            failed.append(True)
            raise ResponseHandlingException(httpx.ConnectError("no answer"))
        return scroll(*args, **kwargs)

    monkeypatch.setattr(client, "scroll", late)
    service = make_service(aligned(), over=client)
    http = connect(service)
    await leave(service, "/good-match", b"{}")
    asked = asyncio.create_task(http.post("/good-match", json={}))
    gone.set()
    answer = await asked
    assert answer.status_code == 200, answer.text
    assert failed
    found = (await http.post("/search", json={"query": "发烧"})).json()
    assert found["good_match_score"] == answer.json()["good_match_score"] > 0


async def test_a_search_does_not_wait_for_the_good_match_score_and_has_it_later(
    make_service, connect, client: QdrantClient
) -> None:
    ingest(TITLED, aligned(), client, "corpus")
    http = connect(make_service(aligned(), over=client))
    first = (await http.post("/search", json={"query": TITLED[3].text})).json()
    assert (len(first["hits"]), first["good_match_score"], first["good_match"]) == (10, None, None)
    score = (await http.post("/good-match", json={})).json()["good_match_score"]
    later = (await http.post("/search", json={"query": f"{TITLED[3].title} {TITLED[3].text}"})).json()
    assert (later["good_match_score"], later["good_match"]) == (score, later["hits"][0]["score"] >= score)
    weighted = (await http.post("/search", json={"query": TITLED[3].text, "fusion": "rrf"})).json()
    assert (weighted["good_match_score"], weighted["good_match"]) == (None, None), "scores of another scale"


async def test_an_alias_that_moves_takes_no_score_of_the_former_collection_along(
    make_service, connect, client: QdrantClient
) -> None:
    ingest(TITLED, aligned(), client, "one")
    ingest([Document(f"u{n}", f"第 {n} 种药，每日两次。") for n in range(64)], aligned(), client, "two")
    point_alias(client, "live", "one")
    service = make_service(aligned(), over=client, collections=("live",))
    http = connect(service)
    scores = [(await http.post("/good-match", json={})).json()["good_match_score"]]
    point_alias(client, "live", "two")
    service._backend.retriever.cache_clear()  # as after half a minute
    first = (await http.post("/search", json={"query": "每日两次"})).json()
    assert first["good_match_score"] is None
    scores.append((await http.post("/good-match", json={})).json()["good_match_score"])
    assert scores[0] != scores[1] == known_score(client, "two")


def known_score(client: QdrantClient, name: str) -> float:
    entries = GOOD_MATCH.all(Collection(client, name).schema.metadata)
    return float(next(iter(entries.values()))["score"])


async def test_weights_of_callers_cost_no_check_of_the_contract(
    make_service, connect, filled: QdrantClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    http = connect(make_service(aligned(), over=filled))
    assert (await http.post("/good-match", json={})).status_code == 200
    reads, read = [], filled.get_collection
    monkeypatch.setattr(filled, "get_collection", lambda name: reads.append(name) or read(name))
    scores = set()
    for step in range(80):
        answer = await http.post("/search", json={"query": "发烧", "mode": "hybrid", "alpha": step / 80})
        scores.add(answer.json()["hits"][0]["score"])
    assert len(scores) > 40, "each weight is used"
    assert len(reads) <= 2


async def test_a_document_without_a_known_layout_is_not_looked_for_in_all_points(
    make_service, client: QdrantClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_collection("c", vectors_config=models.VectorParams(size=2, distance=models.Distance.COSINE))
    points = [models.PointStruct(id=n, vector=[1.0, n], payload={"n": n}) for n in range(1, 400)]
    client.upsert("c", points)
    seen: list[int] = []
    scroll = client.scroll

    def counted(*args: Any, **kwargs: Any) -> Any:
        records, offset = scroll(*args, **kwargs)
        seen.append(len(records))
        return records, offset

    monkeypatch.setattr(client, "scroll", counted)
    searching = make_service(aligned(), over=client)._searching
    for nobody in ("nobody", "9" * 5_000):
        with pytest.raises(Refusal, match="no document"):
            await searching.document(nobody, View("c", None))
    assert sum(seen) == 0
    found = await searching.document("7", View("c", None))
    assert (found.metadata, sum(seen)) == ({"n": 7}, 1), "a point that names no document is one by its id"


@pytest.mark.parametrize("key", ["doc_id", "document_id"])
async def test_a_document_whose_id_is_a_number_is_found(make_service, client: QdrantClient, key: str) -> None:
    client.create_collection("c", vectors_config=models.VectorParams(size=2, distance=models.Distance.COSINE))
    payloads = [{key: 17, "text": "头皮痒"}, {key: 18, "text": "发烧"}]
    client.upsert("c", [models.PointStruct(id=n, vector=[1.0, n], payload=each) for n, each in enumerate(payloads, 1)])
    found = await make_service(aligned(), over=client)._searching.document("17", View("c", None))
    assert found.chunks == ["头皮痒"]


async def test_an_id_of_half_a_collection_is_not_read_whole(
    make_service, connect, client: QdrantClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest([Document("d1", "发烧")], aligned(), client, "c")
    payload = {"page_content": "头皮痒", "metadata": {"source": "news"}}
    client.upsert("c", [models.PointStruct(id=n, vector={}, payload=payload) for n in range(40)])
    service = make_service(aligned(), over=client, record=tmp_path)
    monkeypatch.setattr(documents, "MOST_CHUNKS", 40)
    assert len((await service._searching.document("news", View("c", None))).chunks) == 40
    monkeypatch.setattr(documents, "MOST_CHUNKS", 39)
    with pytest.raises(Refusal, match="more than 39 chunks") as refused:
        await service._searching.document("news", View("c", None))
    assert refused.value.status == 413
    judged = {"query": "发烧", "document_id": "news", "relevant": True}
    assert (await connect(service).post("/labels", json=judged)).status_code == 200


LONG = "长" * 3_000
PAYLOADS: list[dict[str, Any]] = [
    *({"page_content": f"第{n}篇", "metadata": {"source": f"s{n}"}} for n in range(60)),
    {"content": "发烧", "meta": {"source_id": "hs-0"}},
    {"text": "头皮痒", "doc_id": 1234567890123456789},
    {"text": "咳嗽", "doc_id": -7},
    {"text": "头痛", "document_id": LONG},
    {"text": "失眠", "doc_id": True},
    {"content_with_weight": "胃痛", "doc_id": " blank "},
    {"text": "腹泻", "metadata": {"file_id": "f/1"}},
    {"text": "皮疹", "_care": {"chunk": 0}, "doc_id": "ours"},
    {"text": "眼痛", "doc_id": 2**63 + 5},
    {"body": "没有编号"},
]


async def test_what_a_search_finds_can_be_fetched_and_labelled_by_its_id(
    make_service, connect, client: QdrantClient, tmp_path: Path
) -> None:
    """Ids of every type, length and layout, whatever the neighbours have."""
    model = aligned()
    ingest([Document("d1", "发烧")], model, client, "mixed")
    ids = [2**63 + 1, 2**64 - 1, "0b5f1f7e-0f2a-4d0f-8a52-6f0a3e1f1c11"]
    if getattr(client._client, "_prefer_grpc", False):  # whose integers have 64 bits and a sign
        payloads = [{**each, "doc_id": 2**63 - 5} if each.get("doc_id") == 2**63 + 5 else each for each in PAYLOADS]
    else:
        payloads = PAYLOADS
    vectors = model.encode_document([f"{n}" for n in range(len(payloads))]).tolist()
    points = [
        models.PointStruct(id=ids[n] if n < len(ids) else n + 1, vector={"pair": vector}, payload=payload)
        for n, (vector, payload) in enumerate(zip(vectors, [*payloads[-3:], *payloads[:-3]], strict=True))
    ]
    client.upsert("mixed", points)
    service = make_service(model, over=client, record=tmp_path)
    http = connect(service)
    body = {"query": "发烧", "mode": "dense", "top_k": 200}
    hits = (await http.post("/search", json=body)).json()["hits"]
    assert len(hits) == len(PAYLOADS) + 1
    for hit in hits:
        document = await service._searching.document(hit["document_id"], View("mixed", None))
        assert hit["text"] in document.chunks
    for hit in hits[::9]:
        judged = {"query": "发烧", "document_id": hit["document_id"], "relevant": True}
        assert (await http.post("/labels", json=judged)).status_code == 200, hit["document_id"]


async def test_the_only_collection_is_served_and_says_what_it_holds(make_service, connect, filled) -> None:
    http = connect(make_service(aligned(), over=filled))
    [state] = (await http.get("/collections")).json()["collections"]
    assert (state["name"], state["points"]) == ("corpus", len(TEXTS))
    assert state["keys"] == {"dept": ["内科", "外科"], "n": list(range(len(TEXTS)))}
    assert len(state["questions"]) == 3
    assert (await http.post("/search", json={"query": TEXTS[0]})).json()["collection"] == "corpus"
    assert (await http.post("/good-match", json={})).json() == {"good_match_score": None}, "too few questions to tell"


async def test_all_collections_that_a_pair_can_search_are_served_and_the_others_have_a_reason(
    make_service, connect, filled
) -> None:
    ingest([Document("e1", "发烧")], aligned(), filled, "second")
    ingest([Document("f1", "发烧")], aligned("theirs"), filled, "third")
    http = connect(make_service(aligned(), over=filled))
    states = {state["name"]: state for state in (await http.get("/collections")).json()["collections"]}
    assert list(states) == ["corpus", "second", "third"]
    assert [name for name, state in states.items() if state["models"]] == ["corpus", "second"]
    assert "theirs" in states["third"]["problem"]
    found = await http.post("/search", json={"query": "发烧", "collection": "second"})
    assert [hit["document_id"] for hit in found.json()["hits"]] == ["e1"]
    for asked, said in ((None, r"several collections are served \(corpus, second\)"), ("third", "is not served: ")):
        refused = await http.post("/search", json={"query": "发烧", "collection": asked})
        assert (refused.status_code, refused.json()["code"]) == (404, "unknown_collection")
        assert re.search(said, refused.json()["error"])


async def test_a_request_that_names_no_collection_means_the_only_one_that_is_there(
    make_service, connect, filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is another one since the service looked: no client needs to name a new one first."""
    monkeypatch.setattr(catalogue, "_LOOK_SECONDS", 0.0)
    http = connect(make_service(aligned(), over=filled))

    async def answer() -> dict[str, Any]:
        return dict((await http.post("/search", json={"query": "发烧"})).json())

    assert (await answer())["collection"] == "corpus"
    filled.delete_collection("corpus")
    assert (await answer())["code"] == "unknown_collection"
    ingest([Document("e1", "发烧")], aligned(), filled, "second")
    assert (await answer())["collection"] == "second"
    ingest([Document("f1", "发烧")], aligned(), filled, "third")
    assert "several collections are served (second, third)" in (await answer())["error"]


async def test_a_named_collection_that_is_gone_or_anothers_is_said_as_the_guide_has_it(
    make_service, connect, filled
) -> None:
    http = connect(make_service(aligned(), collections=("corpus",), over=filled))
    assert (await http.get("/collections")).json()["collections"][0]["problem"] is None
    filled.delete_collection("corpus")
    refused = await http.post("/search", json={"query": "发烧"})
    assert (refused.status_code, refused.json()["code"]) == (404, "unknown_collection")
    ingest([Document("f1", "发烧")], aligned("theirs"), filled, "corpus")
    [state] = (await http.get("/collections")).json()["collections"]
    assert (state["models"], state["points"]) == ([], 1)
    assert "theirs" in state["problem"]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/collections", None),
        ("POST", "/search", {"query": "发烧", "conditions": ["day > 2"]}),
        ("POST", "/labels", {"query": "发烧", "document_id": "a", "relevant": True}),
    ],
)
async def test_a_qdrant_that_went_away_is_said_while_somebody_waits(
    make_service, connect, tmp_path: Path, method: str, path: str, body: dict[str, object] | None
) -> None:
    """The patience of an ingestion, ten minutes, is not that of a request."""
    gone = QdrantClient(url="http://127.0.0.1:9", check_compatibility=False)
    http = connect(make_service(aligned(), collections=("corpus",), over=gone, record=tmp_path))
    answer = await asyncio.wait_for(http.request(method, path, json=body), 20)
    assert "Connection refused" in answer.text
    assert answer.status_code == (200 if path == "/collections" else 503)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=())), inner),
)


def strict(text: str | bytes) -> Any:
    """Read JSON as browsers do, which know neither NaN nor infinity."""
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


@given(VALUES, st.integers(0, 900))
def test_any_stored_value_can_be_written(value: Any, depth: int) -> None:
    nested = value
    for _ in range(depth):
        nested = [nested]
    strict(to_json(schemas.writable({"value": nested})))
    try:
        whole = json.dumps(value, allow_nan=False, ensure_ascii=False).encode("utf-8")
    except ValueError:  # NaN, or half a character
        return
    assert schemas.writable(value) == json.loads(whole), "what JSON holds is left as it is"


async def test_one_point_with_values_that_json_has_not_hides_no_other(make_service, listen, tmp_path: Path) -> None:
    client, model = QdrantClient(":memory:"), aligned()
    ingest([Document(f"d{n}", text) for n, text in enumerate(TEXTS)], model, client, "c")
    deep: Any = 1
    for _ in range(400):
        deep = [deep]
    for number, odd in enumerate(
        [
            {"nan": math.nan, "inf": -math.inf},
            {"text": "发\ud800烧"},
            {"doc_id": "\udfff"},
            {"k\ud800": ["\ud800", True]},
            {"deep": deep},
            {"title": "\ud800"},
        ]
    ):
        client.set_payload("c", odd, points=[client.scroll("c", limit=9)[0][number].id])
    address = listen(make_service(model, over=client, mcp=True, record=tmp_path))
    async with httpx.AsyncClient(base_url=address, timeout=30) as http:
        for fields in ({}, {"mode": "sparse"}, {"group_by": "nan"}, {"group_by": "k\ud83d"}, {"conditions": ["zz=1"]}):
            body = json.dumps({"query": "发烧高血压", "top_k": 50} | fields).encode()
            answer = await http.post("/search", content=body, headers={"content-type": "application/json"})
            assert answer.status_code in (200, 400), answer.text
            # No point meets the condition, and the only value of the key is NaN, which makes no group.
            is_empty = "conditions" in fields or fields.get("group_by") == "nan"
            assert answer.status_code == 400 or bool(strict(answer.content)["hits"]) != is_empty
        assert strict((await http.get("/collections")).content)["collections"][0]["points"] == len(TEXTS)
        for tool, arguments in (
            ("search", {"query": "发烧", "top_k": 50, "mode": "dense"}),
            ("list_collections", {}),
            *(("fetch_document", {"document_id": f"d{n}"}) for n in range(len(TEXTS))),
        ):
            called = {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "tools/call",
                "params": {"name": tool, "arguments": arguments},
            }
            accepts = {"accept": "application/json, text/event-stream"}
            result = strict((await http.post("/mcp", json=called, headers=accepts)).content)["result"]
            assert not result["isError"] or "no document" in result["content"][0]["text"]
    client.close()
