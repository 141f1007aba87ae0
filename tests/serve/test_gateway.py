"""Who may ask, how refusals look, and what the log holds."""

import ast
import asyncio
import base64
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from qdrant_client import QdrantClient, models

from care_qdrant import serve
from care_qdrant.console.logs import set_up_logs
from care_qdrant.errors import ContractError, EncodingError, InputError, ModelError, NoCollection, QdrantError
from care_qdrant.serve import keys, refusal, schemas
from care_qdrant.serve.keys import Keys, KeyScope
from care_qdrant.serve.settings import BodyLimits
from tests.serve.conftest import KEY, OTHER_KEY, asked, pair
from tests.tiny import HashEncoder

ACCESS = "care_qdrant.serve.access"
CODE = re.compile(r"`([a-z_]+)`")


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    file = tmp_path / "keys"
    file.write_text(f"# of the front end\n{KEY}\n\n{OTHER_KEY}\n")
    return file


async def test_a_key_is_taken_in_every_usual_place(make_service, connect, keys_file: Path) -> None:
    http = connect(make_service(keys_file=keys_file))
    basic = base64.b64encode(f"anybody:{KEY}".encode()).decode()
    for headers in (
        {"authorization": f"Bearer {KEY}"},
        {"authorization": f"bearer {OTHER_KEY}"},
        {"authorization": f"Basic {basic}"},
        {"x-api-key": KEY},
    ):
        assert (await http.get("/v1/models", headers=headers)).status_code == 200
    refused = ("Basic %%", "Basic é".encode("latin-1"), b"Basic \xff\xff==", "Basic //4=", f"Digest {KEY}")
    for headers in ({}, {"x-api-key": "wrong"}, *({"authorization": each} for each in refused)):
        answer = await http.get("/v1/models", headers=headers)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Basic")
        assert answer.json()["error"]["code"] == "unauthorized"


@pytest.mark.parametrize("path", ["/metrics", "/metrics%0A", "/metrics/", "/%6Detrics", "/METRICS"])
async def test_counters_with_a_port_of_their_own_are_on_no_other(make_service, connect, path: str) -> None:
    http = connect(make_service(metrics_port=9464))
    assert (await http.get(path)).status_code == 404


async def test_qdrant_may_send_its_key_in_the_body(make_service, connect, keys_file: Path) -> None:
    http = connect(make_service(keys_file=keys_file))
    assert (await http.post("/inference", json=asked("发烧") | {"token": KEY})).status_code == 200
    assert (await http.post("/inference", json=asked("发烧"))).status_code == 401
    assert (await http.post("/inference", json=asked("发烧") | {"token": "wrong"})).status_code == 401
    wrong_header = {"x-api-key": "wrong"}
    assert (await http.post("/inference", json=asked("发烧") | {"token": KEY}, headers=wrong_header)).status_code == 401
    assert (await http.post("/search", json={"query": "发烧", "token": KEY})).status_code == 401


async def test_without_a_key_health_says_whether_it_is_well_and_nothing_else(
    make_service, connect, keys_file: Path
) -> None:
    http = connect(make_service(keys_file=keys_file))
    for path in ("/health", "/ready"):
        answer = await http.get(path)
        assert (answer.status_code, answer.json()["status"], answer.json()["models"]) == (200, "ok", [])
        [model] = (await http.get(path, headers={"x-api-key": KEY})).json()["models"]
        assert len(model["fingerprint"]) == 64
    assert [(await http.get(path)).status_code for path in ("/", "/metrics", "/v1/models")] == [401, 401, 401]
    assert (await connect(make_service()).get("/health")).json()["models"], "a service without keys hides nothing"


@pytest.fixture
def http_of(make_service, connect, tmp_path: Path):
    """Open a client whose key stands in a line of the file of keys."""

    def open_client(line: str, **settings: object):
        (tmp_path / "scoped").write_text(f"{line}\n{OTHER_KEY}\n")
        http = connect(make_service(keys_file=tmp_path / "scoped", **settings))
        http.headers["authorization"] = f"Bearer {line.split()[0]}"
        return http

    return open_client


