"""Random requests of one tenant to a service of several: the answers are those of a service without the others.

Nothing of the restriction is known here but its promise. The points of another tenant hold a word that no answer may
hold, compete for every place, and are left out of the second service by their ids, not by a filter.
"""

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from qdrant_client import QdrantClient, models

from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.settings import IngestSettings
from care_qdrant.model.care_model import CareModel
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.create import index_schemas
from care_qdrant.serve.app import Service
from care_qdrant.serve.settings import ServeSettings
from care_qdrant.types import Document, point_id
from tests.reliability.trials import Trial
from tests.tiny import TEXTS, GivenEncoder, HashEncoder, point_alias

COLLECTION, ALIAS = "corpus", "alias"
OWN, OTHERS = "zqxown", "zqxother"
"""Words in every text, title, id, key and value of the points of the tenant, and of all others."""
KEY, OTHER_KEY, OPERATOR_KEY = ("a-key-of-the-tenant-1", "a-key-of-the-others-2", "a-key-of-the-operator-3")
TOLERANCE = 2e-5
"""Largest difference of two scores: products of matrices of other sizes differ in their last bits."""
OWN_DOCUMENTS, MIXED = 34, 3
"""Documents of the tenant, and how many of them have a chunk of others."""
OTHER_DOCUMENTS = (4, 90)
"""Documents of others: so few that a measurement of all points would count as one of the tenant's, or most."""


@dataclass(frozen=True, slots=True)
class Tenancy:
    """Conditions of a key, with metadata of points that meet them and of points that do not."""

    where: str
    own: Sequence[dict[str, Any]]
    others: Sequence[dict[str, Any]]
    indexes: dict[str, str]
    """Payload indexes on a server, by key."""


TENANCIES = (
    Tenancy(
        "where tenant=a",
        [{"tenant": "a"}, {"tenant": ["a", "b"]}],
        [{"tenant": "b"}, {"tenant": "A"}, {"tenant": "a b"}, {}, {"tenant": []}, {"tenant": {"a": "a"}}],
        {"tenant": "tenant"},
    ),
    Tenancy("where tenant = 1", [{"tenant": 1}], [{"tenant": 2}, {"tenant": 10}, {}], {"tenant": "integer"}),
    Tenancy('where tenant="1"', [{"tenant": "1"}], [{"tenant": 1}, {"tenant": "2"}, {"tenant": True}], {}),
    Tenancy(
        "where org.unit=a",
        [{"org": {"unit": "a"}}],
        [{"org": {"unit": "b"}}, {"org": "a"}, {"unit": "a"}, {"org": [{"unit": "b"}]}],
        {},
    ),
    Tenancy(
        "where tenant=a where level<=3",
        [{"tenant": "a", "level": 1}, {"tenant": "a", "level": 3}],
        [{"tenant": "b", "level": 1}, {"tenant": "a", "level": 4}, {"tenant": "a"}, {"tenant": "a", "level": "x"}],
        {"tenant": "tenant", "level": "integer"},
    ),
)


def tenant_trial(requests: int, seed: int, folder: Path, open_client: Callable[[], QdrantClient]) -> Trial:
    """Send requests to both services, and count the answers that differ or hold a word of others.

    Args:
        requests: Number of requests of the tenant; a third as many come from others in between.
        seed: Seed of the points and of the requests.
        folder: Empty folder for keys and judgements.
        open_client: Opens an empty database, twice.
    """
    return asyncio.run(_trial(requests, seed, folder, open_client))


