"""Who may ask, how refusals look, and what the log holds."""

import asyncio
import base64
import json
import logging
from pathlib import Path

import pytest

from care_qdrant.console.logs import set_up_logs
from care_qdrant.errors import InputError
from care_qdrant.serve import keys
from care_qdrant.serve.keys import Keys
from tests.serve.conftest import asked, pair
from tests.tiny import HashEncoder

ACCESS = "care_qdrant.serve.access"
KEY, OTHER = "a-key-of-some-length-1", "another-key-of-length-2"


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    file = tmp_path / "keys"
    file.write_text(f"# of the front end\n{KEY}\n\n{OTHER}\n")
    return file


async def test_a_key_is_taken_in_every_usual_place(make_service, connect, keys_file: Path) -> None:
    http = connect(make_service(keys_file=keys_file))
    basic = base64.b64encode(f"anybody:{KEY}".encode()).decode()
    for headers in (
        {"authorization": f"Bearer {KEY}"},
        {"authorization": f"bearer {OTHER}"},
        {"authorization": f"Basic {basic}"},
        {"x-api-key": KEY},
    ):
        assert (await http.get("/v1/models", headers=headers)).status_code == 200
    for headers in ({}, {"x-api-key": "wrong"}, {"authorization": "Basic %%"}, {"authorization": f"Digest {KEY}"}):
        answer = await http.get("/v1/models", headers=headers)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Basic")
        assert answer.json()["error"]["code"] == "unauthorized"


async def test_qdrant_may_send_its_key_in_the_body(make_service, connect, keys_file: Path) -> None:
    http = connect(make_service(keys_file=keys_file))
    assert (await http.post("/inference", json=asked("发烧") | {"token": KEY})).status_code == 200
    assert (await http.post("/inference", json=asked("发烧"))).status_code == 401
    assert (await http.post("/inference", json=asked("发烧") | {"token": "wrong"})).status_code == 401
    wrong_header = {"x-api-key": "wrong"}
    assert (await http.post("/inference", json=asked("发烧") | {"token": KEY}, headers=wrong_header)).status_code == 401
    assert (await http.post("/embed", json={"inputs": "发烧", "token": KEY})).status_code == 401


async def test_health_readiness_and_counters_need_no_key(make_service, connect, keys_file: Path) -> None:
    http = connect(make_service(keys_file=keys_file))
    assert [(await http.get(path)).status_code for path in ("/health", "/ready", "/metrics")] == [200, 200, 200]
    assert (await http.get("/")).status_code == 401


def test_keys_are_rotated_by_editing_the_file(keys_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "CHECK_SECONDS", 0)
    accepted = Keys(keys_file)
    assert accepted.identify(KEY)
    replacement = keys_file.with_name("new")
    replacement.write_text("a-third-key-of-length-3\n")
    replacement.replace(keys_file)
    assert accepted.identify(KEY) is None
    assert accepted.identify("a-third-key-of-length-3")
    keys_file.write_text("\n")
    assert accepted.identify("a-third-key-of-length-3"), "a file without keys must not lock everybody out"
    assert accepted.identify("anything") is None, "nor let everybody in"
    keys_file.unlink()
    assert accepted.identify("a-third-key-of-length-3")


@pytest.mark.parametrize("content", ["", "# nothing\n", "short\n"])
def test_a_file_without_usable_keys_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "keys").write_text(content)
    with pytest.raises(InputError, match="keys"):
        Keys(tmp_path / "keys")


