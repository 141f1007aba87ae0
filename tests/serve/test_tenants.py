"""Keys with mandatory conditions: what a line of the file means, and that nothing else of a collection is told."""

import inspect
import json
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from qdrant_client import QdrantClient, models

from care_qdrant.errors import InputError
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.settings import IngestSettings
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.readable import ReadableCollection
from care_qdrant.search.conditions import MandatoryConditions
from care_qdrant.search.retriever import Retriever
from care_qdrant.serve import keys
from care_qdrant.serve.keys import Keys
from care_qdrant.types import Document
from tests.reliability.tenants import TENANCIES, tenant_trial
from tests.serve.conftest import KEY, OTHER_KEY, aligned
from tests.standin import StandIn
from tests.tiny import TEXTS

SHORT, LONG = 30, 1_500
"""Requests of each kind of condition; ``python -m tests.reliability tenants`` sends a hundred thousand."""


@pytest.mark.parametrize("count", [SHORT, pytest.param(LONG, marks=pytest.mark.slow)])
@pytest.mark.parametrize("seed", range(len(TENANCIES)))
def test_a_tenant_is_answered_as_if_no_other_was_there(tmp_path: Path, seed: int, count: int) -> None:
    trial = tenant_trial(count, seed, tmp_path, lambda: QdrantClient(":memory:"))
    assert trial.is_good, trial
    assert trial.observed["hits"], trial


@pytest.mark.parametrize(
    ("line", "scopes", "conditions"),
    [
        ("where tenant=a", {"inference", "search"}, ("tenant=a",)),
        ("where tenant = a", {"inference", "search"}, ("tenant=a",)),
        ("search:corpus  where  dept=Internal Medicine ", {"search:corpus"}, ("dept=Internal Medicine",)),
        ("search where year>=2020 where tenant=a where tenant=a", {"search"}, ("tenant=a", "year>=2020")),
        ('where tenant=""', {"inference", "search"}, ('tenant=""',)),
    ],
)
def test_a_line_says_what_may_be_read(tmp_path: Path, line: str, scopes: set[str], conditions: tuple[str, ...]) -> None:
    (tmp_path / "keys").write_text(f"{KEY} {line}\n")
    key = Keys(tmp_path / "keys").identify(KEY)
    assert key is not None
    assert key.scopes == scopes
    assert key.mandatory is not None
    assert key.mandatory.written == conditions


@pytest.mark.parametrize(
    "line",
    [
        "where",
        "where tenant=",
        "where tenant",
        "where =a",
        "where tenant==a",
        "where tenant!=b",
        "where tenant=a where dept!=b",
        "where tenant=null",
        "where tenant>a",
        'where a"b=1',
        "where tenant=a where",
        "WHERE tenant=a",
        "wheretenant=a",
        "search tenant=a",
        "where tenant=18446744073709551615",
        "where tenant=9223372036854775807",
        "where tenant=9007199254740993.0",
        "where tenant=1e19",
        "where tenant=a where level<=9007199254740993",
        'where level<="9007199254740993"',
        "metrics where tenant=a",
        "search metrics where tenant=a",
        "search where where tenant=a",
    ],
)
def test_a_line_that_may_be_an_accident_is_refused_without_a_word_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setattr(keys, "CHECK_SECONDS", 0)
    file = tmp_path / "keys"
    file.write_text(f"{KEY} where tenant=former\n")
    accepted = Keys(file)
    file.write_text(f"{KEY} {line}\n")
    with pytest.raises(InputError) as raised:
        Keys(file)
    assert "tenant=a " not in str(raised.value).replace("such as tenant=a ", "")
    assert KEY not in str(raised.value)
    key = accepted.identify(KEY)
    assert key is not None and key.mandatory == MandatoryConditions(("tenant=former",))


@pytest.mark.parametrize(
    "blank", ["\n", "\r\n", "\r", "\n  ", "\x0b", "\x0c", "\x85", "\u2028", "\u2029", "\x1c", "\u3000"]
)
@pytest.mark.parametrize("place", [1, 2, 3])
def test_a_line_that_is_cut_at_a_blank_gives_no_key_more(tmp_path: Path, blank: str, place: int) -> None:
    """Such as one that a mail program has wrapped, or that was pasted with another separator of lines."""
    words = [KEY, "search:a-long-name-of-one", "where", "tenant=a-long-name-of-one"]
    line = " ".join(words[:place]) + blank + " ".join(words[place:])
    (tmp_path / "keys").write_text(f"{line}\n", encoding="utf-8", newline="")
    try:
        accepted = Keys(tmp_path / "keys")
    except InputError:
        return
    key = accepted.identify(KEY)
    assert key is not None and len(accepted) == 1
    assert key.scopes == {words[1]} and key.mandatory == MandatoryConditions((words[3],))


