"""A collection without its points: vectors, settings, payload indexes, metadata and contracts, as one value."""

import math
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from qdrant_client import models

from care_qdrant.contracts.active import Active, parse_active
from care_qdrant.contracts.contract import Contract, SparseContract, VectorContract, parse_contracts
from care_qdrant.contracts.learned import LearnedContract, parse_learned
from care_qdrant.contracts.metadata import ATTACH, COPY, GOOD_MATCH, LOAD, RUN, SHARE, TENANTS, VERSION, known
from care_qdrant.contracts.stand_in import parse_stand_ins
from care_qdrant.errors import ContractError, FingerprintMismatch, InputError, SchemaMismatch, next_command
from care_qdrant.qdrant.quantization import DATATYPES, Datatype

MAX_POINTS = 256
"""Largest number of points that one request writes."""
MAX_PAGE = 1_000
"""Largest number of points that one request reads."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Largest sizes of requests: the defaults, or less where the operator of a server allows less (strict mode)."""

    write: int = MAX_POINTS
    ids: int = MAX_POINTS
    """Largest number of ids of a write that names its points by a condition."""
    page: int = MAX_PAGE
    query: int | None = None
    """Highest number of candidates of a search, including each prefetch; None for no limit."""
    searches: int | None = None
    """Largest number of searches of one request; None for no limit."""
    conditions: float = math.inf
    """Largest number of conditions of a filter."""
    exact_count: bool = True
    """Whether the server counts and searches exactly; otherwise points are counted by scrolling."""
    hnsw_ef: int | None = None
    """Widest graph search that a request may ask for; None for no limit."""

    def top_k(self, limit: int) -> int:
        """Return the number of points that a search may ask for: the limit, or less where the server allows less."""
        return limit if self.query is None else min(limit, self.query)


@dataclass(frozen=True, slots=True)
class VersionRecord:
    """Record of a version of a published collection, in its own metadata: its source, and the version before it."""

    source: str
    """The collection that it is a copy of."""
    replaces: str | None = None
    """The collection behind the alias before; a rollback switches back to it."""
    withdrawn: bool = False
    """A rollback left it: no later run continues it."""

    def metadata(self) -> dict[str, Any]:
        """Return the record as a collection stores it."""
        return VERSION.change(asdict(self))


