"""Routes that read and search points."""

from typing import Any

from qdrant_client import models

from tests.standin.call import Call, NotFound, route


def _retrieve(call: Call) -> Any:
    body = call.parse(models.PointRequest)
    call.strict.check_reads(len(body.ids))
    payload = True if body.with_payload is None else body.with_payload
    return call.local.retrieve(call.collection, body.ids, with_payload=payload, with_vectors=body.with_vector or False)


def _retrieve_one(call: Call) -> Any:
    point_id: int | str = int(call.names[1]) if call.names[1].isdigit() else call.names[1]
    found = call.local.retrieve(call.collection, [point_id], with_payload=True, with_vectors=True)
    if not found:
        raise NotFound(f"Point with id {point_id} does not exists!")
    return found[0]


def _scroll(call: Call) -> Any:
    body = call.parse(models.ScrollRequest)
    strict = call.strict
    strict.check_filter(body.filter)
    strict.check_limit(body.limit)
    order_by = models.OrderBy(key=body.order_by) if isinstance(body.order_by, str) else body.order_by
    points, following = call.local.scroll(
        call.collection,
        scroll_filter=body.filter,
        limit=body.limit or 10,
        order_by=order_by,
        offset=body.offset,
        with_payload=True if body.with_payload is None else body.with_payload,
        with_vectors=body.with_vector or False,
    )
    return {"points": points, "next_page_offset": following}


def _count(call: Call) -> Any:
    body = call.parse(models.CountRequest)
    call.strict.check_exact(True if body.exact is None else body.exact)
    call.strict.check_filter(body.filter)
    return call.local.count(call.collection, count_filter=body.filter)


def _answer_query(call: Call, body: models.QueryRequest) -> Any:
    strict = call.strict
    strict.check_filter(body.filter)
    strict.check_limit(body.limit)
    strict.check_prefetch(body.prefetch)
    idf = body.params.idf if body.params is not None else None
    return call.local.query_points(
        call.collection,
        query=body.query,
        using=body.using,
        prefetch=body.prefetch,
        query_filter=body.filter,
        search_params=None if idf is None else models.SearchParams(idf=idf),
        limit=body.limit or 10,
        offset=body.offset,
        with_payload=body.with_payload or False,
        with_vectors=body.with_vector or False,
        score_threshold=body.score_threshold,
        lookup_from=body.lookup_from,
    )


def _searches(body: models.QueryRequest | models.Prefetch) -> int:
    """Return what a request costs of the rate of reads: the searches at its leaves."""
    prefetch = body.prefetch if isinstance(body.prefetch, list) else [body.prefetch] if body.prefetch else []
    return sum(map(_searches, prefetch)) or 1


def _query(call: Call) -> Any:
    body = call.parse(models.QueryRequest)
    call.strict.check_reads(_searches(body))
    return _answer_query(call, body)


def _query_batch(call: Call) -> Any:
    searches = call.parse(models.QueryRequestBatch).searches
    call.strict.check_reads(sum(map(_searches, searches)))
    call.strict.check_searches(len(searches))
    return [_answer_query(call, body) for body in searches]


ROUTES = [
    route("POST", "/collections/{}/points", _retrieve),
    route("GET", "/collections/{}/points/{}", _retrieve_one),
    route("POST", "/collections/{}/points/scroll", _scroll),
    route("POST", "/collections/{}/points/count", _count),
    route("POST", "/collections/{}/points/query", _query),
    route("POST", "/collections/{}/points/query/batch", _query_batch),
]
