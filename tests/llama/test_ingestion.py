"""`CareEmbedding` inside LlamaIndex's ingestion: the text of ``care-ingest``, embedded once."""

from pathlib import Path

import numpy as np
import pytest
from llama_index.core import Document as LlamaDocument
from llama_index.core import VectorStoreIndex
from llama_index.core.ingestion import DocstoreStrategy, IngestionCache, IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import MetadataMode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.embeddings.care import CareEmbedding
from llama_index.vector_stores.care import CareVectorStore
from qdrant_client import QdrantClient

from care_qdrant.model.care_model import CareModel
from care_qdrant.types import Chunk, Document, embedded_text
from tests.llama.collections import NAME, fill, vector
from tests.tiny import HashModel


def documents() -> list[LlamaDocument]:
    return [
        LlamaDocument(text=f"第{n}篇，高血压与饮食。\n", doc_id=f"d{n}", metadata={"title": f"标题{n}", "dept": "内科"})
        for n in range(5)
    ]


def test_metadata_do_not_leak_into_the_vector(hash_model: HashModel) -> None:
    pipeline = IngestionPipeline(transformations=[SentenceSplitter(), CareEmbedding(model="m")])
    nodes = pipeline.run(documents=documents())
    for number, node in enumerate(nodes):
        assert node.embedding == vector(embedded_text(f"标题{number}", f"第{number}篇，高血压与饮食。"))
        assert node.metadata["dept"] == "内科"


async def test_neither_asynchronously(hash_model: HashModel) -> None:
    pipeline = IngestionPipeline(transformations=[CareEmbedding(model="m")])
    nodes = await pipeline.arun(documents=documents()[:1])
    assert nodes[0].embedding == vector("标题0 第0篇，高血压与饮食。")


def test_what_we_ingested_reads_the_same_in_llama_index(client: QdrantClient) -> None:
    """Embedding a node that came back from Qdrant again would give the vector that is stored."""
    document = Document("d", "正文", title="标题", metadata={"dept": "内科"})
    from care_qdrant.contracts.payload import chunk_payload

    chunk = Chunk(document, document.text)
    fill(client, lambda _: chunk_payload(chunk, {}))
    for node in CareVectorStore(NAME, client).get_nodes():
        assert node.get_content(MetadataMode.EMBED) == chunk.embedded_text


def test_docstore_and_cache_spare_the_encoder(client: QdrantClient, hash_model: HashModel) -> None:
    embedding = CareEmbedding(model="m")
    store = CareVectorStore(NAME, client, embedding=embedding)
    pipeline = IngestionPipeline(
        transformations=[SentenceSplitter(), embedding],
        vector_store=store,
        docstore=SimpleDocumentStore(),
        docstore_strategy=DocstoreStrategy.UPSERTS,
        cache=IngestionCache(),
    )
    assert len(pipeline.run(documents=documents())) == 5
    assert client.count(NAME).count == 5
    hash_model.query_encoder.encoded.clear()
    assert pipeline.run(documents=documents()) == []
    changed = documents()
    changed[2] = LlamaDocument(text="改过了。", doc_id="d2")
    assert len(pipeline.run(documents=changed)) == 1
    assert hash_model.query_encoder.encoded == ["改过了。"]
    assert client.count(NAME).count == 5
    retriever = VectorStoreIndex.from_vector_store(store, embed_model=embedding).as_retriever(similarity_top_k=1)
    assert retriever.retrieve("改过了。")[0].node.ref_doc_id == "d2"


def test_the_ingestion_cache_is_that_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    models = {"replaced": HashModel(salt="one")}
    monkeypatch.setattr(CareModel, "load", lambda source, **kwargs: models[source])
    cache = IngestionCache()
    embedding = CareEmbedding(model="replaced")
    first = IngestionPipeline(transformations=[embedding], cache=cache).run(documents=documents())
    embedding.close()  # objects of equal settings share one loaded model, as long as any of them is there
    models["replaced"] = HashModel(salt="another")
    embedding = CareEmbedding(model="replaced")
    second = IngestionPipeline(transformations=[embedding], cache=cache).run(documents=documents())
    assert first[0].embedding != second[0].embedding


@pytest.mark.slow
def test_worker_processes_embed_too(pair_folder: Path) -> None:
    pipeline = IngestionPipeline(transformations=[CareEmbedding(model=str(pair_folder))], disable_cache=True)
    nodes = pipeline.run(documents=documents(), num_workers=2)
    here = CareModel.load(pair_folder).encode_document([node.get_content(MetadataMode.EMBED) for node in nodes])
    assert np.allclose([node.get_embedding() for node in nodes], here, atol=1e-5)