async def _trial(requests: int, seed: int, folder: Path, open_client: Callable[[], QdrantClient]) -> Trial:
    chance = random.Random(seed)
    tenancy = TENANCIES[seed % len(TENANCIES)]
    with closing(open_client()) as shared_database, closing(open_client()) as own_database:
        ids = _fill(shared_database, tenancy, random.Random(seed))
        _fill(own_database, tenancy, random.Random(seed))
        _copy(own_database, ids.own, tenancy)
        lines = f"{KEY} {tenancy.where}\n{OTHER_KEY} where other={OTHERS}\n{OPERATOR_KEY}\n"
        async with AsyncExitStack() as stack:
            shared = await _serve(stack, shared_database, folder / "shared", lines)
            alone = await _serve(stack, own_database, folder / "alone", f"{KEY} search inference\n")
            observed: Counter[str] = Counter()
            violations = Counter({"differs": 0, "tells of others": 0, "tells others": 0})
            for key in (OPERATOR_KEY, KEY):  # what is measured among all points must not reach the tenant
                for mode in ("dense", "hybrid", "auto"):
                    for collection in (COLLECTION, ALIAS):
                        await _ask(shared, key, ("/good-match", {"mode": mode, "collection": collection}))
                        await _ask(alone, KEY, ("/good-match", {"mode": mode, "collection": collection}))
            for number in range(requests):
                if number % 3 == 0:
                    key = chance.choice([OTHER_KEY, OPERATOR_KEY])
                    answer = await _ask(shared, key, request := _request(chance, ids))
                    if key == OTHER_KEY and OWN not in json.dumps(request) and OWN in answer.text:
                        violations["tells others"] += 1
                request = _request(chance, ids)
                got, expected = await _ask(shared, KEY, request), await _ask(alone, KEY, request)
                observed[f"{request[0]} {got.status_code}"] += 1
                observed["hits"] += got.text.count("document_id")
                if OTHERS not in json.dumps(request) and OTHERS in f"{got.text}{got.headers}":
                    violations["tells of others"] += 1
                    print("tells of others:", seed, number, request, got.text[:2_000])
                if got.status_code != expected.status_code or not _same(_stable(got), _stable(expected)):
                    violations["differs"] += 1
                    print("differs:", seed, number, request, got.text[:2_000], expected.text[:2_000], sep="\n")
    return Trial(
        f"one tenant of several, {tenancy.where}", 0.0, False, dict(sorted(observed.items())), dict(violations)
    )


async def _serve(stack: AsyncExitStack, database: QdrantClient, folder: Path, keys: str) -> httpx.AsyncClient:
    folder.mkdir()
    (folder / "keys").write_text(keys)
    model = _model()
    settings = ServeSettings(
        load_models=lambda: [model],
        open_qdrant=lambda: nullcontext(database),
        collections=(COLLECTION, ALIAS),
        record=folder / "labels",
        keys_file=folder / "keys",
        mcp=True,
    )
    service = Service(settings, [model])
    stack.callback(service.close)
    await stack.enter_async_context(service.running())
    await service.load()
    http = httpx.AsyncClient(transport=httpx.ASGITransport(app=service.app), base_url="http://localhost", timeout=60)
    return await stack.enter_async_context(http)


def _model() -> CareModel:
    encoder = HashEncoder(salt="tenants", max_tokens=4_096)
    return CareModel(
        name="pair",
        dim=encoder.dim,
        fingerprint="7e".ljust(64, "0"),
        temperature=0.02,
        query=GivenEncoder(encoder),
        document=GivenEncoder(encoder),
    )


# Points


@dataclass(frozen=True, slots=True)
class _Ids:
    own: list[str]
    others: list[str]


def _fill(database: QdrantClient, tenancy: Tenancy, chance: random.Random) -> _Ids:
    """Write the documents of all tenants, and return the ids of their points."""
    model = _model()
    own = [_document(OWN, number, tenancy.own, chance) for number in range(OWN_DOCUMENTS)]
    others = [_document(OTHERS, number, tenancy.others, chance) for number in range(chance.choice(OTHER_DOCUMENTS))]
    mixed = [*own, *others]
    chance.shuffle(mixed)
    settings = IngestSettings(sparse=True)
    ingest(mixed, model, database, COLLECTION, settings=settings)
    _index(database, tenancy)
    ids = _Ids([point_id(each.id, 0) for each in own], [point_id(each.id, 0) for each in others])
    # Chunks of others in documents of the tenant.
    theirs = database.retrieve(COLLECTION, ids.others[:MIXED], with_payload=True, with_vectors=True)
    for number, record in enumerate(theirs):
        payload = {**(record.payload or {}), "doc_id": own[number].id}
        payload["_care"] = {**payload.get("_care", {}), "chunk": 1}
        there = point_id(own[number].id, 1)
        database.upsert(COLLECTION, [models.PointStruct(id=there, vector=record.vector, payload=payload)], wait=True)
        ids.others.append(there)
    return ids


def _index(database: QdrantClient, tenancy: Tenancy) -> None:
    Collection(database, COLLECTION).create_indexes(index_schemas(tenancy.indexes))
    point_alias(database, ALIAS, COLLECTION)


def _copy(database: QdrantClient, ids: list[str], tenancy: Tenancy) -> None:
    """Make the collection again with some points; a server would still count the terms of deleted ones."""
    config = database.get_collection(COLLECTION).config
    records = database.retrieve(COLLECTION, ids, with_payload=True, with_vectors=True)
    database.delete_collection(COLLECTION)
    params = config.params
    database.create_collection(
        COLLECTION, params.vectors, sparse_vectors_config=params.sparse_vectors, metadata=config.metadata
    )
    points = [models.PointStruct(id=each.id, vector=each.vector, payload=each.payload) for each in records]
    database.upsert(COLLECTION, points, wait=True)
    _index(database, tenancy)


