"""`Collection`: one collection of one Qdrant, and the only module that calls the client on its points and schema."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from qdrant_client import QdrantClient, models

from care_qdrant.contracts.contract import Contract, contract_metadata
from care_qdrant.contracts.learned import LearnedContract, learned_metadata
from care_qdrant.contracts.metadata import TENANTS
from care_qdrant.contracts.stand_in import made_by
from care_qdrant.errors import InputError, NoCollection, Rejected, counted, next_command
from care_qdrant.qdrant import grpc, optimizer, rest
from care_qdrant.qdrant.calls import Calls, Written, in_requests, seconds_left
from care_qdrant.qdrant.connection import as_version, require_floor
from care_qdrant.qdrant.embedded_search import search_arrays
from care_qdrant.qdrant.retry import RequestTooLarge, RetryPolicy
from care_qdrant.qdrant.schema import CollectionSchema, Limits, is_tenant_index

T = TypeVar("T")
PointId = models.ExtendedPointId
SLICES_SINCE = (1, 19)
Payloads = bool | list[str]
"""Payload keys that are read with a point: all, none, or those named."""


class Collection(Calls):
    """One collection of one Qdrant, reached with retries; may be used from several threads.

    The schema is read once and kept: pure checks (`care_qdrant.qdrant.checks`) share it. `refresh` reads it
    again, and so does the next use after this object has changed it.

    Every method that calls Qdrant raises:
        ServerTooOld: The server is older than version 1.18.
        Unreachable: The patience of the policy is used up.
        Rejected: Qdrant says that the request is wrong.
    """

    def __init__(
        self,
        client: QdrantClient,
        name: str,
        policy: RetryPolicy | None = None,
        *,
        shard_key: models.ShardKey | None = None,
        known_as: str | None = None,
        readers: int = 1,
    ) -> None:
        """Set up access; nothing is read.

        Args:
            client: An open Qdrant.
            name: Name of the collection, or of an alias.
            policy: Number of attempts of a call, and the time for all of them.
            shard_key: Points of these shards alone are read and written; None reads all, and can write only where the
                server chooses the shards (`parts`).
            known_as: Name of the collection in messages of checks: the alias that led here.
            readers: Largest number of processes that read all points at once, on a server that knows slices. More than
                one wants a main module that can be imported, as `multiprocessing` does.
        """
        super().__init__(client, name, policy)
        self.shard_key, self._known_as, self.readers = shard_key, known_as or name, readers
        self._grpc = not self.is_embedded and bool(getattr(client, "init_options", {}).get("prefer_grpc"))
        """Whether `upsert` uses gRPC: as the client does."""
        self._schema: CollectionSchema | None = None
        self._version: tuple[int, ...] | None = None

    def __repr__(self) -> str:
        return f"Collection({self.name!r})"

    def of_shard(self, shard_key: Any | None) -> "Collection":
        """Return this collection, reached by the shards of a key alone; all of it where the key is None."""
        if shard_key is None:
            return self
        part = self._with(self.name, shard_key, self._known_as)
        part._schema = self._schema
        return part

    def sibling(self, name: str, *, known_as: str | None = None) -> "Collection":
        """Return another collection of the same Qdrant, reached with the same policy and shard key."""
        return self._with(name, self.shard_key, known_as)

    def _with(self, name: str, shard_key: models.ShardKey | None, known_as: str | None) -> "Collection":
        return Collection(self.client, name, self.policy, shard_key=shard_key, known_as=known_as, readers=self.readers)

    def parts(self) -> list["Collection"]:
        """Return what can be written to: this collection, or its shards by key, each key in turn.

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
        """Create the shards of the key of this collection, unless they are there.

        None takes the number of shards, or of copies of each, of the collection.
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

    def resolve(self) -> "Collection":
        """Return the collection behind an alias, or this one, as a new object whose schema is still to be read.

        Raises:
            NoCollection: The name is neither a collection nor an alias; the message lists those there are.
        """
        aliases = self.aliases()
        if self.name in aliases:
            return self.sibling(aliases[self.name])
        if not self.exists():
            there = ", ".join([*self.names(), *(f"{alias} (alias)" for alias in sorted(aliases))]) or "none"
            raise NoCollection(f"there is no collection {self.name!r} (there: {there})")
        return self.sibling(self.name, known_as=self._known_as)

    def whole(self) -> "Collection":
        """Return what `resolve` returns, for work that a collection needs done on all its shards.

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
        """Let an alias point at this collection, in one step: at no moment is it missing."""
        create = models.CreateAlias(collection_name=self.name, alias_name=alias)
        steps: list[models.AliasOperations] = [models.CreateAliasOperation(create_alias=create)]
        if alias in self.aliases():
            steps.insert(0, models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name=alias)))
        self.call("switching the alias", lambda: self.client.update_collection_aliases(steps))

    def server_version(self) -> str:
        """Return the version of the server, ``embedded`` for a folder."""
        return "embedded" if self.is_embedded else self.call("asking its version", self.client.info).version

    def is_since(self, version: tuple[int, ...]) -> bool:
        """Return whether the server has this version or a newer one: asked once, and always so where it is embedded."""
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
        self._require_floor()
        info = self.info()
        self._schema = CollectionSchema.of(self._known_as, info, embedded=self.is_embedded)
        return self._schema

    def _require_floor(self) -> None:
        if not self.is_embedded:
            self.call("asking the version of the server", lambda: require_floor(self.client))

    def info(self) -> models.CollectionInfo:
        """Return what Qdrant says now, the state of its index included."""
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
        """Refuse a key that may not change the collection's metadata, by a change of nothing."""
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
        """Wait until a server neither builds an index nor moves points, and return what it says of the collection.

        After ``longest_seconds`` that is the last answer, whose status is still yellow.
        """
        return optimizer.wait_for_optimizer(self.info, longest_seconds, poll_seconds, sleep=sleep)

    def _wait_before_renaming(self) -> None:
        if not self.is_embedded:
            optimizer.wait_before_renaming(self.name, self.info)

    def _wait_for_hidden_points(self) -> None:
        # Counts, reads and searches leave those out without a word: an attach would be whole without them.
        config = None if self.is_embedded else self.schema.config.optimizer_config
        if getattr(config, "prevent_unoptimized", None):
            optimizer.wait_for_hidden_points(self.name, self.info)

    def add_vector(self, vector_name: str, config: models.VectorNameConfig) -> None:
        """Add a vector to the schema, unless it is there; existing points do not have it yet."""
        self._wait_before_renaming()
        self._schema = None
        try:
            self.call("adding the vector", lambda: self.client.create_vector_name(self.name, vector_name, config))
        except Rejected:
            # Another run made it, or our own request did and its answer was lost.
            if not self.schema.has_vector(vector_name):
                raise

    def remove_vector(self, vector_name: str) -> None:
        """Remove a vector from the schema and from all points."""
        self._wait_before_renaming()
        self._schema = None
        self.call("removing the vector", lambda: self.client.delete_vector_name(self.name, vector_name))

    def create_indexes(self, indexes: Mapping[str, Any]) -> None:
        """Create those payload indexes, by key, that are not there yet; the embedded database notes keys of tenants."""
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

    # Reading points

    def scroll(
        self,
        what: str = "reading points",
        *,
        where: models.Filter | None = None,
        limit: int | None = None,
        payload: Payloads = True,
        vectors: bool | list[str] = False,
        as_seen: bool = False,
    ) -> Iterator[list[models.Record]]:
        """Read points in the order of their ids, in pages of at most ``limits.page`` points.

        Without ``where`` and ``limit`` it reads all; ``what`` is for messages. With ``as_seen`` it does not wait for
        points that the server hides (`wait_for_hidden_points`).
        """
        if limit is None and not as_seen:
            self._wait_for_hidden_points()
        offset, size, left = None, self.limits.page, limit
        while left is None or left > 0:
            try:
                page, offset = self.call(
                    what,
                    lambda: self.client.scroll(
                        self.name,
                        scroll_filter=where,
                        limit=size if left is None else min(size, left),  # noqa: B023  # called at once
                        offset=offset,  # noqa: B023
                        with_payload=payload,
                        with_vectors=vectors,
                        shard_key_selector=self.shard_key,
                    ),
                )
            except RequestTooLarge:
                if size == 1:
                    raise
                size //= 2
                continue
            yield page
            left = None if left is None else left - len(page)
            if offset is None:
                return

    def slices(self, total: int) -> list[models.Filter | None]:
        """Return filters that pass disjoint parts of the points, together all of them, of about the same size.

        A point's part follows from its id alone, so that it is the same at any time. A server before 1.19 and the
        embedded database know no slices: there is one part, of all points.
        """
        if total == 1 or self.is_embedded or not self.is_since(SLICES_SINCE):
            return [None]
        slices = (models.Slice(total=total, index=index) for index in range(total))
        return [models.Filter(must=[models.SliceCondition(slice=each)]) for each in slices]

    def ids(self, where: models.Filter | None = None) -> Iterator[list[PointId]]:
        """Return the ids of the points that pass a filter, many at a time.

        The embedded database returns all at once: it holds them in memory anyway, and sorts them anew for every page.
        """
        if not self.is_embedded:
            yield from (
                [record.id for record in page] for page in self.scroll("reading ids", where=where, payload=False)
            )
            return
        limit = max(1, self.count())
        records, _ = self.call("reading ids", lambda: self.client.scroll(self.name, where, limit, with_payload=False))
        yield [record.id for record in records]

    def sample(self, points: int) -> list[models.Record]:
        """Return points with their payloads, each drawn with the same probability; fewer where so many are too large.

        Servers before 1.11 draw none: there, these are the points with the smallest ids.
        """
        limit = min(points, self.limits.page)
        try:
            return self._drawn(limit)
        except RequestTooLarge:
            if limit == 1:
                raise
            return self.sample(limit // 2)

    def _drawn(self, limit: int) -> list[models.Record]:
        at_random = models.SampleQuery(sample=models.Sample.RANDOM)
        key = self.shard_key
        try:
            drawn = self.call(
                "drawing a sample",
                lambda: self.client.query_points(self.name, at_random, limit=limit, shard_key_selector=key),
            )
        except Rejected:
            records, _ = self.call(
                "reading a sample", lambda: self.client.scroll(self.name, limit=limit, shard_key_selector=key)
            )
            return records
        return [models.Record(id=point.id, payload=point.payload) for point in drawn.points]

    def retrieve(
        self, ids: Sequence[PointId], what: str = "", *, payload: Payloads = True, vectors: bool | list[str] = False
    ) -> dict[PointId, models.Record]:
        """Return points by id, in requests of at most ``limits.page``; one that is not there is left out."""

        def read(page: Sequence[PointId]) -> list[models.Record]:
            retrieve = partial(self.client.retrieve, with_payload=payload, with_vectors=vectors)
            key = self.shard_key
            return self.call(
                what or f"reading {counted(len(page), 'point')}",
                lambda: retrieve(self.name, list(page), shard_key_selector=key),
            )

        records = chain.from_iterable(in_requests(ids, self.limits.page, read))
        return {record.id: record for record in records}

    def count(self, where: models.Filter | None = None, *, as_seen: bool = False) -> int:
        """Return the exact number of points that pass a filter; with ``as_seen`` those that the server shows now."""
        if not self.limits.exact_count:
            pages = self.scroll("counting", where=where, payload=False, as_seen=as_seen)
            return sum(len(page) for page in pages)
        if not as_seen:
            self._wait_for_hidden_points()
        key = self.shard_key
        return self.call("counting", lambda: self.client.count(self.name, where, True, key)).count

    def count_with_vector(self, vector_name: str) -> int:
        """Return the exact number of points that have a vector of this name."""
        return self.count(models.Filter(must=[models.HasVectorCondition(has_vector=vector_name)]))

    def count_stand_ins(self, vector_name: str) -> int | None:
        """Return the exact number of points whose vector a learned encoder made; None where strict mode forbids it."""
        encoders, strict = self.schema.stand_ins.get(vector_name), self.schema.strict_mode
        if not encoders:
            return 0
        if strict is not None and strict.unindexed_filtering_retrieve is False:
            return None
        return self.count(made_by(encoders))

    def search(self, what: str, requests: Sequence[models.QueryRequest]) -> list[list[models.ScoredPoint]]:
        """Return the points that each request finds, best first.

        Raises:
            Rejected: Also where the server finds even one request too large.
        """
        if not requests:
            return []
        if self.shard_key is not None:
            requests = [request.model_copy(update={"shard_key": self.shard_key}) for request in requests]
        try:
            answers = in_requests(requests, len(requests), lambda some: self.call(what, lambda: self._query(some)))
            return [points for some in answers for points in some]
        except RequestTooLarge as error:
            raise Rejected(f"{what}: the server finds even one query too large ({error})") from error

    def _query(self, requests: Sequence[models.QueryRequest]) -> list[list[models.ScoredPoint]]:
        """Ask Qdrant, or the arrays beside an embedded database for what they answer."""
        if self.is_embedded:
            return [self._query_embedded(request) for request in requests]
        return [answer.points for answer in self.client.query_batch_points(self.name, requests, timeout=seconds_left())]

    def _query_embedded(self, request: models.QueryRequest) -> list[models.ScoredPoint]:
        if request.shard_key is not None:
            raise InputError(
                f"a search in collection {self.name!r} names shard key {request.shard_key!r}, and the embedded "
                "database has no shards: leave it out, or search on a server"
            )
        points = search_arrays(self.client, self.name, request)
        if points is not None:
            return points
        # A batch would copy the vector first, a tenth of a millisecond.
        return self.client.query_points(
            self.name,
            query=request.query,
            using=request.using,
            prefetch=request.prefetch,
            query_filter=request.filter,
            search_params=request.params,
            score_threshold=request.score_threshold,
            limit=10 if request.limit is None else request.limit,
            offset=request.offset,
            lookup_from=request.lookup_from,
            with_payload=request.with_payload or False,
            with_vectors=request.with_vector or False,
        ).points

    # Changing points. What is not there is left alone: others may delete points at any time, and a request that names
    # the id of a point that is gone would fail as a whole, while a condition on the id does not.

    def upsert(self, points: Sequence[models.PointStruct]) -> None:
        """Write whole points in one request; those that are there lose all that they held.

        A named vector may be a row of `Vectors` instead of a list of numbers.

        Raises:
            RequestTooLarge: The server takes no request of this size.
        """

        def write() -> models.UpdateResult:
            if self._grpc:
                return grpc.upsert(self.client, self.name, points, self.shard_key)
            if self.is_embedded:
                plain = grpc.with_lists(points)
                return self.client.upsert(self.name, plain, wait=True, shard_key_selector=self.shard_key)
            return rest.upsert(self.client, self.name, points, self.shard_key)

        self.write(f"writing {counted(len(points), 'point')}", write)

    def apply(self, what: str, operations: Sequence[models.UpdateOperation]) -> None:
        """Apply several operations in one request and in order.

        Raises:
            RequestTooLarge: The server takes no request of this size.
        """
        operations = [self._with_shard_key(operation) for operation in operations]
        self.write(what, lambda: self.client.batch_update_points(self.name, operations, wait=True))

    def delete(self, ids: Sequence[PointId]) -> None:
        """Delete points by id."""

        def delete(page: Sequence[PointId]) -> models.UpdateResult:
            selector = models.PointIdsList(points=list(page))
            return self.client.delete(self.name, selector, wait=True, shard_key_selector=self.shard_key)

        self._write_pages("deleting points", ids, self.limits.page, delete)

    def delete_where(self, where: models.Filter) -> None:
        """Delete the points that pass a filter."""
        selector = models.FilterSelector(filter=where)
        delete = partial(self.client.delete, self.name, selector, wait=True, shard_key_selector=self.shard_key)
        self.write("deleting points", delete)

    def delete_vector_of(self, ids: Sequence[PointId], vector_name: str) -> None:
        """Take a vector away from points; the vector stays in the schema."""
        delete = partial(self.client.delete_vectors, self.name, [vector_name], shard_key_selector=self.shard_key)
        self._write_pages("removing vectors", ids, self.limits.write, lambda page: delete(having_ids(page), wait=True))

    def delete_payload_key(self, ids: Sequence[PointId], key: str) -> None:
        """Remove a payload key, as Qdrant writes its path, from points."""
        delete = partial(self.client.delete_payload, self.name, [key], shard_key_selector=self.shard_key)
        self._write_pages("removing hashes", ids, self.limits.write, lambda page: delete(having_ids(page), wait=True))

    def _write_pages(
        self, what: str, ids: Sequence[PointId], size: int, operation: Callable[[Sequence[PointId]], Written]
    ) -> None:
        """Call a write on pages of ids."""
        list(in_requests(ids, size, lambda page: self.write(what, lambda: operation(page))))

    def _with_shard_key(self, operation: models.UpdateOperation) -> models.UpdateOperation:
        """Return an operation on the shards of this collection's key."""
        if self.shard_key is None:
            return operation
        [field] = type(operation).model_fields
        change = getattr(operation, field).model_copy(update={"shard_key": self.shard_key})
        return operation.model_copy(update={field: change})


def having_ids(ids: Sequence[PointId]) -> models.Filter:
    """Return the filter that passes points of these ids."""
    return models.Filter(must=[models.HasIdCondition(has_id=list(ids))])


def only_collection(client: QdrantClient, where: str) -> str:
    """Return the name of the collection when there is one, so that nobody has to type it."""
    names = Collection(client, "").names()
    if not names:
        raise InputError(f"{where}: no collections yet; make one, " + next_command("care ingest corpus.jsonl"))
    if len(names) > 1:
        raise InputError(f"{where}: several collections ({', '.join(names)}); name one with --collection")
    return names[0]
