"""Payloads of the tools that people really have, and what each is read as."""

import json
from typing import Any

import pytest

from care_qdrant.errors import InputError
from care_qdrant.qdrant.layout import guess_layout
from care_qdrant.qdrant.payload import chunk_payload
from care_qdrant.types import Chunk, Document

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
PLAIN = {"text": TEXT, "dept": "耳鼻喉", "doc_id": "d1"}
NESTED = {"article": {"body": TEXT, "year": 2020}, "dept": "耳鼻喉", "id": "d1"}


@pytest.mark.parametrize(
    ("payload", "tool", "text_field", "filter_key"),
    [
        (OURS, "care", "text", "dept"),
        (LLAMA_INDEX, "llama-index", "_node_content.text", "dept"),
        (LLAMA_INDEX_NODE, "llama-index", "_node_content.text", "dept"),
        (LANGCHAIN, "langchain", "page_content", "metadata.dept"),
        (HAYSTACK, "haystack", "content", "meta.dept"),
        (PLAIN, "plain", "text", "dept"),
        (NESTED, "plain", "article.body", "dept"),
    ],
)
def test_each_tool_is_recognised_and_read(payload: dict[str, Any], tool: str, text_field: str, filter_key: str) -> None:
    layout = guess_layout([payload])
    assert (layout.tool, layout.text_field) == (tool, text_field)
    assert layout.text(payload) == TEXT
    assert layout.ref_doc_id(payload) == "d1"
    assert layout.filter_key("dept") == filter_key
    metadata = layout.metadata(payload)
    assert metadata["dept"] == "耳鼻喉"
    assert TEXT not in json.dumps(metadata, ensure_ascii=False)


def test_only_our_own_payloads_keep_the_title_apart() -> None:
    assert guess_layout([OURS]).title(OURS) == "耳鸣"
    assert "title" not in guess_layout([OURS]).metadata(OURS)
    foreign = {**PLAIN, "title": "耳鸣"}
    assert guess_layout([foreign]).title(foreign) == ""
    assert guess_layout([foreign]).metadata(foreign)["title"] == "耳鸣"


def test_a_vector_attached_by_us_does_not_make_a_foreign_point_ours() -> None:
    attached = {**LANGCHAIN, "_care": {"vectors": {"care": "0" * 32}}}
    assert guess_layout([attached]).tool == "langchain"


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
