"""`ReadableCollection`: reads, counts, samples and searches the points of a collection."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from itertools import chain
from typing import Any, Self, TypeVar

from qdrant_client import models
from typing_extensions import override

from care_qdrant.contracts.stand_in import made_by
from care_qdrant.errors import InputError, Rejected, counted
from care_qdrant.qdrant.calls import in_requests
from care_qdrant.qdrant.described import DescribedCollection
from care_qdrant.qdrant.embedded_search import search_arrays
from care_qdrant.qdrant.filters import require_finite
from care_qdrant.qdrant.retry import RequestTooLarge
from care_qdrant.qdrant.schema import CollectionSchema

Node = TypeVar("Node", models.QueryRequest, models.Prefetch)
PointId = models.ExtendedPointId
SLICES_SINCE = (1, 19)
TENANT_IDF_SINCE = (1, 19)
"""First version of the server that counts the documents of a term among the points of a filter."""
Payloads = bool | list[str]
"""Payload keys that are read with a point: all, none, or the listed ones."""


def place_in_order(point_id: PointId, seed: int) -> bytes:
    """Return a point's sort key in a random order of all points, which depends on its id and a seed alone.

    The first points in this order are a sample, which later changes only by the points that are added and deleted.
    """
    return blake2b(str(point_id).encode(), digest_size=8, key=str(seed).encode()).digest()


class ReadableCollection(DescribedCollection):
    """A collection whose points can be read, counted, sampled and searched: those that pass the mandatory filter."""

    @override
    def refresh(self) -> CollectionSchema:
        schema = super().refresh()
        if self.mandatory is not None and schema.limits.exact_count:
            self._schema = schema = replace(schema, points=self.count(as_seen=True))
        return schema

    def unrestricted(self) -> Self:
        """Return the collection with all points, for checks whose result tells nothing about one of them."""
        return type(self)(self.client, self.name, self.policy, shard_key=self.shard_key, known_as=self._known_as)

    def _allowed(self, where: models.Filter | None) -> models.Filter | None:
        """Return a filter together with the mandatory one; every reading but a search goes through here."""
        require_finite(where)
        if self.mandatory is None:
            return where
        mandatory = self.schema.mandatory
        assert mandatory is not None, "the schema is that of a restricted collection"
        return models.Filter(must=[mandatory] if where is None else [mandatory, where])

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
                        scroll_filter=self._allowed(where),
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

        A point's part depends on its id alone, so it never changes. A server before 1.19 and the embedded database do
        not support slices: there is one part, of all points.
        """
        if total == 1 or self.is_embedded or not self.is_since(SLICES_SINCE):
            return [None]
        slices = (models.Slice(total=total, index=index) for index in range(total))
        return [models.Filter(must=[models.SliceCondition(slice=part)]) for part in slices]

    def ids(self, where: models.Filter | None = None) -> Iterator[list[PointId]]:
        """Yield the ids of the points that pass a filter, in lists.

        The embedded database returns all at once: it holds them in memory, and would sort them again for every page.
        """
        if not self.is_embedded:
            yield from (
                [record.id for record in page] for page in self.scroll("reading ids", where=where, payload=False)
            )
            return
        limit = max(1, self.count())
        records, _ = self.call(
            "reading ids", lambda: self.client.scroll(self.name, self._allowed(where), limit, with_payload=False)
        )
        yield [record.id for record in records]

    def sample(self, points: int) -> list[models.Record]:
        """Return points with their payloads, drawn with equal probability; fewer if the answer would be too large."""
        limit, key, where = min(points, self.limits.page), self.shard_key, self._allowed(None)
        at_random = models.SampleQuery(sample=models.Sample.RANDOM)
        try:
            drawn = self.call(
                "drawing a sample",
                lambda: self.client.query_points(
                    self.name, at_random, query_filter=where, limit=limit, shard_key_selector=key
                ),
            )
        except RequestTooLarge:
            if limit == 1:
                raise
            return self.sample(limit // 2)
        return [models.Record(id=point.id, payload=point.payload) for point in drawn.points]

    def retrieve(
        self, ids: Sequence[PointId], what: str = "", *, payload: Payloads = True, vectors: bool | list[str] = False
    ) -> dict[PointId, models.Record]:
        """Return points by id, in requests of at most ``limits.page``; missing points are left out."""

        def read(page: Sequence[PointId]) -> list[models.Record]:
            retrieve = partial(self.client.retrieve, with_payload=payload, with_vectors=vectors)
            key = self.shard_key
            if self.mandatory is not None:
                where = models.Filter(must=[models.HasIdCondition(has_id=list(page))])
                pages = self.scroll(what, where=where, limit=len(page), payload=payload, vectors=vectors)
                return list(chain.from_iterable(pages))
            return self.call(
                what or f"reading {counted(len(page), 'point')}",
                lambda: retrieve(self.name, list(page), shard_key_selector=key),
            )

        records = chain.from_iterable(in_requests(ids, self.limits.page, read))
        return {record.id: record for record in records}

    def count(self, where: models.Filter | None = None, *, as_seen: bool = False) -> int:
        """Return the exact number of points that pass a filter; with ``as_seen``, of points that the server shows."""
        if not self.limits.exact_count:
            pages = self.scroll("counting", where=where, payload=False, as_seen=as_seen)
            return sum(len(page) for page in pages)
        if not as_seen:
            self._wait_for_hidden_points()
        key, where = self.shard_key, self._allowed(where)
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
            InputError: A filter holds NaN or an infinite number.
            Rejected: Also where the server finds even one request too large.
        """
        if not requests:
            return []
        for request in requests:
            _require_finite(request)
        if self.mandatory is not None:
            requests = list(map(self._restricted, requests))
        if self.shard_key is not None:
            requests = [request.model_copy(update={"shard_key": self.shard_key}) for request in requests]
        try:
            most = self.limits.searches or len(requests)
            answers = in_requests(requests, most, lambda some: self.call(what, lambda: self._query(some)))
            return [points for some in answers for points in some]
        except RequestTooLarge as error:
            raise Rejected(f"{what}: the server finds even one query too large ({error})") from error

    def _restricted(self, node: Node) -> Node:
        """Return a search, or a source of one, of the points that pass the mandatory filter, which are also its corpus.

        Raises:
            InputError: The server counts the documents of a term among all points.
        """
        changes: dict[str, Any] = {}
        if node.prefetch:
            sources = node.prefetch if isinstance(node.prefetch, list) else [node.prefetch]
            changes["prefetch"] = list(map(self._restricted, sources))
        else:
            changes["filter"] = self._allowed(node.filter)
        sparse = self.schema.sparse.get(node.using or "")
        if sparse is not None and sparse.modifier is models.Modifier.IDF:
            if not self.is_since(TENANT_IDF_SINCE):
                raise InputError(
                    "the IDF of a term would count documents that this key may not read: search in the mode dense, or "
                    f"run Qdrant {'.'.join(map(str, TENANT_IDF_SINCE))} or newer"
                )
            params = node.params or models.SearchParams()
            given = params.idf.corpus if isinstance(params.idf, models.IdfCorpusParams) else None
            corpus = self._allowed(given)
            assert corpus is not None, "there is a mandatory filter"
            changes["params"] = params.model_copy(update={"idf": models.IdfCorpusParams(corpus=corpus)})
        return node.model_copy(update=changes)

    def _query(self, requests: Sequence[models.QueryRequest]) -> list[list[models.ScoredPoint]]:
        """Send searches to a server, or answer them from an embedded database."""
        if self.is_embedded:
            return [self._query_embedded(request) for request in requests]
        return [answer.points for answer in self.client.query_batch_points(self.name, requests)]

    def _query_embedded(self, request: models.QueryRequest) -> list[models.ScoredPoint]:
        if request.shard_key is not None:
            raise InputError(
                f"a search in collection {self.name!r} names shard key {request.shard_key!r}, and the embedded "
                "database has no shards: leave it out, or search on a server"
            )
        points = search_arrays(self.client, self.name, request)
        if points is not None:
            return points
        # A batch would copy the vector first, which takes a tenth of a millisecond.
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


def _require_finite(node: models.QueryRequest | models.Prefetch) -> None:
    """Refuse a search whose filter, or that of one of its sources, holds NaN or an infinite number."""
    require_finite(node.filter)
    sources = node.prefetch or []
    for source in sources if isinstance(sources, list) else [sources]:
        _require_finite(source)
