"""`ResolvedCollection`: a collection and the vectors to search in it, checked against the model of the queries.

Nothing is guessed: a search reads the vectors that the caller names, or that its model made.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from qdrant_client import models

from care_qdrant.contracts.contract import SparseContract, VectorContract
from care_qdrant.contracts.layouts import Layout, Payload, Point, guess_layout, lookup, read_hit
from care_qdrant.contracts.learned import LearnedContract
from care_qdrant.encoders.terms import bm25
from care_qdrant.encoders.terms.analyser import Analyser, find_analyser
from care_qdrant.errors import InputError
from care_qdrant.qdrant.checks import check_contract, check_sparse_contract, require_vector
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.schema import CollectionSchema, Limits
from care_qdrant.search.fusion import DEFAULT_ALPHA
from care_qdrant.search.tuning import recorded_rescoring
from care_qdrant.types import Hit, TermVector, Vectors

TermsOfQuery = Callable[[str, Analyser], TermVector]


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Which vectors to search, and the model that makes the queries."""

    dense: bool = True
    sparse: bool | None = False
    """Whether to search a sparse vector; None searches one if it is BM25 of this package."""
    bm25: bool = False
    """Whether the sparse vector must be BM25 of this package, not one of the user's own encoder."""
    vector_name: str | None = None
    sparse_vector_name: str | None = None
    contract: VectorContract | None = None
    """Contract of the model that makes the query vectors."""
    fingerprint: str | None = None
    """Fingerprint of that model, when this is all that is known of it."""
    only_vector: bool = False
    """Whether to take the only vector if the model made none; the check then names the model that did."""
    text_field: str | None = None
    """Payload field of the text; None detects it."""
    encode: Callable[[Sequence[str]], Vectors] | None = None
    """Encoder of queries; a learned one is checked against vectors that were written since, by their texts."""
    alpha: float | None = DEFAULT_ALPHA
    """Share of the dense score by the model's card; None measures it with `encode` and `terms`."""
    terms: TermsOfQuery | None = None
    """Function that makes the terms of queries, to measure that share."""
    sample_points: int = 0
    """Number of points whose payloads show the layout; 0 reads none."""
    others: tuple["StoreConfig", ...] = ()
    """The same search by other models, to which the collection may be switched."""

    @property
    def expected(self) -> str | None:
        """Fingerprint that the dense vector must have; None if the model of the queries is not known."""
        return self.contract.fingerprint if self.contract is not None else self.fingerprint

    def chosen(self, schema: CollectionSchema) -> "StoreConfig":
        """Return the search by the active model, else by one of the active vector, else by the first that can."""
        active, chosen, rank = schema.active, self, 0
        for config in (self, *self.others):
            made = schema.all_made_by(config.expected) if config.expected is not None else []
            names = [name for name in made if self.vector_name in (None, name)]
            is_active = active is not None and active.now.vector in names
            is_model = active is not None and active.now.fingerprint == config.expected
            if (fit := bool(names) + is_active + (is_active and is_model)) > rank:
                chosen, rank = config, fit
        return chosen