def _document(word: str, number: int, metadata: Sequence[dict[str, Any]], chance: random.Random) -> Document:
    # Of another length each, so that no two have one score.
    length = 2 * number + (word == OWN)
    filler = " ".join(f"{word}{number}v{place}" for place in range(length))
    marks = {"n": number, "dept": f"{word} {number % 3}", word: number, "tags": [word, f"tag {number % 4}"]}
    marks |= {"other": OTHERS} if word == OTHERS else {"date": f"2024-{number % 12 + 1:02}-01"}
    return Document(
        f"{word}-{number}" if word == OTHERS or number >= MIXED else f"mixed-{number}",
        f"{chance.choice(TEXTS)} {word} {filler}",
        title=f"{chance.choice(TEXTS)[:8]} {word} {number}？",
        metadata={**marks, **chance.choice(metadata)},
    )


# Requests


def _request(chance: random.Random, ids: _Ids) -> tuple[str, dict[str, Any] | None]:
    """Return a path with a body; without one it is a GET."""
    path = chance.choice(
        ["/search"] * 24
        + ["/mcp"] * 6
        + ["/labels"] * 3
        + ["/collections", "/good-match", "/v1/models", "/health", "/metrics", "/openapi.json", "/", "/v1/embeddings"]
    )
    collection = (
        {"collection": chance.choice([COLLECTION] * 5 + [ALIAS] * 5 + ["nowhere"])} if chance.random() < 0.6 else {}
    )
    if path == "/search":
        return path, _search(chance, ids) | collection
    if path == "/good-match":
        return path, collection | {"mode": chance.choice(["auto", "dense", "hybrid"])}
    if path == "/labels":
        judged = {"query": _query(chance), "document_id": _document_id(chance, ids)}
        return path, judged | collection | {"relevant": chance.choice([True, True, False, None])}
    if path == "/v1/embeddings":
        return path, {"model": "pair", "input": [_query(chance)]}
    if path == "/mcp":
        return path, {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": _tool(chance, ids, collection)}
    return path, None


def _tool(chance: random.Random, ids: _Ids, collection: dict[str, str]) -> dict[str, Any]:
    name = chance.choice(["search", "search", "list_collections", "fetch_document", "fetch_document"])
    if name == "list_collections":
        return {"name": name, "arguments": {}}
    if name == "fetch_document":
        return {"name": name, "arguments": {"document_id": _document_id(chance, ids), **collection}}
    unknown = ("filter", "fusion", "alpha", "marks")
    arguments = {field: value for field, value in _search(chance, ids).items() if field not in unknown}
    return {"name": name, "arguments": arguments | {"top_k": min(arguments["top_k"], 50), **collection}}


def _query(chance: random.Random) -> str:
    if chance.random() < 0.4:  # questions that others judge, too
        return TEXTS[chance.randrange(2)]
    words = [*TEXTS, OWN, OTHERS, "恶心", "怎么办", "高血壓患者飲食", "EGFR", "?", f"{OTHERS}3v1", "的"]
    return " ".join(chance.sample(words, chance.choice([1, 1, 2, 3])))


def _document_id(chance: random.Random, ids: _Ids) -> str:
    word, number = chance.choice([OWN, OWN, OTHERS, "mixed", "none"]), chance.randrange(OWN_DOCUMENTS)
    return chance.choice([f"{word}-{number}", f"{word}-{number}", chance.choice(ids.others), chance.choice(ids.own)])


def _search(chance: random.Random, ids: _Ids) -> dict[str, Any]:
    body: dict[str, Any] = {"query": _query(chance), "top_k": chance.choice([1, 3, 10, 60, 200])}
    may = {
        "mode": lambda: chance.choice(["auto", "dense", "sparse", "hybrid"]),
        "conditions": lambda: [_condition(chance) for _ in range(chance.choice([1, 1, 2]))],
        "filter": lambda: _filter(chance, ids),
        "score_threshold": lambda: round(chance.uniform(-0.2, 1.5), 3),
        "group_by": lambda: chance.choice(["dept", "tags", "tenant", "n", "doc_id", OWN, OTHERS, "none", "org.unit"]),
        "group_size": lambda: chance.choice([1, 2, 5]),
        "fusion": lambda: chance.choice(["linear", "rrf", "dbsf"]),
        "alpha": lambda: round(chance.random(), 2),
        "marks": lambda: True,
    }
    body |= {field: value() for field, value in may.items() if chance.random() < 0.3}
    if chance.random() < 0.8:  # most are requests that the service answers
        refused = {"fusion", "alpha"} if body.get("mode") in ("dense", "sparse") else {"score_threshold", "alpha"}
        refused = refused if "fusion" in body or body.get("mode") in ("dense", "sparse") else set()
        refused |= set() if "group_by" in body else {"group_size"}
        body = {field: value for field, value in body.items() if field not in refused}
    return body


def _condition(chance: random.Random) -> str:
    key = chance.choice(["n", "dept", "tenant", "tags", "date", "level", "other", "org.unit", OWN, OTHERS, "none"])
    value = chance.choice(["a", "b", "1", '"1"', "5", "2024-05-01", f"{OTHERS} 1", f"{OWN} 1", "tag 2", "“b”", "x"])
    return f"{key}{chance.choice(['=', '=', '!=', '>=', '<'])}{value}"


def _filter(chance: random.Random, ids: _Ids, depth: int = 0) -> dict[str, Any]:
    """Return a filter of Qdrant that tries to let pass more than the tenant's points."""
    clauses = chance.sample(["must", "should", "must_not", "min_should"], chance.choice([1, 1, 2]))
    made: dict[str, Any] = {}
    for clause in clauses:
        parts = [_clause(chance, ids, depth) for _ in range(chance.choice([0, 1, 2, 3]))]
        made[clause] = {"conditions": parts, "min_count": chance.choice([1, 2])} if clause == "min_should" else parts
    return made


def _clause(chance: random.Random, ids: _Ids, depth: int) -> dict[str, Any]:
    key = chance.choice(["tenant", "dept", "n", "tags", "other", "org.unit", "level", OTHERS, "doc_id"])
    kinds: list[Callable[[], dict[str, Any]]] = [
        lambda: {"key": key, "match": {"value": chance.choice(["a", "b", 1, 5, True, f"{OTHERS} 1"])}},
        lambda: {"key": key, "match": {"any": chance.choice([["a", "b"], [1, 2], [f"{OTHERS} 1"]])}},
        lambda: {"key": key, "match": {"except": chance.choice([["a"], [1], ["x"]])}},
        lambda: {"key": key, "range": {chance.choice(["gte", "lt"]): chance.choice([0, 2, 20])}},
        lambda: {"key": key, "values_count": {"gte": chance.choice([0, 1, 2])}},
        lambda: {"is_empty": {"key": key}},
        lambda: {"is_null": {"key": key}},
        lambda: {"has_id": chance.sample([*ids.own, *ids.others], 5)},
        lambda: {"has_vector": chance.choice(["pair", "bm25"])},
        lambda: {"nested": {"key": "org", "filter": {"must": [{"key": "unit", "match": {"value": "b"}}]}}},
        lambda: _filter(chance, ids, depth + 1) if depth < 2 else {"is_empty": {"key": key}},
    ]
    return chance.choice(kinds)()


# Answers


async def _ask(http: httpx.AsyncClient, key: str, request: tuple[str, dict[str, Any] | None]) -> httpx.Response:
    path, body = request
    headers = {"authorization": f"Bearer {key}", "accept": "application/json, text/event-stream"}
    if body is None:
        return await http.get(path, headers=headers)
    return await http.post(path, json=body, headers=headers)


_UNSTABLE = {"timing_ms", "request_id", "questions", "structuredContent"}
"""Parts that differ from answer to answer of one service: times, ids, and a random sample of questions."""


def _stable(answer: httpx.Response) -> Any:
    """Return the parts of an answer that are the same each time it is asked for."""
    if not answer.headers.get("content-type", "").startswith("application/json"):
        return answer.text
    return _without_unstable(answer.json())


def _without_unstable(value: Any) -> Any:
    if isinstance(value, dict):
        # The number of labelled questions of `/labels` stays; the random questions of a collection are a list.
        return {
            key: _without_unstable(_ties_in_order(inner) if key == "hits" and isinstance(inner, list) else inner)
            for key, inner in value.items()
            if key not in _UNSTABLE or (key == "questions" and isinstance(inner, int))
        }
    if isinstance(value, list):
        return list(map(_without_unstable, value))
    if isinstance(value, str) and value.startswith("{"):  # the text of a tool's answer
        try:
            return _without_unstable(json.loads(value))
        except ValueError:
            return value
    # A note shows any one of the stored values.
    return re.sub(r"such as [^,;]*", "such as …", value) if isinstance(value, str) else value


def _ties_in_order(hits: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return hits with those of one score in the order of their texts: a server has them in any, as of two ranks."""
    runs: list[list[dict[str, Any]]] = []
    for hit in hits:
        if not runs or abs(runs[-1][-1]["score"] - hit["score"]) > TOLERANCE:
            runs.append([])
        runs[-1].append(hit)
    return [hit for run in runs for hit in sorted(run, key=lambda hit: (hit["text"], str(hit["group"])))]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= TOLERANCE
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)
