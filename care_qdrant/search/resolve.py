"""Resolves a name to the collection and the vectors that may be searched, and checks them again when due.

Requests go to the resolved name and not to an alias, so a query never meets the vectors of another model because the
alias was switched after the check.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import chain
from typing import Any, TypeVar

from qdrant_client import models

from care_qdrant.contracts.contract import SparseContract, VectorContract
from care_qdrant.contracts.layouts import Layout, Payload, Point, guess_layout, lookup, read_hit
from care_qdrant.contracts.learned import LearnedContract
from care_qdrant.contracts.metadata import SHARE
from care_qdrant.encoders.terms import bm25
from care_qdrant.encoders.terms.analyser import Analyser, find_analyser
from care_qdrant.errors import InputError, Rejected, next_command
from care_qdrant.qdrant.checks import check_contract, check_sparse_contract, require_learned_from
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.measurements import Measurement
from care_qdrant.qdrant.retry import is_not_found
from care_qdrant.qdrant.schema import CollectionSchema, Limits
from care_qdrant.search.conditions import Keys
from care_qdrant.search.fusion import DEFAULT_ALPHA
from care_qdrant.search.share import measured_alpha
from care_qdrant.search.tuning import recorded_rescoring
from care_qdrant.types import Hit, Vectors

T = TypeVar("T")
TermsOfQuery = Callable[[str, Analyser], Any]
CHECK_SECONDS = 30.0
"""Time that a check of the contract holds."""
# An alias may be switched to vectors of another model at any time.


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Vectors that the caller wants to search, and the model of its queries."""

    dense: bool = True
    sparse: bool | None = False
    """Whether a sparse vector is searched; None where there is one that is BM25 by the analyser of this package."""
    bm25: bool = False
    """Whether the sparse vector must be BM25 by the analyser of this package, not one by functions of the user."""
    vector_name: str | None = None
    sparse_vector_name: str | None = None
    contract: VectorContract | None = None
    """Contract of the model that makes the query vectors."""
    fingerprint: str | None = None
    """Fingerprint of that model, when this is all that is known of it."""
    only_vector: bool = False
    """Whether the only vector is taken where the model made none; the check then names its model."""
    text_field: str | None = None
    """Payload field of the text; None finds out."""
    encode: Callable[[Sequence[str]], Vectors] | None = None
    """Encoder of queries, which compares vectors that were written anew under a learned encoder with their texts."""
    alpha: float | None = DEFAULT_ALPHA
    """Share of the dense score that the model's card gives; None measures it, where there are `encode` and `terms`."""
    terms: TermsOfQuery | None = None
    """Maker of the terms of queries by an analyser, by which that share is measured."""
    sample_points: int = 0
    """Number of points whose payloads show the layout; 0 reads none."""

    @property
    def expected(self) -> str | None:
        """Fingerprint that the dense vector must have; None where nobody says what makes the queries."""
        return self.contract.fingerprint if self.contract is not None else self.fingerprint


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
    """Contract of the dense vector, where the collection has one and nobody says what makes the queries."""
    quantization: models.QuantizationSearchParams | None
    """Measured parameters for searches of a quantised dense vector; None leaves them to the server."""
    checked_at: float
    """Time of the check by the monotonic clock, in seconds."""
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
    """Payload keys without an index of which a warning was logged."""
    unfinished: str | None = None
    """Warning that the searched vectors are being written, or an interrupted run wrote them; None for whole ones."""
    is_sampled: bool = False
    """Whether the sample held points: an empty collection is sampled again."""

    @property
    def name(self) -> str:
        """Name of the collection itself."""
        return self.collection.name

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


