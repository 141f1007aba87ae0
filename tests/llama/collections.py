"""Collections as tools really leave them, with vectors of `HashEncoder`."""

import json
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from llama_index.core.vector_stores import FilterCondition, MetadataFilters
from llama_index.core.vector_stores.types import VectorStoreQuery, VectorStoreQueryMode
from llama_index.vector_stores.care import CareVectorStore
from llama_index.vector_stores.qdrant import QdrantVectorStore
from qdrant_client import QdrantClient, models

from care_qdrant.contracts.contract import SparseContract, VectorContract, contract_metadata, sparse_vector
from care_qdrant.contracts.payload import chunk_payload
from care_qdrant.encoders.terms import bm25
from care_qdrant.encoders.terms.analyser import DEFAULT
from care_qdrant.types import Chunk, Document
from tests.tiny import HashEncoder, HashModel

NAME = "corpus"
DOCUMENTS = [
    Document("d0", "高血压患者要少吃盐。", metadata={"dept": "心内科", "year": 2020, "tags": ["饮食", "慢病"]}),
    Document("d1", "二甲双胍可引起腹泻。", metadata={"dept": "内分泌科", "year": 2021, "tags": ["用药"]}),
    Document("d2", "耳鸣可由噪声引起。", metadata={"dept": "耳鼻喉科", "year": 2022, "tags": ["用药", "慢病"]}),
    Document("d3", "阑尾炎可有右下腹痛。", metadata={"year": 2023}),
]

Write = Callable[[Document], Mapping[str, Any]]


def ours(document: Document) -> dict[str, Any]:
    return chunk_payload(Chunk(document, document.text), {})


def llama_index(document: Document) -> dict[str, Any]:
    node = {
        "id_": node_id(document),
        "text": document.text,
        "metadata": dict(document.metadata),
        "relationships": {"1": {"node_id": document.id, "class_name": "RelatedNodeInfo"}},
        "class_name": "TextNode",
    }
    content = {"_node_content": json.dumps(node), "_node_type": "TextNode", "doc_id": document.id}
    return {**document.metadata, **content}


def langchain(document: Document) -> dict[str, Any]:
    return {"page_content": document.text, "metadata": {**document.metadata, "source": document.id}}


def haystack(document: Document) -> dict[str, Any]:
    return {"id": document.id, "content": document.text, "meta": dict(document.metadata)}


def plain(document: Document) -> dict[str, Any]:
    return {"text": document.text, "doc_id": document.id, **document.metadata}


WRITERS = [ours, llama_index, langchain, haystack, plain]


def node_id(document: Document) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, document.id))


def vector(text: str, salt: str = "") -> list[float]:
    return [float(value) for value in HashEncoder(salt=salt).encode([text])[0]]


def fill(
    client: QdrantClient,
    write: Write = ours,
    *,
    unnamed: bool = False,
    sparse: bool = False,
    contract: VectorContract | None = None,
    collection: str = NAME,
) -> None:
    """Create a collection with the vector ``care``, beside an unnamed one of another model if asked for."""
    dense = models.VectorParams(size=32, distance=models.Distance.COSINE)
    lexical = SparseContract(DEFAULT.name, bm25.DEFAULT_K1, bm25.DEFAULT_B, average_length=12.0)
    metadata = contract_metadata("care", contract or HashModel().contract())
    if sparse:
        metadata |= contract_metadata("bm25", lexical)
    client.create_collection(
        collection,
        vectors_config={"": dense, "care": dense} if unnamed else {"care": dense},
        sparse_vectors_config={"bm25": models.SparseVectorParams(modifier=models.Modifier.IDF)} if sparse else None,
        metadata=metadata,
    )
    for document in DOCUMENTS:
        vectors: dict[str, Any] = {"care": vector(document.text)}
        if unnamed:
            # Another model, whose space is so different that each text lies where another one should be.
            vectors[""] = vector(DOCUMENTS[DOCUMENTS.index(document) - 1].text)
        if sparse:
            vectors["bm25"] = sparse_vector(bm25.document_vector(document.text, average_length=12.0))
        point = models.PointStruct(id=node_id(document), vector=vectors, payload=dict(write(document)))
        client.upsert(collection, [point], wait=True)


def find(store: QdrantVectorStore, text: str, top_k: int = 1, **query: Any) -> list[str]:
    result = store.query(VectorStoreQuery(query_embedding=vector(text), similarity_top_k=top_k, **query))
    return [node.get_content() for node in result.nodes or ()]


def filtered(store: CareVectorStore, *filters: Any, condition: str = "and") -> list[str]:
    chosen = MetadataFilters(filters=list(filters), condition=FilterCondition(condition))
    by_sync = [node.ref_doc_id or "" for node in store.get_nodes(filters=chosen)]
    searched = store.query(VectorStoreQuery(query_embedding=vector("x"), similarity_top_k=9, filters=chosen))
    assert sorted(by_sync) == sorted(node.ref_doc_id for node in searched.nodes or ())  # type: ignore[type-var]
    return sorted(by_sync)


def query_of(text: str, mode: VectorStoreQueryMode = VectorStoreQueryMode.HYBRID, **more: Any) -> VectorStoreQuery:
    """Return a query whose vector is of another text than its terms, so that the two can be told apart."""
    return VectorStoreQuery(
        query_embedding=vector(DOCUMENTS[0].text), query_str=text, mode=mode, similarity_top_k=4, **more
    )