@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        ("", {"/inference", "/v1/embeddings", "/search", "/metrics"}),
        ("inference", {"/inference", "/v1/embeddings"}),
        ("metrics", {"/metrics"}),
        ("search", {"/search"}),
        ("search:corpus", {"/search"}),
        ("search:other inference", {"/inference", "/v1/embeddings"}),
    ],
)
async def test_a_key_may_do_what_its_line_says(http_of, client: QdrantClient, words: str, allowed: set[str]) -> None:
    service = {"collections": ("corpus", "other"), "over": client}
    http = http_of(f"{KEY} {words}", **service)
    bodies = {
        "/inference": asked("发烧"),
        "/v1/embeddings": {"model": "pair", "input": "发烧"},
        "/search": {"query": "发烧", "collection": "corpus"},
    }
    answers = {path: await http.post(path, json=body) for path, body in bodies.items()}
    answers["/metrics"] = await http.get("/metrics")
    assert {path for path, answer in answers.items() if answer.status_code != 403} == allowed
    refused = [answer.text for answer in answers.values() if answer.status_code == 403]
    assert all('"forbidden"' in text and "this API key is for" in text for text in refused)
    named = (await http.get("/collections")).json()["collections"]
    assert [each["name"] for each in named] == (
        ["corpus", "other"] if words in ("", "search") else [w.partition(":")[2] for w in words.split() if ":" in w]
    )


@pytest.mark.parametrize("words", ["inference", "metrics", "search:another", "inference search:another"])
@pytest.mark.parametrize("served", [("secret-one", "secret-two"), ("secret-one", "another"), ()])
async def test_a_key_learns_of_no_collection_that_it_may_not_search(
    http_of, client: QdrantClient, words: str, served: tuple[str, ...]
) -> None:
    """A key for a collection that does not exist yet reads no name of another, served or in Qdrant."""
    for name in ("secret-one", "secret-three"):
        client.create_collection(name, {})
    client.update_collection_aliases(
        [
            models.CreateAliasOperation(
                create_alias=models.CreateAlias(collection_name="secret-one", alias_name="secret")
            )
        ]
    )
    http = http_of(f"{KEY} {words}", collections=served, over=client)
    bodies = [{"collection": name} for name in ("secret-one", "nothing", "another")] + [{}]
    for path in ("/search", "/good-match", "/labels"):
        for body in bodies:
            asked_for = {"/search": {"query": "发烧"}, "/good-match": {}}.get(
                path, {"query": "发烧", "document_id": "d", "relevant": True}
            )
            answer = await http.post(path, json=asked_for | body)
            assert answer.status_code in (403, 404)
            assert "secret" not in answer.text.replace(str(body.get("collection")), "")
    assert "secret" not in (await http.get("/collections")).text


async def test_a_key_in_the_body_has_its_scopes_too(http_of) -> None:
    http = http_of(f"{KEY} search")
    del http.headers["authorization"]
    assert (await http.post("/inference", json=asked("发烧") | {"token": KEY})).json()["code"] == "forbidden"


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


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"short\n", b""])
def test_a_broken_file_leaves_the_former_keys_in_force_and_is_told_once(
    keys_file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, content: bytes | None
) -> None:
    monkeypatch.setattr(keys, "CHECK_SECONDS", 0)
    accepted, before = Keys(keys_file), keys_file.read_bytes()
    if content is None:
        keys_file.unlink()
    else:
        keys_file.write_bytes(content)
    for _ in range(3):
        assert accepted.identify(KEY)
    [told] = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert str(keys_file) in told
    assert "Errno" not in told
    assert "codec" not in told
    keys_file.write_bytes(before.replace(KEY.encode(), b"# it leaked"))
    assert accepted.identify(KEY) is None


