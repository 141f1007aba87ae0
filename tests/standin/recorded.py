"""Requests and what a real server answered; ``python -m tests.standin.recorded URL`` asks one anew."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

RECORDED = Path(__file__).with_name("recorded.json")
C, D = "care-test-recorded", "care-test-recorded-2"
DENSE = {"size": 4, "distance": "Cosine"}
X, Y = [1.0, 0.0, 0.0, 0.0], [0.0, 0.6, 0.8, 0.0]
INDEXED = {"must": [{"key": "n", "match": {"value": 1}}]}
STRICT = {"enabled": True, "max_query_limit": 5, "search_allow_exact": False, "upsert_max_batchsize": 2}
UUID = "0b5b0e5c-6a3e-5f0e-9d0a-0d3f0a6b9c11"
_VARIABLE = ("time", "usage", "operation_id", "version", "creation_time", "update_queue", "warnings")
"""Fields of an answer that two servers of one version give differently."""
_KEPT_INFO = ("points_count", "payload_schema")
_KEPT_CONFIG = ("metadata", "strict_mode_config")
_KEPT_PARAMS = (
    "vectors",
    "sparse_vectors",
    "shard_number",
    "replication_factor",
    "write_consistency_factor",
    "on_disk_payload",
)

Exchange = tuple[str, str, Any]
"""Method, path and body of a request; None sends no body."""


def _points(*points: tuple[int | str, Any, dict[str, Any]]) -> dict[str, Any]:
    return {"points": [{"id": key, "vector": vector, "payload": payload} for key, vector, payload in points]}


def _hybrid(formula: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a hybrid request whose answer has no two equal scores."""
    dense = {"query": X, "using": "dense", "limit": 1}
    sparse = {"query": {"indices": [7], "values": [1.0]}, "using": "bm25", "limit": 3}
    return {"prefetch": [dense, sparse], "query": formula or {"fusion": "rrf"}, "limit": 3, "with_payload": True}