async def test_every_refusal_has_one_shape(make_service, connect) -> None:
    http = connect(make_service(limits={"body_bytes": 1000}))
    answers = {
        "unknown_path": await http.get("/nothing"),
        "wrong_method": await http.get("/embed"),
        "not_json": await http.post("/embed", content=b"{}", headers={"content-type": "text/plain"}),
        "body_too_large": await http.post("/embed", json={"inputs": "x" * 1000}),
        "invalid_request": await http.post("/embed", content=b"{", headers={"content-type": "application/json"}),
        "unknown_collection": await http.post("/search", json={"query": "发烧"}),
        "unknown_host": await http.get("/health", headers={"host": "rebound.example"}),
    }
    for code, answer in answers.items():
        body = answer.json()
        assert set(body) == {"error", "code", "request_id"}, code
        assert (body["code"], body["request_id"]) == (code, answer.headers["x-request-id"])
        assert answer.status_code >= 400
    assert answers["wrong_method"].headers["allow"] == "POST"


async def test_a_body_of_unknown_length_is_cut_off_at_the_limit(make_service, connect) -> None:
    async def endless():
        while True:
            yield b" " * 100_000

    http = connect(make_service())
    answer = await http.post("/embed", content=endless(), headers={"content-type": "application/json"})
    assert (answer.status_code, answer.headers["connection"]) == (413, "close")


async def test_a_body_that_does_not_come_is_not_waited_for(make_service, connect) -> None:
    async def hanging():
        yield b'{"inputs": '
        await asyncio.sleep(60)

    http = connect(make_service(limits={"body_seconds": 0.05}))
    answer = await http.post("/embed", content=hanging(), headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (408, "body_too_slow")


async def test_a_failure_is_answered_without_its_inside(make_service, connect) -> None:
    class Broken(HashEncoder):
        def encode(self, texts, *, prompt=None):
            raise RuntimeError("secret of the inside")

    answer = await connect(make_service(pair(query=Broken()))).post("/inference", json=asked("发烧"))
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert "secret" not in answer.text


async def test_a_failure_is_in_the_log_with_its_traceback(
    make_service, connect, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(HashEncoder):
        def encode(self, texts, *, prompt=None):
            raise RuntimeError("the inside")

    for name in ("care_qdrant", "care_trainer", "care_benchmarks", "llama_index.embeddings.care"):
        monkeypatch.setattr(logging.getLogger(name), "handlers", [])
    set_up_logs(form="json")
    answer = await connect(make_service(pair(query=Broken()))).post("/inference", json=asked("发烧"))
    set_up_logs()
    [line] = [entry for text in capsys.readouterr().err.splitlines() if (entry := json.loads(text))["level"] == "error"]
    assert answer.json()["request_id"] in line["message"]
    assert "RuntimeError: the inside" in line["exception"]


async def test_the_log_holds_neither_texts_nor_keys(
    make_service, connect, keys_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    http = connect(make_service(keys_file=keys_file))
    caplog.set_level(logging.INFO, ACCESS)
    await http.post("/inference", json=asked("一个病人的秘密") | {"token": KEY})
    await http.get("/?q=一个病人的秘密", headers={"x-api-key": KEY})
    await http.post("/embed", json={"inputs": "一个病人的秘密"}, headers={"x-api-key": "a-wrong-key-that-is-long"})
    lines = [json.loads(record.message) for record in caplog.records if record.name == ACCESS]
    assert [line["status"] for line in lines] == [200, 200, 401]
    assert lines[0]["texts"] == 1
    assert len(lines[0]["key"]) == 8
    said = caplog.text + (await http.get("/metrics")).text
    assert not any(secret in said for secret in ("秘密", KEY, "a-wrong-key", "%E7%A7%98"))


async def test_counters_count(make_service, connect) -> None:
    http = connect(make_service())
    await http.post("/inference", json=asked("发烧", "咳嗽"))
    await http.post("/inference", json=asked(" "))
    said = (await http.get("/metrics")).text.splitlines()
    assert 'care_requests_total{route="/inference",status="200"} 1.0' in said
    assert 'care_refusals_total{code="blank_text"} 1.0' in said
    assert 'care_texts_total{model="pair",side="query"} 2.0' in said
    assert 'care_waiting_texts{side="query"} 0.0' in said