STORED = [
    0,
    1,
    1.0,
    2,
    -1,
    0.1,
    20270101,
    True,
    "1",
    "a",
    "A",
    "a b",
    "b",
    ["a", "b"],
    [1, 2],
    [],
    None,
    {"a": "a"},
    "",
]
STORED += ["2024-03-01T00:00:00Z", "2027-01-01T00:00:00Z", *(2**53 + n for n in (-1, 0, 1, 2)), 2**60, 2**60 + 1]
STORED += [2**63 - 2, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1, 20240301 * 10**6, 1_709_251_200 * 10**6]
CONDITIONS: dict[str, Callable[[Any], bool]] = {
    "tenant=1": lambda value: value in (1, "1"),
    'tenant="1"': lambda value: value == "1",
    "tenant=a": lambda value: value == "a",
    **{f"tenant={number}": number.__eq__ for number in (2**53, 2**60, 2**63 - 2)},
    "tenant<=1": lambda value: not isinstance(value, str) and value <= 1,
    "tenant>=1": lambda value: not isinstance(value, str) and value >= 1,
    "tenant>2024-03-01": lambda value: isinstance(value, str) and value[:4] == "2027",
    "tenant<=2024-03-01T00:00:00Z": lambda value: isinstance(value, str) and value[:4] == "2024",
}


@pytest.mark.parametrize("index", [None, "keyword", "integer", "float", "bool", "datetime", "text"])
def test_no_point_with_another_value_passes(client: QdrantClient, index: Any) -> None:
    """Whatever the payload index: that of a server answers for values of other types in its own way."""
    client.create_collection("c", {"v": models.VectorParams(size=1, distance=models.Distance.DOT)})
    for number, value in enumerate(STORED):
        point = models.PointStruct(id=number, vector={"v": [1.0]}, payload={"tenant": value})
        with suppress(ValueError):  # gRPC has no larger integers
            client.upsert("c", [point], wait=True)
    if index is not None and not Collection(client, "c").is_embedded:
        client.create_payload_index("c", "tenant", index, wait=True)
    for condition, passes in CONDITIONS.items():
        there = Collection(client, "c", mandatory=MandatoryConditions((condition,)))
        for record in (record for page in there.scroll() for record in page):
            stored = record.payload["tenant"]
            values = stored if isinstance(stored, list) else [stored]
            assert any(type(value) in (int, float, str) and passes(value) for value in values), (condition, stored)


def _own(records: Iterable[Any]) -> set[str]:
    return {record.payload["dept"] for record in records}


READINGS: dict[str, Callable[[Collection], bool]] = {
    "scroll": lambda there: _own(record for page in there.scroll() for record in page) == {"内科"},
    "ids": lambda there: sum(map(len, there.ids())) == there.count() == len(TEXTS) // 2,
    "sample": lambda there: _own(there.sample(100)) == {"内科"},
    "retrieve": lambda there: (
        _own(there.retrieve([point for page in there.unrestricted().ids() for point in page]).values()) == {"内科"}
    ),
    "count": lambda there: there.count(models.Filter(must_not=[_dept("内科")])) == 0,
    "count_with_vector": lambda there: there.count_with_vector("pair") == len(TEXTS) // 2,
    "count_stand_ins": lambda there: there.count_stand_ins("pair") == 0,
    "search": lambda there: all(_own(points) == {"内科"} for points in there.search("searching", _searches())),
    "refresh": lambda there: there.refresh().points == len(TEXTS) // 2,
    "slices": lambda there: there.slices(1) == [None],
    "unrestricted": lambda there: there.unrestricted().count() == len(TEXTS),
}
"""Each public method that reads points, called with a mandatory filter."""


def _dept(value: str) -> models.FieldCondition:
    return models.FieldCondition(key="dept", match=models.MatchValue(value=value))


def _searches() -> list[models.QueryRequest]:
    vector, wide = [1.0] * 32, models.Filter(should=[_dept("外科"), _dept("内科")])
    leaf = models.Prefetch(query=vector, using="pair", filter=wide, limit=100)
    fused = models.FusionQuery(fusion=models.Fusion.RRF)
    deep = models.Prefetch(prefetch=leaf, query=vector, using="pair", limit=100)
    return [
        models.QueryRequest(query=vector, using="pair", filter=wide, limit=100, with_payload=True),
        models.QueryRequest(query=fused, prefetch=[leaf, deep], limit=100, with_payload=True),
        models.QueryRequest(limit=100, with_payload=True),
    ]


