"""/metrics for an operator: the models served, the callers, hits and refusals, and where the time goes."""

from pathlib import Path

from qdrant_client import QdrantClient

from care_qdrant.serve.metrics import Metrics
from care_qdrant.version import __version__
from tests.serve.conftest import KEY, OTHER_KEY, aligned, asked, pair


async def test_counters_count(make_service, connect) -> None:
    http = connect(make_service())
    await http.post("/inference", json=asked("发烧", "咳嗽"))
    await http.post("/inference", json=asked(" "))
    said = (await http.get("/metrics")).text.splitlines()
    assert 'care_requests_total{route="/inference",status="200"} 1.0' in said
    assert 'care_refusals_total{code="blank_text"} 1.0' in said
    assert 'care_texts_total{model="pair",side="query"} 2.0' in said
    assert 'care_waiting_texts{side="query"} 0.0' in said


def test_counters_that_alerts_watch_start_at_zero() -> None:
    text = Metrics().render().decode()
    for code in ("contract_mismatch", "fingerprint_mismatch", "qdrant_unreachable", "queue_full"):
        assert f'care_refusals_total{{code="{code}"}} 0.0' in text


async def test_every_model_is_named_with_its_fingerprint(make_service, connect) -> None:
    models = aligned(), aligned("other")
    said = (await connect(make_service(*models)).get("/metrics")).text.splitlines()
    for model in models:
        labels = f'fingerprint="{model.fingerprint}",model="{model.name}",version="{__version__}"'
        assert f"care_build_info{{{labels}}} 1.0" in said


async def test_texts_are_counted_by_key_and_collection(
    make_service, connect, filled: QdrantClient, tmp_path: Path
) -> None:
    (tmp_path / "keys").write_text(f"{KEY}\n{OTHER_KEY} search\n")
    http = connect(make_service(aligned(), over=filled, keys_file=tmp_path / "keys"))
    http.headers["x-api-key"] = KEY
    assert (await http.post("/search", json={"query": "发烧"})).status_code == 200
    assert (await http.post("/inference", json=asked("发烧", "咳嗽"))).status_code == 200
    refused = await http.post("/inference", json=asked("发烧"), headers={"x-api-key": OTHER_KEY})
    assert refused.status_code == 403
    counted = [line for line in (await http.get("/metrics")).text.splitlines() if "asked_texts_total{" in line]
    assert sorted(line.partition("key=")[0] + line.partition("scope=")[2] for line in counted) == [
        'care_asked_texts_total{collection="",' + '"inference"} 2.0',
        'care_asked_texts_total{collection="corpus",' + '"search"} 1.0',
    ], "what is refused is not counted"
    assert all(KEY not in line for line in counted)


async def test_searches_are_counted_by_whether_they_find_a_good_match(
    make_service, connect, filled: QdrantClient
) -> None:
    http = connect(make_service(aligned(), collections=("corpus",), over=filled))
    assert (await http.post("/search", json={"query": "发烧"})).json()["good_match"] is None
    nothing = {"query": "发烧", "mode": "dense", "conditions": ["dept=没有"]}
    assert (await http.post("/search", json=nothing)).json()["good_match"] is False
    said = (await http.get("/metrics")).text.splitlines()
    assert 'care_searches_total{collection="corpus",good_match="unknown",mode="hybrid"} 1.0' in said
    assert 'care_searches_total{collection="corpus",good_match="no",mode="dense"} 1.0' in said
    assert 'care_qdrant_seconds_count{collection="corpus"} 2.0' in said


async def test_a_model_that_did_not_make_the_vectors_is_counted(make_service, connect, filled: QdrantClient) -> None:
    http = connect(make_service(pair(salt="trained again"), collections=("corpus",), over=filled))
    answer = await http.post("/search", json={"query": "发烧"})
    assert answer.status_code == 409, answer.text
    assert (await http.post("/inference", json=asked("发烧", model="pair@ffff"))).status_code == 400
    said = (await http.get("/metrics")).text.splitlines()
    assert 'care_refusals_total{code="contract_mismatch"} 1.0' in said
    assert 'care_refusals_total{code="fingerprint_mismatch"} 1.0' in said