@dataclass(frozen=True, slots=True)
class ResolvedCollection:
    """An existing collection and the vectors to search in it, which were checked."""

    collection: Collection
    """The collection itself, never an alias."""
    schema: CollectionSchema
    """Schema of the collection when it was checked."""
    vector_name: str | None
    sparse_vector_name: str | None
    bm25: SparseContract | None
    """Constants of the sparse vector, where it is BM25 by this package."""
    unchecked: VectorContract | None
    """Contract of the dense vector, if the collection has one and the model of the queries is not known."""
    quantization: models.QuantizationSearchParams | None
    """Measured parameters for searches of a quantised dense vector; None leaves them to the server."""
    checked_at: float
    """Time of the check by the monotonic clock, in seconds."""
    config: StoreConfig
    """Settings of the search, of those of several models the chosen ones."""
    find_alpha: Callable[[], float] = lambda: DEFAULT_ALPHA
    """Function that returns `alpha`."""
    hnsw_ef: int | None = None
    """Width of a graph search where the caller gives none: what `care learn` measured for its query encoder; None
    leaves it to the server."""
    held_out_deviations: tuple[float, ...] = ()
    """Deviations by which the best documents of questions of `care learn` stand out; empty where none were recorded."""
    layout: Layout | None = None
    """Layout of the payloads; None where none were sampled, and where no sampled node has a text."""
    told_keys: set[str] = field(default_factory=set)
    """Payload keys without an index that a warning was logged for."""
    unfinished: str | None = None
    """Warning that the searched vectors are being written, or an interrupted run wrote them; None for whole ones."""
    is_sampled: bool = False
    """Whether the sample held points: an empty collection is sampled again."""

    @property
    def name(self) -> str:
        """Name of the collection itself."""
        return self.collection.name

    @property
    def seen(self) -> dict[str, Any]:
        """Results of reading payloads, as fields for the next check of the same collection."""
        return {"layout": self.layout, "is_sampled": self.is_sampled, "told_keys": self.told_keys}

    @property
    def searched(self) -> tuple[str, str | None, str | None]:
        """The collection itself, and the names of its vectors that are searched."""
        return self.name, self.vector_name, self.sparse_vector_name

    @property
    def alpha(self) -> float:
        """Share of the dense score in the linear fusion where the caller gives none.

        It is what `care learn` found to suit the scores of a query encoder that it made, what the model's card says, or
        what is measured at the first hybrid search.
        """
        return self.find_alpha()

    @property
    def distance(self) -> models.Distance | None:
        """Distance by which the dense vector is compared; None where none is searched."""
        return None if self.vector_name is None else self.schema.dense[self.vector_name].distance

    @property
    def limits(self) -> Limits:
        """Sizes of requests that the collection accepts."""
        return self.schema.limits

    @property
    def has_other_vectors(self) -> bool:
        """Whether points carry vectors that are not searched here: an upsert would drop them."""
        return bool({*self.schema.dense, *self.schema.sparse} - {self.vector_name, self.sparse_vector_name})

    @property
    def text_field(self) -> str | None:
        """Payload field from which ``care attach`` made the dense vector; None where it did not make it."""
        return None if self.vector_name is None else self.schema.text_field(self.vector_name)

    def read(self, point: Point) -> Hit:
        """Return a point of this collection as a hit."""
        return read_hit(point, self.layout, self.text_field, self.vector_name)


def resolve_vectors(
    collection: Collection,
    schema: CollectionSchema,
    config: StoreConfig,
    *,
    checked_at: float,
    before: ResolvedCollection | None = None,
) -> ResolvedCollection:
    """Choose the vectors of a collection, and check that the model and the analyser made them.

    ``before`` is the last check of the same collection: a vector that was chosen stays chosen, whatever was added, and
    the layout that a sample has shown stays.
    """
    config = config.chosen(schema)
    chosen, chosen_sparse = (None, None) if before is None else (before.vector_name, before.sparse_vector_name)
    vector_name = choose_dense(schema, config, chosen) if config.dense else None
    if config.sparse is None:
        sparse_name = find_bm25(schema, config.sparse_vector_name)
    else:
        sparse_name = choose_sparse(schema, config, chosen_sparse) if config.sparse else None
    made, learned, rescoring = None, None, None
    if vector_name is not None:
        _check_dense(schema, vector_name, config)
        made, learned = schema.contracts.get(vector_name), learned_contract(schema, vector_name, config)
        rescoring = recorded_rescoring(schema, vector_name)
    alpha = config.alpha if learned is None or learned.alpha is None else learned.alpha
    is_ours = config.bm25 or config.sparse is None
    return ResolvedCollection(
        collection=collection,
        schema=schema,
        vector_name=vector_name,
        sparse_vector_name=sparse_name,
        bm25=check_sparse_contract(schema, sparse_name) if is_ours and sparse_name is not None else None,
        unchecked=made if config.expected is None and isinstance(made, VectorContract) else None,
        quantization=None if rescoring is None else rescoring.params,
        checked_at=checked_at,
        config=config,
        find_alpha=partial(float, DEFAULT_ALPHA if alpha is None else alpha),
        hnsw_ef=None if vector_name is None else _hnsw_ef(schema, vector_name, config),
        held_out_deviations=_held_out_deviations(learned),
        # BM25 that is still being added will be searched where the caller takes what exists.
        unfinished=schema.unfinished_of(vector_name, sparse_name, *(schema.sparse if config.sparse is None else ())),
        **({} if before is None else before.seen),
    )


def _check_dense(schema: CollectionSchema, vector_name: str, config: StoreConfig) -> None:
    expected = config.contract
    if expected is None and config.fingerprint is not None:
        dim = schema.dense[vector_name].size if vector_name in schema.dense else 0
        expected = VectorContract(config.fingerprint, model=f"model {config.fingerprint[:12]}", dim=dim)
    if expected is None:
        require_vector(schema, vector_name)
    else:
        check_contract(schema, vector_name, expected)


def choose_layout(payloads: Sequence[Payload], text_field: str | None, attached: str | None) -> Layout | None:
    """Return how to read payloads; None if there are none, or if LlamaIndex wrote nodes without a text."""
    if not payloads:
        return None
    if text_field is None and attached and any(isinstance(lookup(payload, attached), str) for payload in payloads):
        text_field = attached
    try:
        return guess_layout(payloads, text_field=text_field)
    except InputError:
        if any("_node_content" in payload for payload in payloads):
            return None
        raise


