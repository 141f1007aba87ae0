"""Queries from many coroutines, threads and processes at once: each gets its own vector."""

import asyncio
import gc
import multiprocessing
import os
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
from llama_index.core import Document, StorageContext, VectorStoreIndex
from llama_index.embeddings.care import CareEmbedding
from llama_index.vector_stores.care import CareVectorStore
from qdrant_client import QdrantClient

from care_qdrant.errors import InputError
from care_qdrant.model.care_model import CareModel
from care_qdrant.qdrant.connection import client_lock
from care_qdrant.types import Vectors
from tests.llama.collections import DOCUMENTS, NAME, fill, node_id
from tests.tiny import HashEncoder, HashModel


def expected(text: str) -> list[float]:
    return [float(value) for value in HashEncoder().encode([text])[0]]


@pytest.fixture
def gate(hash_model: HashModel, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """The encoder of `hash_model` answers when this is set."""
    opened = threading.Event()
    encoder = hash_model.query_encoder
    encode = encoder.encode

    def waiting(texts: list[str], *, prompt: str | None = None) -> Vectors:
        assert opened.wait(30)
        return encode(texts, prompt=prompt)

    monkeypatch.setattr(encoder, "encode", waiting)
    return opened


async def test_the_event_loop_goes_on_while_the_encoder_runs(gate: threading.Event) -> None:
    embedding = CareEmbedding(model="m", query_cache_size=0)
    query = asyncio.create_task(embedding.aget_query_embedding("a"))
    document = asyncio.create_task(embedding.aget_text_embedding("b"))
    for _ in range(50):
        await asyncio.sleep(0)
    assert not query.done()
    gate.set()
    assert await query == expected("a")
    assert await document == expected("b")


async def test_the_event_loop_goes_on_while_the_model_is_loaded(
    hash_model: HashModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = threading.Event()

    def load(*_: object, **__: object) -> HashModel:
        assert opened.wait(10)
        return hash_model

    monkeypatch.setattr(CareModel, "load", load)
    query = asyncio.create_task(CareEmbedding(model=f"m-{uuid.uuid4()}").aget_query_embedding("a"))
    for _ in range(50):
        await asyncio.sleep(0)
    assert not query.done()
    opened.set()
    assert await query == expected("a")


@pytest.mark.parametrize("characters", [200_000, 2_000_000])
async def test_an_endless_query_does_not_hold_the_event_loop(pair_folder: Path, characters: int) -> None:
    """The tokenizer holds the interpreter's lock; what is measured is CPU time, which other programs do not change."""
    embedding = CareEmbedding(model=str(pair_folder), query_cache_size=0)
    await embedding.aget_query_embedding("痛")
    words = "血糖 6.1 mmol/L 正常吗？"
    query = asyncio.create_task(embedding.aget_query_embedding(words * (characters // len(words))))
    turns = [time.process_time()]
    while not query.done():
        await asyncio.sleep(0.001)
        turns.append(time.process_time())
    assert len(await query) == 32
    assert np.diff(turns).max() < 0.1


async def test_cancelled_and_failing_queries_harm_nobody(gate: threading.Event, hash_model: HashModel) -> None:
    embedding = CareEmbedding(model="m", query_cache_size=0, on_truncation="error")
    texts = [f"query {number}" if number % 5 else "长" * (100 + number) for number in range(60)]
    tasks = [asyncio.create_task(embedding.aget_query_embedding(text)) for text in texts]
    await asyncio.sleep(0)
    for task in tasks[1::7]:
        task.cancel()
    gate.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    for number, (text, answer) in enumerate(zip(texts, answers, strict=True)):
        if number % 7 == 1:
            assert isinstance(answer, asyncio.CancelledError)
        elif number % 5 == 0:
            assert isinstance(answer, InputError)
            assert f"{len(text) + 2} tokens" in str(answer), "each its own error"
        else:
            assert answer == expected(text)
    assert len(hash_model.query_encoder.encoded) < 60


def test_threads_share_one_embedding(hash_model: HashModel) -> None:
    embedding = CareEmbedding(model="m", query_cache_size=8)
    texts = [f"query {number % 40}" for number in range(400)]
    with ThreadPoolExecutor(8) as pool:
        for text, vector in zip(texts, pool.map(embedding.get_query_embedding, texts), strict=True):
            assert vector == expected(text)


async def test_a_long_running_service_keeps_nothing_of_its_queries(hash_model: HashModel) -> None:
    """LlamaIndex notes an id for every call, and forgets them only for those who listen."""
    embedding = CareEmbedding(model="m", query_cache_size=4)
    for number in range(100):
        await embedding.aget_query_embedding(f"query {number}")
        embedding.get_query_embedding(f"query {number}")
    assert sum(map(len, embedding.callback_manager.trace_map.values())) <= 1


def test_close_ends_the_worker_and_the_next_call_starts_again(hash_model: HashModel) -> None:
    embedding = CareEmbedding(model="m", query_cache_size=0)
    asyncio.run(embedding.aget_query_embedding("a"))
    assert _workers()
    embedding.close()
    gc.collect()
    assert not _workers()
    assert embedding.get_query_embedding("b") == expected("b")


def _in_child(embedding: CareEmbedding, pipe: Connection) -> None:
    sync = embedding.get_query_embedding("高血压")
    pipe.send((sync, asyncio.run(embedding.aget_query_embedding("糖尿病"))))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_server_worker_queries_with_the_loaded_encoder(pair_folder: Path) -> None:
    embedding = CareEmbedding(model=str(pair_folder), query_cache_size=0)
    here = (embedding.get_query_embedding("高血压"), asyncio.run(embedding.aget_query_embedding("糖尿病")))
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=_in_child, args=(embedding, theirs))
    child.start()
    assert ours.poll(30), "the child hangs"
    assert np.allclose(ours.recv(), here, atol=1e-6)
    child.join()
    assert child.exitcode == 0


def _workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("care-encoder")]


def _search_in_child(index: VectorStoreIndex, pipe: Connection) -> None:
    pipe.send([node.node_id for node in asyncio.run(index.as_retriever(similarity_top_k=3).aretrieve("高血压"))])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_server_worker_searches_as_its_parent_does(hash_model: HashModel) -> None:
    """Its threads are gone, and the locks of threads that ran at the fork are never released."""
    embedding = CareEmbedding(model="m")
    store = CareVectorStore("c", QdrantClient(":memory:"), embedding=embedding)
    context = StorageContext.from_defaults(vector_store=store)
    documents = [Document(text=f"第{number}条") for number in range(5)]
    index = VectorStoreIndex.from_documents(documents, context, embed_model=embedding)
    here = [node.node_id for node in asyncio.run(index.as_retriever(similarity_top_k=3).aretrieve("高血压"))]
    forking = multiprocessing.get_context("fork")
    ours, theirs = forking.Pipe()
    with client_lock(store.client):
        child = forking.Process(target=_search_in_child, args=(index, theirs))
        child.start()
    assert ours.poll(30), "the child hangs"
    assert ours.recv() == here
    child.join()
    assert child.exitcode == 0


async def test_one_embedded_folder_serves_both(tmp_path: Path, embedding: CareEmbedding) -> None:
    client = QdrantClient(path=str(tmp_path), force_disable_check_same_thread=True)
    fill(client)
    store = CareVectorStore(NAME, client, embedding=embedding)
    retriever = VectorStoreIndex.from_vector_store(store, embed_model=embedding).as_retriever(similarity_top_k=1)
    answers = await asyncio.gather(*(retriever.aretrieve(document.text) for document in DOCUMENTS * 5))
    for document, (hit,) in zip(DOCUMENTS * 5, answers, strict=True):
        assert hit.node.ref_doc_id == document.id
        assert retriever.retrieve(document.text)[0].node.ref_doc_id == document.id
    assert len(await store.aget_nodes()) == 4
    await store.adelete("d1")
    await store.adelete_nodes([node_id(DOCUMENTS[0])])
    assert client.count(NAME).count == 2
    await store.aclear()
    assert not client.collection_exists(NAME)
    assert await store.aget_nodes(node_ids=[node_id(DOCUMENTS[0])]) == []
    client.close()
