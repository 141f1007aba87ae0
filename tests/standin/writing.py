"""Routes that write points, their vectors and their payloads."""

from typing import Any

from pydantic_core import to_jsonable_python
from qdrant_client import models
from qdrant_client.local.payload_filters import check_filter

from tests.standin.call import Call, route


def _check(call: Call, points: int) -> None:
    """Refuse what strict mode forbids to a request with so many vectors."""
    strict = call.strict
    strict.check_batch(points)
    if strict.limits_size:
        vectors = to_jsonable_python(call.local.get_collection(call.collection).config.params.vectors) or {}
        dense = {"": vectors} if "size" in vectors else vectors
        has = (models.Filter(must=[models.HasVectorCondition(has_vector=name)]) for name in dense)
        counts = [call.local.count(call.collection, count_filter=condition).count for condition in has]
        stored = sum(count * each["size"] * 4 for count, each in zip(counts, dense.values(), strict=True))
        strict.check_size(call.local.count(call.collection).count, stored)


def _upsert(call: Call) -> Any:
    body = call.parse(models.PointInsertOperations)
    points = body.batch if isinstance(body, models.PointsBatch) else body.points
    _check(call, len(points.ids) if isinstance(points, models.Batch) else len(points))
    return call.local.upsert(call.collection, points, update_filter=body.update_filter, update_mode=body.update_mode)


def _update_vectors(call: Call) -> Any:
    body = call.parse(models.UpdateVectors)
    _check(call, len(body.points))
    _require_numbers(body)
    return call.local.update_vectors(call.collection, body.points, update_filter=body.update_filter)


def _require_numbers(update: models.UpdateVectors) -> None:
    """Refuse a point all of whose vectors are empty, as a server does."""
    for point in update.points:
        vectors = point.vector.values() if isinstance(point.vector, dict) else [point.vector]
        if not any(each.indices if isinstance(each, models.SparseVector) else each for each in vectors):
            raise ValueError("Validation error in JSON body: must specify vectors to update for point")


def _delete_vectors(call: Call) -> Any:
    body = call.parse(models.DeleteVectors)
    call.strict.check_update(body.filter)
    return call.local.delete_vectors(call.collection, body.vector, body.points or body.filter)


def _delete_points(call: Call) -> Any:
    body = call.parse(models.PointsSelector)
    call.strict.check_update(getattr(body, "filter", None))
    call.strict.check_writes(len(getattr(body, "points", [])))
    return call.local.delete(call.collection, body)


def _named_points(call: Call, change: models.SetPayload) -> list[Any] | None:
    """Return the points that a filter passes, where each branch names ids: a server looks at no others.

    qdrant-client compares every point with every branch. None is any other filter.
    """
    given = change.filter
    if given is None or (given.must and given.should) or given.must_not or given.min_should:
        return None
    found = []
    for branch in given.should if isinstance(given.should, list) else [given]:
        must = branch.must if isinstance(branch, models.Filter) and isinstance(branch.must, list) else []
        named = next((one.has_id for one in must if isinstance(one, models.HasIdCondition)), None)
        if named is None or not isinstance(branch, models.Filter):
            return None
        records = call.local.retrieve(call.collection, named, with_vectors=True)
        for record in records:
            has = dict.fromkeys(record.vector if isinstance(record.vector, dict) else (), True)
            if check_filter(branch, record.payload or {}, record.id, has):
                found.append(record.id)
    return found


def _set_payload(call: Call) -> Any:
    body = call.parse(models.SetPayload)
    call.strict.check_update(body.filter)
    return call.local.set_payload(call.collection, body.payload, points=body.points or body.filter, key=body.key)


def _overwrite_payload(call: Call) -> Any:
    body = call.parse(models.SetPayload)
    call.strict.check_update(body.filter)
    return call.local.overwrite_payload(call.collection, body.payload, points=body.points or body.filter)


def _delete_payload(call: Call) -> Any:
    body = call.parse(models.DeletePayload)
    call.strict.check_update(body.filter)
    return call.local.delete_payload(call.collection, body.keys, points=body.points or body.filter)


def _batch(call: Call) -> Any:
    operations = call.parse(models.UpdateOperations).operations
    for operation in operations:
        if isinstance(operation, models.UpdateVectorsOperation):
            _check(call, len(operation.update_vectors.points))
            _require_numbers(operation.update_vectors)
        [change] = dict(operation).values()
        call.strict.check_update(getattr(change, "filter", None))
    done: list[Any] = []
    for operation in operations:
        change = getattr(operation, "set_payload", None) or getattr(operation, "overwrite_payload", None)
        if change is not None and (points := _named_points(call, change)) is not None:
            if not points:
                done.append(models.UpdateResult(operation_id=0, status=models.UpdateStatus.COMPLETED))
                continue
            change.points, change.filter = points, None
        done += call.local.batch_update_points(call.collection, [operation])
    return done


ROUTES = [
    route("PUT", "/collections/{}/points", _upsert),
    route("PUT", "/collections/{}/points/vectors", _update_vectors),
    route("POST", "/collections/{}/points/vectors/delete", _delete_vectors),
    route("POST", "/collections/{}/points/delete", _delete_points),
    route("POST", "/collections/{}/points/payload", _set_payload),
    route("PUT", "/collections/{}/points/payload", _overwrite_payload),
    route("POST", "/collections/{}/points/payload/delete", _delete_payload),
    route("POST", "/collections/{}/points/batch", _batch),
]