_SCORES: dict[str, Any] = {"formula": {"sum": [{"mult": [0.4, "$score[0]"]}, {"mult": [0.6, "$score[1]"]}]}}
EXCHANGES: list[Exchange] = [
    # Collections
    ("GET", f"/collections/{C}", None),
    ("GET", f"/collections/{C}/exists", None),
    ("POST", f"/collections/{C}/points/count", {"exact": True}),
    ("PUT", f"/collections/{C}/points?wait=true", _points((1, X, {}))),
    ("DELETE", f"/collections/{C}", None),
    (
        "PUT",
        f"/collections/{C}",
        {
            "vectors": {"dense": DENSE},
            "sparse_vectors": {"bm25": {"modifier": "idf"}},
            "metadata": {"owner": "team", "care:dense": {"fingerprint": "f" * 64, "average": "200.02333333333334"}},
        },
    ),
    ("PUT", f"/collections/{C}", {"vectors": {"dense": DENSE}}),
    ("GET", f"/collections/{C}", None),
    ("GET", f"/collections/{C}/exists", None),
    ("PATCH", f"/collections/{C}", {"metadata": {"run": {"started": 1}}}),
    ("PATCH", f"/collections/{C}", {"metadata": {"owner": None}}),
    ("PATCH", f"/collections/{C}", {"vectors": {"dense": {"on_disk": True}}}),
    ("PATCH", f"/collections/{C}", {"vectors": {"nobody": {"on_disk": True}}}),
    ("GET", f"/collections/{C}", None),
    # Points
    (
        "PUT",
        f"/collections/{C}/points?wait=true",
        _points(
            (1, {"dense": X, "bm25": {"indices": [7, 3], "values": [1.0, 0.5]}}, {"n": 1, "text": "一", "_care": {}}),
            (2, {"dense": Y, "bm25": {"indices": [3], "values": [2.0]}}, {"n": 2, "nested": {"a": [1, None]}}),
            (3, {"bm25": {"indices": [7], "values": [0.25]}}, {"n": 3, "empty": ""}),
            (UUID, {"dense": [3.0, 4.0, 0.0, 0.0]}, {"n": 3}),
        ),
    ),
    ("PUT", f"/collections/{C}/points?wait=true", _points((9, {"dense": [1.0, 0.0]}, {}))),
    ("PUT", f"/collections/{C}/points?wait=true", _points((9, {"nobody": X}, {}))),
    ("PUT", f"/collections/{C}/points?wait=true", _points((9, X, {}))),
    ("PUT", f"/collections/{C}/points?wait=true", _points(("no id", {"dense": X}, {}))),
    ("POST", f"/collections/{C}/points/count", {"exact": True}),
    ("POST", f"/collections/{C}/points/count", {"exact": True, "filter": {"must": [{"has_vector": "dense"}]}}),
    ("POST", f"/collections/{C}/points/count", {"exact": True, "filter": {"must_not": [{"has_vector": "bm25"}]}}),
    ("POST", f"/collections/{C}/points/count", {"exact": True, "filter": {"must": [{"has_id": [1, 2, 77]}]}}),
    ("POST", f"/collections/{C}/points/count", {"exact": True, "filter": {"must": [{"is_empty": {"key": "text"}}]}}),
    ("GET", f"/collections/{C}/points/1", None),
    ("GET", f"/collections/{C}/points/77", None),
    ("POST", f"/collections/{C}/points", {"ids": [1, 3, 77, UUID], "with_vector": True, "with_payload": True}),
    ("POST", f"/collections/{C}/points", {"ids": [2], "with_payload": ["nested.a"]}),
    ("POST", f"/collections/{C}/points/scroll", {"limit": 2, "with_vector": ["dense"], "with_payload": False}),
    ("POST", f"/collections/{C}/points/scroll", {"limit": 3, "offset": 3, "with_payload": ["n"]}),
    ("POST", f"/collections/{C}/points/scroll", {"limit": 3, "filter": INDEXED, "with_payload": True}),
    # Searches
    ("POST", f"/collections/{C}/points/query", {"query": X, "using": "dense", "limit": 3, "with_payload": True}),
    ("POST", f"/collections/{C}/points/query", {"query": X, "using": "dense", "limit": 3, "with_vector": ["dense"]}),
    ("POST", f"/collections/{C}/points/query", {"query": X, "using": "nobody", "limit": 3}),
    ("POST", f"/collections/{C}/points/query", {"query": X, "limit": 3}),
    ("POST", f"/collections/{C}/points/query", {"query": [1.0, 2.0], "using": "dense", "limit": 3}),
    ("POST", f"/collections/{C}/points/query", {"query": 77, "using": "dense", "limit": 3}),
    ("POST", f"/collections/{C}/points/query", {"query": X, "using": "dense", "filter": INDEXED, "limit": 3}),
    (
        "POST",
        f"/collections/{C}/points/query/batch",
        {"searches": [{"query": {"indices": [3], "values": [1.0]}, "using": "bm25", "limit": 3}, _hybrid()]},
    ),
    ("POST", f"/collections/{C}/points/query", _hybrid(_SCORES)),
    ("POST", "/collections/nobody/points/query/batch", {"searches": [{"query": X, "limit": 1}]}),
    # Vectors and payloads of points that are there
    (
        "PUT",
        f"/collections/{C}/points/vectors?wait=true",
        {"points": [{"id": 3, "vector": {"dense": [0.0, 0.0, 2.0, 0.0]}}]},
    ),
    ("PUT", f"/collections/{C}/points/vectors?wait=true", {"points": [{"id": 77, "vector": {"dense": X}}]}),
    ("PUT", f"/collections/{C}/points/vectors?wait=true", {"points": [{"id": 3, "vector": {"nobody": X}}]}),
    ("POST", f"/collections/{C}/points/vectors/delete?wait=true", {"points": [2], "vector": ["dense"]}),
    ("POST", f"/collections/{C}/points/vectors/delete?wait=true", {"points": [2], "vector": ["nobody"]}),
    ("POST", f"/collections/{C}/points/payload?wait=true", {"payload": {"dense": "h"}, "points": [1], "key": "_care"}),
    ("POST", f"/collections/{C}/points/payload?wait=true", {"payload": {"n": 9}, "points": [77]}),
    ("POST", f"/collections/{C}/points/payload/delete?wait=true", {"keys": ["nested.a"], "points": [2]}),
    ("PUT", f"/collections/{C}/points/payload?wait=true", {"payload": {"only": 1}, "points": [3]}),
    ("POST", f"/collections/{C}/points", {"ids": [1, 2, 3], "with_vector": True, "with_payload": True}),
    (
        "POST",
        f"/collections/{C}/points/batch?wait=true",
        {
            "operations": [
                {"set_payload": {"payload": {"m": 1}, "points": [1]}},
                {"update_vectors": {"points": [{"id": 1, "vector": {"dense": Y}}]}},
                {"delete": {"points": [2]}},
            ]
        },
    ),
    ("POST", f"/collections/{C}/points", {"ids": [1, 2], "with_vector": ["dense"], "with_payload": True}),
    # Names of vectors
    (
        "PUT",
        f"/collections/{C}/vectors/new?wait=true",
        {"dense": {"size": 2, "distance": "Dot"}},
    ),
    ("GET", f"/collections/{C}", None),
    ("DELETE", f"/collections/{C}/vectors/new?wait=true", None),
    ("DELETE", f"/collections/{C}/vectors/new?wait=true", None),
    # Aliases
    (
        "POST",
        "/collections/aliases",
        {"actions": [{"create_alias": {"collection_name": C, "alias_name": f"{C}-live"}}]},
    ),
    (
        "POST",
        "/collections/aliases",
        {"actions": [{"create_alias": {"collection_name": "nobody", "alias_name": f"{C}-x"}}]},
    ),
    ("GET", f"/collections/{C}/aliases", None),
    ("POST", f"/collections/{C}-live/points/count", {"exact": True}),
    ("PUT", f"/collections/{C}-live", {"vectors": {"dense": DENSE}}),
    # Strict mode
    ("PUT", f"/collections/{D}", {"vectors": DENSE, "strict_mode_config": STRICT}),
    ("GET", f"/collections/{D}", None),
    ("PUT", f"/collections/{D}/points?wait=true", _points((1, X, {}), (2, Y, {}), (3, X, {}))),
    ("PUT", f"/collections/{D}/points?wait=true", _points((1, X, {"n": 1}), (2, Y, {}))),
    ("POST", f"/collections/{D}/points/query", {"query": X, "limit": 6}),
    ("POST", f"/collections/{D}/points/query", {"query": X, "limit": 5}),
    ("POST", f"/collections/{D}/points/scroll", {"limit": 6}),
    ("POST", f"/collections/{D}/points/count", {"exact": True}),
    ("PATCH", f"/collections/{D}", {"strict_mode_config": {"unindexed_filtering_retrieve": False}}),
    ("POST", f"/collections/{D}/points/scroll", {"limit": 3, "filter": INDEXED}),
    ("PUT", f"/collections/{D}/index?wait=true", {"field_name": "n", "field_schema": "integer"}),
    ("POST", f"/collections/{D}/points/scroll", {"limit": 3, "filter": INDEXED, "with_payload": True}),
    ("PATCH", f"/collections/{D}", {"strict_mode_config": {"write_rate_limit": 3, "upsert_max_batchsize": 99}}),
    ("PUT", f"/collections/{D}/points?wait=true", _points(*((number, X, {}) for number in range(10, 15)))),
    ("PATCH", f"/collections/{D}", {"strict_mode_config": {"read_rate_limit": 2}}),
    ("POST", f"/collections/{D}/points/query/batch", {"searches": [{"query": X, "limit": 1}] * 3}),
    (
        "POST",
        f"/collections/{D}/points/query",
        {"prefetch": [{"query": X, "limit": 1}] * 3, "query": {"fusion": "rrf"}, "limit": 1},
    ),
    ("GET", "/collections/nobody/nothing", None),
    # What is left
    ("DELETE", f"/collections/{C}", None),
    ("DELETE", f"/collections/{C}", None),
    ("DELETE", f"/collections/{D}", None),
    ("GET", f"/collections/{C}/exists", None),
]


