"""The real packages of others: each opens a collection, which gets a vector, opens it again and writes to it."""

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from qdrant_client import QdrantClient, models

from care_qdrant.errors import InputError
from care_qdrant.search.retriever import Retriever
from care_qdrant.vectors.attach import attach_vector
from care_qdrant.vectors.attach_plan import plan_attach
from care_qdrant.vectors.detach import detach_vector
from care_qdrant.vectors.verify import verify_collection
from tests.standin import StandIn
from tests.tiny import HashModel, medical_texts
from tests.vectors.collections import DIM, NAME, contents

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


class Store:
    """A tool's own store on a database, with the texts of this module and vectors of the old model."""

    def __init__(self, place: Place, vector_name: str = "") -> None:
        self.client, self.vector_name = opened(place), vector_name

    def close(self) -> None:
        self.client.close()

    def count(self) -> int:
        return self.client.count(NAME).count


class LangChain(Store):
    def open(self) -> Any:
        from langchain_core.embeddings import Embeddings
        from langchain_qdrant import QdrantVectorStore

        class Old(Embeddings):
            """Encodes a text of this module as the vector of its number, and every question alike."""

            def embed_documents(self, texts: list[str]) -> list[list[float]]:
                return [old_vector(TEXTS.index(text)) if text in TEXTS else QUESTION for text in texts]

            def embed_query(self, text: str) -> list[float]:
                return QUESTION

        if not self.client.collection_exists(NAME):
            params = models.VectorParams(size=DIM, distance=models.Distance.COSINE)
            self.client.create_collection(NAME, {self.vector_name: params} if self.vector_name else params)
        return QdrantVectorStore(self.client, NAME, Old(), vector_name=self.vector_name)

    def write(self, start: int, end: int) -> None:
        rows = [{"source": f"{n}.pdf"} for n in range(start, end)]
        self.open().add_texts(TEXTS[start:end], rows, ids=list(range(start, end)))

    def delete(self, number: int) -> None:
        self.open().delete([number])

    def answers(self) -> Any:
        found = self.open().similarity_search_with_score("?", k=10)
        return [(document.page_content, score) for document, score in found]


class LlamaIndex(Store):
    def open(self) -> Any:
        from llama_index.vector_stores.qdrant import QdrantVectorStore

        return QdrantVectorStore(NAME, client=self.client)

    def write(self, start: int, end: int) -> None:
        from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode

        nodes = [
            TextNode(
                id_=f"00000000-0000-0000-0000-{n:012d}",
                text=TEXTS[n],
                embedding=old_vector(n),
                relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=f"d{n}")},
            )
            for n in range(start, end)
        ]
        self.open().add(nodes)

    def delete(self, number: int) -> None:
        self.open().delete(f"d{number}")

    def answers(self) -> Any:
        from llama_index.core.vector_stores import VectorStoreQuery

        found = self.open().query(VectorStoreQuery(QUESTION, similarity_top_k=10))
        return found.ids, found.similarities


class NamedLlamaIndex(LlamaIndex):
    """The stock store with sparse vectors, which is the one whose dense vector has a name."""

    def open(self) -> Any:
        from llama_index.vector_stores.qdrant import QdrantVectorStore

        def terms(texts: list[str]) -> tuple[list[list[int]], list[list[float]]]:
            return [[TEXTS.index(text) if text in TEXTS else 7] for text in texts], [[1.0] for _ in texts]

        return QdrantVectorStore(
            NAME, client=self.client, enable_hybrid=True, sparse_doc_fn=terms, sparse_query_fn=terms
        )

    def answers(self) -> Any:
        from llama_index.core.vector_stores import VectorStoreQuery
        from llama_index.core.vector_stores.types import VectorStoreQueryMode

        found = []
        for mode in (VectorStoreQueryMode.DEFAULT, VectorStoreQueryMode.SPARSE, VectorStoreQueryMode.HYBRID):
            query = VectorStoreQuery(QUESTION, query_str=TEXTS[3], mode=mode, similarity_top_k=10)
            answer = self.open().query(query)
            found.append(sorted(zip(answer.ids or [], answer.similarities or [], strict=True)))
        return found


class Haystack:
    """Opens a client of its own; refuses a collection whose settings it would not have made."""

    def __init__(self, place: Place, sparse: bool = True) -> None:
        from haystack_integrations.document_stores.qdrant import QdrantDocumentStore

        own = {"embedding_dim": DIM, "similarity": "cosine", "progress_bar": False, "use_sparse_embeddings": sparse}
        self.store, self.sparse = QdrantDocumentStore(index=NAME, **place, **own), sparse

    def close(self) -> None:
        self.store.close()

    def count(self) -> int:
        return int(self.store.count_documents())

    def write(self, start: int, end: int) -> None:
        from haystack import Document
        from haystack.dataclasses import SparseEmbedding
        from haystack.document_stores.types import DuplicatePolicy

        terms = [SparseEmbedding([7, n % 5 + 20], [0.5, 1.5]) if self.sparse else None for n in range(end)]
        documents = [
            Document(id=f"h{n}", content=TEXTS[n], meta={"n": n}, embedding=old_vector(n), sparse_embedding=terms[n])
            for n in range(start, end)
        ]
        self.store.write_documents(documents, policy=DuplicatePolicy.OVERWRITE)

    def delete(self, number: int) -> None:
        self.store.delete_documents([f"h{number}"])

    def answers(self) -> Any:
        """Score every document: which of two with one score comes first may change when they are copied or read."""
        found = self.store._query_by_embedding(QUESTION, top_k=100)
        return sorted((document.id, round(document.score, 6)) for document in found)


