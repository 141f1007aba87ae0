"""One small corpus in a collection with both kinds of vectors, in the embedded engine and behind HTTP."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from qdrant_client import QdrantClient, models

from care_qdrant.contracts.contract import SparseContract, VectorContract, sparse_vector
from care_qdrant.contracts.payload import chunk_payload
from care_qdrant.encoders.terms import bm25
from care_qdrant.encoders.terms.analyser import DEFAULT
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import open_client
from care_qdrant.types import Chunk, Document
from tests.databases import REAL, open_database
from tests.standin import StandIn
from tests.tiny import HashModel, medical_texts

COLLECTION = "corpus"


class EuclidModel(HashModel):
    """The same vectors, compared by their Euclidean distance."""

    def contract(self) -> VectorContract:
        return replace(super().contract(), distance="Euclid")


@pytest.fixture(scope="session")
def model() -> HashModel:
    return HashModel()


@pytest.fixture(scope="session")
def documents() -> list[Document]:
    departments = ("内科", "外科")
    return [
        Document(f"d{n}", text, metadata={"dept": departments[n % 2], "year": 2000 + n % 10})
        for n, text in enumerate(medical_texts(60))
    ]


def fill(client: QdrantClient, model: HashModel, chunks: list[Chunk], collection: str = COLLECTION) -> None:
    """Write chunks as ingestion does: both vectors, payload and contracts."""
    average = bm25.average_length(chunk.embedded_text for chunk in chunks)
    client.create_collection(
        collection,
        vectors_config={model.name: models.VectorParams(size=model.dim, distance=models.Distance.COSINE)},
        sparse_vectors_config={bm25.VECTOR_NAME: models.SparseVectorParams(modifier=models.Modifier.IDF)},
    )
    Collection(client, collection).write_contract(model.name, model.contract())
    contract = SparseContract(DEFAULT.name, bm25.DEFAULT_K1, bm25.DEFAULT_B, average)
    Collection(client, collection).write_contract(bm25.VECTOR_NAME, contract)
    dense = model.encode_document([chunk.embedded_text for chunk in chunks])
    points = [
        models.PointStruct(
            id=chunk.point_id,
            vector={
                model.name: vector.tolist(),
                bm25.VECTOR_NAME: sparse_vector(bm25.document_vector(chunk.embedded_text, average_length=average)),
            },
            payload=chunk_payload(chunk, {}),
        )
        for chunk, vector in zip(chunks, dense, strict=True)
    ]
    client.upsert(collection, points)


@pytest.fixture(scope="session")
def chunks(documents: list[Document]) -> list[Chunk]:
    return [Chunk(document, document.text) for document in documents]


@pytest.fixture(params=["embedded", "server", *REAL])
def corpus(request: pytest.FixtureRequest, model: HashModel, chunks: list[Chunk]) -> Iterator[QdrantClient]:
    """The corpus in both engines, in turn; tests only read it."""
    with open_database(request) as client:
        fill(client, model, chunks)
        yield client


@pytest.fixture
def served(server: StandIn, model: HashModel, chunks: list[Chunk]) -> Iterator[QdrantClient]:
    """The corpus on a server with faults on demand."""
    with open_client(url=server.url) as client:
        fill(client, model, chunks)
        yield client
