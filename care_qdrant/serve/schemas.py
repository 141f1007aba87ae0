"""The bodies of requests and answers; the OpenAPI description is made of these classes."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticKnownError


def _without_booleans(given: Any) -> Any:
    if isinstance(given, bool):
        raise PydanticKnownError("float_type")
    return given


NUMBER = BeforeValidator(_without_booleans)
"""Refuses true and false where a number belongs; pydantic takes them for 1 and 0."""
Texts = Annotated[list[StrictStr], Field(min_length=1, fail_fast=True)]
Tokens = Annotated[list[StrictInt], Field(min_length=1, fail_fast=True)]


def _in_one_sentence(given: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    """Refuse a value with a single message instead of a message for each form that it may have."""
    try:
        return handler(given)
    except ValidationError as error:
        raise ValueError("input: expected a text, or a list of at least one text") from error


OpenAIInput = Annotated[
    StrictStr | Texts | Tokens | Annotated[list[Tokens], Field(min_length=1, fail_fast=True)],
    WrapValidator(_in_one_sentence),
]
Name = Annotated[StrictStr, Field(max_length=1_000)]
"""A name, an id or a condition, whose length bounds the time that reading it takes."""


_MOST_NESTED = 100
"""Depth from which on stored values are left out; serialisers refuse some 250."""


def writable(stored: Any, depth: int = 0) -> Any:
    """Return a value with texts in place of the parts that JSON cannot hold, which an embedded database may store.

    These are halves of characters, NaN, infinite numbers, and values that are nested deeply.
    """
    if isinstance(stored, str):
        return stored if stored.isascii() else stored.encode("utf-8", "replace").decode()
    if isinstance(stored, float):
        return stored if math.isfinite(stored) else str(stored)
    if isinstance(stored, Mapping | list) and depth == _MOST_NESTED:
        return "…"
    if isinstance(stored, Mapping):
        return {writable(key): writable(value, depth + 1) for key, value in stored.items()}
    return [writable(value, depth + 1) for value in stored] if isinstance(stored, list) else stored


_WRITABLE = BeforeValidator(writable)
Text = Annotated[str, _WRITABLE]
Scalar = Annotated[str | int | float | bool, _WRITABLE]
Metadata = Annotated[dict[str, Any], _WRITABLE]


class WithoutNulls(BaseModel):
    """A body in which null counts as absent, as many clients and assistants send it."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        optional = {name for name, field in cls.model_fields.items() if not field.is_required()}
        return {name: value for name, value in body.items() if value is not None or name not in optional}


class _Request(WithoutNulls):
    # A misspelt field would silently leave its default in force.
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class _Foreign(WithoutNulls):
    """A body whose shape belongs to others, who may add fields."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)


class InferenceInput(_Foreign):
    """One text that a client of Qdrant sent instead of a vector."""

    data: Any = Field(description="The text; Qdrant also sends images and objects, which are refused.")
    data_type: str = "text"
    model: StrictStr = Field(description="`name`, `name@fingerprint` or `name/bm25`.")
    options: dict[str, Any] | None = Field(
        default=None,
        description="For documents of `name/bm25`: `average_length`, `k1`, `b`, `lead` of the collection's record of "
        "BM25.",
    )


class InferenceRequest(_Foreign):
    """The request of a Qdrant server to its `inference.address`."""

    inputs: Annotated[list[InferenceInput], Field(fail_fast=True)]
    inference: Literal["search", "update"] = Field(
        description="`search` takes the query encoder, `update` the document encoder."
    )
    token: StrictStr | None = Field(default=None, description="The server's `inference.token`: an API key.")


class SparseVector(BaseModel):
    """Terms of a text as a sparse vector."""

    indices: list[int]
    values: list[float]


class InferenceAnswer(BaseModel):
    """One vector for each input, in order."""

    embeddings: list[list[float] | SparseVector]
    usage: None = None


_SIDES_OF_OTHERS = {
    "search_query": "query",
    "retrieval.query": "query",
    "retrieval_query": "query",
    "search_document": "document",
    "passage": "document",
    "retrieval.passage": "document",
    "retrieval_document": "document",
}


def _own_side(word: Any) -> Any:
    """Return the side that another service's word stands for; any other value is returned as it is."""
    return _SIDES_OF_OTHERS.get(word.lower(), word) if isinstance(word, str) else word


_Side = Annotated[Literal["query", "document"] | None, BeforeValidator(_own_side)]


_CUTTING = ("truncate", "truncation")
"""Fields by which clients of other services let texts be cut at their end (true, ``END``) or forbid it (``NONE``)."""
_WITHOUT_EFFECT = {"user", "metadata", "modality", "normalize", "normalized", "priority", "request_id", "timeout"} | {
    "add_special_tokens",
    *_CUTTING,
}
"""Fields of other services that change no vector of this one, as clients send them."""


