"""A document encoder on a real HTTP server: the same vectors, through faults, and refused where they differ."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import httpx
import numpy as np
import pytest
from care_benchmarks.cli import care_bench
from care_benchmarks.remote import (
    ReferenceVectors,
    RemoteEncoder,
    Sent,
    check_reference,
    load_reference,
    make_reference,
    served_documents,
)
from care_benchmarks.results import load_result
from click.testing import CliRunner
from tokenizers import Tokenizer

from care_qdrant.encoders.torch import load_sentence_transformer
from care_qdrant.errors import EncodingError, InputError, ModelError, Unreachable
from care_qdrant.model.pair import CareModel
from tests.tiny import TEXTS

# Whole runs import torch, mteb and LlamaIndex: minutes where other work holds the cores.
pytestmark = pytest.mark.timeout(600)

Fault = Callable[[list[list[int]]], tuple[int, Any] | None]


class EmbeddingServer(ThreadingHTTPServer):
    """Speaks OpenAI's protocol for the tower of a pair: full-width vectors, not normalised, rows in reverse order."""

    daemon_threads = True

    def __init__(self, tower: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.model = load_sentence_transformer(tower, "cpu")
        self.faults: list[Fault] = []
        """One per request, taken from the front; None passes."""
        self.requests: list[dict[str, Any]] = []
        self.change: Callable[[np.ndarray], np.ndarray] = lambda vectors: vectors

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
        for index, given in enumerate(inputs):
            ids = self.model.tokenizer(given)["input_ids"] if isinstance(given, str) else given
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
        status, answer = fault or (200, {"data": self.server.embed(body["input"])})
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Retry-After", "0")
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
def reference(model: CareModel) -> ReferenceVectors:
    return make_reference(model)


@pytest.fixture
def served(
    server: EmbeddingServer, model: CareModel, reference: ReferenceVectors, pair_folder: Path
) -> Iterator[CareModel]:
    tokenizer = pair_folder / "document/tokenizer.json"
    with served_documents(model, tokenizer, server.url, "tower", reference, api_key="secret") as served:
        server.requests.clear()
        yield served


LONG = "".join(TEXTS) * 3


def test_served_vectors_are_those_of_the_pair(served: CareModel, model: CareModel) -> None:
    texts = [*TEXTS, LONG, "短"]
    assert served.encode_document(texts) == pytest.approx(model.encode_document(texts), abs=1e-5)
    assert served.contract() == model.contract()
    assert served.document_encoder.count_tokens([LONG]) == model.document_encoder.count_tokens([LONG])


def test_a_text_that_is_too_long_keeps_its_end_marker(served: CareModel, server: EmbeddingServer) -> None:
    served.encode_document([LONG])
    [ids] = server.requests[0]["input"]
    assert len(ids) == served.document_encoder.max_tokens
    assert ids[-1] == 2
    assert (server.requests[0]["path"], server.requests[0]["model"]) == ("/v1/embeddings", "tower")
    assert server.requests[0]["key"] == "Bearer secret"


@pytest.mark.parametrize("sent", ["tokens", "text", "text-without-prompt"])
def test_a_server_gets_what_it_can_take(
    server: EmbeddingServer, model: CareModel, pair_folder: Path, sent: Sent
) -> None:
    """Also of a text that is too long; a prompt that the server adds is not sent, and counts all the same."""
    tokenizer = Tokenizer.from_file(str(pair_folder / "document/tokenizer.json"))
    tokenizer.no_truncation()
    own, limit = model.document_encoder, model.document_encoder.max_tokens
    with httpx.Client(base_url=server.url) as client:
        encoder = RemoteEncoder(client, "tower", tokenizer, dim=own.dim, max_tokens=limit, prompt="咳嗽", sent=sent)
        served = encoder.encode(["耳鸣", LONG])
    given = server.requests[0]["input"]
    if sent == "tokens":
        assert sorted(map(len, given)) == [len(tokenizer.encode("咳嗽耳鸣").ids), limit]
    else:
        short, long = sorted(given, key=len)
        assert short == ("咳嗽耳鸣" if sent == "text" else "耳鸣")
        assert LONG.startswith(long.removeprefix("咳嗽"))
        assert len(tokenizer.encode("咳嗽" + long.removeprefix("咳嗽")).ids) == limit
    if sent != "text-without-prompt":
        assert served == pytest.approx(own.encode(["耳鸣", LONG], prompt="咳嗽"), abs=1e-5)


def test_passing_faults_are_retried(served: CareModel, server: EmbeddingServer, model: CareModel, quick: None) -> None:
    server.faults = [lambda _: (429, {}), lambda _: (503, {})]
    assert served.encode_document(TEXTS[:2]) == pytest.approx(model.encode_document(TEXTS[:2]), abs=1e-5)
    assert len(server.requests) == 3


def test_a_batch_that_is_too_large_is_halved(served: CareModel, server: EmbeddingServer, model: CareModel) -> None:
    server.faults = [lambda tokens: (413, {}) if len(tokens) > 2 else None for _ in range(3)]
    assert served.encode_document(TEXTS[:5]) == pytest.approx(model.encode_document(TEXTS[:5]), abs=1e-5)
    assert [len(request["input"]) for request in server.requests] == [5, 2, 3, 1, 2]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ((400, {"error": "no such model"}), "400"),
        ((200, {"data": []}), "shape"),
        ((200, {"data": [{"index": 0, "embedding": [0.1, 0.2]}]}), "expected"),
        ((200, {"data": [{"index": 0, "embedding": [0.0] * 64}]}), "no length"),
        ((200, {"detail": "?"}), "no list of embeddings"),
    ],
)
def test_useless_answers_are_named(
    served: CareModel, server: EmbeddingServer, answer: tuple[int, Any], problem: str
) -> None:
    server.faults = [lambda _: answer]
    with pytest.raises(EncodingError, match=problem):
        served.encode_document(["短"])
    assert len(server.requests) == 1


