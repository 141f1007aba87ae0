"""One worker's service: its pairs, its collections, its keys, and the ASGI application over them."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Literal

from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from care_qdrant.model.pair import CareModel
from care_qdrant.serve import openapi, schemas
from care_qdrant.serve.embeddings import openai_embeddings, openai_models, tei_embed
from care_qdrant.serve.endpoint import Get, Post, Reply
from care_qdrant.serve.gateway import Exchange, Gateway, unknown_key
from care_qdrant.serve.inference import SIDES, infer
from care_qdrant.serve.keys import Keys
from care_qdrant.serve.metrics import CONTENT_TYPE, Metrics
from care_qdrant.serve.pages import PATHS, PageFile
from care_qdrant.serve.pairs import Pairs, ServedPair
from care_qdrant.serve.refusal import Refusal
from care_qdrant.serve.searching import Searching
from care_qdrant.serve.settings import ServeSettings
from care_qdrant.version import __version__

logger = logging.getLogger(__name__)


class Service:
    """What one worker process serves. `app` is the ASGI application."""

    def __init__(self, settings: ServeSettings, models: Sequence[CareModel]) -> None:
        """Load the query encoders; `load` makes the service ready."""
        self._limits, self._page = settings.limits, settings.page
        self._metrics = Metrics()
        self._keys = Keys(settings.keys_file)
        self.pairs = Pairs(
            [
                ServedPair(model, documents=settings.documents, limits=settings.limits, metrics=self._metrics)
                for model in models
            ]
        )
        self._searching = Searching(settings, self.pairs)
        self.app = Gateway(self._routes(), keys=self._keys, metrics=self._metrics, host=settings.host)

    async def load(self) -> None:
        """Encode a query with each pair, then load the document encoders; queries are answered meanwhile."""
        for pair in self.pairs:
            await pair.encode(["高血压"], "query")
        for pair in self.pairs:
            if pair.document is not None:
                await pair.document.load()
                logger.info("the document encoder of %s is loaded", pair.name)

    def close(self) -> None:
        """Answer what was accepted, then let everything go."""
        self._searching.close()
        for pair in self.pairs:
            pair.close()

    def _routes(self) -> Router:
        endpoints = self._endpoints()
        description = openapi.describe(endpoints, keys_required=self._keys.required)

        async def describe() -> dict[str, Any]:
            return description

        endpoints.append(Get(openapi.PATH, "This description.", None, describe))
        routes = [Route(endpoint.path, endpoint) for endpoint in endpoints]
        if self._page:
            routes += [Route(path, PageFile(path)) for path in PATHS]
        return Router(routes, redirect_slashes=False, default=_unknown_path)

    def _endpoints(self) -> list[Post[Any] | Get]:
        limits = self._limits
        return [
            Post(
                "/inference",
                "Vectors for a Qdrant server whose inference.address is this.",
                schemas.InferenceRequest,
                schemas.InferenceAnswer,
                self._infer,
                limits,
            ),
            Post(
                "/v1/embeddings",
                "Vectors in the shape of OpenAI.",
                schemas.OpenAIRequest,
                schemas.OpenAIAnswer,
                self._openai,
                limits,
            ),
            Get("/v1/models", "The pairs in the shape of OpenAI.", schemas.OpenAIModels, self._models),
            Post(
                "/embed",
                "Vectors in the shape of text-embeddings-inference.",
                schemas.EmbedRequest,
                list[list[float]],
                self._embed,
                limits,
            ),
            Post(
                "/search",
                "Hits of a query in a configured collection.",
                schemas.SearchRequest,
                schemas.SearchAnswer,
                self._search,
                limits,
                errors=(400, 401, 404, 408, 409, 413, 415, 421, 429, 503),
            ),
            Get(
                "/collections", "What each configured collection can be asked.", schemas.Collections, self._collections
            ),
            Get("/health", "Whether the process answers, and what it serves.", schemas.State, self._health, ()),
            Get("/ready", "Whether every encoder is loaded.", schemas.State, self._ready, (503,)),
            Get("/metrics", "Counters for Prometheus.", None, self._render_metrics, ()),
        ]

    async def _infer(self, request: schemas.InferenceRequest, exchange: Exchange) -> dict[str, Any]:
        if self._keys.required and exchange.key is None:
            exchange.key = self._keys.identify(request.token)
            if exchange.key is None:
                raise unknown_key(given=request.token is not None)
        models = sorted({item.model for item in request.inputs})
        exchange.facts.update(texts=len(request.inputs), side=SIDES[request.inference], model=",".join(models)[:200])
        return await infer(self.pairs, self._limits, request)

    async def _openai(self, request: schemas.OpenAIRequest, exchange: Exchange) -> dict[str, Any]:
        exchange.facts.update(
            texts=1 if isinstance(request.input, str) else len(request.input),
            side=request.input_type,
            model=request.model[:200],
        )
        return await openai_embeddings(self.pairs, request)

    async def _embed(self, request: schemas.EmbedRequest, exchange: Exchange) -> list[list[float]]:
        texts = 1 if isinstance(request.inputs, str) else len(request.inputs)
        exchange.facts.update(texts=texts, side=request.prompt_name or "query", model=self.pairs.default.name)
        return await tei_embed(self.pairs, request)

    async def _search(self, request: schemas.SearchRequest, exchange: Exchange) -> schemas.SearchAnswer:
        exchange.facts.update(texts=1, mode=request.mode, collection=request.collection, top_k=request.top_k)
        answer = await self._searching.search(request)
        exchange.facts.update(collection=answer.collection, timing_ms=answer.timing_ms.model_dump())
        return answer

    async def _collections(self) -> schemas.Collections:
        return await self._searching.collections()

    async def _models(self) -> dict[str, Any]:
        return openai_models(self.pairs)

    async def _health(self) -> schemas.State:
        return self._state()

    async def _ready(self) -> schemas.State:
        state = self._state()
        if state.status != "ok":
            raise Refusal(503, "not_ready", f"this worker is {state.status}; ask again later")
        return state

    def _state(self) -> schemas.State:
        models = [
            schemas.PairState(
                name=pair.name,
                fingerprint=pair.fingerprint,
                dim=pair.dim,
                documents=pair.document is not None,
                ready=pair.ready,
            )
            for pair in self.pairs
        ]
        status: Literal["ok", "loading", "draining"] = "ok" if all(model.ready for model in models) else "loading"
        if self.app.draining:
            status = "draining"
        return schemas.State(status=status, version=__version__, models=models)

    async def _render_metrics(self) -> Reply:
        return Reply(await asyncio.to_thread(self._metrics.render), CONTENT_TYPE)


async def _unknown_path(_scope: Scope, _receive: Receive, _send: Send) -> None:
    raise Refusal(404, "unknown_path", f"there is nothing at this path; {openapi.PATH} describes what there is")
