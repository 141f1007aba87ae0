"""Settings of `CareVectorStore`, options of its queries, and functions of these alone."""

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol, Self

from llama_index.core.bridge.pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from llama_index.core.vector_stores.types import BasePydanticVectorStore, VectorStoreQueryResult
from qdrant_client import AsyncQdrantClient, QdrantClient, models
from qdrant_client.local.async_qdrant_local import AsyncQdrantLocal
from typing_extensions import override

from care_qdrant.contracts.contract import VectorContract
from care_qdrant.contracts.paths import readings
from care_qdrant.encoders.terms.sparse import Terms
from care_qdrant.errors import InputError
from care_qdrant.qdrant.connection import REQUEST_TIMEOUT_SECONDS, open_server


class HasContract(Protocol):
    """A `CareEmbedding` or a `CareModel`: an object that knows the model of the vectors."""

    def contract(self) -> VectorContract:
        """Return the contract that a collection must carry."""


class StoreSettings(BasePydanticVectorStore):
    """The fields of `CareVectorStore`, for the functions that read, write and create with them.

    They are read at each use: a check of the collection writes the names of the vectors that it chose into them.
    """

    # A misspelt setting would silently leave the default in force.
    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    stores_text: bool = True
    collection_name: str = Field(description="Name or alias.")
    dense_vector_name: str = Field(default="", description="Name of the dense vector; empty for the unnamed one.")
    sparse_vector_name: str = Field(default="", description="Name of the sparse vector; by default the only one.")
    enable_hybrid: bool = Field(
        default=False,
        description="Whether default queries are hybrid; by default where the collection has BM25 of this package.",
    )
    batch_size: int = Field(default=64, gt=0, description="Points of one request of `add`.")
    parallel: int = Field(default=1, gt=0, description="Requests of `add` that are under way at a time.")
    max_retries: int = Field(default=3, description="Attempts of a request that fails temporarily.")
    index_doc_id: bool = Field(default=True, description="Index the ids of documents in a collection that is created.")
    url: str | None = Field(default=None, description="URL of the server, where no client is given.")
    api_key: str | None = Field(default=None, repr=False, description="API key of that server.")
    client_kwargs: dict[str, Any] = Field(default_factory=dict, description="Other settings of that client.")
    fastembed_sparse_model: str | None = Field(default=None, description="Sparse encoder by its name in FastEmbed.")
    sparse_doc_fn: Terms | None = Field(default=None, exclude=True, description="Sparse encoder of nodes.")
    sparse_query_fn: Terms | None = Field(default=None, exclude=True, description="Sparse encoder of queries.")
    hybrid_fusion_fn: Callable[..., VectorStoreQueryResult] | None = Field(
        default=None, exclude=True, description="Fuses the dense and the sparse answer in place of Qdrant."
    )
    payload_indexes: list[dict[str, Any]] | None = Field(
        default=None, exclude=True, description="Indexes to create: field_name and field_schema of each."
    )
    dense_config: models.VectorParams | None = Field(
        default=None, exclude=True, description="Dense vector of a new collection."
    )
    sparse_config: models.SparseVectorParams | None = Field(
        default=None, exclude=True, description="Sparse vector of a new collection."
    )
    quantization_config: Any | None = Field(default=None, exclude=True, description="Quantization of a new collection.")
    shard_number: int | None = Field(default=None, exclude=True, description="Shards of a new collection.")
    replication_factor: int | None = Field(
        default=None, exclude=True, description="Replicas of each shard of a new collection."
    )
    write_consistency_factor: int | None = Field(
        default=None, exclude=True, description="Replicas that confirm a write to a new collection."
    )
    sharding_method: models.ShardingMethod | None = Field(
        default=None, exclude=True, description="CUSTOM for shards by key, chosen by the next two."
    )
    shard_keys: list[models.ShardKey] | None = Field(
        default=None, exclude=True, description="Shard keys of a new collection."
    )
    shard_key_selector_fn: Callable[..., Any] | None = Field(
        default=None, exclude=True, description="Returns the shard keys of a ``shard_identifier``."
    )

    @model_validator(mode="after")
    def _require_shard_keys(self) -> Self:
        by_key = self.sharding_method is models.ShardingMethod.CUSTOM
        if by_key and not (self.shard_key_selector_fn and self.shard_keys):
            raise ValueError("shards by key need shard_key_selector_fn= and shard_keys=")
        return self

    @override
    def to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """Return the settings that the constructor takes."""
        fixed = ("stores_text", "is_embedding_query")
        return {name: value for name, value in super().to_dict(**kwargs).items() if name not in fixed}