@dataclass(frozen=True)
class CollectionSchema:
    """Schema of a collection, as one request returns it."""

    name: str
    config: models.CollectionConfig
    payload_schema: Mapping[str, models.PayloadIndexInfo]
    embedded: bool
    """Whether the collection is in the in-process database."""
    has_index: bool = False
    """Whether a server has built an index of vectors, which may be of sparse ones alone."""
    points: int = 0
    """Approximate number of points."""
    mandatory: models.Filter | None = None
    """Filter that every reading of points gets; None where all of them may be read."""

    @classmethod
    def of(cls, name: str, info: models.CollectionInfo, *, embedded: bool) -> "CollectionSchema":
        """Build the schema from the answer of a server or of the embedded database."""
        has_index = not embedded and bool(info.indexed_vectors_count)
        return cls(name, info.config, info.payload_schema or {}, embedded, has_index, info.points_count or 0)

    def restricted(self, mandatory: models.Filter) -> "CollectionSchema":
        """Return the schema for readers of the points that pass a filter, without what was counted among others."""
        counted = {key for key, _, kind, _ in known(self.metadata) if kind in (GOOD_MATCH, SHARE)}
        metadata = {key: entry for key, entry in self.metadata.items() if key not in counted}
        config = self.config.model_copy(update={"metadata": metadata})
        indexes = {path: index.model_copy(update={"points": 0}) for path, index in self.payload_schema.items()}
        return replace(self, config=config, payload_schema=indexes, points=0, mandatory=mandatory)

    @cached_property
    def dense(self) -> dict[str, models.VectorParams]:
        """Dense vectors by name; the unnamed one is ``""``."""
        vectors = self.config.params.vectors
        if vectors is None:
            return {}
        return dict(vectors) if isinstance(vectors, dict) else {"": vectors}

    @cached_property
    def sparse(self) -> dict[str, models.SparseVectorParams]:
        """Sparse vectors by name."""
        return dict(self.config.params.sparse_vectors or {})

    def has_vector(self, name: str) -> bool:
        """Return whether there is a dense or sparse vector of this name."""
        return name in self.dense or name in self.sparse

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """Metadata of the collection; empty where it has none, or where the server does not support any."""
        return dict(getattr(self.config, "metadata", None) or {})

    @cached_property
    def contracts(self) -> dict[str, Contract]:
        """Contract of each vector that carries one."""
        return parse_contracts(self.metadata)

    @cached_property
    def learned(self) -> dict[str, LearnedContract]:
        """Contract of the query encoder that was learned from a vector, for each vector that has one."""
        return parse_learned(self.metadata)

    @cached_property
    def active(self) -> Active | None:
        """Record of the vector that readers search; None before the first switch, and where that vector is gone."""
        active = parse_active(self.metadata)
        return active if active is not None and active.now.vector in self.dense else None

    @cached_property
    def stand_ins(self) -> dict[str, dict[str, str]]:
        """Learned encoders that made some of a vector's documents: their names by fingerprint, for each such vector."""
        return parse_stand_ins(self.metadata)

    @cached_property
    def tenant_keys(self) -> frozenset[str]:
        """Paths of the payload keys whose values assign points to tenants."""
        if self.embedded:
            noted = TENANTS.find(self.metadata)
            return frozenset(map(str, noted)) if isinstance(noted, list) else frozenset()
        return frozenset(key for key, index in self.payload_schema.items() if is_tenant_index(index.params))

    @property
    def has_shard_keys(self) -> bool:
        """Whether shards are made by key, and each write has to name the key."""
        return self.config.params.sharding_method is models.ShardingMethod.CUSTOM

    @property
    def strict_mode(self) -> models.StrictModeConfigOutput | None:
        """Limits that the operator has set; None where strict mode is off."""
        strict = self.config.strict_mode_config
        return strict if strict is not None and strict.enabled else None

    @property
    def limits(self) -> Limits:
        """Sizes of requests that the collection accepts."""
        strict = self.strict_mode
        if strict is None:
            return Limits()
        # A request with more points than a minute allows would never pass.
        write = min(MAX_POINTS, strict.upsert_max_batchsize or MAX_POINTS, strict.write_rate_limit or MAX_POINTS)
        return Limits(
            write=write,
            ids=min(write, strict.condition_max_size or MAX_POINTS),
            page=min(MAX_PAGE, strict.max_query_limit or MAX_PAGE, strict.read_rate_limit or MAX_PAGE),
            query=strict.max_query_limit,
            searches=strict.search_max_batchsize,
            conditions=strict.filter_max_conditions or math.inf,
            exact_count=strict.search_allow_exact is not False,
            hnsw_ef=strict.search_max_hnsw_ef,
        )

    @property
    def version_record(self) -> VersionRecord | None:
        """Record of this version; None for a collection that publishing did not make."""
        entry = VERSION.find(self.metadata)
        if not isinstance(entry, dict) or "source" not in entry:
            return None
        return VersionRecord(**{key: entry[key] for key in entry.keys() & VersionRecord.__dataclass_fields__.keys()})

    def default_ef(self, vector_name: str) -> int:
        """Return the server's default width of a graph search: the ``ef_construct`` of the graph."""
        params = self.dense[vector_name].hnsw_config
        return (params and params.ef_construct) or self.config.hnsw_config.ef_construct

    def text_field(self, vector_name: str) -> str | None:
        """Return the payload field from which ``care attach`` made a vector; None where it did not make it."""
        contract = self.contracts.get(vector_name)
        return contract.text_field if isinstance(contract, VectorContract | SparseContract) else None

    def origin(self, vector_name: str) -> str:
        """Return a text that tells stored vectors from another model's under the same name.

        It names the model that made them, or this collection where no record does.
        """
        made = self.contracts.get(vector_name)
        return f"{vector_name} of {self.name if made is None else made.fingerprint}"

    @property
    def attached(self) -> list[str]:
        """Names of the vectors that ``care attach`` added, sorted; also of one whose addition was interrupted."""
        return sorted(name for name in self.contracts if self.text_field(name) is not None)

    def learned_by(self, fingerprint: str) -> list[str]:
        """Return the names of the dense vectors from which a query encoder was learned."""
        return [
            name
            for name, contract in self.learned.items()
            if contract.fingerprint == fingerprint and name in self.dense
        ]

    def all_made_by(self, fingerprint: str) -> list[str]:
        """Return the names of the dense vectors that a model made, and of those that it was learned from."""
        contracts = [*self.contracts.items(), *self.learned.items()]
        made = (name for name, contract in contracts if contract.fingerprint == fingerprint and name in self.dense)
        return list(dict.fromkeys(made))

    def searches_only(self, vector_name: str, fingerprint: str) -> bool:
        """Return whether a query encoder was learned from a vector that another model made."""
        made = self.contracts.get(vector_name)
        is_maker = made is not None and made.fingerprint == fingerprint
        return not is_maker and vector_name in self.learned_by(fingerprint)

    def is_beside(self, vector_name: str) -> bool:
        """Return whether a vector was attached next to an earlier one of the same maker, which still exists."""
        contract = self.contracts.get(vector_name)
        return isinstance(contract, VectorContract | SparseContract) and contract.beside in {*self.dense, *self.sparse}

    def is_being_added(self, vector_name: str) -> bool:
        """Return whether the first attach of a vector has not ended: most points may lack it."""
        begun = ATTACH.find(self.metadata, vector_name)
        return isinstance(begun, Mapping) and bool(begun.get("first"))

    @property
    def unfinished_load(self) -> Mapping[str, Any] | None:
        """Metadata entry of the ingestion that made the collection, until it has ended; None afterwards."""
        load = LOAD.find(self.metadata)
        return load if isinstance(load, Mapping) and load.get("done") is False else None

    @property
    def unfinished(self) -> str | None:
        """Warning about work that writes here or was interrupted while writing; None where there is none."""
        return self.unfinished_of(*ATTACH.all(self.metadata))

    def unfinished_of(self, *vector_names: str | None) -> str | None:
        """Return the warning for readers of these vectors; an attach of another vector does not concern them.

        It names no other collection: clients of a service read it, whose key may be for this one alone.
        """
        if (copy := COPY.find(self.metadata)) is not None:
            return (
                f"the copy into collection {self.name!r} began at {_started(copy)} and has not ended: points may be "
                "missing, and it is not verified. Let it end, or run the same command again"
            )
        for begun in RUN.all(self.metadata).values():
            return (
                f"an ingestion into collection {self.name!r} began at {_started(begun)} and "
                "has not ended: it writes now, or was interrupted, and chunks of former texts may be among the points. "
                "Let it end, or run the same care ingest again without --limit"
            )
        for name in vector_names:
            if name is not None and (begun := ATTACH.find(self.metadata, name)) is not None:
                return (
                    f"an attach of vector {name!r} to collection {self.name!r} began at {_started(begun)} and "
                    "has not ended: it writes now, or was interrupted, and points without the vector are not found by "
                    f"it. Let it end, or run it again, {next_command(self._attach(name))}"
                )
        if self.unfinished_load is not None:
            return (
                f"the ingestion of collection {self.name!r} was interrupted and has not been finished; run the same "
                "care ingest again"
            )
        return None

    def _attach(self, vector_name: str | None) -> str:
        """Return the command that attaches a vector of this name."""
        made = self.contracts.get(vector_name or "")
        sparse = " --bm25" if isinstance(made, SparseContract) else ""
        return f"care attach {self.name} --vector-name {vector_name}{sparse}"

    def require_whole(self) -> None:
        """Refuse a collection to which a run is writing, or was writing when it was interrupted."""
        if (unfinished := self.unfinished) is not None:
            raise InputError(f"{unfinished}; and then this")

    def has_vectors_of(self, other: "CollectionSchema") -> bool:
        """Return whether a copy of another collection could be this one."""
        with suppress(ContractError):
            self.require_same(other, points=1)
            return True
        return False

    def require_same(self, expected: "CollectionSchema", points: int) -> None:
        """Refuse this collection as a copy of another one if its vectors or its contracts differ."""
        vectors, required = self._vectors(), expected._vectors()
        if vectors != required:
            raise SchemaMismatch(
                f"collection {self.name!r} already exists with other vectors: {_difference(vectors, required)}. "
                "Nothing was written; choose another name for the target"
            )
        these, those = (_comparable(schema.contracts) for schema in (self, expected))
        if these != those and (these or points):
            raise FingerprintMismatch(
                f"collection {self.name!r} already exists with vectors of another model: "
                f"{_difference(these, those)}. Nothing was written; choose another name for the target"
            )

    def _vectors(self) -> dict[str, Any]:
        dense = {
            name or "(unnamed)": (vector.size, vector.distance.value, vector.multivector_config is not None)
            for name, vector in self.dense.items()
        }
        return dense | {name: ("sparse", vector.modifier) for name, vector in self.sparse.items()}


def datatype_of(params: models.VectorParams) -> Datatype:
    """Return the datatype that stores a vector."""
    return DATATYPES[params.datatype.value if params.datatype else "float32"]


def is_tenant_index(params: Any) -> bool:
    """Return whether the parameters of a payload index are those of a tenant index."""
    return bool(getattr(params, "is_tenant", None))


def now_noted() -> str:
    """Return the current time as the metadata of a collection store it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _started(entry: Any) -> str:
    """Return the time in an entry of the metadata, which another version may have written."""
    return str(entry.get("started", "an unknown time")) if isinstance(entry, Mapping) else "an unknown time"


def _comparable(contracts: Mapping[str, Contract]) -> dict[str, Any]:
    """Return contracts without the version of the tool and the text field, which change no vector."""
    ignored = ("tool_version", "text_field")
    return {
        name: {key: value for key, value in asdict(contract).items() if key not in ignored}
        for name, contract in contracts.items()
    }


def _difference(actual: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    names = sorted(name for name in actual.keys() | expected.keys() if actual.get(name) != expected.get(name))
    return "; ".join(
        f"{name} is {actual.get(name, 'missing')}, expected {expected.get(name, 'none')}" for name in names
    )
