"""A document encoder on real HTTP servers: the same vectors, through faults, and nothing from one that misbehaves."""

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from care_qdrant.encoders.engine import Engine, Sent
from care_qdrant.encoders.local.torch import load_sentence_transformer
from care_qdrant.encoders.references import load_references, make_references, save_references
from care_qdrant.encoders.remote import server as server_module
from care_qdrant.encoders.remote import wire
from care_qdrant.encoders.remote.server import ServerEncoder
from care_qdrant.encoders.side import Side
from care_qdrant.errors import EncodingError, InputError, ModelError, Unreachable
from care_qdrant.model.care_model import CareModel
from tests.tiny import TEXTS, medical_texts

pytestmark = pytest.mark.timeout(300)

Fault = Callable[[list[list[int]]], tuple[int, Any] | None]
DROPPED = -1
"""Status of a server that is killed before it answers."""


class EmbeddingServer(ThreadingHTTPServer):
    """Speaks OpenAI's protocol for the tower of a pair: full-width vectors, not normalised, rows in reverse order."""

    daemon_threads = True

    def __init__(self, tower: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.model = load_sentence_transformer(tower, "cpu")
        self.faults: list[Fault] = []
        """One per request, taken from the front; None passes."""
        self.requests: list[dict[str, Any]] = []
        self.habit: Callable[[EmbeddingServer, dict[str, Any]], tuple[int, Any] | None] = lambda _, body: None
        """Answers a request in its own way; None is the usual one."""
        self.change: Callable[[np.ndarray], np.ndarray] = lambda vectors: vectors
        self.retry_after = "0"

    @classmethod
    @contextmanager
    def serving(cls, tower: Path) -> Iterator[Self]:
        """Answer on a thread during the block."""
        server = cls(tower)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def embed(self, inputs: list[list[int] | str]) -> list[dict[str, Any]]:
        import torch

        rows = []
        for index, sent in enumerate(inputs):
            ids = self.model.tokenizer(sent)["input_ids"] if isinstance(sent, str) else sent
            features = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
            with torch.inference_mode():
                for module in list(self.model)[:2]:
                    features = module(features)
            vector = self.change(features["sentence_embedding"][0].numpy())
            rows.append({"object": "embedding", "index": index, "embedding": vector.tolist()})
        return rows[::-1]


class _Handler(BaseHTTPRequestHandler):
    server: EmbeddingServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append({"path": self.path, "key": self.headers.get("Authorization"), **body})
        fault = self.server.faults.pop(0)(body["input"]) if self.server.faults else None
        fault = fault or self.server.habit(self.server, body)
        status, answer = fault or (200, {"data": self.server.embed(body["input"])})
        if status == DROPPED:
            self.connection.close()
            return
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Retry-After", self.server.retry_after)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(pair_folder: Path) -> Iterator[EmbeddingServer]:
    with EmbeddingServer.serving(pair_folder / "document") as server:
        yield server


@pytest.fixture(scope="module")
def model(pair_folder: Path) -> CareModel:
    return CareModel.load(pair_folder)


@pytest.fixture(scope="module")
def reference(model: CareModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("reference") / "reference.json"
    save_references(file, model.fingerprint, make_references(model.encode_document))
    return file


@contextmanager
def served_documents(folder: Path, endpoints: list[str], reference: Path | None, **options: Any) -> Iterator[CareModel]:
    """Yield the pair with its documents encoded by servers that have passed the check."""
    engine = Engine("server", endpoints=tuple(endpoints), served_model="tower", reference=reference, **options)
    served = CareModel.load(folder, engine=engine)
    encoder = served.document_encoder
    assert isinstance(encoder, ServerEncoder)
    yield served
    encoder.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait no longer than a test needs."""
    monkeypatch.setattr(server_module, "FIRST_DELAY_SECONDS", 0.01)


@pytest.fixture
def tokenizer(pair_folder: Path) -> Path:
    return pair_folder / "document/tokenizer.json"


@pytest.fixture
def served(server: EmbeddingServer, reference: Path, pair_folder: Path) -> Iterator[CareModel]:
    with served_documents(pair_folder, [server.url], reference, api_key="secret", patience_seconds=1.0) as served:
        server.requests.clear()
        yield served


LONG = "".join(TEXTS) * 3


def test_served_vectors_are_those_of_the_pair(served: CareModel, model: CareModel) -> None:
    texts = [*TEXTS, LONG, "短"]
    assert served.encode_document(texts) == pytest.approx(model.encode_document(texts), abs=1e-5)
    assert served.encode_document([]).shape == (0, model.dim)
    assert served.contract() == model.contract()
    assert served.document_encoder.count_tokens([LONG]) == model.document_encoder.count_tokens([LONG])


def test_a_text_that_is_too_long_keeps_its_end_marker(served: CareModel, server: EmbeddingServer) -> None:
    served.encode_document([LONG])
    ids, _reference = server.requests[0]["input"]
    assert len(ids) == served.document_encoder.max_tokens
    assert ids[-1] == 2
    assert (server.requests[0]["path"], server.requests[0]["model"]) == ("/v1/embeddings", "tower")
    assert server.requests[0]["key"] == "Bearer secret"


@pytest.mark.parametrize("sent", ["tokens", "text", "text-without-prompt"])
def test_a_server_gets_what_it_can_take(server: EmbeddingServer, model: CareModel, tokenizer: Path, sent: Sent) -> None:
    """Also of a text that is too long; a prompt that the server adds is not sent, and counts all the same."""
    read = Tokenizer.from_file(str(tokenizer))
    read.no_truncation()
    own, limit = model.document_encoder, model.document_encoder.max_tokens
    encoder = ServerEncoder(
        Engine("server", endpoints=(server.url,), sent=sent), "tower", read, Side("cls", limit, "咳嗽"), (), dim=own.dim
    )
    served = encoder.encode(["耳鸣", LONG])
    given = server.requests[0]["input"]
    if sent == "tokens":
        assert sorted(map(len, given)) == [len(read.encode("咳嗽耳鸣").ids), limit]
    else:
        short, long = sorted(given, key=len)
        assert short == ("咳嗽耳鸣" if sent == "text" else "耳鸣")
        assert LONG.startswith(long.removeprefix("咳嗽"))
        assert len(read.encode("咳嗽" + long.removeprefix("咳嗽")).ids) == limit
    if sent != "text-without-prompt":
        assert served == pytest.approx(own.encode(["耳鸣", LONG], prompt="咳嗽"), abs=1e-5)
    encoder.close()


def test_a_batch_that_is_too_large_is_halved(served: CareModel, server: EmbeddingServer, model: CareModel) -> None:
    server.faults = [lambda tokens: (413, {}) if len(tokens) > 3 else None for _ in range(3)]
    assert served.encode_document(TEXTS[:5]) == pytest.approx(model.encode_document(TEXTS[:5]), abs=1e-5)
    assert [len(request["input"]) - 1 for request in server.requests] == [5, 2, 3, 1, 2]


@pytest.mark.parametrize("status", [400, 422])
def test_a_server_that_counts_texts_is_asked_for_fewer(
    served: CareModel, server: EmbeddingServer, model: CareModel, status: int
) -> None:
    server.faults = [lambda tokens: (status, {"message": "no"}) if len(tokens) > 4 else None for _ in range(9)]
    for _ in range(2):
        assert served.encode_document(TEXTS[:5]) == pytest.approx(model.encode_document(TEXTS[:5]), abs=1e-5)
    assert [len(request["input"]) - 1 for request in server.requests] == [5, 2, 3, 2, 3]


HABITS: dict[str, Callable[[EmbeddingServer, dict[str, Any]], tuple[int, Any] | None]] = {
    "takes 10 texts": lambda _, body: (400, {"error": "batch size is invalid"}) if len(body["input"]) > 10 else None,
    "takes 1 text": lambda _, body: (400, {"error": "one, please"}) if len(body["input"]) > 1 else None,
    "takes 4 texts, else 500": lambda _, body: (500, {"error": "decode -1"}) if len(body["input"]) > 4 else None,
    "refuses encoding_format": lambda _, body: (400, {"code": 20015}) if "encoding_format" in body else None,
    "no index": lambda server, body: (
        200,
        {"data": [_without_index(row) for row in server.embed(body["input"])[::-1]]},
    ),
    "one index": lambda server, body: (
        200,
        {"data": [row | {"index": 0} for row in server.embed(body["input"])[::-1]]},
    ),
    "base64": lambda server, body: (200, {"data": [_as_base64(row) for row in server.embed(body["input"])]}),
}
"""Habits of services that speak OpenAI's protocol and differ from it."""


def _without_index(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "index"}


def _as_base64(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"embedding": base64.b64encode(np.asarray(row["embedding"], "<f4").tobytes()).decode()}


@pytest.mark.parametrize("habit", HABITS)
def test_the_habits_of_services_cost_no_text_its_vector(
    server: EmbeddingServer, model: CareModel, reference: Path, pair_folder: Path, habit: str
) -> None:
    texts = medical_texts(23)
    server.habit = HABITS[habit]
    with served_documents(pair_folder, [server.url], reference, patience_seconds=5.0) as served:
        assert served.encode_document(texts) == pytest.approx(model.encode_document(texts), abs=1e-5)
        assert len(server.requests) < 100
    with httpx.Client(base_url=server.url) as client:
        raw = wire.embed(client, "tower", texts)[:, : model.dim]
    unit = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    assert unit == pytest.approx(model.encode_document(texts), abs=1e-5)


def test_a_text_that_is_refused_on_its_own_ends_in_the_servers_words(
    served: CareModel, server: EmbeddingServer
) -> None:
    server.faults = [lambda tokens: (422, {"message": "what is this?"}) for _ in range(9)]
    with pytest.raises(EncodingError, match=r"422.*what is this"):
        served.encode_document(TEXTS[:4])


def test_a_server_that_is_wrong_without_padding_is_refused(
    served: CareModel, server: EmbeddingServer, model: CareModel
) -> None:
    def unmasked(tokens: list[list[int]]) -> tuple[int, Any] | None:
        if len(tokens) == 1 or len(set(map(len, tokens))) > 1:
            return None
        rows = server.embed(tokens)
        return 200, {"data": [row | {"embedding": row["embedding"][::-1]} for row in rows]}

    server.faults = [unmasked] * 9
    with pytest.raises(ModelError, match="to the reference"):
        served.document_encoder.check()


def _half(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return rows[: len(rows) // 2]


def _all(value: float, width: int = 64) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    return lambda rows: [row | {"embedding": [value] * width} for row in rows]


UNUSABLE: dict[str, tuple[Callable[[list[dict[str, Any]]], list[dict[str, Any]]], str]] = {
    "half a batch": (_half, "shape"),
    "no rows": (lambda rows: [], "shape"),
    "NaN": (_all(float("nan")), "not finite"),
    "zero vectors": (_all(0.0), "no length"),
    "another dimension": (_all(1.0, 7), "expected"),
    "no embeddings": (lambda rows: [{"detail": "?"}], "not a list of embeddings"),
}


@pytest.mark.parametrize("kind", UNUSABLE)
def test_an_unusable_answer_is_asked_for_again_and_named_in_the_end(
    served: CareModel, server: EmbeddingServer, model: CareModel, kind: str
) -> None:
    change, problem = UNUSABLE[kind]
    server.faults = [lambda inputs: (200, {"data": change(server.embed(inputs))})] * 2
    assert served.encode_document(TEXTS) == pytest.approx(model.encode_document(TEXTS), abs=1e-5)
    server.faults = [lambda inputs: (200, {"data": change(server.embed(inputs))})] * 3
    with pytest.raises(EncodingError, match=problem):
        served.encode_document(TEXTS)


def test_an_answer_that_trying_again_does_not_change_is_said_at_once(
    served: CareModel, server: EmbeddingServer
) -> None:
    """A batch is halved down to one text, whose answer counts."""
    server.faults = [lambda _: (400, {"error": "no such model"})] * 99
    with pytest.raises(EncodingError, match=r"400.*no such model"):
        served.encode_document(TEXTS)
    assert len(server.requests) <= 6


def test_passing_faults_are_retried(served: CareModel, server: EmbeddingServer, model: CareModel) -> None:
    server.faults = [lambda _: (429, {}), lambda _: (503, {}), lambda _: (DROPPED, None)]
    assert served.encode_document(TEXTS[:2]) == pytest.approx(model.encode_document(TEXTS[:2]), abs=1e-5)
    assert len(server.requests) == 4


@pytest.mark.parametrize("value", ["²", "soon", "-1", "nan", "inf", "Wed, 21 Oct 2015 07:28:00 GMT"])
def test_a_pause_that_is_not_a_number_of_seconds_is_not_kept(
    served: CareModel, server: EmbeddingServer, value: str
) -> None:
    server.retry_after, server.faults = value, [lambda _: (429, {})]
    assert len(served.encode_document(TEXTS[:1])) == 1


def test_a_server_that_gets_other_weights_in_the_middle_gives_no_vector(
    server: EmbeddingServer, model: CareModel, reference: Path, pair_folder: Path
) -> None:
    """Each request shows whose weights answered it: not one vector of the others comes back."""
    texts = medical_texts(40)
    expected = model.encode_document(texts)
    with served_documents(pair_folder, [server.url], reference, request_tokens=100) as served:
        right = served.encode_document(texts[:20])
        server.change = lambda vectors: np.roll(vectors, 1)
        with pytest.raises(ModelError, match="serves other weights"):
            served.encode_document(texts[20:])
    assert right == pytest.approx(expected[:20], abs=1e-5)


def test_of_several_servers_one_may_go_and_another_change_and_come_back(
    monkeypatch: pytest.MonkeyPatch, server: EmbeddingServer, model: CareModel, reference: Path, pair_folder: Path
) -> None:
    texts, clock = medical_texts(60), time.monotonic
    expected = model.encode_document(texts)
    with (
        EmbeddingServer.serving(pair_folder / "document") as other,
        EmbeddingServer.serving(pair_folder / "document") as third,
    ):
        urls = [server.url, other.url, third.url]
        with served_documents(pair_folder, urls, reference, request_tokens=100) as served:
            assert served.encode_document(texts) == pytest.approx(expected, abs=1e-5)
            other.change = lambda vectors: -vectors  # as a server that is restarted with other weights
            third.faults = [lambda _: (DROPPED, None)] * 5
            server.faults = [lambda _: (429, {})] * 3
            assert served.encode_document(texts) == pytest.approx(expected, abs=1e-5)
            encoder = served.document_encoder
            assert isinstance(encoder, ServerEncoder)
            before = len(other.requests)
            assert served.encode_document(texts) == pytest.approx(expected, abs=1e-5)
            assert len(other.requests) == before, "a server of other weights is left alone for a while"
            wrong = encoder.report()["endpoints"][1]
            assert wrong["refused_texts"] > 0
            assert "serves other weights" in wrong["refused"]
            other.change = lambda vectors: vectors
            monkeypatch.setattr(server_module.time, "monotonic", lambda: clock() + 2 * server_module.PROBATION_SECONDS)
            assert served.encode_document(texts) == pytest.approx(expected, abs=1e-5)
            assert len(other.requests) > before
            assert encoder.report()["endpoints"][1]["refused"] is None


def test_a_slow_server_gets_fewer_requests_at_a_time(
    server: EmbeddingServer, model: CareModel, reference: Path, pair_folder: Path
) -> None:
    texts = medical_texts(80)
    running, most = 0, []
    lock = threading.Lock()

    def slow(_: object) -> None:
        nonlocal running
        with lock:
            running += 1
            most.append(running)
        time.sleep(0.01 * running)
        with lock:
            running -= 1

    server.faults = [slow] * 1_000  # type: ignore[list-item]  # returns nothing
    with served_documents(pair_folder, [server.url], reference, request_tokens=60) as served:
        assert served.encode_document(texts) == pytest.approx(model.encode_document(texts), abs=1e-5)
    assert 1 < max(most) <= 8


def test_reference_vectors_of_another_pair_are_refused(reference: Path, pair_folder: Path, tmp_path: Path) -> None:
    mine = json.loads(reference.read_text(encoding="utf-8"))
    (tmp_path / "other.json").write_text(json.dumps({**mine, "fingerprint": "0" * 64}))
    with (
        pytest.raises(ModelError, match="make them again"),
        served_documents(pair_folder, ["x"], tmp_path / "other.json"),
    ):
        pass
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(InputError, match="holds no reference vectors"):
        load_references(tmp_path / "other.json", mine["fingerprint"])


def test_without_a_file_the_pair_makes_its_own_reference_vectors(server: EmbeddingServer, pair_folder: Path) -> None:
    server.change = lambda vectors: np.roll(vectors, 1)
    with pytest.raises(ModelError, match="serves other weights"), served_documents(pair_folder, [server.url], None):
        pass


def test_servers_and_their_urls_belong_together() -> None:
    with pytest.raises(InputError, match="needs endpoints"):
        Engine("server")
    with pytest.raises(InputError, match="need kind 'server'"):
        Engine("torch", endpoints=("http://localhost:8000/v1",))


def test_a_server_that_is_gone_is_said_to_be_gone(served: CareModel, server: EmbeddingServer) -> None:
    server.shutdown()
    server.server_close()
    with pytest.raises(Unreachable, match="no answer for"):
        served.encode_document(["短"])


@given(st.integers(1, 5).flatmap(lambda count: st.lists(st.integers(0, count), min_size=count, max_size=count)))
def test_vectors_belong_to_the_texts_of_their_index_or_are_refused(places: list[int]) -> None:
    """A permutation is undone; servers that give each row the same index answer in order; others are refused."""
    rows = [{"index": place, "embedding": [1.0, float(row)]} for row, place in enumerate(places)]
    answer = httpx.Response(200, json={"data": rows}, request=httpx.Request("POST", "http://x/v1/embeddings"))
    if sorted(places) == list(range(len(places))):
        assert [places[int(row)] for _, row in wire.read_vectors(answer, len(places))] == sorted(places)
    elif len(set(places)) == 1:
        assert wire.read_vectors(answer, len(places)).tolist() == [[1.0, float(row)] for row in range(len(places))]
    else:
        with pytest.raises(EncodingError, match="gave vectors of index"):
            wire.read_vectors(answer, len(places))
