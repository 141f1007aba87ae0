"""Payloads of the tools that people really have, and what each is read as."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qdrant_client import models

from care_qdrant.contracts.layouts import DOCUMENT_PATHS, TEXT_NAMES, guess_layout, names_its_document, read_hit
from care_qdrant.contracts.payload import chunk_payload, stored_hash
from care_qdrant.contracts.stand_in import stand_ins
from care_qdrant.errors import InputError
from care_qdrant.types import Chunk, Document
from care_qdrant.vectors.points import is_key_of_others

TEXT = "耳鸣可由噪声引起。"
OURS = chunk_payload(Chunk(Document("d1", TEXT, title="耳鸣", metadata={"dept": "耳鼻喉"}), TEXT), {"care": "0" * 32})
LLAMA_INDEX = {
    "dept": "耳鼻喉",
    "_node_content": json.dumps({"id_": "n1", "text": TEXT, "class_name": "TextNode"}),
    "_node_type": "TextNode",
    "doc_id": "d1",
}
LLAMA_INDEX_NODE = {
    "dept": "耳鼻喉",
    "_node_content": json.dumps({"id_": "n1", "text_resource": {"text": TEXT}, "class_name": "Node"}),
    "ref_doc_id": "d1",
}
LANGCHAIN = {"page_content": TEXT, "metadata": {"dept": "耳鼻喉", "source": "d1"}}
HAYSTACK = {"id": "d1", "content": TEXT, "meta": {"dept": "耳鼻喉"}, "score": None}
DIFY = {
    "page_content": TEXT,
    "metadata": {"doc_id": "s1", "doc_hash": "h", "document_id": "d1", "dataset_id": "ds", "dept": "耳鼻喉"},
    "group_id": "ds",
}
LANGCHAIN_JS = {"content": TEXT, "metadata": {"dept": "耳鼻喉", "source": "d1", "loc": {"lines": {"from": 1, "to": 2}}}}
OPEN_WEBUI = {
    "text": TEXT,
    "metadata": {"dept": "耳鼻喉", "file_id": "d1", "name": "耳鸣.pdf", "source": "耳鸣.pdf", "hash": "h"},
    "tenant_id": "file-d1",
}
OPEN_WEBUI_ALONE = {key: value for key, value in OPEN_WEBUI.items() if key != "tenant_id"}
RAGFLOW = {
    "id": "c1",
    "doc_id": "d1",
    "kb_id": "kb",
    "docnm_kwd": "耳鸣.pdf",
    "title_tks": "耳鸣",
    "content_with_weight": TEXT,
    "content_ltks": "耳鸣 噪声",
    "dept": "耳鼻喉",
}
MEM0 = {"data": TEXT, "hash": "h", "user_id": "u", "created_at": "2026-03-01T00:00:00Z", "dept": "耳鼻喉"}
SPRING_AI = {"doc_content": TEXT, "dept": "耳鼻喉", "id": "d1"}
LANGCHAIN4J = {"text_segment": TEXT, "dept": "耳鼻喉", "document_id": "d1"}
PLAIN = {"text": TEXT, "dept": "耳鼻喉", "doc_id": "d1"}
NESTED = {"article": {"body": TEXT, "year": 2020}, "dept": "耳鼻喉", "id": "d1"}


@pytest.mark.parametrize(
    ("payload", "tool", "text_field", "prefix"),
    [
        (OURS, "care", "text", ""),
        (LLAMA_INDEX, "llama-index", "_node_content.text", ""),
        (LLAMA_INDEX_NODE, "llama-index", "_node_content.text", ""),
        (LANGCHAIN, "langchain", "page_content", "metadata"),
        (HAYSTACK, "haystack", "content", "meta"),
        (DIFY, "dify", "page_content", "metadata"),
        (LANGCHAIN_JS, "langchain-js", "content", "metadata"),
        (OPEN_WEBUI, "open-webui", "text", "metadata"),
        (OPEN_WEBUI_ALONE, "open-webui", "text", "metadata"),
        (RAGFLOW, "ragflow", "content_with_weight", ""),
        (SPRING_AI, "spring-ai", "doc_content", ""),
        (LANGCHAIN4J, "langchain4j", "text_segment", ""),
        (PLAIN, "plain", "text", ""),
        (NESTED, "plain", "article.body", ""),
    ],
)
def test_each_tool_is_recognised_and_read(payload: dict[str, Any], tool: str, text_field: str, prefix: str) -> None:
    layout = guess_layout([payload])
    assert (layout.tool, layout.text_field) == (tool, text_field)
    assert layout.text(payload) == TEXT
    assert layout.ref_doc_id(payload) == "d1"
    assert layout.metadata_prefix == prefix
    metadata = layout.metadata(payload)
    assert metadata["dept"] == "耳鼻喉"
    assert TEXT not in json.dumps(metadata, ensure_ascii=False)


ALL = [OURS, LLAMA_INDEX, LANGCHAIN, HAYSTACK, DIFY, LANGCHAIN_JS, OPEN_WEBUI, RAGFLOW, MEM0, SPRING_AI, LANGCHAIN4J]


@pytest.mark.parametrize("payload", ALL, ids=lambda payload: guess_layout([payload]).tool)
def test_a_hit_is_read_as_its_tool_wrote_it(payload: dict[str, Any]) -> None:
    """The same before and after an attach, alone and by the layout that a sample of the collection showed."""
    attached = payload if payload is OURS else {**payload, "_care": {"vectors": {"care": "0" * 32}}}
    found = [
        read_hit(models.Record(id=7, payload=one), layout)
        for one in (payload, attached)
        for layout in (None, guess_layout([payload]))
    ]
    assert {(hit.text, hit.title) for hit in found} == {(TEXT, "耳鸣" if payload is OURS else "")}
    assert {hit.document_id for hit in found} == {"7" if payload is MEM0 else "d1"}
    assert [hit.metadata for hit in found[1:]] == [found[0].metadata] * 3
    assert found[0].metadata["dept"] == "耳鼻喉" and "_care" not in found[0].metadata


def test_a_segment_of_dify_belongs_to_its_document() -> None:
    layout = guess_layout([DIFY])
    written = layout.written(TEXT, {"dept": "耳鼻喉"}, "d9")
    assert layout.ref_doc_id(written) == "d9" and layout.metadata(written)["dept"] == "耳鼻喉"
    assert guess_layout([{**DIFY, "metadata": {"doc_id": "d2", "document_id": "d1"}}]).tool == "langchain"


def test_metadata_beside_other_keys_is_one_of_the_users_own() -> None:
    for text_field in ("text", "content"):
        payload = {text_field: TEXT, "metadata": {"a": 1}, "dept": "耳鼻喉", "doc_id": "d1"}
        layout = guess_layout([payload])
        assert (layout.tool, layout.ref_doc_id(payload)) == ("plain", "d1")
        assert layout.metadata(payload) == {"metadata": {"a": 1}, "dept": "耳鼻喉"}


def test_only_our_own_payloads_keep_the_title_apart() -> None:
    assert guess_layout([OURS]).title(OURS) == "耳鸣"
    assert "title" not in guess_layout([OURS]).metadata(OURS)
    foreign = {**PLAIN, "title": "耳鸣"}
    assert guess_layout([foreign]).title(foreign) == ""
    assert guess_layout([foreign]).metadata(foreign)["title"] == "耳鸣"


def test_a_vector_attached_by_us_does_not_make_a_foreign_point_ours() -> None:
    attached = {**LANGCHAIN, "_care": {"vectors": {"care": "0" * 32}}}
    assert guess_layout([attached]).tool == "langchain"


@pytest.mark.parametrize("payload", ALL, ids=lambda payload: next(iter(payload)))
def test_points_of_ingestion_keep_their_text_among_those_of_any_tool(payload: dict[str, Any]) -> None:
    assert guess_layout([payload]).of_point(OURS).find_text(OURS) == TEXT
    assert guess_layout([payload, OURS], text_field="dept").of_point(OURS).find_text(OURS) == "耳鼻喉"  # of all alike


def test_a_nested_text_leaves_its_neighbours_in_the_metadata() -> None:
    metadata = guess_layout([NESTED]).metadata(NESTED)
    assert metadata == {"article": {"year": 2020}, "dept": "耳鼻喉", "id": "d1"}
    assert guess_layout([NESTED]).text(NESTED) == TEXT, "the payload itself stays as it was"


def test_points_without_text_do_not_hide_the_layout_of_the_others() -> None:
    layout = guess_layout([{"dept": "内科"}, LANGCHAIN, LANGCHAIN, {"page_content": "  "}])
    assert layout.tool == "langchain"
    assert layout.evidence == "2 of 4 sampled payloads have a text under 'page_content'"
    assert layout.find_text({"page_content": "  "}) is None


def test_no_text_at_all_names_the_keys_that_are_there() -> None:
    with pytest.raises(InputError, match=r"none of 2 .*\(their keys: dept, year\)"):
        guess_layout([{"dept": "内科"}, {"year": 2020}])


def test_a_point_without_text_names_its_keys() -> None:
    layout = guess_layout([PLAIN])
    with pytest.raises(InputError, match=r"no text under 'text' \(its keys: dept, year\)"):
        layout.text({"dept": "内科", "year": 2020})


def test_the_field_that_the_user_names_wins() -> None:
    payload = {"text": "abstract", "full": {"report": TEXT}}
    assert guess_layout([payload]).text(payload) == "abstract"
    assert guess_layout([payload], text_field="full.report").text(payload) == TEXT
    assert guess_layout([LANGCHAIN], text_field="page_content").tool == "langchain"
    with pytest.raises(InputError, match="'summary'"):
        guess_layout([payload], text_field="summary")


def test_a_key_that_contains_a_dot_is_found() -> None:
    payload = {"doc.text": TEXT}
    assert guess_layout([payload], text_field="doc.text").text(payload) == TEXT


def test_none_written_by_llama_index_is_no_document_id() -> None:
    assert guess_layout([{**LLAMA_INDEX, "doc_id": "None"}]).ref_doc_id({**LLAMA_INDEX, "doc_id": "None"}) is None


def test_of_equally_many_texts_the_order_does_not_decide() -> None:
    """The sample is drawn at random, and the next one has another order."""
    payloads = [OURS, LLAMA_INDEX, LANGCHAIN, HAYSTACK, PLAIN, NESTED]
    for turn in range(len(payloads)):
        assert guess_layout(payloads[turn:] + payloads[:turn]).tool == "care"
    assert {guess_layout(pair).text_field for pair in ([PLAIN, NESTED], [NESTED, PLAIN])} == {"article.body"}


KEYS = [
    *TEXT_NAMES,
    *DOCUMENT_PATHS,
    "_care",
    "_node_content",
    "metadata",
    "meta",
    "title",
    "chunk",
    "chunks",
    "vectors",
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from([*KEYS, "a.b", ""]), inner, max_size=3),
    max_leaves=8,
)
"""Values of any type, under names that tools of ours and of others give a meaning."""


@given(payload=st.dictionaries(st.sampled_from(KEYS), JSON, max_size=4), care=JSON)
@settings(max_examples=300)
def test_no_payload_stops_a_reader(payload: dict[str, Any], care: object) -> None:
    """Anybody may write a point, and one that no reader understands must not end the search that finds it."""
    for each in (payload, payload | {"_care": care}, payload | {"_care": {"chunk": care, "vectors": care}}):
        hit = read_hit(models.Record(id=1, payload=each))
        assert isinstance(hit.text, str) and isinstance(hit.document_id, str) and isinstance(hit.chunk, int)
        assert stored_hash(each, "v") is None or isinstance(stored_hash(each, "v"), str)
        stand_ins(each), is_key_of_others(each), names_its_document(each)


def test_an_entry_of_another_program_under_our_key_is_not_ours() -> None:
    assert not is_key_of_others(OURS)
    for care in ({"chunk": "first"}, {"chunk": [1]}, {"payload": 7}, {"vectors": []}, {"stand_ins": "x"}, None, "x"):
        assert is_key_of_others({"text": TEXT, "_care": care})
        assert read_hit(models.Record(id=1, payload={"text": TEXT, "_care": care})).chunk == 0