def ask(url: str) -> Iterator[dict[str, Any]]:
    """Send all requests in their order, names of vectors at rest; return each status, and the body without times."""
    with httpx.Client(base_url=url, timeout=60) as client:
        for method, path, body in EXCHANGES:
            while "/vectors/new" in path and client.get(f"/collections/{C}").json()["result"]["status"] == "yellow":
                time.sleep(0.02)
            answer = client.request(method, path, json=body)
            content = answer.json() if "json" in answer.headers.get("content-type", "") else answer.text
            yield {"code": answer.status_code, "body": _stable(content)}


def _stable(value: Any) -> Any:
    if isinstance(value, dict) and {"config", "points_count"} <= value.keys():
        return _stable(_of_collection(value))
    if isinstance(value, dict):
        return {key: _stable(each) for key, each in value.items() if each is not None and key not in _VARIABLE}
    if isinstance(value, list):
        return [_stable(each) for each in value]
    return round(value, 5) if isinstance(value, float) else value


def _of_collection(info: dict[str, Any]) -> dict[str, Any]:
    """Return what this package reads of a collection."""
    config = info["config"]
    kept = {key: info.get(key) for key in _KEPT_INFO}
    kept["payload_schema"] = {key: field["data_type"] for key, field in (info.get("payload_schema") or {}).items()}
    return kept | {
        **{key: config.get(key) for key in _KEPT_CONFIG},
        **{key: config["params"].get(key) for key in _KEPT_PARAMS},
    }


def main() -> None:
    """Record the answers of the server whose URL is given."""
    [url] = sys.argv[1:]
    version = httpx.get(url).json()["version"]
    lines = [json.dumps(answer, ensure_ascii=False, sort_keys=True) for answer in ask(url)]
    answers = ",\n".join(lines)
    RECORDED.write_text(f'{{"server": "{version}", "answers": [\n{answers}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