def test_a_server_with_other_weights_is_refused(
    server: EmbeddingServer, model: CareModel, reference: ReferenceVectors, pair_folder: Path
) -> None:
    server.change = lambda vectors: np.roll(vectors, 1)
    opened = served_documents(model, pair_folder / "document/tokenizer.json", server.url, "tower", reference)
    with pytest.raises(ModelError, match="serves other weights"), opened:
        pass


def test_reference_vectors_of_another_pair_are_refused(
    served: CareModel, reference: ReferenceVectors, tmp_path: Path
) -> None:
    reference.save(tmp_path / "reference.json")
    assert load_reference(tmp_path / "reference.json") == reference
    other = ReferenceVectors("0" * 64, reference.texts, reference.vectors)
    with pytest.raises(ModelError, match="make them again"):
        check_reference(served.document_encoder, served, other)  # type: ignore[arg-type]
    (tmp_path / "reference.json").write_text("{}")
    with pytest.raises(InputError, match="holds no reference vectors"):
        load_reference(tmp_path / "reference.json")


def test_a_server_that_is_gone_is_said_to_be_gone(
    server: EmbeddingServer, served: CareModel, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    def refuse(*_: object, **__: object) -> httpx.Response:
        raise httpx.ConnectError("connection refused")

    monkeypatch.setattr(httpx.Client, "post", refuse)
    with pytest.raises(Unreachable, match="gave up after 12 attempts"):
        served.encode_document(["短"])


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("care_benchmarks.remote.time.sleep", lambda _seconds: None)


def test_a_run_over_a_server_scores_like_the_pair_alone(
    server: EmbeddingServer, pair_folder: Path, task_directory: Path, tmp_path: Path
) -> None:
    reference = tmp_path / "reference.json"
    arguments = ["reference-vectors", str(pair_folder), "--output", str(reference)]
    assert CliRunner().invoke(care_bench, arguments, catch_exceptions=False).exit_code == 0
    shared = ["run", str(task_directory), "--model", str(pair_folder), "--no-speed"]
    remote = [
        "--document-server",
        server.url,
        "--reference-vectors",
        str(reference),
        "--output",
        str(tmp_path / "remote"),
    ]
    remote += ["--document-server-batch-tokens", "60"]
    for options in (remote, ["--output", str(tmp_path / "local")]):
        assert CliRunner().invoke(care_bench, [*shared, *options], catch_exceptions=False).exit_code == 0
    assert len(server.requests) > 4
    several = [request["input"] for request in server.requests if len(request["input"]) > 1]
    assert max(len(batch) * max(map(len, batch)) for batch in several) <= 60
    one, other = (load_result(tmp_path / name).systems[0] for name in ("remote", "local"))
    for mine, theirs in zip(one.scores, other.scores, strict=True):
        assert mine.value == pytest.approx(theirs.value, abs=1e-4)
