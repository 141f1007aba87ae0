"""The node parser sized to the model: nothing is cut off, and nodes are the points of care-ingest."""

import logging
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_index.core import Document
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import MetadataMode, TextNode
from llama_index.embeddings.care import CareEmbedding, CareNodeParser, CareNodeText
from llama_index.vector_stores.care import CareVectorStore
from qdrant_client import QdrantClient

from care_qdrant import CareModel, Reject, ingest
from care_qdrant import Document as Row
from care_qdrant.corpus.chunking import cut_documents
from care_qdrant.errors import InputError
from care_qdrant.types import is_blank
from tests.tiny import medical_texts

LONG = "".join(medical_texts(80))
DOCUMENTS = [
    Document(id_="a", text=LONG, metadata={"title": "一本书", "dept": "内科"}),
    Document(id_="b", text="很短。"),
    Document(id_="c", text=" "),
]


@pytest.fixture
def embedding() -> CareEmbedding:
    return CareEmbedding()


def test_no_node_is_longer_than_the_encoder_reads(embedding: CareEmbedding, caplog: pytest.LogCaptureFixture) -> None:
    nodes = CareNodeParser(embedding=embedding)(DOCUMENTS)
    lengths = embedding.document_tokenizer.count_tokens([node.get_content(MetadataMode.EMBED) for node in nodes])
    assert len(nodes) > 2 and max(lengths) <= embedding.document_tokenizer.max_tokens
    with caplog.at_level(logging.WARNING):
        embedding(nodes)
    assert not caplog.records
    stock = IngestionPipeline(transformations=[SentenceSplitter(chunk_size=2048), CareNodeText(), embedding])
    stock.run(documents=DOCUMENTS[:1])
    assert caplog.records


def test_nodes_are_the_points_of_care_ingest(embedding: CareEmbedding) -> None:
    client = QdrantClient(":memory:")
    rows = [Row("a", LONG, title="一本书", metadata={"dept": "内科"}), Row("b", "很短。")]
    ingest(rows, CareModel.load(), client, "corpus")
    points, _ = client.scroll("corpus", limit=100)
    nodes = CareNodeParser(embedding=embedding).get_nodes_from_documents(DOCUMENTS)
    assert {point.id: (point.payload or {})["text"] for point in points} == {
        node.id_: node.get_content() for node in nodes
    }
    assert {node.ref_doc_id for node in nodes} == {"a", "b"}
    assert nodes[0].metadata == {"title": "一本书", "dept": "内科"}
    assert (
        nodes[0].get_content(MetadataMode.EMBED).startswith("一本书 ")
        and "内科" not in nodes[0].get_content(MetadataMode.EMBED).split()
    )
    assert DOCUMENTS[0].excluded_embed_metadata_keys == []
    client.close()


@given(
    title=st.integers(0, 90).map(lambda count: "标题" * count),
    parts=st.lists(st.sampled_from([*medical_texts(4), "\u200b\n", "  ", "字" * 60, "\n\n"]), max_size=30),
)
@settings(max_examples=60, deadline=None)
def test_any_document_is_cut_as_care_ingest_cuts_it(title: str, parts: list[str]) -> None:
    embedding, text = CareEmbedding(), "".join(parts)
    parser, metadata = CareNodeParser(embedding=embedding), {"title": title} if title else {}
    if is_blank(text):
        assert parser([Document(text=text, metadata=metadata)]) == []
        return
    [cut] = cut_documents([Row("a", text, title)], embedding.document_tokenizer, "split")
    if isinstance(cut, Reject):
        with pytest.raises(InputError, match="shorten the title"):
            parser([Document(text=text, metadata=metadata)])
        return
    nodes = parser([Document(id_="a", text=text, metadata=metadata)])
    assert [(node.node_id, node.get_content()) for node in nodes] == [(chunk.point_id, chunk.text) for chunk in cut]


