"""The real packages of others: each opens a collection, which gets a vector, opens it again and writes to it."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from qdrant_client import QdrantClient, models

from care_qdrant.errors import InputError
from care_qdrant.index.attach import attach_vector
from care_qdrant.index.by_copy import attach_by_copy
from care_qdrant.index.detach import detach_vector
from care_qdrant.index.doctor import diagnose
from care_qdrant.index.verify import verify_collection
from care_qdrant.search.retriever import Retriever
from tests.databases import require_added_vectors
from tests.index.attach.collections import DIM, NAME, contents
from tests.standin import StandIn
from tests.tiny import HashModel, medical_texts

TEXTS = medical_texts(30)
QUESTION = np.linspace(-1, 1, DIM).tolist()
LIVE = f"{NAME}-live"
Place = dict[str, Any]
"""Arguments of a client."""

# Nothing in these packages is ours to mend; and the newest client says so of a server that is two versions behind it.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(params=["folder", "stand-in", pytest.param("real", marks=pytest.mark.server)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A database without our collections; those of a real server are deleted afterwards."""
    if request.param == "folder":
        yield {"path": str(tmp_path / "qdrant")}
    elif request.param == "stand-in":
        with StandIn() as server:
            yield {"url": server.url}
    else:
        url = request.getfixturevalue("real_url")
        with closing(opened({"url": url})) as client:
            for name in (NAME, f"{NAME}-sparse", f"{LIVE}_v1"):
                client.delete_collection(name)
            yield {"url": url}
            for name in (NAME, f"{NAME}-sparse", f"{LIVE}_v1"):
                client.delete_collection(name)


def opened(place: Place) -> QdrantClient:
    return QdrantClient(**place, check_compatibility=False) if "url" in place else QdrantClient(**place)


def old_vector(number: int) -> list[float]:
    """Build a vector that the database keeps bit for bit: its length is one."""
    random = np.random.default_rng(number)
    row = np.zeros(DIM)
    row[random.permutation(DIM)[:4]] = random.choice([-0.5, 0.5], size=4)
    return [float(value) for value in row]


def attach(place: Place, name: str = NAME) -> tuple[int, int]:
    """Attach, verify, and return how many points were encoded and how many were unchanged."""
    model = HashModel(name="care")
    with closing(opened(place)) as client:
        report = attach_vector(client, name, model)
        assert verify_collection(client, name, model).problems == []
        [hits] = Retriever(client, name, model).search([TEXTS[17]], top_k=1)
        assert hits[0].text == TEXTS[17]
    return report.encoded, report.unchanged


def everything(place: Place, name: str = NAME) -> dict[Any, Any]:
    with closing(opened(place)) as client:
        return contents(client, without="care", name=name)


# Haystack


def haystack_store(place: Place, index: str = NAME, *, sparse: bool = False, **settings: Any) -> Any:
    from haystack_integrations.document_stores.qdrant import QdrantDocumentStore

    own = {"embedding_dim": DIM, "similarity": "cosine", "progress_bar": False, "use_sparse_embeddings": sparse}
    return QdrantDocumentStore(index=index, **place, **own, **settings)


def haystack_documents(start: int, end: int, *, sparse: bool = False) -> list[Any]:
    from haystack import Document
    from haystack.dataclasses import SparseEmbedding

    terms = [SparseEmbedding(indices=[7, n % 5 + 20], values=[0.5, 1.5]) if sparse else None for n in range(end)]
    return [
        Document(id=f"h{n}", content=TEXTS[n], meta={"n": n}, embedding=old_vector(n), sparse_embedding=terms[n])
        for n in range(start, end)
    ]


def haystack_answers(store: Any) -> list[tuple[str, float]]:
    """Score every document: which of two with one score comes first may change when they are copied or read again."""
    return sorted((found.id, round(found.score, 6)) for found in store._query_by_embedding(QUESTION, top_k=100))


def test_haystack_with_sparse_vectors(place: Place) -> None:
    from haystack.document_stores.types import DuplicatePolicy

    with closing(haystack_store(place, sparse=True)) as store:
        store.write_documents(haystack_documents(0, 20, sparse=True))
        before = haystack_answers(store)
    points = everything(place)
    assert attach(place) == (20, 0)
    assert everything(place) == points

    with closing(haystack_store(place, sparse=True)) as store:
        assert haystack_answers(store) == before
        store.write_documents(haystack_documents(20, 25, sparse=True))
        store.write_documents(haystack_documents(3, 4, sparse=True), policy=DuplicatePolicy.OVERWRITE)
        store.delete_documents(["h5"])
        assert store.count_documents() == 24
    assert attach(place) == (6, 18)

    with closing(opened(place)) as client:
        detach_vector(client, NAME)
    with closing(haystack_store(place, sparse=True)) as store:
        assert store.count_documents() == 24
    kept = everything(place)
    assert {key: kept[key] for key in points if key in kept} == {key: points[key] for key in points if key in kept}


