"""Every answer that is not a success, in one shape: ``{"error": reason, "code": word, "request_id": id}``.

Qdrant passes the string under ``error`` on to its client. OpenAI's clients read an object there, so below ``/v1/`` the
same reason and code are ``{"error": {"message", "type", "code", "param"}}``.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from care_qdrant.errors import (
    CareError,
    ContractError,
    EncodingError,
    InputError,
    ModelError,
    NoCollection,
    QdrantError,
    Rejected,
    Unreachable,
)
from care_qdrant.serve.schemas import writable

OPENAI_PREFIX = "/v1/"


class Refusal(CareError):
    """A request that is answered with a reason instead of a result."""

    def __init__(self, status: int, code: str, reason: str, *, param: str | None = None) -> None:
        super().__init__(reason)
        self.status, self.code, self.reason, self.param = status, code, writable(reason), param

    def headers(self) -> dict[str, str]:
        """Return the headers that belong to the status."""
        if self.status == 405:
            return {"allow": self.param or ""}
        if self.status in (429, 503):
            return {"retry-after": "1"}
        if self.status == 401:
            # A browser asks for a user name, which is not read, and a password, which is the key.
            return {"www-authenticate": 'Basic realm="care serve: the API key is the password", charset="UTF-8"'}
        return {}

    def body(self, path: str, request_id: str) -> Mapping[str, Any]:
        """Return the answer, in the shape that clients of the path read."""
        if not path.startswith(OPENAI_PREFIX):
            return {"error": self.reason, "code": self.code, "request_id": request_id}
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": self.reason, "type": kind, "code": self.code, "param": self.param}}


_BY_ERROR: Sequence[tuple[type[CareError], int, str]] = (
    (Unreachable, 503, "qdrant_unreachable"),
    (Rejected, 400, "qdrant_refused"),
    (QdrantError, 503, "qdrant_failed"),
    (ContractError, 409, "contract_mismatch"),
    (ModelError, 409, "contract_mismatch"),
    (EncodingError, 400, "not_encodable"),
    (NoCollection, 404, "unknown_collection"),
    (InputError, 400, "invalid_request"),
)


def refusal_of(error: Exception) -> Refusal | None:
    """Return the refusal that answers an error; None for an error that no request can cause."""
    if isinstance(error, RecursionError):  # raised by any parser of a part of the request
        return Refusal(400, "invalid_request", "the request holds a value that is nested too deeply; send a flat one")
    if isinstance(error, Refusal):
        return error
    for kind, status, code in _BY_ERROR:
        if isinstance(error, kind):
            return Refusal(status, code, reason_of(error))
    return None


def reason_of(error: CareError) -> str:
    """Return the message of an error without the names of other collections, which a client may not know."""
    return error.problem if isinstance(error, NoCollection) else str(error)


_REASONS: Mapping[str, str] = {
    "missing": "is missing",
    "json_invalid": "is not JSON ({error})",
    "literal_error": "expected {expected}",
    "greater_than_equal": "expected a number of at least {ge}",
    "less_than_equal": "expected a number of at most {le}",
    "finite_number": "expected a finite number",
    "too_short": "expected a list of at least {min_length}",
    "too_long": "expected a list of at most {max_length}",
    "string_too_long": "expected at most {max_length} characters",
    **dict.fromkeys(("int_type", "int_parsing", "int_parsing_size", "int_from_float"), "expected a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "expected a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "expected true or false"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "expected an object"),
    "list_type": "expected a list",
    "string_type": "expected a text",
}
"""Sentences for a wrong value, by pydantic's type of the error; its own texts are for programmers."""


def invalid_body(error: ValidationError, fields: Iterable[str]) -> Refusal:
    """Return the refusal of a body that has another shape; it names at most three problems.

    Args:
        error: The problems.
        fields: Names that the body may have.
    """
    problems = error.errors(include_url=False, include_input=False)[:3]
    reasons = "; ".join(_reason(problem, fields) for problem in problems)
    place = problems[0]["loc"]
    return Refusal(400, "invalid_request", reasons, param=str(place[0]) if place else None)


def _reason(problem: Mapping[str, Any], fields: Iterable[str]) -> str:
    kind, facts = problem["type"], problem.get("ctx", {})
    place = ".".join(map(str, problem["loc"])) or "the body"
    if kind == "value_error":  # raised by our own validators, which name the field
        return str(facts["error"])
    if kind == "extra_forbidden":
        return f"{place} is not a field of this request; known: {', '.join(fields) or 'none'}"
    reason = _REASONS.get(kind, "{msg}").format(**facts, msg=problem["msg"])
    return f"{place}{':' if reason.startswith('expected') else ''} {reason}"
