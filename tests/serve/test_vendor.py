"""docs/how-to/switch.md as a user follows it: away from an OpenAI-shaped service at query time, and back."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from care_trainer.learn.learn import learn
from care_trainer.learn.settings import LearnSettings
from langchain_core.documents import Document as LangChainDocument
from langchain_openai import OpenAIEmbeddings
from langchain_qdrant import QdrantVectorStore as LangChainStore
from llama_index.core import Document, StorageContext, VectorStoreIndex
from llama_index.embeddings.care import CareEmbedding
from llama_index.embeddings.openai import OpenAIEmbedding
from llama_index.vector_stores.care import CareVectorStore
from llama_index.vector_stores.qdrant import QdrantVectorStore
from qdrant_client import QdrantClient, models

from care_qdrant import open_client
from care_qdrant.integrations.langchain import CareEmbeddings
from care_qdrant.search.judged import read_queries
from care_qdrant.types import Vectors
from tests.serve.conftest import KEY, Ask, pair
from tests.tiny import HashEncoder
from tests.trainer.learn.collections import DIM, WordModel, word_texts

TEXTS = word_texts(400)
LATER = word_texts(40, seed=1)
ASKED = 30
SETTINGS = LearnSettings(vocabulary=200, batch=64, epochs=20, learning_rate=2e-2)

Search = Callable[[str], list[str]]


class WordEncoder(HashEncoder):
    """The made-up model as an encoder: one side for questions and documents, as a vendor's."""

    def __init__(self) -> None:
        super().__init__(DIM)
        self.model = WordModel()
        self.calls = 0

    def encode(self, texts, *, prompt=None) -> Vectors:  # type: ignore[no-untyped-def]
        self.calls += 1
        return self.model.encode(texts)


class Vendor:
    """A service that speaks OpenAI's protocol, and the frameworks' own classes for it."""

    def __init__(self, url: str, encoder: WordEncoder) -> None:
        self.encoder = encoder
        self.llama_index = OpenAIEmbedding(model_name="vendor", api_base=url, api_key=KEY, max_retries=0)
        self.langchain = OpenAIEmbeddings(
            model="vendor", base_url=url, api_key=KEY, check_embedding_ctx_length=False, max_retries=0
        )


@pytest.fixture
async def vendor(serve_with_key: Ask) -> Vendor:
    encoder = WordEncoder()
    return Vendor(await serve_with_key(pair("vendor", query=encoder, document=encoder)), encoder)


class LlamaIndex:
    """A collection as LlamaIndex writes and reads it."""

    def write(self, client: QdrantClient, vendor: Vendor, texts: list[str]) -> None:
        context = StorageContext.from_defaults(vector_store=QdrantVectorStore("articles", client))
        VectorStoreIndex.from_documents(
            [Document(text=text) for text in texts], storage_context=context, embed_model=vendor.llama_index
        )

    def old(self, client: QdrantClient, vendor: Vendor) -> Search:
        return self._search(QdrantVectorStore("articles", client), vendor.llama_index)

    def new(self, client: QdrantClient, folder: Path) -> Search:
        embedding = CareEmbedding(model=str(folder), documents=False)
        return self._search(CareVectorStore("articles", client, embedding=embedding), embedding)

    def _search(self, store, embedding) -> Search:  # type: ignore[no-untyped-def]
        retriever = VectorStoreIndex.from_vector_store(store, embed_model=embedding).as_retriever(similarity_top_k=10)
        return lambda text: [hit.text for hit in retriever.retrieve(text)]


class LangChain:
    """A collection as LangChain writes and reads it."""

    def write(self, client: QdrantClient, vendor: Vendor, texts: list[str]) -> None:
        if not client.collection_exists("articles"):
            client.create_collection("articles", models.VectorParams(size=DIM, distance=models.Distance.COSINE))
        LangChainStore(client, "articles", vendor.langchain).add_documents([LangChainDocument(text) for text in texts])

    def old(self, client: QdrantClient, vendor: Vendor) -> Search:
        return self._search(LangChainStore(client, "articles", vendor.langchain))

    def new(self, client: QdrantClient, folder: Path) -> Search:
        embeddings = CareEmbeddings(folder)
        return self._search(LangChainStore(client, "articles", embeddings, validate_collection_config=False))

    def _search(self, store: LangChainStore) -> Search:
        return lambda text: [hit.page_content for hit in store.similarity_search(text, k=10)]


@pytest.mark.timeout(400)
@pytest.mark.filterwarnings("ignore:Payload indexes have no effect")
@pytest.mark.parametrize("framework", [LlamaIndex(), LangChain()], ids=["llama-index", "langchain"])
async def test_questions_leave_the_vendor_and_come_back(
    framework: LlamaIndex | LangChain, vendor: Vendor, tmp_path: Path
) -> None:
    questions = [text.split("。")[1] for text in TEXTS]
    with open_client(path=tmp_path / "qdrant") as client:
        framework.write(client, vendor, TEXTS)
        before = [framework.old(client, vendor)(question) for question in questions[:ASKED]]
    logged = questions[ASKED:200]
    log = zip(logged, vendor.langchain.embed_documents(logged), strict=True)
    (tmp_path / "questions.jsonl").write_text(
        "\n".join(json.dumps({"text": text, "vector": vector}) for text, vector in log), encoding="utf-8"
    )
    folder = tmp_path / "articles-queries"
    with open_client(path=tmp_path / "qdrant") as client:
        learn(
            client, "articles", folder, settings=SETTINGS, questions=partial(read_queries, tmp_path / "questions.jsonl")
        )
        search, calls = framework.new(client, folder), vendor.encoder.calls
        found = [search(question) for question in questions[:ASKED]]
        assert vendor.encoder.calls == calls
        assert np.mean([TEXTS[row] in texts for row, texts in enumerate(found)]) > 0.8
        assert [framework.old(client, vendor)(question) for question in questions[:ASKED]] == before
        framework.write(client, vendor, LATER)  # by the pipeline that was there
        assert np.mean([text in search(text.split("。")[1]) for text in LATER]) > 0.6