def test_a_file_cut_at_any_byte_gives_no_key_more_scopes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "CHECK_SECONDS", 0)
    file = tmp_path / "keys"
    before, after = f"{KEY} search:corpus\n", f"{KEY} search:corpus search:b\r\n# new\n{OTHER_KEY} metrics inference\n"
    asked_for: list[tuple[str, KeyScope, str | None]] = [
        (key, scope, collection)
        for end in range(keys.MIN_CHARACTERS, len(OTHER_KEY) + 1)
        for key in (KEY[:end], OTHER_KEY[:end])
        for scope, collection in (("inference", None), ("metrics", None), ("search", None), ("search", "b"))
    ]

    def granted(content: str) -> set[tuple[str, str, str | None]]:
        file.write_text(content, newline="")
        return {one for one in asked_for if (key := accepted.identify(one[0])) and key.may(one[1], one[2])}

    file.write_text(before)
    accepted = Keys(file)
    rightly = granted(before) | granted(after)
    whole = granted(after)
    for end in range(len(after)):
        granted(before)
        assert granted(after[:end]) <= rightly, after[:end]
        try:  # a worker that starts meanwhile has no former keys
            accepted_at_first = Keys(file)
        except InputError:
            continue
        first = {one for one in asked_for if (key := accepted_at_first.identify(one[0])) and key.may(one[1], one[2])}
        assert first <= whole, after[:end]
    assert granted(after) == rightly


def test_a_byte_order_mark_belongs_to_no_key(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"{KEY} search\n", encoding="utf-8-sig")
    assert Keys(tmp_path / "keys").identify(KEY)


@pytest.mark.parametrize(
    "content",
    ["", "# nothing\n", "short\n", f"{KEY} everything\n", f"{KEY} 600/minute\n", f"{KEY} search:a\n{KEY} search:b\n"],
)
def test_a_file_without_usable_keys_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "keys").write_text(content)
    with pytest.raises(InputError, match="keys") as refused:
        Keys(tmp_path / "keys")
    assert KEY not in str(refused.value)


async def test_every_refusal_has_one_shape(make_service, connect) -> None:
    http = connect(make_service(limits={"texts_body": BodyLimits(1000, 1000)}))
    answers = {
        "unknown_path": await http.get("/nothing"),
        "wrong_method": await http.get("/search"),
        "not_json": await http.post("/search", content=b"{}", headers={"content-type": "text/plain"}),
        "body_too_large": await http.post("/inference", json=asked("x" * 1000)),
        "invalid_request": await http.post("/search", content=b"{", headers={"content-type": "application/json"}),
        "unknown_collection": await http.post("/search", json={"query": "发烧"}),
        "unknown_host": await http.get("/health", headers={"host": "rebound.example"}),
    }
    for code, answer in answers.items():
        body = answer.json()
        assert set(body) == {"error", "code", "request_id"}, code
        assert (body["code"], body["request_id"]) == (code, answer.headers["x-request-id"])
        assert answer.status_code >= 400
    assert answers["wrong_method"].headers["allow"] == "POST"


