"""A local page on which experts rate a blind sample by key, one pair at a time, in the style of `care serve`."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from typing import Annotated, Any, Literal

from care_trainer.config.stages import STRICT
from pydantic import StringConstraints, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from care_data.agreement import binary, pairs, table
from care_data.config import Config
from care_data.files import line
from care_data.prompts import GRADES, LETTERS
from care_data.sheets import OPINIONS, Task, page_opinions
from care_qdrant.serve.pages import POLICY

_FILES = {
    "/": ("care_data", "page/index.html", "text/html"),
    "/review.js": ("care_data", "page/review.js", "text/javascript"),
    "/review.css": ("care_data", "page/review.css", "text/css"),
    "/page.css": ("care_qdrant.serve", "page/page.css", "text/css"),
}


@dataclass(frozen=True, config=STRICT)
class Opinion:
    """One grade of one expert."""

    expert: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=100)]
    query_id: str
    document_id: str
    grade: Literal["S", "A", "B", "C", "D"]


def review_app(config: Config, tasks: Sequence[Task]) -> Starlette:
    """Return the web app that shows a sample. A grade is on disk before it is acknowledged."""
    known = {(task.query_id, task.document_id) for task in tasks}

    async def show(request: Request) -> Response:
        package, name, kind = _FILES[request.url.path]
        headers = {"content-security-policy": POLICY, "cache-control": "no-cache"}
        return Response(files(package).joinpath(name).read_bytes(), headers=headers, media_type=kind)

    async def given(request: Request) -> Response:
        expert = request.query_params.get("expert", "").strip()
        own = {key[1:]: grade for key, grade in page_opinions(config).items() if key[0] == expert}
        grades = [LETTERS.get(own.get((task.query_id, task.document_id), -1)) for task in tasks]
        rows = [asdict(task) | {"grade": grade} for task, grade in zip(tasks, grades, strict=True)]
        return JSONResponse({"tasks": rows, "agreement": _agreement(config, expert) if all(grades) else []})

    async def say(request: Request) -> Response:
        # A page of another site can send no JSON without asking first.
        said = await request.body() if request.headers.get("content-type") == "application/json" else b""
        try:
            opinion = TypeAdapter(Opinion).validate_json(said)
        except ValidationError:
            problem = f"expected expert, query_id and document_id as texts, and a grade of {', '.join(GRADES)}"
            return JSONResponse({"error": problem}, status_code=400)
        if (opinion.query_id, opinion.document_id) not in known:
            return JSONResponse({"error": "the pair is not in this sample"}, status_code=400)
        with (config.folder / OPINIONS).open("ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                # A last line without a line break is from a page that was killed: the next row must not continue it.
                file.write(b"" if file.read(1) == b"\n" else b"\n")
            file.write(line(asdict(opinion)).encode())
            file.flush()
            os.fsync(file.fileno())
        return JSONResponse({"stored": True})

    routes = [Route(path, show) for path in _FILES]
    routes += [Route("/tasks", given), Route("/opinions", say, methods=["POST"])]
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])
    return Starlette(routes=routes, middleware=[hosts])


def _agreement(config: Config, expert: str) -> list[Mapping[str, Any]]:
    """Return the agreement of an expert with every other one, for the time when the expert has rated all pairs."""
    opinions: dict[tuple[str, str], dict[str, int | None]] = {}
    for (name, query, document), grade in page_opinions(config).items():
        opinions.setdefault((query, document), {})[name] = grade
    names = sorted({name for of in opinions.values() for name in of})
    votes = binary(table(list(opinions.values()), names))
    return [pair for pair in pairs(votes, names, [query for query, _ in opinions]) if expert in pair["raters"]]
