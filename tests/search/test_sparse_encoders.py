"""Sparse encoders of others: FastEmbed's interface, and the refusals around them."""

import asyncio
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores.types import VectorStoreQuery, VectorStoreQueryMode
from llama_index.vector_stores.care import CareVectorStore
from qdrant_client import QdrantClient, models

from care_qdrant.encoders.terms.sparse import FastEmbedSparse, native_bm25
from care_qdrant.errors import InputError
from care_qdrant.search.retriever import Retriever
from tests.tiny import HashModel

TEXTS = ["metformin causes nausea", "appendicitis needs surgery", "insulin lowers glucose"]


class Words:
    """A model with the interface of FastEmbed's SparseTextEmbedding, whose two sides weight words differently."""

    vocabulary = sorted({word for text in TEXTS for word in text.split()})

    def embed(self, documents: Any) -> Any:
        return (self._one(text, 2.0) for text in documents)

    def query_embed(self, query: Any) -> Any:
        return (self._one(text, 1.0) for text in query)

    def _one(self, text: str, weight: float) -> Any:
        indices = sorted({self.vocabulary.index(word) for word in text.split() if word in self.vocabulary})
        return SimpleNamespace(indices=np.array(indices), values=np.full(len(indices), weight))


def _local_fastembed(folder: Path) -> Any:
    """FastEmbed's own BM25 from a folder that holds what it would download."""
    fastembed = pytest.importorskip("fastembed")
    (folder / "english.txt").write_text("the\nof\n")
    return fastembed.SparseTextEmbedding("Qdrant/bm25", specific_model_path=str(folder))


@pytest.fixture(params=["interface", "fastembed"])
def encoder(request: pytest.FixtureRequest, tmp_path: Path) -> FastEmbedSparse:
    return FastEmbedSparse(Words() if request.param == "interface" else _local_fastembed(tmp_path))


def _filled(encoder: FastEmbedSparse, model: HashModel) -> QdrantClient:
    client = QdrantClient(":memory:")
    client.create_collection(
        "c",
        vectors_config={"dense": models.VectorParams(size=32, distance=models.Distance.COSINE)},
        sparse_vectors_config={"terms": models.SparseVectorParams()},
    )
    rows = zip(TEXTS, model.encode_document(TEXTS).tolist(), *encoder.documents(TEXTS), strict=True)
    points = [
        models.PointStruct(
            id=number,
            vector={"dense": dense, "terms": models.SparseVector(indices=indices, values=values)},
            payload={"text": text},
        )
        for number, (text, dense, indices, values) in enumerate(rows)
    ]
    client.upsert("c", points)
    return client


def test_retriever_and_store_search_with_it(encoder: FastEmbedSparse) -> None:
    client = _filled(encoder, HashModel())
    retriever = Retriever(client, "c", mode="sparse", sparse_vector_name="terms", sparse_encoder=encoder)
    [[hit]] = retriever.search(["nausea of metformin"], top_k=1)
    assert hit.text == TEXTS[0]
    assert hit.score == pytest.approx(np.dot(*_shared(encoder, "nausea of metformin", TEXTS[0])))
    store = CareVectorStore(
        "c",
        client,
        vector_name="dense",
        enable_hybrid=True,
        sparse_vector_name="terms",
        sparse_doc_fn=encoder.documents,
        sparse_query_fn=encoder.queries,
    )
    found = store.query(VectorStoreQuery(query_str="surgery", mode=VectorStoreQueryMode.SPARSE, similarity_top_k=1))
    assert [node.get_content() for node in found.nodes or ()] == [TEXTS[1]]
    client.close()


def test_a_store_writes_and_searches_with_it_sync_and_async(encoder: FastEmbedSparse) -> None:
    """Nodes get what the model's document side makes, queries what its query side makes."""
    client, model = QdrantClient(":memory:"), HashModel()
    config = models.SparseVectorParams()
    store = CareVectorStore("new", client, sparse_encoder=encoder, sparse_vector_name="terms", sparse_config=config)
    vectors = model.encode_document(TEXTS).tolist()
    nodes = [TextNode(text=text, embedding=vector) for text, vector in zip(TEXTS, vectors, strict=True)]
    store.add(nodes)
    stored = client.retrieve("new", [node.node_id for node in nodes], with_vectors=True)
    vectors_of = {record.id: record.vector for record in stored}
    for node, indices, values in zip(nodes, *encoder.documents(TEXTS), strict=True):
        vector = vectors_of[node.node_id]
        assert isinstance(vector, dict) and isinstance(terms := vector["terms"], models.SparseVector)
        assert dict(zip(terms.indices, terms.values, strict=True)) == dict(zip(indices, values, strict=True))
    for mode in (VectorStoreQueryMode.SPARSE, VectorStoreQueryMode.HYBRID):
        embedding = model.encode_query(["surgery"])[0].tolist()
        asked = VectorStoreQuery(query_embedding=embedding, query_str="surgery", mode=mode, alpha=0.1)
        for found in (store.query(asked), asyncio.run(store.aquery(asked))):
            assert (found.nodes or ())[0].get_content() == TEXTS[1]
    client.close()


def test_a_share_weighs_the_ranks_of_both_lists(encoder: FastEmbedSparse) -> None:
    client, model = _filled(encoder, HashModel()), HashModel()
    store = CareVectorStore(
        "c", client, vector_name="dense", sparse_encoder=encoder, sparse_vector_name="terms", fusion="rrf"
    )
    query, dense = "surgery", model.encode_document(TEXTS[:1])[0].tolist()
    for alpha, best in ((0.9, TEXTS[0]), (0.1, TEXTS[1])):
        asked = VectorStoreQuery(
            query_embedding=dense, query_str=query, mode=VectorStoreQueryMode.HYBRID, alpha=alpha, similarity_top_k=3
        )
        found = store.query(asked)
        assert (found.nodes or ())[0].get_content() == best
        assert (store.query(asked, group_by="text", group_size=1).nodes or ())[0].get_content() == best
    plain = CareVectorStore("c", client, vector_name="dense", sparse_encoder=encoder, sparse_vector_name="terms")
    with pytest.raises(InputError, match="score_threshold needs a fusion by Qdrant"):
        plain.query(asked, score_threshold=0.1)
    client.close()


@pytest.mark.parametrize(
    "settings",
    [{}, {"sparse_vector_name": "terms", "enable_hybrid": False}, {"sparse_vector_name": "t", "sparse_doc_fn": len}],
)
def test_a_store_refuses_what_contradicts_the_encoder(settings: dict[str, Any]) -> None:
    with closing(QdrantClient(":memory:")) as client, pytest.raises(InputError, match="sparse_encoder="):
        CareVectorStore("c", client, sparse_encoder=native_bm25, **settings)


def _shared(encoder: FastEmbedSparse, query: str, text: str) -> tuple[list[float], list[float]]:
    """Weights of the terms that both have, of the query and of the document."""
    asked = encoder(query)
    (indices,), (values,) = encoder.documents([text])
    stored = dict(zip(indices, values, strict=True))
    pairs = [
        (weight, stored[index]) for index, weight in zip(asked.indices, asked.values, strict=True) if index in stored
    ]
    return [one for one, _ in pairs], [other for _, other in pairs]


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "hybrid"},
        {"mode": "dense", "sparse_vector_name": "terms"},
        {"mode": "hybrid", "sparse_vector_name": "terms", "fusion": "linear"},
    ],
)
def test_what_does_not_fit_together_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="sparse_encoder="):
        Retriever(QdrantClient(":memory:"), "c", HashModel(), sparse_encoder=native_bm25, **options)