def test_documents_that_share_an_id_are_all_kept(embedding: CareEmbedding) -> None:
    """The pages of a file often have its name as their id."""
    texts = ["孩子发烧可以吃退烧药。", LONG, "骨折后补钙。", "孩子发烧可以吃退烧药。"]
    pages = [Document(text=text, id_="guide.pdf", metadata={"page": n}) for n, text in enumerate(texts)]
    with closing(QdrantClient(":memory:")) as client:
        store = CareVectorStore("n", client, embedding=embedding)
        parser = CareNodeParser(embedding=embedding)
        for _ in range(2):
            IngestionPipeline(transformations=[parser, embedding], vector_store=store).run(documents=pages)
        nodes = parser(pages)
        stored = store.get_nodes()
        assert {node.node_id: node.get_content() for node in stored} == {n.node_id: n.get_content() for n in nodes}
        assert len(stored) == len(nodes) > len(pages)
        assert {node.metadata["page"] for node in stored} == {0, 1, 2, 3}
        for node in nodes:
            text = texts[node.metadata["page"]]
            assert isinstance(node, TextNode) and text[node.start_char_idx : node.end_char_idx] == node.get_content()
        store.delete("guide.pdf")
        assert store.get_nodes() == []


def test_a_document_that_replaces_one_of_an_earlier_call_is_said_once(
    embedding: CareEmbedding, caplog: pytest.LogCaptureFixture
) -> None:
    parser = CareNodeParser(embedding=embedding)
    for _ in range(2):
        parser(DOCUMENTS)
    assert caplog.records == []
    for text in ("骨折后补钙。", "少吃西瓜。", "多喝水。"):
        parser([Document(text=text, id_="guide.pdf")])
    assert len(caplog.records) == 1


def test_a_title_that_leaves_no_room_is_refused(embedding: CareEmbedding) -> None:
    with pytest.raises(InputError, match="document 'a': its title"):
        CareNodeParser(embedding=embedding)([Document(id_="a", text="正文。", metadata={"title": LONG})])


@pytest.mark.parametrize("title", [None, 3, ["甲", "乙"], ""])
def test_a_title_that_is_no_text_is_not_embedded(embedding: CareEmbedding, title: object) -> None:
    """A reader of tables writes None where a cell is empty, which LlamaIndex embeds as a word."""
    bare, given = (Document(text="头痛多休息。", metadata=metadata) for metadata in ({}, {"title": title}))
    for transformations in ([CareNodeParser(embedding=embedding), embedding], [embedding]):
        [expected], [node] = (
            IngestionPipeline(transformations=transformations).run(documents=[document]) for document in (bare, given)
        )
        assert node.embedding == expected.embedding and node.metadata == {"title": title}


def test_settings_survive_saving(embedding: CareEmbedding) -> None:
    parser = CareNodeParser(embedding=embedding)
    again = CareNodeParser.from_dict(parser.to_dict())
    assert [node.id_ for node in again(DOCUMENTS)] == [node.id_ for node in parser(DOCUMENTS)]


@given(st.lists(st.sampled_from(["重复的句子很短。", "另一句。", "\n\n", "  "]), min_size=1, max_size=400))
@settings(max_examples=20)
def test_a_node_knows_where_its_text_stands(sentences: list[str]) -> None:
    """Also where a text repeats itself: nodes follow each other, and together they hold the whole text."""
    text = "".join(sentences)
    nodes = CareNodeParser(embedding=CareEmbedding())([Document(text=text)])
    spans = [(node.start_char_idx, node.end_char_idx) for node in nodes if isinstance(node, TextNode)]
    assert [text[start:end] for start, end in spans] == [node.get_content() for node in nodes]
    assert [start for start, _ in spans] == sorted({start for start, _ in spans})
    covered = {at for start, end in spans for at in range(start or 0, end or 0)}
    assert all(at in covered or character.isspace() for at, character in enumerate(text))
