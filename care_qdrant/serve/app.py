"""One worker's service: its models, its collections, its keys, and the ASGI application over them."""

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from starlette.responses import Response
from starlette.types import ASGIApp

from care_qdrant.errors import needs_extra
from care_qdrant.model.care_model import CareModel
from care_qdrant.serve import pages, schemas
from care_qdrant.serve.backend import Backend, View
from care_qdrant.serve.catalogue import Catalogue
from care_qdrant.serve.embeddings import SIDES, infer, openai_embeddings, openai_models
from care_qdrant.serve.endpoint import Get, Post
from care_qdrant.serve.gateway import METRICS_PATH, Exchange, Gateway, unknown_key
from care_qdrant.serve.keys import Key, Keys, KeyScope
from care_qdrant.serve.metrics import CONTENT_TYPE, Metrics
from care_qdrant.serve.models import ServedModel, ServedModels, check_answers
from care_qdrant.serve.refusal import Refusal
from care_qdrant.serve.searching import Searching
from care_qdrant.serve.settings import ServeSettings
from care_qdrant.version import __version__

if TYPE_CHECKING:
    from care_qdrant.serve.mcp import McpPath

logger = logging.getLogger(__name__)

MCP_PATH = "/mcp"
_TOKEN = re.compile(rb'"token"\s*:\s*("(?:[^"\\]|\\.)*+")')
"""A key in a body, as JSON writes it; inside a text the quotes are escaped, and it does not match."""
_MAX_TOKENS = 16
"""Most ``token`` values of a body that are tried as its key before the body is parsed."""
_SEARCH_ERRORS = (400, 401, 403, 404, 408, 409, 413, 415, 421, 429, 503)


