"""The collections for assistants: a server of the Model Context Protocol, over HTTP at ``/mcp`` or over stdio.

An assistant that embeds its queries by itself takes another model than the one that made the vectors. Here it sends a
text, and the model of the collection answers, behind the same checks and keys as ``POST /search``.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Annotated, Any, Literal

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.server.transport_security import TransportSecuritySettings
from mcp.types import ToolAnnotations
from pydantic import BaseModel, Field, ValidationError
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send
from typing_extensions import override

from care_qdrant.encoders.unread import some_of
from care_qdrant.serve.backend import View
from care_qdrant.serve.endpoint import enter, read_body, while_connected
from care_qdrant.serve.gateway import Exchange
from care_qdrant.serve.keys import EVERYTHING
from care_qdrant.serve.refusal import Refusal, invalid_body, refusal_of
from care_qdrant.serve.schemas import NUMBER, Collections, SearchRequest, WholeDocument, WithoutNulls
from care_qdrant.serve.searching import Searching
from care_qdrant.serve.settings import BodyLimits
from care_qdrant.version import __version__

logger = logging.getLogger(__name__)

MAX_HITS = 50
_GOOD_MATCH_SECONDS = 10.0
"""Longest wait of the first search of a collection for its good-match score."""
_READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_INSTRUCTIONS = (
    "Searches document collections. Ask in the language of the documents, in whole questions or key words. "
    "Where good_match is false, say that the collection seems to have no answer."
)
_EXCHANGE: ContextVar[Exchange] = ContextVar("exchange")
"""The request that a tool is called by; a tool that is called without one fails."""

Collection = Annotated[str | None, Field(description="Name, as list_collections says; null for the only one.")]


class Found(BaseModel):
    """One document that was found, by its best part."""

    document_id: str
    score: float
    title: str
    text: str
    metadata: dict[str, object]
    group: str | int | float | bool | None = Field(default=None, description="Value of the key of group_by.")


class SearchResult(BaseModel):
    """The documents that were found, best first."""

    collection: str
    mode: str
    good_match: bool | None = Field(
        description="Whether the best score is one that the collection's own questions reach; null where unknown, "
        "false where the encoder does not read the query."
    )
    hits: list[Found]
    note: str | None = Field(
        default=None,
        description="Why a condition lets nothing pass or rules nothing out, which words of the query are not read, "
        "whether the texts are in the other script of Chinese, and why documents may be missing, where that is known.",
    )


class _Tool(Tool):
    """A tool whose errors have the same messages as the HTTP endpoints."""

    @override
    async def run(self, arguments: dict[str, Any], context: Context[Any, Any], convert_result: bool = False) -> Any:
        try:
            return await super().run(arguments, context, convert_result)
        except ToolError as error:
            cause = error.__cause__
            if isinstance(cause, ValidationError):
                refusal: Refusal | None = invalid_body(cause, self.fn_metadata.arg_model.model_fields)
            else:
                refusal = refusal_of(cause) if isinstance(cause, Exception) else None
            if refusal is None:  # the assistant reads that the tool failed, and nothing else
                logger.exception("a tool failed")
                raise
            _EXCHANGE.get().code = refusal.code
            raise ToolError(refusal.reason) from cause


def _strict(function: Callable[..., Awaitable[BaseModel]]) -> Tool:
    """Return a tool that refuses unknown arguments, and treats null as not given."""
    tool = _Tool.from_function(function, annotations=_READS)
    # The SDK drops unknown ones, so an assistant that gives `filter` for `conditions` would read unfiltered answers.
    known = tool.fn_metadata.arg_model
    tool.fn_metadata.arg_model = type(known.__name__, (WithoutNulls, known), {}, extra="forbid")
    tool.parameters = tool.fn_metadata.arg_model.model_json_schema(by_alias=True)
    return tool


class McpPath:
    """Serves the tools for assistants, over HTTP at ``/mcp`` or over stdio."""

    def __init__(
        self,
        searching: Searching,
        limits: BodyLimits,
        enter: Callable[[Exchange, str | None], Awaitable[View]],
        collections: Callable[[Exchange], Awaitable[Collections]],
    ) -> None:
        """Set up the tools.

        Args:
            searching: Answers searches.
            limits: Sizes that the body of a request may have.
            enter: Returns the view of the collection that a request means, or refuses what its key is not for.
            collections: Returns the collections that a request may search.
        """
        self._searching, self._limits, self._enter, self._collections = searching, limits, enter, collections
        logging.getLogger().addHandler(logging.NullHandler())  # else the SDK sends all logs to a handler of its own
        tools = [_strict(tool) for tool in (self.search, self.list_collections, self.fetch_document)]
        # No subscriptions: the tools never change, and an open stream would keep a worker from ending.
        self.server = server = MCPServer(
            "care",
            version=__version__,
            instructions=_INSTRUCTIONS,
            tools=tools,
            log_level="WARNING",
            subscriptions=False,
        )
        # Hosts, keys and sizes are checked before a request arrives here.
        trusted = TransportSecuritySettings(enable_dns_rebinding_protection=False)
        server.streamable_http_app(stateless_http=True, json_response=True, transport_security=trusted)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answer at the path while the block runs; once, in the event loop of the requests."""
        async with self.server.session_manager.run():
            yield

    async def run_stdio(self) -> None:
        """Answer over stdin and stdout, with the rights of the user of this process, until stdin is closed."""
        _EXCHANGE.set(Exchange("stdio", "", "", key=EVERYTHING))
        await self.server.run_stdio_async()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        exchange = enter(scope["path"], scope, ("POST",))
        body = [await read_body(Headers(scope=scope), receive, self._limits)]

        async def replay() -> Message:
            if body:
                return {"type": "http.request", "body": body.pop(), "more_body": False}
            await asyncio.Event().wait()  # `while_connected` looks for the end of the connection
            raise AssertionError

        token = _EXCHANGE.set(exchange)
        try:
            handled = self.server.session_manager.handle_request(scope, replay, send)
            await while_connected(handled, receive)
        finally:
            _EXCHANGE.reset(token)

    async def search(
        self,
        query: Annotated[str, Field(description="A question or key words, in the language of the documents.")],
        collection: Collection = None,
        top_k: Annotated[
            int, NUMBER, Field(ge=1, le=MAX_HITS, description="Most documents, or groups, to return.")
        ] = 5,
        mode: Annotated[
            Literal["auto", "dense", "sparse", "hybrid"],
            Field(description="auto is hybrid where the collection has BM25, else by vectors alone."),
        ] = "auto",
        conditions: Annotated[
            list[str] | None,
            Field(
                description="On metadata, all must hold: key=value, key!=value, key>=number, key>=2024-03-01 (a date)."
            ),
        ] = None,
        score_threshold: Annotated[
            float | None,
            NUMBER,
            Field(description="Leave out hits with a lower score; good ones differ by collection."),
        ] = None,
        group_by: Annotated[
            str | None, Field(description="Metadata key: the best hits of each of its values, the best group first.")
        ] = None,
        group_size: Annotated[int, NUMBER, Field(ge=1, le=MAX_HITS, description="Most hits of a group.")] = 1,
    ) -> SearchResult:
        """Find the documents that answer a question, best first."""
        request = SearchRequest(
            query=query,
            collection=collection,
            top_k=top_k,
            mode=mode,
            conditions=conditions or [],
            score_threshold=score_threshold,
            group_by=group_by,
            group_size=group_size,
        )
        entered = await self._enter(_EXCHANGE.get(), request.collection)
        answer = await self._searching.search(request, entered, _GOOD_MATCH_SECONDS)
        notes = [answer.note, answer.unfinished]
        if answer.unread:
            notes.append(
                f"the encoder of this collection does not read {some_of(answer.unread)}, so these scores mean "
                "nothing; search again in the mode 'sparse' (BM25), which compares words"
            )
        return SearchResult(
            collection=answer.collection,
            mode=answer.mode,
            good_match=answer.good_match,
            hits=[Found(**hit.model_dump(include=set(Found.model_fields))) for hit in answer.hits],
            note="; ".join(filter(None, notes)) or None,
        )

    async def list_collections(self) -> Collections:
        """List the collections with their size, example questions, and the keys and values for conditions."""
        return await self._collections(_EXCHANGE.get())

    async def fetch_document(
        self, document_id: Annotated[str, Field(description="As in the hits of search.")], collection: Collection = None
    ) -> WholeDocument:
        """Return the whole text of a document, in the chunks that it is stored in."""
        return await self._searching.document(document_id, await self._enter(_EXCHANGE.get(), collection))