class CollectionResolver:
    """Keeps the collection that a name stands for, and checks it again after ``check_seconds``.

    A check costs two requests: the aliases, and the schema of the collection behind the name.
    """

    def __init__(self, collection: Collection, config: StoreConfig, *, check_seconds: float = CHECK_SECONDS) -> None:
        """Set up; nothing is read. The collection may be an alias."""
        self.config = config
        self.resolved: ResolvedCollection | None = None
        """Result of the last check; None before the first one."""
        self._named, self._check_seconds = collection, check_seconds
        self._keys: tuple[Collection, Keys] | None = None
        self._measured: dict[str, dict[str, Any]] = {}
        """Measurements of this process, by collections: not all programs may write it into the metadata."""

    def forget(self) -> None:
        """Check again at the next use."""
        self.resolved = None

    def resolve(self) -> ResolvedCollection:
        """Return the collection, checked now or less than ``check_seconds`` ago."""
        now, before = time.monotonic(), self.resolved
        resolved = before
        if resolved is None or now - resolved.checked_at >= self._check_seconds:
            collection, schema = self._read()
            chosen = before if before is not None and before.name == collection.name else None
            resolved = resolve_vectors(collection, schema, self.config, checked_at=now, before=chosen)
            if resolved.vector_name is not None and _learned(schema, resolved.vector_name, self.config):
                require_learned_from(collection, resolved.vector_name, self.config.encode)
            if chosen is not None:
                resolved = replace(
                    resolved, layout=chosen.layout, is_sampled=chosen.is_sampled, told_keys=chosen.told_keys
                )
            if self._has_to_measure_alpha(resolved):
                # Where it cannot be told, it is tried again after the next check.
                resolved = replace(resolved, find_alpha=cache(partial(self._measured_alpha, resolved)))
        if self.config.sample_points and not resolved.is_sampled:
            resolved = self._sample(resolved)
        self.resolved = resolved
        return resolved

    def _has_to_measure_alpha(self, resolved: ResolvedCollection) -> bool:
        config = self.config
        if config.alpha is not None or config.encode is None or config.terms is None or resolved.bm25 is None:
            return False
        if resolved.vector_name is None or config.expected is None:  # no model that a share could be kept for
            return False
        learned = _learned(resolved.schema, resolved.vector_name, config)
        return learned is None or learned.alpha is None

    def _measured_alpha(self, resolved: ResolvedCollection) -> float:
        """Return the share of the dense score that the collection keeps, or that is measured here."""
        (_, vector_name, sparse_name), config = resolved.searched, self.config
        assert vector_name is not None
        assert sparse_name is not None
        assert config.encode is not None
        assert config.terms is not None
        assert resolved.bm25 is not None
        assert config.expected is not None
        collection, schema = resolved.collection, resolved.schema
        share = Measurement(SHARE, config.expected[:16], {"vector": vector_name, "sparse": sparse_name})
        for metadata in schema.metadata, self._measured.get(resolved.name, {}):
            if (known := share.find(metadata, schema.points, lambda entry: float(entry["alpha"]))) is not None:
                return known
        analyser, terms = resolved.bm25.analyser, config.terms
        found = measured_alpha(
            collection, vector_name, sparse_name, config.encode, lambda question: terms(question, analyser)
        )
        if found is None:
            return DEFAULT_ALPHA
        points = collection.sibling(collection.name).schema.points  # this program may have written some meanwhile
        self._measured[resolved.name] = change = share.change({"alpha": repr(found)}, points)
        if schema.unfinished is None:
            share.keep(collection, change)
        return found

    def keys(self, resolved: ResolvedCollection) -> Keys:
        """Return the keys in the payloads of a collection that this object resolved: one request after each check."""
        known, keys = self._keys or (None, Keys(is_sampled=False))
        if known is not resolved.collection or not keys.is_sampled:
            keys = Keys.of(resolved.collection)
            self._keys = resolved.collection, keys
        return keys

    def use(self, work: Callable[[ResolvedCollection], T]) -> T:
        """Return the result of work on the collection; done again where it has become another one since the check.

        That happens when an alias is switched and the collection behind it is dropped, and when a collection is made
        again, or loses a vector: what is there now is checked first.
        """
        resolved = self.resolve()
        try:
            return work(resolved)
        except Rejected:
            self.forget()
            current = self.resolve()
            if current.searched == resolved.searched:
                raise
        return work(current)

    def _read(self) -> tuple[Collection, CollectionSchema]:
        """Return the collection behind the name, which an alias may change at any time, and its schema."""
        missing = None
        while True:
            behind = self._named.aliases()
            name = self._named.name
            # The messages of the checks name what the user named.
            collection = self._named.sibling(behind.get(name, name), known_as=name)
            if collection.name == missing:
                self._named.resolve()  # says what there is, unless it has come in the meantime
            try:
                return collection, collection.refresh()
            except Rejected as error:
                if not is_not_found(error):
                    raise
                missing = collection.name

    def _sample(self, resolved: ResolvedCollection) -> ResolvedCollection:
        limit = min(self.config.sample_points, resolved.limits.page)
        # A server that finds even this page too large sends it in several.
        records = list(chain.from_iterable(resolved.collection.scroll("reading a sample", limit=limit)))
        payloads = [record.payload for record in records if record.payload]
        layout = choose_layout(payloads, self.config.text_field, resolved.text_field)
        return replace(resolved, layout=layout, is_sampled=bool(records))