def test_haystack_without_sparse_vectors_is_refused_and_can_be_opened_again(place: Place) -> None:
    with closing(haystack_store(place)) as store:
        store.write_documents(haystack_documents(0, 20))
        before = haystack_answers(store)
    points, model = everything(place), HashModel(name="care")
    with closing(opened(place)) as client:
        with pytest.raises(InputError, match=r"use_sparse_embeddings=True.*--via copy --as articles-live"):
            attach_vector(client, NAME, model)
        found = diagnose(client, NAME, model)
        assert "Haystack wrote collection" in found.refusals[0]
        assert "alias 'articles-live' is switched" in " ".join(found.copy_plan)

        assert attach_by_copy(client, NAME, model, LIVE).attached.covered == 20
        [hits] = Retriever(client, LIVE, model).search([TEXTS[17]], top_k=1)
        assert (hits[0].text, hits[0].document_id) == (TEXTS[17], "h17")
    assert everything(place) == points
    with closing(haystack_store(place)) as store:
        assert haystack_answers(store) == before
        store.write_documents(haystack_documents(20, 25))
        assert store.count_documents() == 25


def test_a_second_vector_still_locks_haystack_out(place: Place) -> None:
    """Where this fails, Haystack has learned to open such a collection, and the refusal can go."""
    with closing(haystack_store(place)) as store:
        store.write_documents(haystack_documents(0, 3))
    with closing(opened(place)) as client:
        require_added_vectors(client)
        dense = models.DenseVectorConfig(size=4, distance=models.Distance.COSINE)
        client.create_vector_name(NAME, "second", models.DenseVectorNameConfig(dense=dense))
        client.delete_vector_name(NAME, "second")
    with closing(haystack_store(place)) as store, pytest.raises(Exception, match="created outside of Haystack"):
        store.count_documents()


# LangChain


@pytest.mark.parametrize("vector_name", ["", "openai"])
def test_langchain(place: Place, vector_name: str) -> None:
    from langchain_core.embeddings import Embeddings
    from langchain_qdrant import QdrantVectorStore

    class Old(Embeddings):
        """Encodes a text of this module as the vector of its number, and every question alike."""

        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return [old_vector(TEXTS.index(text)) if text in TEXTS else QUESTION for text in texts]

        def embed_query(self, text: str) -> list[float]:
            return QUESTION

    def store(client: QdrantClient) -> Any:
        return QdrantVectorStore(client, NAME, Old(), vector_name=vector_name)

    def write(client: QdrantClient, start: int, end: int) -> None:
        rows = [{"source": f"{n}.pdf"} for n in range(start, end)]
        store(client).add_texts(TEXTS[start:end], rows, ids=list(range(start, end)))

    def answers(client: QdrantClient) -> list[tuple[str, float]]:
        return [(found.page_content, score) for found, score in store(client).similarity_search_with_score("?", k=10)]

    params = models.VectorParams(size=DIM, distance=models.Distance.COSINE)
    with closing(opened(place)) as client:
        client.create_collection(NAME, {vector_name: params} if vector_name else params)
        write(client, 0, 20)
        before = answers(client)
    points = everything(place)
    assert attach(place) == (20, 0)
    assert everything(place) == points
    with closing(opened(place)) as client:
        assert answers(client) == before
        write(client, 20, 25)
        write(client, 3, 4)
        store(client).delete([5])
    assert attach(place) == (6, 18)
    with closing(opened(place)) as client:
        detach_vector(client, NAME)
        write(client, 25, 30)
        assert len(answers(client)) == 10
        assert client.count(NAME).count == 29


# LlamaIndex's own store


def test_llama_index(place: Place) -> None:
    from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
    from llama_index.core.vector_stores import VectorStoreQuery
    from llama_index.vector_stores.qdrant import QdrantVectorStore

    def nodes(start: int, end: int) -> list[Any]:
        return [
            TextNode(
                id_=f"00000000-0000-0000-0000-{n:012d}",
                text=TEXTS[n],
                embedding=old_vector(n),
                relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=f"d{n}")},
            )
            for n in range(start, end)
        ]

    def answers(client: QdrantClient) -> tuple[Any, Any]:
        found = QdrantVectorStore(NAME, client=client).query(VectorStoreQuery(QUESTION, similarity_top_k=10))
        return found.ids, found.similarities

    with closing(opened(place)) as client:
        QdrantVectorStore(NAME, client=client).add(nodes(0, 20))
        before = answers(client)
    points = everything(place)
    assert attach(place) == (20, 0)
    assert everything(place) == points
    with closing(opened(place)) as client:
        assert answers(client) == before
        QdrantVectorStore(NAME, client=client).add(nodes(20, 25))
        QdrantVectorStore(NAME, client=client).add(nodes(3, 4))
        QdrantVectorStore(NAME, client=client).delete("d5")
    assert attach(place) == (6, 18)
    with closing(opened(place)) as client:
        detach_vector(client, NAME)
        QdrantVectorStore(NAME, client=client).add(nodes(25, 30))
        assert client.count(NAME).count == 29