@pytest.mark.parametrize("name", READINGS)
def test_every_way_to_read_a_collection_gets_the_mandatory_filter(filled: QdrantClient, name: str) -> None:
    there = Collection(filled, "corpus", mandatory=MandatoryConditions(("dept=内科",)))
    assert READINGS[name](there)
    assert READINGS[name](there.sibling("corpus"))
    assert READINGS[name](there.resolve())


def test_no_way_to_read_a_collection_is_left_out() -> None:
    public = {name for name, _ in inspect.getmembers(ReadableCollection, inspect.isfunction) if name[0] != "_"}
    inherited = {name for base in ReadableCollection.__mro__[1:] for name in vars(base)} - {"refresh"}
    assert READINGS.keys() == public - inherited


def test_a_server_that_counts_the_terms_of_all_points_answers_no_bm25() -> None:
    mandatory = MandatoryConditions(("n>=4",))
    with StandIn(version="1.18.0") as server, closing(QdrantClient(url=server.url)) as client:
        documents = [Document(f"d{number}", text, metadata={"n": number}) for number, text in enumerate(TEXTS)]
        ingest(documents, aligned(), client, "corpus", settings=IngestSettings(sparse=True))
        for mode in ("auto", "sparse"):
            with pytest.raises(InputError, match="or newer"):
                Retriever(client, "corpus", aligned(), mode=mode, mandatory=mandatory).search([TEXTS[1]])
        [hits] = Retriever(client, "corpus", aligned(), mode="dense", mandatory=mandatory).search([TEXTS[1]])
        assert {hit.document_id for hit in hits} == {"d4", "d5", "d6", "d7"}


async def test_judgements_of_a_restricted_key_are_its_own(
    make_service, connect, filled: QdrantClient, tmp_path: Path
) -> None:
    (tmp_path / "keys").write_text(f"{KEY} where dept=内科\n{OTHER_KEY}\n")
    labels = tmp_path / "labels"
    http = connect(make_service(aligned(), over=filled, record=labels, keys_file=tmp_path / "keys"))
    body = {"query": TEXTS[1], "document_id": "d1", "relevant": True}
    for key, document, status in ((KEY, "d1", 200), (KEY, "d2", 404), (OTHER_KEY, "d2", 200), (OTHER_KEY, "d3", 200)):
        asked = body | {"document_id": document}
        answer = await http.post("/labels", json=asked, headers={"x-api-key": key})
        assert answer.status_code == status
        assert status == 404 or answer.json() == {"questions": 1}
    for key, relevant in ((KEY, ["d1"]), (OTHER_KEY, ["d2", "d3"])):
        hits = (await http.post("/search", json={"query": TEXTS[1]}, headers={"x-api-key": key})).json()["hits"]
        assert sorted(hit["document_id"] for hit in hits if hit["relevant"]) == relevant
    [folder] = [each for each in (labels / "corpus").iterdir() if each.is_dir()]
    assert folder.name.startswith("dept=内科-")
    assert json.loads((folder / "queries.jsonl").read_text())["relevant"] == ["d1"]
    assert all(len(list(place.glob("searches-*.jsonl"))) == 1 for place in (folder, folder.parent))


async def test_a_key_may_read_nothing_at_all(make_service, connect, filled: QdrantClient, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"{KEY} where tenant=a\n")
    http = connect(make_service(aligned(), over=filled, keys_file=tmp_path / "keys"))
    http.headers["x-api-key"] = KEY
    for mode in ("auto", "dense", "sparse", "hybrid"):
        assert (await http.post("/search", json={"query": TEXTS[1], "mode": mode})).json()["hits"] == []
    [state] = (await http.get("/collections")).json()["collections"]
    assert (state["points"], state["keys"], state["questions"]) == (0, {}, [])
    assert (await http.post("/good-match", json={})).json() == {"good_match_score": None}


async def test_what_a_restricted_key_has_measured_is_not_the_collections(
    make_service, connect, filled: QdrantClient, tmp_path: Path
) -> None:
    (tmp_path / "keys").write_text(f"{KEY} where n>=0\n")
    http = connect(make_service(aligned(), over=filled, keys_file=tmp_path / "keys"))
    before = filled.get_collection("corpus").config.metadata
    for path, body in (("/good-match", {"mode": "hybrid"}), ("/search", {"query": TEXTS[1]})):
        assert (await http.post(path, json=body, headers={"x-api-key": KEY})).status_code == 200
    assert filled.get_collection("corpus").config.metadata == before
