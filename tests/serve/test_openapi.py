"""The OpenAPI description says what the service does."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError
from qdrant_client import QdrantClient

from care_qdrant.serve import schemas
from tests.serve.conftest import KEY, aligned, asked, pair


def references(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return own.union(*map(references, node.values()), set())
    return set().union(*map(references, node)) if isinstance(node, list) else set()


async def test_every_reference_leads_somewhere(make_service, connect) -> None:
    said = (await connect(make_service()).get("/openapi.json")).json()
    there = {f"#/components/schemas/{name}" for name in said["components"]["schemas"]}
    assert references(said)
    assert references(said) <= there
    assert {"/inference", "/v1/embeddings", "/search", "/health", "/metrics"} <= set(said["paths"])


async def test_keys_are_described_where_they_are_needed(make_service, connect, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"{KEY}\n")
    http = connect(make_service(keys_file=tmp_path / "keys"))
    paths = (await http.get("/openapi.json", headers={"x-api-key": KEY})).json()["paths"]
    needing = {path for path, methods in paths.items() for operation in methods.values() if "security" in operation}
    assert set(paths) - needing == {"/health", "/ready"}


async def test_answers_have_the_described_shape(make_service, connect, client: QdrantClient) -> None:
    http = connect(make_service(pair(), collections=("corpus",), over=client))
    requests: dict[str, Any] = {
        "/inference": asked("发烧") | {"inputs": asked("发烧")["inputs"] + asked("发烧", model="pair/bm25")["inputs"]},
        "/v1/embeddings": {"input": ["发烧"], "model": "pair"},
    }
    shapes = {"/inference": schemas.InferenceAnswer, "/v1/embeddings": schemas.OpenAIAnswer}
    for path, body in requests.items():
        shapes[path].model_validate_json((await http.post(path, json=body)).text, strict=True)
    for path, shape in {
        "/v1/models": schemas.OpenAIModels,
        "/health": schemas.State,
        "/ready": schemas.State,
        "/collections": schemas.Collections,
    }.items():
        shape.model_validate_json((await http.get(path)).text)
    schemas.ErrorAnswer.model_validate_json((await http.post("/search", json={"query": "发烧"})).text, strict=True)
    schemas.OpenAIErrorAnswer.model_validate_json((await http.get("/v1/embeddings")).text, strict=True)


@pytest.mark.parametrize("content", [b"", b"null", b"[]", b'{"inputs": "\\ud800"}', b"\xff", b"[" * 5000, b"NaN"])
@pytest.mark.parametrize("path", ["/inference", "/v1/embeddings", "/search"])
async def test_no_body_is_a_failure_of_the_service(make_service, connect, path: str, content: bytes) -> None:
    answer = await connect(make_service()).post(path, content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert json.loads(answer.text)["error"]


@pytest.mark.parametrize(
    ("path", "shape", "body"),
    [
        ("/inference", schemas.InferenceRequest, asked("发烧")),
        ("/v1/embeddings", schemas.OpenAIRequest, {"input": "发烧", "model": "pair"}),
        ("/search", schemas.SearchRequest, {"query": "发烧"}),
        ("/good-match", schemas.GoodMatchRequest, {}),
        ("/labels", schemas.LabelRequest, {"query": "发烧", "document_id": "d1", "relevant": True}),
    ],
)
async def test_no_refusal_is_in_the_words_of_a_library(
    make_service, connect, filled: QdrantClient, tmp_path: Path, path: str, shape: type[BaseModel], body: dict[str, Any]
) -> None:
    http = connect(make_service(aligned(), over=filled, record=tmp_path))
    values = [-1, 1.5, True, "x", "x" * 2_000, [], [5], ["x"] * 65, [{"text": "发烧"}], {"must": [5]}, None]
    refused = set()
    for name in [*shape.model_fields, "more"]:
        for changed in [body | {name: value} for value in values] + [
            {field: value for field, value in body.items() if field != name}
        ]:
            answer = await http.post(path, json=changed)
            if answer.status_code != 400:
                continue
            refused.add(name)
            try:
                shape.model_validate(changed)
                problems = []
            except ValidationError as error:
                problems = [each["msg"] for each in error.errors() if each["type"] != "value_error"]
            for words in [*problems, "Input should", "union[", "Value error"]:
                assert words not in answer.text, (changed, answer.text)
    assert refused >= {name for name, field in shape.model_fields.items() if field.is_required()}
