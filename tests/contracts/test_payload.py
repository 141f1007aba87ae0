"""The payload: stock LlamaIndex reads it, and it embeds the text that we embed."""

import hashlib
import json
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.schema import MetadataMode, TextNode
from llama_index.core.vector_stores.utils import metadata_dict_to_node
from qdrant_client import models

from care_qdrant.contracts.layouts import read_hit
from care_qdrant.contracts.payload import chunk_payload, content_hash, node_embedded_texts, payload_hash
from care_qdrant.types import Chunk, Document, point_id

DOCUMENT = Document("d-1", "二甲双胍常见的不良反应是恶心。", "二甲双胍", {"department": "内分泌科", "year": 2024})
CHUNK = Chunk(DOCUMENT, DOCUMENT.text)


def test_llama_index_reads_text_metadata_and_source() -> None:
    node = metadata_dict_to_node(chunk_payload(CHUNK, {"care": "h"}))
    assert node.node_id == CHUNK.point_id
    assert node.ref_doc_id == "d-1"
    assert node.get_content(MetadataMode.NONE) == DOCUMENT.text
    assert node.metadata == {"department": "内分泌科", "year": 2024, "title": "二甲双胍"}


@given(st.text(st.characters(codec="utf-8")), st.integers(0, 10**9))
def test_a_point_id_is_the_uuid5_of_document_and_number(document_id: str, number: int) -> None:
    # Written out here: another id for the same chunk would write every collection a second time.
    namespace = uuid.uuid5(uuid.NAMESPACE_URL, "https://arxiv.org/abs/2604.10937#document")
    assert point_id(document_id, number) == str(uuid.uuid5(namespace, f"{document_id}\x1f{number}"))


def test_llama_index_embeds_the_text_that_ingestion_embeds() -> None:
    # By default it would embed "department: 内分泌科\nyear: 2024\n\n..." and its vectors would silently differ.
    for chunk in (CHUNK, Chunk(Document("d-2", "没有标题", "", {"department": "儿科"}), "没有标题")):
        node = metadata_dict_to_node(chunk_payload(chunk, {}))
        assert node.get_content(MetadataMode.EMBED) == chunk.embedded_text


def test_a_hit_gives_back_what_was_written() -> None:
    payload = chunk_payload(CHUNK, {"care": "h"})
    hit = read_hit(models.ScoredPoint(id=CHUNK.point_id, version=0, score=0.5, payload=payload))
    assert (hit.document_id, hit.title, hit.text, hit.chunk) == ("d-1", "二甲双胍", DOCUMENT.text, 0)
    assert hit.metadata == DOCUMENT.metadata


def test_the_content_hash_follows_the_vector_and_the_payload_hash_the_rest() -> None:
    relabelled = Chunk(Document("d-1", DOCUMENT.text, "二甲双胍", {"department": "全科"}), DOCUMENT.text)
    assert content_hash("m1", "t", "x") != content_hash("m2", "t", "x")
    assert content_hash("m1", "", "x") != content_hash("m1", "", "y")
    assert payload_hash(relabelled) != payload_hash(CHUNK)


@given(
    st.dictionaries(
        st.text(max_size=4),
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        max_size=4,
    )
)
def test_hash_and_node_are_plain_json(metadata: dict[str, object]) -> None:
    chunk = Chunk(Document("d", 'a"\\\u2028文', "t", metadata), 'a"\\\u2028文')
    parts = ["d", "t", chunk.text, metadata, 0, 1]
    canonical = json.dumps(parts, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    assert payload_hash(chunk) == hashlib.sha256(canonical.encode()).hexdigest()[:32]
    node = chunk_payload(chunk, {})["_node_content"]
    read = json.loads(node)
    assert read["metadata"] == {**metadata, "title": "t"}
    assert read["text"] == chunk.text
    assert node.startswith('{"id_":"')
    assert "文" in node, "neither spaces nor escapes, which the server would store"


def test_what_is_not_written_llama_index_fills_in() -> None:
    untitled = Chunk(Document("d-2", "没有标题"), "没有标题")
    for chunk, shown in ((CHUNK, "二甲双胍 " + DOCUMENT.text), (untitled, "没有标题")):
        payload = chunk_payload(chunk, {})
        as_before = {
            "id_": chunk.point_id,
            "embedding": None,
            "metadata": {
                **chunk.document.metadata,
                **({"title": chunk.document.title} if chunk.document.title else {}),
            },
            "excluded_embed_metadata_keys": sorted(chunk.document.metadata),
            "excluded_llm_metadata_keys": sorted(chunk.document.metadata),
            "relationships": {
                "1": {"node_id": chunk.document.id, "node_type": "4", "metadata": {}, "class_name": "RelatedNodeInfo"}
            },
            "text": chunk.text,
            "class_name": "TextNode",
        }
        node = metadata_dict_to_node(payload)
        whole = metadata_dict_to_node({**payload, "_node_content": json.dumps(as_before)})
        assert node.hash == whole.hash
        assert {key: value for key, value in node.to_dict().items() if "template" not in key} == {
            key: value for key, value in whole.to_dict().items() if "template" not in key
        }
        assert node.get_content(MetadataMode.LLM) == node.get_content(MetadataMode.EMBED) == shown
        written = json.loads(payload["_node_content"])
        for key in written:
            rest = json.dumps({other: value for other, value in written.items() if other != key})
            assert metadata_dict_to_node({**payload, "_node_content": rest}).to_dict() != node.to_dict(), key


_PIECES = st.sampled_from(["{content}", "{metadata_str}", "{{x}}", "}}", "{{", "\n", "a"])
_VALUES = st.text("ab{} ", max_size=4)


@given(
    st.lists(_PIECES, min_size=1, max_size=5).map("".join),
    st.sampled_from(["{key}: {value}", "{{{key}}}={value}", "{value}"]),
    _VALUES.filter(bool),
    st.dictionaries(_VALUES, _VALUES | st.integers() | st.none(), max_size=3),
)
def test_a_template_of_a_node_is_filled_as_llamaindex_fills_it(
    template: str, line: str, text: str, metadata: dict[str, Any]
) -> None:
    node = TextNode(text=text, metadata=metadata, text_template=template, metadata_template=line)
    assert node.get_content(MetadataMode.EMBED) in node_embedded_texts({"_node_content": node.to_json()})


@pytest.mark.parametrize(
    "content",
    [
        json.dumps({"text": "t", "metadata": {"a": 1}, "text_template": "{content:>99999999999}"}),
        json.dumps({"text": "t", "metadata": {"a": 1}, "metadata_template": "{value.__class__}"}),
        "[" * 100_000,
    ],
)
def test_a_node_that_no_tool_writes_has_no_texts(content: str) -> None:
    """A width of a template would make a text of any size; a program that may write payloads could end an attach."""
    assert node_embedded_texts({"_node_content": content}) == []