class OpenAIRequest(_Foreign):
    """OpenAI's request for embeddings, and the side of the model in any of the words that clients have for it."""

    model_config = ConfigDict(extra="allow")

    input: OpenAIInput = Field(description="Texts. Token numbers are refused: they belong to another tokenizer.")
    model: StrictStr
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int | None, NUMBER] = Field(default=None, description="Must be the model's own, where given.")
    input_type: _Side = Field(
        default=None,
        description="The side of the model, `query` where nothing says it. Words of Cohere, NVIDIA, Jina and Google "
        "are read as well: `search_query`, `search_document`, `passage`, `retrieval.query`, `retrieval.passage`, "
        "`RETRIEVAL_QUERY`, `RETRIEVAL_DOCUMENT`. Any other task is refused.",
    )
    task: _Side = Field(default=None, description="The same, as Jina's clients name it.")
    task_type: _Side = Field(default=None, description="The same, as Google's clients name it.")
    prompt_name: _Side = Field(default=None, description="The same, as sentence-transformers names it.")

    @property
    def side(self) -> Literal["query", "document"]:
        """The side that the request names."""
        return self.input_type or self.task or self.task_type or self.prompt_name or "query"

    @property
    def may_cut(self) -> bool:
        """Whether a text that is longer than the encoder reads may be cut at its end."""
        given = [(self.model_extra or {}).get(name) for name in _CUTTING]
        return all(value in (None, True) or str(value).upper() == "END" for value in given)

    @model_validator(mode="after")
    def _agree(self) -> "OpenAIRequest":
        asked = {name for name, value in (self.model_extra or {}).items() if value not in (None, False, "float")}
        if unknown := sorted(name[:100] for name in asked - _WITHOUT_EFFECT):
            raise ValueError(
                f"{', '.join(unknown[:3])}: not known here, and may ask for another vector; leave it out. "
                "The side of the model is input_type: query or document"
            )
        if len({self.input_type, self.task, self.task_type, self.prompt_name} - {None}) > 1:
            raise ValueError("input_type, task, task_type and prompt_name name two sides; give one of them")
        return self


class OpenAIEmbedding(BaseModel):
    """One vector."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class OpenAIUsage(BaseModel):
    """Tokens that the texts have, those that the encoder cut off included."""

    prompt_tokens: int
    total_tokens: int


class OpenAIAnswer(BaseModel):
    """OpenAI's answer."""

    object: Literal["list"] = "list"
    data: list[OpenAIEmbedding]
    model: str
    usage: OpenAIUsage
    truncated: list[int] = Field(
        default=[], description="Not OpenAI's: indexes of the texts that were cut at the encoder's token limit."
    )


class OpenAIModel(BaseModel):
    """A model that is served."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "care-qdrant"


class OpenAIModels(BaseModel):
    """All models that are served."""

    object: Literal["list"] = "list"
    data: list[OpenAIModel]


class SearchRequest(_Request):
    """One search in a served collection."""

    query: StrictStr
    collection: StrictStr | None = Field(default=None, description="Where not given, the first that is configured.")
    model: StrictStr | None = Field(
        default=None,
        description="Where not given, the one that the collection was switched to, or the first that can.",
    )
    mode: Literal["auto", "dense", "sparse", "hybrid"] = Field(
        default="auto", description="`auto` is `hybrid` where the collection has a BM25 vector, else `dense`."
    )
    top_k: Annotated[int, NUMBER] = Field(default=10, ge=1, description="Documents, or groups, to return.")
    score_threshold: Annotated[float | None, NUMBER] = Field(
        default=None,
        description="Hits with a lower score are left out: the score that hits have, in a hybrid search the fused one. "
        "`/good-match` answers one that suits the collection. Not for `rrf` and `dbsf`, whose scores tell ranks.",
    )
    group_by: Name | None = Field(
        default=None,
        description="Metadata key whose values make the groups; null groups by document. The hits of the best group "
        "come first. A document with a list of values is in several groups, one without the key in none.",
    )
    group_size: Annotated[int, NUMBER] = Field(
        default=1, ge=1, description="Most hits of a group; more than one needs `group_by`."
    )
    conditions: list[Name] = Field(
        default=[],
        max_length=64,
        description="On metadata, such as `dept=内科`, `dept!=外科`, `year>=2020`, `date>=2024-03-01`; all must hold. "
        "A key that holds `=`, `<`, `>` or `!` stands in double quotes.",
    )
    filter: dict[str, Any] | None = Field(default=None, description="A filter of Qdrant, beyond the conditions.")
    fusion: Literal["linear", "dbsf", "rrf"] = "linear"
    alpha: Annotated[float | None, NUMBER] = Field(
        default=None,
        ge=0,
        le=1,
        description="Weight of the dense list in `linear` and `rrf`; null is 0.5 for `rrf`, and for `linear` what the "
        "model's card or `care learn` says, or what is measured at the first search.",
    )
    marks: bool = Field(
        default=False, description="Whether the terms of the query are found in the texts of the first 100 hits."
    )


class SearchHit(BaseModel):
    """One document, by its best chunk."""

    document_id: Text
    point_id: str
    score: float
    text: Text
    title: Text
    chunk: int
    metadata: Metadata
    group: Scalar | None = Field(
        default=None, description="Value of the key that the hits are grouped by; null where they are by document."
    )
    marks: list[tuple[int, int]] = Field(description="Terms of the query in the text: first character, end.")
    title_marks: list[tuple[int, int]] = Field(description="The same in the title.")
    relevant: bool | None = Field(
        default=None, description="The last judgement of this hit for this query (`POST /labels`); null for none."
    )


class GoodMatchRequest(_Request):
    """A way to search, whose scores are to be judged."""

    collection: StrictStr | None = None
    model: StrictStr | None = None
    mode: Literal["auto", "dense", "hybrid"] = "auto"


class GoodMatchAnswer(BaseModel):
    """The good-match score of a way to search."""

    good_match_score: float | None = Field(
        description="Four in five questions of the collection's own find another document with at least this score; a "
        "best hit below it is not a good match. It is measured once and kept in the metadata of the collection, until "
        "that has changed by a quarter, or terms of queries count otherwise. Null where the collection is too small to "
        "tell."
    )


class LabelRequest(_Request):
    """A person's judgement of a hit."""

    query: StrictStr
    document_id: StrictStr
    collection: StrictStr | None = None
    relevant: StrictBool | None = Field(description="Whether the document answers the query; null takes it back.")