class QueryOptions(BaseModel):
    """Keyword options of a query: the stock store's, and the options of `Retriever.search`."""

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid", frozen=True)

    qdrant_filters: models.Filter | None = None
    search_params: models.SearchParams | None = None
    shard_identifier: Any | None = None
    score_threshold: float | None = Field(default=None, allow_inf_nan=False)
    group_by: str | None = None
    group_size: int | None = None
    mmr_threshold: float | None = Field(default=None, ge=0, le=1)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Read the options of a call.

        Raises:
            InputError: An option is unknown, or its value has the wrong type.
        """
        try:
            return cls(**options)
        except ValidationError as error:
            raise wrong_setting(error, cls, "option", "a query", options) from error


_BOUNDS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}


def wrong_setting(
    error: ValidationError, fields: type[BaseModel], kind: str, of: str, shown: Mapping[str, Any] | None = None
) -> InputError:
    """Return the error for the first setting that is unknown, or whose value pydantic refuses.

    Args:
        error: The refusal, whose text is for programmers and shows values, which may be keys.
        fields: Class of the settings.
        kind: Word for a setting.
        of: Object that has the settings.
        shown: Values that the message may show.
    """
    problem = error.errors(include_url=False, include_input=False)[0]
    facts = problem.get("ctx", {})
    if problem["type"] == "value_error":  # raised by our own validator
        return InputError(str(facts["error"]))
    name, *inner = map(str, problem["loc"])
    if name not in fields.model_fields:
        return InputError(f"{of} has no {kind} {name}=; its {kind}s: {', '.join(inspect.signature(fields).parameters)}")
    value = f" is {shown[name]!r}" if shown else ""
    expected = re.sub(r"\b(?:\w+\.)+", "", inspect.formatannotation(fields.model_fields[name].annotation))
    bounds = "".join(f", {sign} {facts[bound]}" for bound, sign in _BOUNDS.items() if bound in facts)
    bounds += ", finite" if problem["type"] == "finite_number" else ""
    at = f" (wrong at {inner[0]!r})" if inner else ""
    return InputError(f"{kind} {name}= of {of}{value}: expected {expected}{bounds}{at}")


def contract_of(embedding: HasContract | None) -> VectorContract | None:
    """Return the contract of the model that makes the vectors; None where no model is given.

    Raises:
        InputError: The embedding does not say which model it is.
    """
    if embedding is not None and not callable(getattr(embedding, "contract", None)):
        raise InputError(
            f"embedding= is a {type(embedding).__name__}, which does not say what made its vectors; expected a "
            "CareEmbedding or a CareModel. For another class, leave embedding= out and give vector_name=, '' for the "
            "unnamed vector"
        )
    return None if embedding is None else embedding.contract()


def open_client(settings: StoreSettings, aclient: AsyncQdrantClient | None) -> QdrantClient:
    """Open the server of an async client, or the one that the settings name."""
    if aclient is None:
        if settings.url is None:
            raise InputError("CareVectorStore needs client=, aclient= or url=")
        options = dict(settings.client_kwargs)
        return open_server(
            settings.url,
            settings.api_key,
            grpc=options.pop("prefer_grpc", False),
            grpc_port=options.pop("grpc_port", None),
            timeout_seconds=options.pop("timeout", REQUEST_TIMEOUT_SECONDS),
            options=options,
        )
    if isinstance(aclient._client, AsyncQdrantLocal):
        raise InputError(
            "aclient= is an embedded database, which only one client can open: give client=QdrantClient(...) in "
            "its place; async calls use it, too"
        )
    return QdrantClient(**aclient.init_options)


def payload_indexes(settings: StoreSettings) -> dict[str, Any]:
    """Return the payload indexes that the settings ask for: payload path to the schema of its index."""
    return {
        path: index.get("field_schema")
        for index in settings.payload_indexes or ()
        for path in readings(index["field_name"])
    }


def shard_keys(settings: StoreSettings, identifier: Any | None) -> Any | None:
    """Return the shard keys of a ``shard_identifier``; None in a collection without shards by key."""
    if identifier is None or settings.sharding_method is not models.ShardingMethod.CUSTOM:
        return None
    return None if settings.shard_key_selector_fn is None else settings.shard_key_selector_fn(identifier)
