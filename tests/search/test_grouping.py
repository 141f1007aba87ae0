"""Hits by group, against groups that are made of all hits by hand."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qdrant_client import QdrantClient, models

from care_qdrant.errors import InputError
from care_qdrant.qdrant.collection import Collection
from care_qdrant.search.fusion import Fusion
from care_qdrant.search.retriever import Mode, Retriever
from care_qdrant.types import Chunk, Document, Hit
from tests.search.conftest import COLLECTION, fill
from tests.tiny import HashModel, medical_texts

TEXTS = medical_texts(48)
VALUES = st.sampled_from(["a", "b", "c", "", 0, 1, 2, 2.0, 0.5, True, False])
STORED = st.one_of(st.none(), VALUES, st.lists(VALUES, max_size=3))
WAYS: list[tuple[Mode, Fusion | None]] = [
    ("dense", None),
    ("sparse", None),
    ("hybrid", "linear"),
    ("hybrid", "rrf"),
    ("hybrid", "dbsf"),
]


def _by_hand(hits: list[Hit], key: str, size: int, top_k: int) -> list[tuple[Any, list[float]]]:
    """Return the value and the scores of each of the best groups of all hits, which are in order."""
    groups: dict[Any, tuple[Any, list[float]]] = {}
    for hit in hits:
        stored = hit.metadata.get(key)
        for value in dict.fromkeys(
            (isinstance(one, bool), one) for one in (stored if isinstance(stored, list) else [stored])
        ):
            if value[1] is not None:
                groups.setdefault(value, (value[1], []))[1].append(round(hit.score, 5))
    return [(value, scores[:size]) for value, scores in groups.values()][:top_k]


def _groups(hits: list[Hit]) -> list[tuple[Any, list[float]]]:
    groups: list[tuple[Any, list[float]]] = []
    for hit in hits:
        if not groups or (type(groups[-1][0]) is bool, groups[-1][0]) != (type(hit.group) is bool, hit.group):
            groups.append((hit.group, []))
        groups[-1][1].append(round(hit.score, 5))
    return groups


def _same_groups(found: list[tuple[Any, list[float]]], expected: list[tuple[Any, list[float]]]) -> None:
    """Compare groups; those whose best hits score the same may stand in any order, and one may be cut off."""
    assert [scores for _, scores in found] == [scores for _, scores in expected]
    last = expected[-1][1][0] if expected else None
    certain = [{repr((v, s)) for v, s in groups if s[0] != last} for groups in (found, expected)]
    assert certain[0] == certain[1]


@settings(max_examples=60)
@given(
    stored=st.lists(STORED, min_size=len(TEXTS), max_size=len(TEXTS)),
    size=st.integers(1, 4),
    top_k=st.integers(1, 12),
    way=st.sampled_from(WAYS),
)
def test_groups_are_those_of_all_hits(
    stored: list[Any], size: int, top_k: int, way: tuple[Mode, Fusion | None]
) -> None:
    """Whatever the values, the hits of the best groups are found, and nothing else."""
    model, (mode, fusion) = HashModel(), way
    documents = [
        Document(f"d{n}", text, metadata={} if value is None else {"key": value})
        for n, (text, value) in enumerate(zip(TEXTS, stored, strict=True))
    ]
    if not any(value not in (None, []) for value in stored):
        return
    with closing(QdrantClient(":memory:")) as client:
        fill(client, model, [Chunk(document, document.text) for document in documents])
        retriever = Retriever(client, COLLECTION, None if mode == "sparse" else model, mode=mode, fusion=fusion)
        [everything] = retriever.search([TEXTS[7][:20]], top_k=len(TEXTS))
        [found] = retriever.search([TEXTS[7][:20]], top_k=top_k, group_by="key", group_size=size)
    _same_groups(_groups(found), _by_hand(everything, "key", size, top_k))


@pytest.mark.parametrize("least", [2**53, 2**63 - 20, 2**63, 2**64 - 40])
def test_whole_numbers_of_any_size_make_groups(client: QdrantClient, model: HashModel, least: int) -> None:
    if getattr(client._client, "_prefer_grpc", False) and least + 40 > 2**63:
        pytest.skip("integers of gRPC have 64 bits and a sign")
    documents = [Document(f"d{n}", text, metadata={"hash": least + n % 40}) for n, text in enumerate(TEXTS)]
    fill(client, model, [Chunk(document, document.text) for document in documents])
    [hits] = Retriever(client, COLLECTION, model, mode="dense").search([TEXTS[7]], top_k=40, group_by="hash")
    assert {hit.group for hit in hits} == {least + n for n in range(40)}
    [hits] = Retriever(client, COLLECTION, model, mode="dense").search([TEXTS[7]], 20, group_by="hash", group_size=2)
    assert len({hit.group for hit in hits}) == 20


def test_a_number_that_no_condition_names_makes_no_group() -> None:
    """Other programs write NaN into the embedded database, as pandas has it for a missing number."""
    model, odd = HashModel(), [float("nan"), float("inf"), [float("nan"), 1]]
    documents = [Document(f"d{n}", text) for n, text in enumerate(TEXTS)]
    with closing(QdrantClient(":memory:")) as client:
        fill(client, model, [Chunk(document, document.text) for document in documents])
        for number, record in enumerate(client.scroll(COLLECTION, limit=99)[0]):
            client.set_payload(COLLECTION, {"key": ["a", "b", *odd][number % 5]}, [record.id])
        [hits] = Retriever(client, COLLECTION, model, mode="dense").search([TEXTS[7]], group_by="key", group_size=2)
    assert sorted(str(hit.group) for hit in hits) == ["1", "1", "a", "a", "b", "b"]


@pytest.fixture
def chunked(client: QdrantClient, model: HashModel) -> Iterator[QdrantClient]:
    """One department with nine tenths of the texts, and three with the others."""
    documents = [
        Document(f"d{n}", text, metadata={"dept": ["内科", "外科", "儿科", "骨科"][max(0, n - 82) // 4], "year": n % 3})
        for n, text in enumerate(medical_texts(98))
    ]
    fill(client, model, [Chunk(document, document.text) for document in documents])
    yield client


@pytest.mark.parametrize(("mode", "fusion"), WAYS)
@pytest.mark.parametrize("size", [1, 3])
def test_a_large_group_hides_no_small_one(
    chunked: QdrantClient, model: HashModel, mode: Mode, fusion: Fusion | None, size: int
) -> None:
    retriever = Retriever(chunked, COLLECTION, None if mode == "sparse" else model, mode=mode, fusion=fusion)
    query = medical_texts(98)[3]
    [everything] = retriever.search([query], top_k=98)
    [found] = retriever.search([query], top_k=4, group_by="dept", group_size=size)
    _same_groups(_groups(found), _by_hand(everything, "dept", size, 4))
    assert len(_groups(found)) == (4 if mode != "sparse" else len({hit.metadata["dept"] for hit in everything}))
    [by_year] = retriever.search([query], top_k=10, group_by="year", group_size=size)
    _same_groups(_groups(by_year), _by_hand(everything, "year", size, 10))


def test_a_filter_and_a_threshold_hold_for_groups(chunked: QdrantClient, model: HashModel) -> None:
    retriever = Retriever(chunked, COLLECTION, model, mode="dense")
    only = models.Filter(must=[models.FieldCondition(key="year", match=models.MatchValue(value=1))])
    query = medical_texts(98)[4]
    [everything] = retriever.search([query], 98, only)
    least = everything[5].score
    [found] = retriever.search([query], 9, only, group_by="dept", group_size=9, score_threshold=least)
    assert {hit.point_id for hit in found} == {hit.point_id for hit in everything[:6]}


def test_a_grouping_that_cannot_be_is_refused(corpus: QdrantClient, model: HashModel) -> None:
    retriever = Retriever(corpus, COLLECTION, model)
    with pytest.raises(InputError, match=r"group_by: no point of 'corpus' has 'dep'.*dept"):
        retriever.search(["血压"], group_by="dep")
    with pytest.raises(InputError, match="group_size is 2 and no group_by"):
        retriever.search(["血压"], group_size=2)
    with pytest.raises(InputError, match="group_size is 0"):
        retriever.search(["血压"], group_by="dept", group_size=0)


@pytest.mark.parametrize(
    ("payload", "top_k", "expected"),
    [
        (lambda n, text: {"content": text, "id": f"ent-{n}", "source_id": "chunk-1"}, 5, 5),
        (lambda n, text: {"page_content": text, "metadata": {"source": ("tweet", "news", "web")[n % 3]}}, 10, 10),
        (lambda n, text: {"text": text, "document_id": "all"}, 7, 7),
        (lambda n, text: {"content": text, "meta": {"source_id": f"{n}"}}, 10, 10),
    ],
    ids=["lightrag", "langchain", "plain", "haystack"],
)
def test_a_guessed_document_id_hides_no_hit(payload: Any, top_k: int, expected: int) -> None:
    model = HashModel()
    with closing(QdrantClient(":memory:")) as client:
        client.create_collection("c", {"v": models.VectorParams(size=model.dim, distance=models.Distance.COSINE)})
        Collection(client, "c").write_contract("v", model.contract())
        encoded = model.encode_document(TEXTS[:40])
        points = [
            models.PointStruct(id=n, vector={"v": vector.tolist()}, payload=payload(n, text))
            for n, (text, vector) in enumerate(zip(TEXTS, encoded, strict=False))
        ]
        client.upsert("c", points)
        [hits] = Retriever(client, "c", model, mode="dense").search([TEXTS[0]], top_k)
        assert len(hits) == expected == len({hit.point_id for hit in hits})
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
