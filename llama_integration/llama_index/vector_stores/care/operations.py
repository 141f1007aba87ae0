"""What `CareVectorStore` asks of a resolved collection, each operation written once for sync and async clients."""

from collections.abc import Sequence
from typing import Any

from grpc import RpcError  # type: ignore[import-untyped]
from llama_index.vector_stores.care.points import as_point_id, changed_texts, having_ids, merge_operations
from qdrant_client import models
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

from care_qdrant.qdrant.retry import is_not_found
from care_qdrant.search.resolve import ResolvedCollection
from care_qdrant.search.steps import Operation, Steps, ask


def score_nodes(
    resolved: ResolvedCollection, query_embedding: list[float], node_ids: Sequence[str]
) -> Steps[dict[str, float]]:
    """Return the cosine of a query with the stored vector of each node; nodes without one are left out."""
    if not node_ids:
        return {}
    answer = yield from ask(
        lambda client: client.query_points(
            resolved.name,
            query_embedding,
            using=resolved.vector_name,
            query_filter=models.Filter(must=[having_ids(node_ids)]),
            limit=len(node_ids),
            with_payload=False,
        )
    )
    scores: dict[Any, float] = {point.id: point.score for point in answer.points}
    return {node_id: scores[found] for node_id in node_ids if (found := as_point_id(node_id)) in scores}


def read_points(
    resolved: ResolvedCollection, where: models.Filter, limit: int | None, shard: Any | None
) -> Steps[list[models.Record]]:
    """Return the points that pass a filter, at most ``limit``, with payload and dense vector; page by page."""
    records: list[models.Record] = []
    offset: Any = None
    while limit is None or len(records) < limit:
        size = resolved.limits.page if limit is None else min(resolved.limits.page, limit - len(records))
        page, offset = yield from _read_page(resolved, where, size, offset, shard)
        records += page
        if offset is None:
            break
    return records


def write_points(
    resolved: ResolvedCollection, points: list[models.PointStruct], attempts: int, shard: Any | None
) -> Steps[int]:
    """Write points in one request, without touching the vectors that other models have on them."""
    stored: list[models.Record] = []
    if resolved.has_other_vectors:
        ids = [point.id for point in points]
        stored = yield from ask(lambda client: client.retrieve(resolved.name, ids, True, shard_key_selector=shard))
    operations = merge_operations(points, stored, shard)
    for attempt in range(max(1, attempts)):
        try:
            yield from ask(lambda client: client.batch_update_points(resolved.name, operations, wait=True))
            break
        except (RpcError, UnexpectedResponse, ResponseHandlingException) as error:
            if attempt + 1 >= attempts or is_not_found(error):
                raise
    return len(changed_texts(points, stored, resolved.layout))


def upload_points(
    resolved: ResolvedCollection,
    points: Sequence[models.PointStruct],
    batch_size: int,
    parallel: int,
    attempts: int,
    shard: Any | None,
) -> Steps[None]:
    """Write whole points from several processes; only a sync client can."""
    yield from ask(
        lambda client: client.upload_points(
            resolved.name,
            points,
            batch_size=batch_size,
            parallel=parallel,
            max_retries=attempts,
            wait=True,
            shard_key_selector=shard,
        )
    )


def delete_points(resolved: ResolvedCollection, where: models.Filter, shard: Any | None) -> Steps[None]:
    """Delete the points that pass a filter."""
    yield from ask(lambda client: client.delete(resolved.name, where, shard_key_selector=shard))


def create_unless_there(create: Operation) -> Steps[None]:
    """Create what another process may have created in the meantime."""
    try:
        yield from ask(create)
    except (RpcError, ValueError, UnexpectedResponse) as error:
        if "already exists" not in str(error):
            raise


def _read_page(
    resolved: ResolvedCollection, where: models.Filter, size: int, offset: Any, shard: Any | None
) -> Steps[tuple[list[models.Record], Any]]:
    return ask(
        lambda client: client.scroll(
            resolved.name,
            where,
            limit=size,
            offset=offset,
            with_vectors=[resolved.vector_name] if resolved.vector_name else True,
            shard_key_selector=shard,
        )
    )