class Service:
    """The service of one worker process. `app` is the ASGI application."""

    def __init__(self, settings: ServeSettings, models: Sequence[CareModel]) -> None:
        """Load the query encoders; `load` makes the service ready."""
        self._limits, self._metrics = settings.limits, Metrics()
        self._keys = Keys(settings.keys_file)
        self.models = ServedModels(
            [
                ServedModel(model, documents=settings.documents, limits=settings.limits, metrics=self._metrics)
                for model in models
            ]
        )
        for served in self.models:
            self._metrics.build_info.labels(__version__, served.name, served.fingerprint).set(1)
        self._backend = Backend(settings)
        self._catalogue = Catalogue(self._backend, self.models)
        self._searching = Searching(self._backend, self.models, self._metrics)
        self.mcp = self._make_mcp() if settings.mcp else None
        self.app = Gateway(
            self._paths(),
            keys=self._keys,
            metrics=self._metrics,
            host=settings.host,
            metrics_port=settings.metrics_port,
        )

    async def load(self) -> None:
        """Check the query encoders, then load and check the document encoders; queries are answered meanwhile."""
        for served in self.models:
            await check_answers(served, "query")
        for served in self.models:
            if served.document is not None:
                await served.document.load()
                await check_answers(served, "document")
                served.document.ready = True
                logger.info("the document encoder of %s is loaded", served.name)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the MCP server, if there is one, in the event loop of the requests while the block runs."""
        async with nullcontext() if self.mcp is None else self.mcp.running():
            yield

    def close(self) -> None:
        """Answer the accepted requests, then close the models and the connection to Qdrant."""
        self._backend.close()
        for served in self.models:
            served.close()

    def _paths(self) -> Mapping[str, ASGIApp]:
        endpoints = self._endpoints()
        description = pages.describe(endpoints, keys_required=self._keys.required)
        endpoints += [Get(pages.PATH, "This description.", None, lambda _: description), *pages.page_files()]
        paths: dict[str, ASGIApp] = {endpoint.path: endpoint for endpoint in endpoints}
        return paths if self.mcp is None else paths | {MCP_PATH: self.mcp}

    def _endpoints(self) -> list[Post[Any] | Get]:
        texts, other = self._limits.texts_body, self._limits.other_body
        return [
            Post(
                "/inference",
                "Vectors for a Qdrant server whose inference.address is this.",
                schemas.InferenceRequest,
                schemas.InferenceAnswer,
                self._infer,
                texts,
                check_body=self._check_token,
            ),
            Post(
                "/v1/embeddings",
                "Vectors in the shape of OpenAI.",
                schemas.OpenAIRequest,
                schemas.OpenAIAnswer,
                self._openai,
                texts,
            ),
            Get(
                "/v1/models",
                "The models in the shape of OpenAI.",
                schemas.OpenAIModels,
                lambda _: openai_models(self.models),
            ),
            Post(
                "/search",
                "Hits of a query in a served collection.",
                schemas.SearchRequest,
                schemas.SearchAnswer,
                self._search,
                other,
                errors=_SEARCH_ERRORS,
            ),
            Post(
                "/good-match",
                "The score below which a best hit is not a good match.",
                schemas.GoodMatchRequest,
                schemas.GoodMatchAnswer,
                self._good_match,
                other,
                errors=_SEARCH_ERRORS,
            ),
            Post(
                "/labels",
                "A judgement of a hit, kept as a labelled question (--record).",
                schemas.LabelRequest,
                schemas.LabelAnswer,
                self._label,
                other,
                errors=_SEARCH_ERRORS,
            ),
            Get(
                "/collections",
                "What each served collection holds and can be asked.",
                schemas.Collections,
                self._collections,
                (401, 404, 421),
            ),
            Get("/health", "Whether the process answers, and what it serves.", schemas.State, self._state, ()),
            Get("/ready", "Whether every encoder is loaded.", schemas.State, self._ready, (503,)),
            Get(METRICS_PATH, "Counters for Prometheus.", None, self._render_metrics, (401, 403)),
        ]

    def _check_token(self, body: bytes, exchange: Exchange) -> None:
        """Refuse a body that holds no accepted key, before it is parsed: Qdrant sends its key there."""
        if exchange.key is not None:
            return
        tokens = [match[1] for match in islice(_TOKEN.finditer(body), _MAX_TOKENS)]
        if all(self._keys.identify(_text_of(token)) is None for token in tokens):
            raise unknown_key(given=bool(tokens))

    async def _infer(self, request: schemas.InferenceRequest, exchange: Exchange) -> dict[str, Any]:
        if exchange.key is None:
            exchange.key = self._keys.identify(request.token)
            if exchange.key is None:
                raise unknown_key(given=request.token is not None)
        models = sorted({item.model for item in request.inputs})
        side = SIDES[request.inference]
        self._enter(exchange, "inference", len(request.inputs), side=side, model=",".join(models)[:200])
        return await infer(self.models, self._limits, request)

    async def _openai(self, request: schemas.OpenAIRequest, exchange: Exchange) -> dict[str, Any]:
        texts = 1 if isinstance(request.input, str) else len(request.input)
        self._enter(exchange, "inference", texts, side=request.side, model=request.model[:200])
        return await openai_embeddings(self.models, request)

    async def _search(self, request: schemas.SearchRequest, exchange: Exchange) -> schemas.SearchAnswer:
        view = await self._enter_search(exchange, request.collection, mode=request.mode, top_k=request.top_k)
        answer = await self._searching.search(request, view)
        exchange.facts.update(timing_ms=answer.timing_ms.model_dump())
        return answer

    def _enter(
        self, exchange: Exchange, scope: KeyScope, texts: int, collection: str | None = None, **facts: Any
    ) -> None:
        """Record what a request asks for; refuse it if its key does not allow it."""
        exchange.facts.update(texts=texts, collection=collection, **facts)
        key = _key_of(exchange)
        key.require(scope, collection)
        self._metrics.asked_texts.labels(key.id, scope, collection or "").inc(texts)

    async def _enter_search(self, exchange: Exchange, name: str | None, **facts: Any) -> View:
        """Return the view of the collection to search; a key without access to it learns no names of collections."""
        key = _key_of(exchange)
        key.require_search(name)
        view = await self._catalogue.served(name, key)
        self._enter(exchange, "search", 1, view.collection, **facts)
        return view

    async def _good_match(self, request: schemas.GoodMatchRequest, exchange: Exchange) -> schemas.GoodMatchAnswer:
        view = await self._enter_search(exchange, request.collection, mode=request.mode)
        score = await self._searching.good_match_score(request, view)
        return schemas.GoodMatchAnswer(good_match_score=score)

    async def _label(self, request: schemas.LabelRequest, exchange: Exchange) -> schemas.LabelAnswer:
        view = await self._enter_search(exchange, request.collection)
        return await self._searching.label(request, view)

    async def _collections(self, exchange: Exchange) -> schemas.Collections:
        return await self._catalogue.states(_key_of(exchange))

    def _make_mcp(self) -> "McpPath":
        with needs_extra("mcp", "care serve --mcp"):
            from care_qdrant.serve.mcp import McpPath

        return McpPath(self._searching, self._limits.other_body, self._enter_search, self._collections)

    def _ready(self, exchange: Exchange) -> schemas.State:
        state = self._state(exchange)
        if state.status != "ok":
            raise Refusal(503, "not_ready", f"this worker is {state.status}; ask again later")
        return state

    def _state(self, exchange: Exchange) -> schemas.State:
        models = [
            schemas.ModelState(
                name=served.name,
                fingerprint=served.fingerprint,
                dim=served.dim,
                documents=served.document is not None,
                ready=served.ready,
            )
            for served in self.models
        ]
        status: Literal["ok", "loading", "draining"] = "ok" if all(model.ready for model in models) else "loading"
        if self.app.draining:
            status = "draining"
        return schemas.State(status=status, version=__version__, models=[] if exchange.key is None else models)

    async def _render_metrics(self, exchange: Exchange) -> Response:
        _key_of(exchange).require("metrics")
        return Response(await asyncio.to_thread(self._metrics.render), media_type=CONTENT_TYPE)


def serve_stdio(settings: ServeSettings) -> None:
    """Answer an assistant over stdin and stdout until it closes stdin. Logs go to stderr."""

    async def answer(service: Service) -> None:
        await service.load()
        assert service.mcp is not None  # set by `ServeSettings.mcp`
        await service.mcp.run_stdio()

    with closing(Service(settings, settings.load_models())) as service:
        asyncio.run(answer(service))


def _text_of(token: bytes) -> str | None:
    """Return the text of a JSON string; None for anything else."""
    try:
        text = json.loads(token)
    except ValueError:
        return None
    return text if isinstance(text, str) else None


def _key_of(exchange: Exchange) -> Key:
    """Return the key of a request; refuse one without a key."""
    if exchange.key is None:
        raise unknown_key(given=False)
    return exchange.key