def codes_of(file: Path) -> Iterator[str]:
    """Yield the codes of the refusals that a module raises."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Refusal":
            yield from (word.value for word in node.args[1:2] if isinstance(word, ast.Constant))


def test_the_guide_lists_every_code() -> None:
    raised = {code for file in Path(serve.__file__).parent.glob("*.py") for code in codes_of(file)}
    raised |= {code for _, _, code in refusal._BY_ERROR}
    table = (Path(__file__).parents[2] / "docs" / "how-to" / "serve.md").read_text("utf-8").partition("## Refusals")[2]
    listed = {code for line in table.splitlines() if line.startswith("|") for code in CODE.findall(line.split("|")[2])}
    assert listed == raised


def test_what_a_search_may_raise_is_answered_with_its_reason() -> None:
    kinds = [InputError, ModelError, ContractError, QdrantError, EncodingError]
    for kind in kinds:  # grows by their subclasses
        kinds += kind.__subclasses__()
        error = kind("n", ["others"]) if kind is NoCollection else kind.__new__(kind)
        assert (answer := refusal.refusal_of(error)) is not None, kind
        assert answer.status != 500, kind


async def test_a_body_of_unknown_length_is_cut_off_at_the_limit(make_service, connect) -> None:
    async def endless():
        while True:
            yield b" " * 100_000

    http = connect(make_service())
    answer = await http.post("/search", content=endless(), headers={"content-type": "application/json"})
    assert (answer.status_code, answer.headers["connection"]) == (413, "close")


async def test_a_body_that_does_not_come_is_not_waited_for(make_service, connect) -> None:
    async def hanging():
        yield b'{"inputs": '
        await asyncio.sleep(60)

    http = connect(make_service(limits={"other_body": BodyLimits(1000, 1000, 0.05)}))
    answer = await http.post("/search", content=hanging(), headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (408, "body_too_slow")


async def test_a_websocket_is_answered_as_any_request(make_service, listen, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, ACCESS)
    upgrade = {"upgrade": "websocket", "connection": "upgrade", "sec-websocket-key": "a" * 22 + "=="}
    address = listen(make_service())
    for path, status in (("/", 200), ("/search", 405), ("/nothing", 404)):
        answer = await asyncio.to_thread(httpx.get, f"{address}{path}", headers=upgrade)
        assert answer.status_code == status
    assert not [record for record in caplog.records if record.name.startswith("uvicorn")]
    for _ in range(100):  # a line is written after its answer
        if len([record for record in caplog.records if record.name == ACCESS]) == 3:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("a refused connection has no line in the log")


async def test_a_line_of_the_log_is_one_line(make_service, connect, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, ACCESS)
    odd = "a\u2028b\x1b[2J\x9b\u202e\U000e0001\x85"
    await connect(make_service()).post("/v1/embeddings", json={"input": "发烧", "model": odd})
    [line] = [record.message for record in caplog.records if record.name == ACCESS]
    assert line.isprintable()
    assert json.loads(line)["model"] == odd


async def test_a_body_without_an_accepted_key_is_not_parsed(
    make_service, connect, keys_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[bytes] = []
    parse = schemas.InferenceRequest.model_validate_json
    monkeypatch.setattr(
        schemas.InferenceRequest, "model_validate_json", lambda body: parsed.append(body) or parse(body)
    )
    http = connect(make_service(keys_file=keys_file))
    for body in (asked("发烧"), asked("发烧") | {"token": "wrong"}, asked(f'"token": "{KEY}"')):
        assert (await http.post("/inference", json=body)).status_code == 401
    assert not parsed
    nested = asked("发烧", options={"token": KEY})
    assert (await http.post("/inference", json=nested)).status_code == 401, "a key in another place"
    assert (await http.post("/inference", json=asked("发烧") | {"token": KEY})).status_code == 200


async def test_a_failure_is_in_the_log_with_its_traceback_and_answered_without_its_inside(
    make_service, connect, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(HashEncoder):
        def encode(self, texts, *, prompt=None):
            raise RuntimeError("the inside")

    for name in ("care_qdrant", "care_trainer", "care_benchmarks", "llama_index.embeddings.care"):
        monkeypatch.setattr(logging.getLogger(name), "handlers", [])
    monkeypatch.setenv("CARE_LOG_FORMAT", "json")
    set_up_logs()
    answer = await connect(make_service(pair(query=Broken()))).post("/inference", json=asked("发烧"))
    monkeypatch.delenv("CARE_LOG_FORMAT")
    set_up_logs()
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert "inside" not in answer.text
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
    await http.post("/inference", json=asked("一个病人的秘密"), headers={"x-api-key": "a-wrong-key-that-is-long"})
    lines = [json.loads(record.message) for record in caplog.records if record.name == ACCESS]
    assert [line["status"] for line in lines] == [200, 200, 401]
    assert lines[0]["texts"] == 1
    assert len(lines[0]["key"]) == 8
    said = caplog.text + (await http.get("/metrics", headers={"x-api-key": KEY})).text
    assert not any(secret in said for secret in ("秘密", KEY, "a-wrong-key", "%E7%A7%98"))