TOOLS = [LangChain, partial(LangChain, vector_name="openai"), LlamaIndex, NamedLlamaIndex, Haystack]
NAMES = ["langchain", "langchain-named", "llama-index", "llama-index-named", "haystack"]


@pytest.mark.parametrize("tool", TOOLS, ids=NAMES)
def test_no_attach_changes_what_a_tool_finds(place: Place, tool: Callable[[Place], Any]) -> None:
    """Vectors of the same width, with names before and behind its own, BM25, and a second one of the same model."""
    with closing(tool(place)) as store:
        store.write(0, 20)
        before = store.answers()
    first = HashModel(name="a", dim=DIM, salt="a")
    for model, name in ((first, "a"), (HashModel(name="z", dim=DIM, salt="z"), "z"), (first, "zz"), (None, "bm25")):
        with closing(opened(place)) as client:
            attach_vector(client, NAME, model, vector_name=name)
        with closing(tool(place)) as store:
            assert store.answers() == before, name


def test_the_stock_store_of_llama_index_reads_the_unnamed_vector_whatever_it_is_told(place: Place) -> None:
    """A failure means that the store reads a named vector beside the unnamed one: the notice of attach can go."""
    from llama_index.core.vector_stores import VectorStoreQuery
    from llama_index.vector_stores.qdrant import QdrantVectorStore

    with closing(LlamaIndex(place)) as store:
        store.write(0, 20)
        before = store.answers()
    told: list[str] = []
    model = HashModel(name="care", dim=DIM)
    with closing(opened(place)) as client:
        assert (
            "LlamaIndex's own QdrantVectorStore searches the unnamed one" in plan_attach(client, NAME, model).notices[0]
        )
        attach_vector(client, NAME, model, on_preflight=lambda found: told.extend(found.notices))
        stock = QdrantVectorStore(NAME, client=client, dense_vector_name="care")
        found = stock.query(VectorStoreQuery(QUESTION, similarity_top_k=10))
        answers = [sorted(zip(*each, strict=True)) for each in ((found.ids, found.similarities), before)]
        assert answers[0] == answers[1]
    assert "read the new one with CareVectorStore" in told[0]


@pytest.mark.parametrize("tool", TOOLS, ids=NAMES)
def test_a_tool_opens_searches_and_writes_on(place: Place, tool: Callable[[Place], Any]) -> None:
    with closing(tool(place)) as store:
        store.write(0, 20)
        before = store.answers()
    points = everything(place)
    assert attach(place) == (20, 0)
    assert everything(place) == points
    with closing(tool(place)) as store:
        assert store.answers() == before
        store.write(20, 25)
        store.write(3, 4)
        store.delete(5)
    assert attach(place) == (6, 18)
    with closing(opened(place)) as client:
        detach_vector(client, NAME)
    kept = everything(place)
    assert {key: kept[key] for key in points if key in kept} == {key: points[key] for key in points if key in kept}
    with closing(tool(place)) as store:
        store.write(25, 30)
        assert store.count() == 29


def test_haystack_without_sparse_vectors_takes_no_second_dense_vector_and_goes_on_with_bm25(place: Place) -> None:
    with closing(Haystack(place, sparse=False)) as store:
        store.write(0, 20)
        before = store.answers()
    points, model = everything(place), HashModel(name="care")
    with closing(opened(place)) as client:
        with pytest.raises(InputError, match=r"use_sparse_embeddings=True"):
            attach_vector(client, NAME, model)
        found = plan_attach(client, NAME, model)
        assert "Haystack wrote collection" in found.refusals[0]
        assert (attach_vector(client, NAME, None).covered, plan_attach(client, NAME, None).notices) == (20, [])
    with closing(Haystack(place, sparse=False)) as store:
        assert store.answers() == before
    with closing(opened(place)) as client:
        detach_vector(client, NAME)
    assert everything(place) == points
    with closing(Haystack(place, sparse=False)) as store:
        assert store.answers() == before
        store.write(20, 25)
        assert store.count() == 25


def test_a_second_vector_still_locks_haystack_out(place: Place) -> None:
    """A failure means that Haystack opens such a collection: the refusal can go."""
    with closing(Haystack(place, sparse=False)) as store:
        store.write(0, 3)
    with closing(opened(place)) as client:
        dense = models.DenseVectorConfig(size=4, distance=models.Distance.COSINE)
        client.create_vector_name(NAME, "second", models.DenseVectorNameConfig(dense=dense))
        client.delete_vector_name(NAME, "second")
    with closing(Haystack(place, sparse=False)) as store, pytest.raises(Exception, match="created outside of Haystack"):
        store.count()