def resolve_vectors(
    collection: Collection,
    schema: CollectionSchema,
    config: StoreConfig,
    *,
    checked_at: float,
    before: ResolvedCollection | None = None,
) -> ResolvedCollection:
    """Choose the vectors of a collection, and check that the model and the analyser made them.

    ``before`` is the last check of the same collection: a vector that was chosen stays chosen, whatever was added.
    """
    chosen, chosen_sparse = (None, None) if before is None else (before.vector_name, before.sparse_vector_name)
    vector_name = choose_dense(schema, config, chosen) if config.dense else None
    sparse_name = choose_sparse(schema, config, chosen_sparse) if config.sparse else None
    if config.sparse is None:
        sparse_name = find_bm25(schema, config.sparse_vector_name)
    unchecked = None
    if vector_name is not None:
        _check_dense(schema, vector_name, config)
        made = schema.contracts.get(vector_name)
        unchecked = made if config.expected is None and isinstance(made, VectorContract) else None
    constants = None
    if sparse_name is not None and (config.bm25 or config.sparse is None):
        constants = check_sparse_contract(schema, sparse_name)
    rescoring = None if vector_name is None else recorded_rescoring(schema, vector_name)
    learned = None if vector_name is None else _learned(schema, vector_name, config)
    return ResolvedCollection(
        collection=collection,
        schema=schema,
        vector_name=vector_name,
        sparse_vector_name=sparse_name,
        bm25=constants,
        unchecked=unchecked,
        quantization=None if rescoring is None else rescoring.params,
        checked_at=checked_at,
        find_alpha=partial(float, _recorded_alpha(learned, config)),
        hnsw_ef=None if vector_name is None else _hnsw_ef(schema, vector_name, config),
        held_out_deviations=_held_out_deviations(learned),
        # BM25 that is being added is not searched yet by who takes what there is, and will be.
        unfinished=schema.unfinished_of(vector_name, sparse_name, *(schema.sparse if config.sparse is None else ())),
    )


def _recorded_alpha(learned: LearnedContract | None, config: StoreConfig) -> float:
    if learned is not None and learned.alpha is not None:
        return learned.alpha
    return DEFAULT_ALPHA if config.alpha is None else config.alpha


def choose_dense(schema: CollectionSchema, config: StoreConfig, before: str | None = None) -> str:
    """Return the name of the dense vector to search; it may not be there.

    Nothing is guessed: with another vector beside it, a collection would answer from another space, without an error.
    """
    if config.vector_name is not None:
        return config.vector_name
    ours = schema.all_made_by(config.expected) if config.expected is not None else []
    fitting = ours or list(schema.dense)
    if before in fitting:
        return before
    if ours:
        return _first(schema, ours)
    if config.only_vector and len(schema.dense) == 1:
        return fitting[0]
    if config.contract is not None:
        return config.contract.model
    raise _unclear(schema, fitting)


def choose_sparse(schema: CollectionSchema, config: StoreConfig, before: str | None = None) -> str:
    """Return the name of the sparse vector to search; it may not be there."""
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
    """Return the name of a sparse vector that is BM25 by the analyser of this package; None where there is none.

    One that is being added for the first time is not there yet: most points lack it.
    """
    found = []
    for name, params in schema.sparse.items():
        contract = schema.contracts.get(name)
        is_ours = isinstance(contract, SparseContract) and find_analyser(contract.fingerprint) is not None
        is_wanted = vector_name == name or (vector_name is None and not schema.is_being_added(name))
        if is_ours and is_wanted and params.modifier == models.Modifier.IDF:
            found.append(name)
    return _first(schema, found) if found else None


def _first(schema: CollectionSchema, names: Sequence[str]) -> str:
    """Return the vector that was there before others of the same maker were attached beside it."""
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


def choose_layout(payloads: Sequence[Payload], text_field: str | None, attached: str | None) -> Layout | None:
    """Return how to read payloads; None where there are none, and where LlamaIndex wrote nodes without a text."""
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


def _check_dense(schema: CollectionSchema, vector_name: str, config: StoreConfig) -> None:
    expected = config.contract
    if expected is None and config.fingerprint is not None:
        dim = schema.dense[vector_name].size if vector_name in schema.dense else 0
        expected = VectorContract(config.fingerprint, model=f"model {config.fingerprint[:12]}", dim=dim)
    if expected is not None:
        check_contract(schema, vector_name, expected)
    elif vector_name not in schema.dense:
        raise InputError(
            f"collection {schema.name!r} has no vector {vector_name!r} "
            f"(it has: {', '.join(map(repr, schema.dense)) or 'none'}); add it, "
            + next_command(f"care attach {schema.name} --vector-name {vector_name}")
        )


def _learned(schema: CollectionSchema, vector_name: str, config: StoreConfig) -> LearnedContract | None:
    """Return the contract of the encoder that makes the queries; None where it was not learned from the vectors."""
    learned = schema.learned.get(vector_name)
    return learned if learned is not None and learned.fingerprint == config.expected else None


def _held_out_deviations(learned: LearnedContract | None) -> tuple[float, ...]:
    try:
        return tuple(map(float, ((learned and learned.held_out_deviations) or "").split()))
    except ValueError:  # not written by this version
        return ()


def _hnsw_ef(schema: CollectionSchema, vector_name: str, config: StoreConfig) -> int | None:
    """Return the recorded width of a graph search as far as the server allows it; None where its default is wider.

    It is used as well where nobody says what makes the queries: one that is too wide costs time and loses nothing.
    """
    learned = schema.learned.get(vector_name)
    if learned is None or learned.hnsw_ef is None or config.expected not in (None, learned.fingerprint):
        return None
    allowed = min(learned.hnsw_ef, schema.limits.hnsw_ef or learned.hnsw_ef)
    return allowed if allowed > schema.default_ef(vector_name) else None
