"""The OpenAPI description, made of the endpoints that the service has."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from pydantic import TypeAdapter

from care_qdrant.serve.endpoint import Get, Post
from care_qdrant.serve.gateway import OPEN_PATHS
from care_qdrant.serve.refusal import OPENAI_PREFIX
from care_qdrant.serve.schemas import ErrorAnswer, OpenAIErrorAnswer
from care_qdrant.version import __version__

PATH = "/openapi.json"


def describe(endpoints: Sequence[Post[Any] | Get], *, keys_required: bool) -> dict[str, Any]:
    """Return the description of a service, in OpenAPI 3.1."""
    schemas: dict[str, Any] = {}
    paths = {endpoint.path: {endpoint.method: _operation(endpoint, schemas, keys_required)} for endpoint in endpoints}
    return {
        "openapi": "3.1.0",
        "info": {"title": "care serve", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "basic": {"type": "http", "scheme": "basic", "description": "The key is the password."},
                "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
        },
    }


def _operation(endpoint: Post[Any] | Get, schemas: dict[str, Any], keys_required: bool) -> dict[str, Any]:
    error = OpenAIErrorAnswer if endpoint.path.startswith(OPENAI_PREFIX) else ErrorAnswer
    answer = {"content": _json(endpoint.answer, schemas)} if endpoint.answer is not None else {}
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "responses": {
            "200": {"description": "OK", **answer},
            **{
                str(status): {"description": HTTPStatus(status).phrase, "content": _json(error, schemas)}
                for status in endpoint.errors
            },
        },
    }
    if isinstance(endpoint, Post):
        operation["requestBody"] = {"required": True, "content": _json(endpoint.request, schemas)}
    if keys_required and endpoint.path not in OPEN_PATHS:
        operation["security"] = [{"bearer": []}, {"basic": []}, {"header": []}]
    return operation


def _json(body: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    """Return the media type of a body, after adding the schemas that it refers to."""
    schema = TypeAdapter(body).json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(schema.pop("$defs", {}))
    return {"application/json": {"schema": schema}}
