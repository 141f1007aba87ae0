"""`CareEmbedding`: asymmetric embeddings for LlamaIndex that cannot mix up the two encoders."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from inspect import unwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from llama_index.core.base.embeddings.base import BaseEmbedding, Embedding
from llama_index.core.bridge.pydantic import ConfigDict, Field, PrivateAttr, field_validator, model_validator
from llama_index.core.schema import BaseNode, MetadataMode, Node, TextNode, TransformComponent
from llama_index.embeddings.care.cache import RoleCache, embedding_queries
from llama_index.embeddings.care.shared_model import ModelSettings, OnTruncation, SharedModel, shared_model
from typing_extensions import override

from care_qdrant import Precision
from care_qdrant.encoders.terms.analyser import DEFAULT, Analyser
from care_qdrant.model.hub import BUILT_IN

if TYPE_CHECKING:
    from care_qdrant.contracts.contract import VectorContract
    from care_qdrant.encoders import TokenCounter
    from care_qdrant.types import TermVector, Vectors

DOCUMENT_BATCH_SIZE = 512
"""Documents of one call: the encoder sorts them by length into batches of its own, the more the better."""

TITLE_KEY = "title"


class CareNodeText(TransformComponent):
    """Makes nodes embed as ``care-ingest`` embeds documents: ``"title text"``, without the other metadata.

    LlamaIndex puts ``"key: value"`` lines of all metadata in front of the text by default, and the vectors then differ
    silently from the vectors of the ingestion. `CareEmbedding` does this by itself when it is a transformation of an
    ``IngestionPipeline``; ``VectorStoreIndex`` passes it finished texts, so there this goes into ``transformations``,
    behind what splits documents: ``[SentenceSplitter(), CareNodeText()]``. The metadata stay on the node, for filters
    and for display.
    """

    @classmethod
    @override
    def class_name(cls) -> str:
        return "CareNodeText"

    @override
    def __call__(self, nodes: Sequence[BaseNode], **kwargs: Any) -> Sequence[BaseNode]:
        for node in nodes:
            embed_title_and_text_only(node)
        return nodes


def embed_title_and_text_only(node: BaseNode) -> None:
    """Let a node's embedded text be `care_qdrant.types.embedded_text` of its title and its text.

    LlamaIndex has one template for the embedding model and the language model, so both read the same.
    """
    excluded = sorted(key for key in node.metadata if key != TITLE_KEY or not title_of(node))
    node.excluded_embed_metadata_keys = node.excluded_llm_metadata_keys = excluded
    node.metadata_template = "{value}"
    if isinstance(node, Node | TextNode):
        node.text_template = "{metadata_str} {content}"


def title_of(node: BaseNode) -> str:
    """Return the title of a node, as ingestion reads it: empty where the metadata hold no text there."""
    title = node.metadata.get(TITLE_KEY)
    return title if isinstance(title, str) else ""


def embeds_other_metadata(node: BaseNode) -> bool:
    """Return whether more than title and text of a node get embedded."""
    shown = node.get_metadata_str(mode=MetadataMode.EMBED)
    return shown not in ("", title_of(node))


class CareEmbedding(BaseEmbedding):
    """Queries by the small encoder (ONNX, no torch in the process), documents by the large one.

    Creating one costs nothing; each encoder loads when the first text of its side comes. Objects of equal settings
    share weights, a micro-batching worker and the cache of recent queries; copies and pickles carry the settings only.
    A field that changes a vector cannot be assigned: make another object.

    Example:
        >>> from llama_index.embeddings.care import CareEmbedding
        >>> embedding = CareEmbedding()
        >>> len(embedding.get_query_embedding("耳鸣吃什么药")) == embedding.contract().dim
        True
    """

    # A misspelt setting would silently leave the default in force.
    model_config = ConfigDict(extra="forbid")

    model: str = Field(
        default=BUILT_IN, frozen=True, description="A CARE folder, a hub name, 'built-in', or a symmetric model."
    )
    revision: str | None = Field(default=None, frozen=True, description="Branch, tag or commit on the hub.")
    precision: Precision = Field(
        default="auto", frozen=True, description="Precision of the query encoder; 'auto' is int8 where its gate passed."
    )
    device: str | None = Field(
        default=None, frozen=True, description="Device of the document encoder, as torch names it."
    )
    fingerprint: str | None = Field(
        default=None,
        frozen=True,
        description="Fingerprint that the model must have; another is refused, and to_dict() always writes it.",
    )
    documents: bool = Field(
        default=True, frozen=True, description="False refuses documents, so that no server loads the large encoder."
    )
    query_prompt: str | None = Field(
        default=None, frozen=True, description="Put before each query; None is the model's own prompt."
    )
    query_task: str | None = Field(
        default=None, frozen=True, description="Task of the model whose prompt queries get, where no prompt is given."
    )
    document_prompt: str | None = Field(
        default=None, frozen=True, description="Put before each document; None is the model's own prompt."
    )
    on_truncation: OnTruncation = Field(
        default="warn", frozen=True, description="What happens to a text with more tokens than the encoder reads."
    )
    query_batch_size: int = Field(
        default=32, gt=0, frozen=True, description="Most waiting queries that are encoded in one run."
    )
    query_workers: int = Field(
        default=1, gt=0, frozen=True, description="Runs side by side, each on one core of the CPU."
    )
    query_cache_size: int = Field(
        default=1024, ge=0, frozen=True, description="Recent queries whose vectors are kept; 0 keeps none."
    )
    embed_batch_size: int = Field(
        default=DOCUMENT_BATCH_SIZE, gt=0, le=2048, description="Documents of one call of the encoder."
    )
    embeddings_cache: Any | None = Field(
        default=None,
        frozen=True,
        exclude=True,
        description="A key-value store for vectors; queries and documents are kept apart in it.",
    )

    _shared_model: SharedModel | None = PrivateAttr(default=None)

    @field_validator("model", mode="before")
    @classmethod
    def _accept_path(cls, model: object) -> object:
        return str(model) if isinstance(model, Path) else model

    @model_validator(mode="after")
    def _keep_roles_apart(self) -> Self:
        # Assigned past pydantic: the fields are frozen for callers.
        fields = self.__dict__
        if self.model_name not in ("unknown", self.model):
            raise ValueError(
                f"model_name is {self.model_name!r}, which other embedding classes load; here it is model= that names "
                f"the model, and that is {self.model!r}"
            )
        fields["model_name"] = self.model
        store = self.embeddings_cache
        if store is not None:
            fields["embeddings_cache"] = RoleCache(
                store.inner if isinstance(store, RoleCache) else store, self._settings()
            )
        return self

    @classmethod
    @override
    def class_name(cls) -> str:
        return "CareEmbedding"

    @override
    def to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """Return the settings, and the fingerprint of the model that they lead to now.

        ``IngestionPipeline`` caches by a hash of this: a model that is trained again in place is another model.
        """
        return {**super().to_dict(**kwargs), "fingerprint": self.contract().fingerprint}

    @override
    def __getstate__(self) -> dict[str, Any]:
        """Return the settings with the fingerprint of their model: another model is refused when they are unpickled."""
        state = super().__getstate__()
        settings = {**state["__dict__"], "fingerprint": self.contract().fingerprint}
        private = {**(state["__pydantic_private__"] or {}), "_shared_model": None}
        return {**state, "__dict__": settings, "__pydantic_private__": private}

    @override
    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy; with ``update``, an object of those settings."""
        if update:
            return type(self)(**{**self.__dict__, **update})
        return super().model_copy(deep=deep)

    def contract(self) -> "VectorContract":
        """Return the contract that a collection must carry for this embedding to search it; reads no weights."""
        return self._shared().contract()

    def query_terms(self, text: str, analyser: Analyser = DEFAULT) -> "TermVector":
        """Return a query's BM25 terms: counts, times the weights that the model has learned for them."""
        return self._shared().query_terms(text, analyser)

    @property
    def alpha(self) -> float | None:
        """Share of the dense score in a hybrid search by the model's card; None where collections measure it."""
        return self._shared().alpha

    @property
    def document_tokenizer(self) -> "TokenCounter":
        """Counts tokens as the document encoder does, by the model's own prompt; reads no weights."""
        return self._shared().document_tokenizer

    def encode_query(self, texts: Sequence[str]) -> "Vectors":
        """Encode queries into unit vectors, ``(len(texts), dim)``; without LlamaIndex's events and cache."""
        return self._shared().encode_queries(texts)

    def encode_document(self, texts: Sequence[str]) -> "Vectors":
        """Encode documents into unit vectors, ``(len(texts), dim)``; without LlamaIndex's events and cache.

        Raises:
            InputError: ``documents=False``.
            MissingExtra: The document encoder needs packages that are not installed.
        """
        return self._shared().encode_documents(texts)

    def close(self) -> None:
        """Release the encoders; the last object of these settings ends the worker. The next call loads again."""
        self._shared_model = None

    @override
    def get_query_embedding(self, query: str) -> Embedding:
        self._forget_traces()
        with embedding_queries():
            return _get_query_embedding(self, query)

    @override
    async def aget_query_embedding(self, query: str) -> Embedding:
        self._forget_traces()
        with embedding_queries():
            return await _aget_query_embedding(self, query)

    @override
    def _get_query_embedding(self, query: str) -> Embedding:
        return self._shared().embed_query(query)

    @override
    async def _aget_query_embedding(self, query: str) -> Embedding:
        return await self._shared().aembed_query(query)

    @override
    def _get_text_embedding(self, text: str) -> Embedding:
        return self._get_text_embeddings([text])[0]

    @override
    async def _aget_text_embedding(self, text: str) -> Embedding:
        return (await self._aget_text_embeddings([text]))[0]

    @override
    def _get_text_embeddings(self, texts: list[str]) -> list[Embedding]:
        return self._shared().embed_documents(texts)

    @override
    async def _aget_text_embeddings(self, texts: list[str]) -> list[Embedding]:
        return await asyncio.to_thread(self._shared().embed_documents, texts)

    @override
    def __call__(self, nodes: Sequence[BaseNode], **kwargs: Any) -> Sequence[BaseNode]:
        for node in nodes:
            embed_title_and_text_only(node)
        return super().__call__(nodes, **kwargs)

    @override
    async def acall(self, nodes: Sequence[BaseNode], **kwargs: Any) -> Sequence[BaseNode]:
        for node in nodes:
            embed_title_and_text_only(node)
        return await super().acall(nodes, **kwargs)

    def _forget_traces(self) -> None:
        """Drop the ids of earlier calls: LlamaIndex keeps them for its handlers, and without any it never forgets."""
        if not self.callback_manager.handlers:
            self.callback_manager.trace_map.clear()

    def _shared(self) -> SharedModel:
        if self._shared_model is None:
            self._shared_model = shared_model(self._settings())
        return self._shared_model

    def _settings(self) -> ModelSettings:
        return ModelSettings(**{name: getattr(self, name) for name in ModelSettings.__dataclass_fields__})


# Without their decorator: LlamaIndex decorates the overriding methods, and every call would be two spans in a trace.
_get_query_embedding: Callable[[BaseEmbedding, str], Embedding] = unwrap(BaseEmbedding.get_query_embedding)
_aget_query_embedding: Callable[[BaseEmbedding, str], Coroutine[Any, Any, Embedding]] = unwrap(
    BaseEmbedding.aget_query_embedding
)