class LabelAnswer(BaseModel):
    """The number of labelled questions."""

    questions: int = Field(description="Questions of this collection that have a relevant document.")


class WholeDocument(BaseModel):
    """A document as it is stored."""

    collection: str
    document_id: str
    title: Text
    chunks: list[Text] = Field(description="Its texts in order; neighbours may overlap by a sentence.")
    metadata: Metadata


class Timing(BaseModel):
    """The times of the parts of a search, in milliseconds."""

    wait: float
    encode: float
    search: float
    total: float


class SearchAnswer(BaseModel):
    """The hits, best first."""

    collection: str
    model: str | None = Field(description="Name of the model; null for a sparse search, which needs none.")
    fingerprint: str | None
    mode: str
    hits: list[SearchHit]
    good_match: bool | None = Field(
        description="Whether the best hit seems to answer the query: false for a score below `good_match_score`, and "
        "where the model does not read the query. Null where nothing tells: in a sparse search, with a fusion or "
        "weight of your own, and before the good-match score of a collection was measured."
    )
    good_match_score: float | None = Field(
        description="What `/good-match` answers for this search; null where it is not known."
    )
    unread: list[str] = Field(
        description="Words of the query that the tokenizer of the model does not know, where they are most of it: its "
        "scores mean nothing then. Empty for a query that it reads."
    )
    unfinished: str | None = Field(
        default=None, description="What writes to the searched vectors, or was interrupted: documents may be missing."
    )
    note: Text | None = Field(
        default=None,
        description="Why a condition lets nothing pass or rules nothing out, and whether the query is in traditional "
        "Chinese characters and the texts in simplified ones, or the other way round; null where neither is so.",
    )
    timing_ms: Timing


class CollectionState(BaseModel):
    """A served collection, and what it can be asked."""

    name: str
    models: list[str] = Field(description="Models that are served and made a vector of it.")
    sparse: bool = Field(description="Whether it has BM25 vectors that this version reads.")
    problem: Text | None = Field(default=None, description="Why it cannot be searched.")
    unfinished: str | None = Field(
        default=None, description="What writes to it, or was interrupted: documents may be missing."
    )
    points: int = Field(default=0, description="Points that it has.")
    questions: list[Text] = Field(
        default=[], description="Example questions: as configured, else from a sample of the points."
    )
    glosses: dict[str, str] = Field(default={}, description="English glosses of these questions, where there are any.")
    keys: dict[Text, list[Scalar]] = Field(
        default={},
        description="Metadata keys, as conditions write them, with the values in that sample; none for a key with too "
        "many.",
    )


class Collections(BaseModel):
    """All served collections."""

    collections: list[CollectionState]
    labels: bool = Field(default=False, description="Whether the service keeps judgements (`POST /labels`).")


class ModelState(BaseModel):
    """A model that is served."""

    name: str
    fingerprint: str
    dim: int
    documents: bool
    ready: bool


class State(BaseModel):
    """The state of the service, with its models and collections."""

    status: Literal["ok", "loading", "draining"]
    version: str
    models: list[ModelState] = Field(description="Empty for a client without a key where the service has keys.")


class ErrorAnswer(BaseModel):
    """Every answer that is not a success."""

    error: str = Field(description="What was found, what was expected, what to do.")
    code: str = Field(description="One word for programs.")
    request_id: str


class OpenAIErrorDetail(BaseModel):
    """The error as OpenAI's clients read it."""

    message: str
    type: str
    code: str
    param: str | None


class OpenAIErrorAnswer(BaseModel):
    """Every answer below `/v1/` that is not a success."""

    error: OpenAIErrorDetail
