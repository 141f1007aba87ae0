"""The search page, three files whose policy lets them reach nothing but this service, and the OpenAPI description."""

from collections.abc import Mapping, Sequence
from functools import partial
from http import HTTPStatus
from importlib.resources import files
from typing import Any

from pydantic import TypeAdapter
from starlette.responses import Response

from care_qdrant.serve.endpoint import Get, Post
from care_qdrant.serve.gateway import OPEN_PATHS, Exchange
from care_qdrant.serve.refusal import OPENAI_PREFIX
from care_qdrant.serve.schemas import ErrorAnswer, OpenAIErrorAnswer
from care_qdrant.version import __version__

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
_FILES: Mapping[str, tuple[str, str]] = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}

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


def page_files() -> list[Get]:
    """Return the files of the page."""
    folder = files("care_qdrant.serve").joinpath("page")
    return [
        Get(path, name, None, partial(_file, folder.joinpath(name).read_bytes(), media_type))
        for path, (name, media_type) in _FILES.items()
    ]


def _file(content: bytes, media_type: str, _: Exchange) -> Response:
    return Response(content, 200, {"content-security-policy": POLICY, "cache-control": "no-cache"}, media_type)
