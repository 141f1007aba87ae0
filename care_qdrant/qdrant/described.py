"""`DescribedCollection`: a collection without its points: its names, schema, settings and metadata."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Self

from qdrant_client import QdrantClient, models

from care_qdrant.contracts.contract import Contract, contract_metadata
from care_qdrant.contracts.learned import LearnedContract, learned_metadata
from care_qdrant.contracts.metadata import TENANTS
from care_qdrant.errors import InputError, NoCollection, Rejected
from care_qdrant.qdrant import optimizer
from care_qdrant.qdrant.calls import Calls
from care_qdrant.qdrant.connection import as_version, require_floor
from care_qdrant.qdrant.retry import RetryPolicy
from care_qdrant.qdrant.schema import CollectionSchema, Limits, is_tenant_index

MandatoryFilter = Callable[[CollectionSchema], models.Filter]
"""Makes the filter that every reading of a collection gets, for the indexes that its schema has."""


class DescribedCollection(Calls):
    """The names, the schema and the metadata of a collection, read and changed."""

    def __init__(
        self,
        client: QdrantClient,
        name: str,
        policy: RetryPolicy | None = None,
        *,
        shard_key: models.ShardKey | None = None,
        known_as: str | None = None,
        mandatory: MandatoryFilter | None = None,
    ) -> None:
        """Set up access; nothing is read.

        Args:
            client: An open Qdrant.
            name: Name of the collection, or of an alias.
            policy: Number of attempts of a call, and the time for all of them.
            shard_key: Points of these shards alone are read and written; None reads all, and can write only where the
                server chooses the shards (`parts`).
            known_as: Name of the collection in messages of checks: the alias that led here.
            mandatory: Returns the filter that every reading of points gets; None reads all. Writes do not get it.
        """
        super().__init__(client, name, policy)
        self.shard_key, self._known_as, self.mandatory = shard_key, known_as or name, mandatory
        self._schema: CollectionSchema | None = None
        self._version: tuple[int, ...] | None = None

    def __repr__(self) -> str:
        return f"Collection({self.name!r})"

    def of_shard(self, shard_key: Any | None) -> Self:
        """Return this collection limited to the shards of a key; all of it where the key is None."""
        if shard_key is None:
            return self
        part = self._with(self.name, shard_key, self._known_as)
        part._schema = self._schema
        return part

    def sibling(self, name: str, *, known_as: str | None = None) -> Self:
        """Return another collection of the same Qdrant, reached with the same policy and shard key."""
        return self._with(name, self.shard_key, known_as)

    def _with(self, name: str, shard_key: models.ShardKey | None, known_as: str | None) -> Self:
        return type(self)(
            self.client, name, self.policy, shard_key=shard_key, known_as=known_as, mandatory=self.mandatory
        )

    def parts(self) -> list[Self]:
        """Return the parts that accept writes: this collection, or one part for each of its shard keys.

        A server takes a write to a collection with shards by key only with the key.
        """
        if self.shard_key is not None or not self.schema.has_shard_keys:
            return [self]
        parts = [self._with(self.name, key, None) for key in self.shard_keys()]
        for part in parts:
            part._stopped = self._stopped
        return parts

    def shard_keys(self) -> list[models.ShardKey]:
        """Return the keys of the shards, sorted; none where the server chooses the shards."""
        info = self.call("reading its shards", lambda: self.client.collection_cluster_info(self.name))
        keys = {shard.shard_key for shard in info.local_shards} | {shard.shard_key for shard in info.remote_shards}
        return sorted((key for key in keys if key is not None), key=str)

    def create_shard_key(self, shards: int | None, replicas: int | None) -> None:
        """Create the shards of this collection's key, unless they exist.

        None takes the collection's number of shards, or of copies of each shard.
        """
        if (key := self.shard_key) is None:
            return
        try:
            create = partial(self.client.create_shard_key, self.name, key, shards, replicas)
            self.call(f"creating shard key {key!r}", create)
        except Rejected:
            # Another run made it, or our own request did and its answer was lost.
            if key not in self.shard_keys():
                raise

    # The names that a Qdrant knows

    def names(self) -> list[str]:
        """Return the names of all collections, sorted."""
        answer = self.call("reading the collections", self.client.get_collections)
        return sorted(collection.name for collection in answer.collections)

    def aliases(self) -> dict[str, str]:
        """Return all aliases with the collections behind them."""
        answer = self.call("reading the aliases", self.client.get_aliases)
        return {alias.alias_name: alias.collection_name for alias in answer.aliases}

    def exists(self) -> bool:
        """Return whether there is a collection or an alias of this name."""
        self._require_floor()
        return self.call("looking for it", lambda: self.client.collection_exists(self.name))

    def resolve(self) -> Self:
        """Return the collection behind an alias, or this one, as a new object whose schema is still to be read.

        Raises:
            NoCollection: The name is neither a collection nor an alias; the message lists those there are.
        """
        aliases = self.aliases()
        if self.name in aliases:
            return self.sibling(aliases[self.name])
        if not self.exists():
            raise NoCollection(self.name, [*self.names(), *(f"{alias} (alias)" for alias in sorted(aliases))])
        return self.sibling(self.name, known_as=self._known_as)

    def whole(self) -> Self:
        """Return the collection as `resolve` does, for work on all its shards.

        Raises:
            InputError: This object reaches the shards of one key alone.
            NoCollection: The name is neither a collection nor an alias; the message lists those there are.
        """
        if self.shard_key is not None:
            raise InputError(
                f"collection {self.name!r} was given with shard key {self.shard_key!r}, and this works on the points "
                "of all shards: give it without shard_key="
            )
        return self.resolve()

    def switch_alias(self, alias: str) -> None:
        """Point an alias at this collection, in one atomic step: it is never missing."""
        create = models.CreateAlias(collection_name=self.name, alias_name=alias)
        steps: list[models.AliasOperations] = [models.CreateAliasOperation(create_alias=create)]
        if alias in self.aliases():
            steps.insert(0, models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name=alias)))
        self.call("switching the alias", lambda: self.client.update_collection_aliases(steps))

    def server_version(self) -> str:
        """Return the version of the server, ``embedded`` for a folder."""
        return "embedded" if self.is_embedded else self.call("asking its version", self.client.info).version

    def is_since(self, version: tuple[int, ...]) -> bool:
        """Return whether the server has this version or a newer one, asked once; always True for embedded databases."""
        if self.is_embedded:
            return True
        if self._version is None:
            self._version = as_version(self.server_version())
        return self._version >= version

    @property
    def compares_writes(self) -> bool:
        """Whether the server writes vectors under a condition, on keys that have no index."""
        strict = self.schema.strict_mode
        if strict is not None and (strict.unindexed_filtering_update is False or strict.filter_max_conditions):
            return False
        return not self.is_embedded

    # Schema and metadata

    @property
    def schema(self) -> CollectionSchema:
        """Vectors, settings, metadata and contracts: read at the first use and then kept until `refresh`."""
        return self._schema or self.refresh()

    @property
    def limits(self) -> Limits:
        """Sizes of requests that the collection accepts."""
        return self.schema.limits

    def refresh(self) -> CollectionSchema:
        """Read the schema again: one request; the first one of a client also asks for the version of its server."""
        self._schema = self._read_schema()
        return self._schema

    def _read_schema(self) -> CollectionSchema:
        self._require_floor()
        schema = CollectionSchema.of(self._known_as, self.info(), embedded=self.is_embedded)
        return schema if self.mandatory is None else schema.restricted(self.mandatory(schema))

    def _require_floor(self) -> None:
        if not self.is_embedded:
            self.call("asking the version of the server", lambda: require_floor(self.client))

    def info(self) -> models.CollectionInfo:
        """Return Qdrant's current description of the collection, including the state of its index."""
        return self.call("reading its schema", lambda: self.client.get_collection(self.name))

    def create(self, **config: Any) -> None:
        """Create the collection; ``config`` as `QdrantClient.create_collection` takes it."""
        self._schema = None
        self.call("creating the collection", lambda: self.client.create_collection(self.name, **config))

    def update(self, what: str, **config: Any) -> None:
        """Change settings or metadata; ``config`` as `QdrantClient.update_collection` takes it."""
        self._schema = None
        self.call(what, lambda: self.client.update_collection(self.name, **config))

    def require_changeable(self) -> None:
        """Refuse a key that may not change the collection's metadata, by an empty change."""
        self.update("asking whether it may be changed", metadata={})

    def drop(self) -> None:
        """Delete the whole collection."""
        self._schema = None
        self.call("deleting the collection", lambda: self.client.delete_collection(self.name))

    def write_contract(self, vector_name: str, contract: Contract | None) -> None:
        """Record what made a vector, or remove the record; the entries of other vectors are not touched."""
        self.update("writing its model record", metadata=contract_metadata(vector_name, contract))

    def write_learned(self, vector_name: str, contract: LearnedContract | None) -> None:
        """Record the query encoder that was learned from a vector, or remove the record when it is None."""
        self.update("writing the record of a learned query encoder", metadata=learned_metadata(vector_name, contract))

    def wait_for_optimizer(
        self, longest_seconds: float, poll_seconds: float = 0.1, *, sleep: Callable[[float], None] = time.sleep
    ) -> models.CollectionInfo:
        """Wait until a server neither builds an index nor moves points, and return its description of the collection.

        After ``longest_seconds`` that is the last answer, whose status is still yellow.
        """
        return optimizer.wait_for_optimizer(self.info, longest_seconds, poll_seconds, sleep=sleep)

    def _wait_before_renaming(self) -> None:
        if not self.is_embedded:
            optimizer.wait_before_renaming(self.name, self.info)

    def _wait_for_hidden_points(self) -> None:
        # Counts, reads and searches silently leave hidden points out: an attach would seem complete without them.
        config = None if self.is_embedded else self.schema.config.optimizer_config
        if getattr(config, "prevent_unoptimized", None):
            optimizer.wait_for_hidden_points(self.name, self.info)

    def add_vector(self, vector_name: str, config: models.VectorNameConfig) -> None:
        """Add a vector to the schema, unless it exists; existing points do not have it yet."""
        self._wait_before_renaming()
        self._schema = None
        try:
            self.call("adding the vector", lambda: self.client.create_vector_name(self.name, vector_name, config))
        except Rejected:
            # Another run made it, or our own request did and its answer was lost.
            if not self.schema.has_vector(vector_name):
                raise

    def remove_vector(self, vector_name: str, check: Callable[[], None] = lambda: None) -> None:
        """Remove a vector from the schema and from all points, unless ``check``, called last, raises an error."""
        self._wait_before_renaming()
        check()
        self._schema = None
        self.call("removing the vector", lambda: self.client.delete_vector_name(self.name, vector_name))

    def create_indexes(self, indexes: Mapping[str, Any]) -> None:
        """Create the payload indexes, by key, that do not exist yet; an embedded database records tenant keys only."""
        if self.is_embedded:
            tenants = {key for key, params in indexes.items() if is_tenant_index(params)}
            if not tenants <= (known := self.refresh().tenant_keys):
                self.update("noting keys of tenants", metadata=TENANTS.change(sorted(tenants | known)))
            return
        if not indexes:
            return
        for key in indexes.keys() - self.refresh().payload_schema.keys():
            self.write(
                f"indexing {key}", partial(self.client.create_payload_index, self.name, key, indexes[key], wait=True)
            )
        self._schema = None
