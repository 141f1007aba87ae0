"""An embeddings cache that keeps queries and documents, and the vectors of different models, apart."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

from llama_index.core.storage.kvstore.types import BaseKVStore
from llama_index.embeddings.care.shared_model import ModelSettings, shared_model
from typing_extensions import override

Role = Literal["query", "document"]
_BASE_COLLECTION = "embeddings"
"""Name under which `BaseEmbedding` keeps the vectors of both roles, by raw text."""

_role: ContextVar[Role] = ContextVar("care_role", default="document")


@contextmanager
def embedding_queries() -> Iterator[None]:
    """Use the cached vectors of queries inside the block, in this thread or task."""
    token = _role.set("query")
    try:
        yield
    finally:
        _role.reset(token)


class RoleCache(BaseKVStore):
    """A key-value store in which one text has one vector per role and model.

    `BaseEmbedding` asks it for ``"embeddings"`` by raw text only: after a document was embedded, a query of
    the same words would get the document's vector. Other collections pass through.
    """

    def __init__(self, inner: BaseKVStore, settings: ModelSettings) -> None:
        """Wrap a store for the model of these settings."""
        self.inner, self.settings = inner, settings

    @override
    def put(self, key: str, val: dict[str, Any], collection: str = _BASE_COLLECTION) -> None:
        self.inner.put(key, val, collection=self._scoped(collection))

    @override
    async def aput(self, key: str, val: dict[str, Any], collection: str = _BASE_COLLECTION) -> None:
        await self.inner.aput(key, val, collection=await self._ascoped(collection))

    @override
    def get(self, key: str, collection: str = _BASE_COLLECTION) -> dict[str, Any] | None:
        return self.inner.get(key, collection=self._scoped(collection))

    @override
    async def aget(self, key: str, collection: str = _BASE_COLLECTION) -> dict[str, Any] | None:
        return await self.inner.aget(key, collection=await self._ascoped(collection))

    @override
    def get_all(self, collection: str = _BASE_COLLECTION) -> dict[str, dict[str, Any]]:
        return self.inner.get_all(collection=self._scoped(collection))

    @override
    async def aget_all(self, collection: str = _BASE_COLLECTION) -> dict[str, dict[str, Any]]:
        return await self.inner.aget_all(collection=await self._ascoped(collection))

    @override
    def delete(self, key: str, collection: str = _BASE_COLLECTION) -> bool:
        return self.inner.delete(key, collection=self._scoped(collection))

    @override
    async def adelete(self, key: str, collection: str = _BASE_COLLECTION) -> bool:
        return await self.inner.adelete(key, collection=await self._ascoped(collection))

    def _scoped(self, collection: str) -> str:
        if collection != _BASE_COLLECTION:
            return collection
        fingerprint = shared_model(self.settings).contract().fingerprint
        settings, role = self.settings, _role.get()
        is_query = role == "query"
        parts = [_BASE_COLLECTION, fingerprint[:16], role]
        parts += [settings.precision] if is_query else []
        # An embedding that refuses long texts must not read the vector of a text that another one has cut.
        parts += ["whole"] if settings.on_truncation == "error" else []
        parts += (
            ["task", settings.query_task] if is_query and settings.query_task and settings.query_prompt is None else []
        )
        prompt = settings.query_prompt if is_query else settings.document_prompt
        # Labelled, or a prompt "whole" would be the name of another cache.
        return "/".join(parts if prompt is None else [*parts, "prompt", prompt])

    async def _ascoped(self, collection: str) -> str:
        """Return `_scoped` from a thread: reading a fingerprint, perhaps from the hub, would block the event loop."""
        return await asyncio.to_thread(self._scoped, collection)