def learned_contract(schema: CollectionSchema, vector_name: str, config: StoreConfig) -> LearnedContract | None:
    """Return the contract of the query encoder if it was learned from the stored vectors, or None."""
    learned = schema.learned.get(vector_name)
    return learned if learned is not None and learned.fingerprint == config.expected else None


def _held_out_deviations(learned: LearnedContract | None) -> tuple[float, ...]:
    try:
        return tuple(map(float, ((learned and learned.held_out_deviations) or "").split()))
    except ValueError:  # not written by this version
        return ()


def _hnsw_ef(schema: CollectionSchema, vector_name: str, config: StoreConfig) -> int | None:
    """Return the recorded width of a graph search as far as the server allows it; None where its default is wider.

    It is also used if the model of the queries is not known: too wide a search costs time and loses nothing.
    """
    learned = schema.learned.get(vector_name)
    if learned is None or learned.hnsw_ef is None or config.expected not in (None, learned.fingerprint):
        return None
    allowed = min(learned.hnsw_ef, schema.limits.hnsw_ef or learned.hnsw_ef)
    return allowed if allowed > schema.default_ef(vector_name) else None


# Which vectors


def choose_dense(schema: CollectionSchema, config: StoreConfig, before: str | None = None) -> str:
    """Return the name of the dense vector to search; it may not exist.

    Never guess: the vector of another model answers from another space, without an error.
    """
    if config.vector_name is not None:
        return config.vector_name
    ours = schema.all_made_by(config.expected) if config.expected is not None else []
    active = schema.active
    if active is not None and active.now.vector in ours:
        return active.now.vector
    fitting = ours or list(schema.dense)
    if before in fitting:
        return before
    if ours:
        return _first(schema, ours)
    if config.only_vector and len(schema.dense) == 1:
        return fitting[0]
    if config.contract is not None:
        model, records = config.contract.model, (*schema.contracts.items(), *schema.learned.items())
        named = (name for name, made in records if name in schema.dense and getattr(made, "model", None) == model)
        return model if model in schema.dense else next(named, model)
    raise _unclear(schema, fitting)


def choose_sparse(schema: CollectionSchema, config: StoreConfig, before: str | None = None) -> str:
    """Return the name of the sparse vector to search; it may not exist."""
    if config.sparse_vector_name is not None:
        return config.sparse_vector_name
    ours = [name for name in schema.sparse if isinstance(schema.contracts.get(name), SparseContract)]
    # An encoder of the user's own cuts texts into other terms than BM25 by this package.
    fitting = ours if config.bm25 else [name for name in schema.sparse if name not in ours]
    if before in fitting:
        return before
    if fitting and config.bm25:
        return _first(schema, fitting)
    fitting = fitting or list(schema.sparse)
    if len(fitting) > 1 and not config.bm25:
        raise _unclear(schema, fitting)
    return fitting[0] if len(fitting) == 1 else bm25.VECTOR_NAME


def find_bm25(schema: CollectionSchema, vector_name: str | None = None) -> str | None:
    """Return the name of the sparse vector that is BM25 of this package, or None.

    One that is still being added does not count: most points lack it.
    """
    names = []
    for name, params in schema.sparse.items():
        contract = schema.contracts.get(name)
        is_ours = isinstance(contract, SparseContract) and find_analyser(contract.fingerprint) is not None
        is_asked_for = vector_name == name or (vector_name is None and not schema.is_being_added(name))
        if is_ours and is_asked_for and params.modifier == models.Modifier.IDF:
            names.append(name)
    return _first(schema, names) if names else None


def _first(schema: CollectionSchema, names: Sequence[str]) -> str:
    """Return the oldest of the vectors of one model; `care attach` added the others."""
    firsts = [name for name in names if not schema.is_beside(name)]
    if len(names) == 1 or len(firsts) == 1:
        return (firsts or list(names))[0]
    raise _unclear(schema, names)


def _unclear(schema: CollectionSchema, names: Sequence[str]) -> InputError:
    there = ", ".join(f"{name!r} ({_made_by(schema, name)})" for name in sorted(names))
    return InputError(
        f"collection {schema.name!r} has the vectors {there or 'none'}; choose one with --vector-name (in Python "
        "vector_name= or sparse_vector_name=; '' is the unnamed one), or give the model that made it"
    )


def _made_by(schema: CollectionSchema, name: str) -> str:
    contract = schema.contracts.get(name)
    if contract is None:
        return "by another tool"
    return f"by {contract.model if isinstance(contract, VectorContract) else contract.fingerprint}"
