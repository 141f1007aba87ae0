"""A learned query encoder searches a collection that another tool wrote, until its vectors are replaced."""

import json
from pathlib import Path

import numpy as np
import pytest
from care_benchmarks.cli import care_bench
from care_trainer.learn.learn import learn
from click.testing import CliRunner
from llama_index.core import VectorStoreIndex
from llama_index.embeddings.care import CareEmbedding
from llama_index.vector_stores.care import CareVectorStore
from qdrant_client import QdrantClient, models

from care_qdrant.errors import FingerprintMismatch, ModelError
from care_qdrant.model.care_model import CareModel
from care_qdrant.search.retriever import Retriever
from care_qdrant.vectors.attach import attach_vector
from care_qdrant.vectors.verify import verify_collection
from care_qdrant.vectors.verify_report import VerifySettings
from tests.bench.conftest import CORPUS, QRELS, QUERIES, write_jsonl
from tests.tiny import document_tower, medical_texts
from tests.trainer.learn.collections import WordModel, write_langchain
from tests.trainer.learn.conftest import SETTINGS, TEXTS

QUESTIONS = [text[:11] for text in TEXTS[:50]]


@pytest.mark.timeout(400)
def test_the_retriever_and_llama_index_find_the_same(copied: tuple[QdrantClient, Path]) -> None:
    client, folder = copied
    hits = Retriever(client, "articles", CareModel.load(folder)).search(QUESTIONS)
    assert np.mean([TEXTS[n] in {hit.text for hit in found} for n, found in enumerate(hits)]) > 0.7
    store = CareVectorStore(collection_name="articles", client=client)
    index = VectorStoreIndex.from_vector_store(store, embed_model=CareEmbedding(model=str(folder)))
    nodes = index.as_retriever(similarity_top_k=10).retrieve(QUESTIONS[0])
    assert [node.text for node in nodes] == [hit.text for hit in hits[0]]
    other = WordModel(seed=9).encode(TEXTS)
    client.update_vectors("articles", [models.PointVectors(id=n, vector=v.tolist()) for n, v in enumerate(other)])
    with pytest.raises(FingerprintMismatch, match="another model has made them"):
        Retriever(client, "articles", CareModel.load(folder)).search(QUESTIONS)


@pytest.mark.timeout(400)
def test_attach_refuses_a_pair_that_encodes_queries_only(copied: tuple[QdrantClient, Path]) -> None:
    client, folder = copied
    write_langchain(client, TEXTS[:20], WordModel().encode(TEXTS[:20]), name="others", vector_name="old")
    with pytest.raises(ModelError, match="encodes queries only: it was learned from vector"):
        attach_vector(client, "others", CareModel.load(folder))
    assert client.get_collection("others").config.metadata is None


@pytest.mark.timeout(400)
def test_with_the_old_model_it_is_a_pair_like_any_other(tmp_path: Path) -> None:
    """Attached to another collection, verified, searched, and scored by the harness."""
    old, texts = document_tower(tmp_path / "old"), medical_texts(400)
    client = QdrantClient(":memory:")
    write_langchain(client, texts, CareModel.load(old).encode_document(texts))
    learn(client, "articles", tmp_path / "pair", settings=SETTINGS, document=old, force=True)
    model = CareModel.load(tmp_path / "pair")
    write_langchain(client, texts[:50], WordModel().encode(texts[:50]), name="others", vector_name="old")
    assert attach_vector(client, "others", model).covered == 50
    assert verify_collection(client, "others", model, settings=VerifySettings(least_known=0)).lowest_cosine > 0.999
    assert len(Retriever(client, "others", model).search([texts[3]])[0]) == 10
    for name, rows in (("corpus", CORPUS), ("queries", QUERIES), ("qrels", QRELS)):
        write_jsonl(tmp_path / f"task/retrieval/{name}.jsonl", rows)
    arguments = [str(tmp_path / "task"), "--model", str(tmp_path / "pair"), "--output", str(tmp_path / "out")]
    done = CliRunner().invoke(care_bench, ["run", *arguments, "--speed", "none"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert model.fingerprint[:12] in json.dumps(json.loads((tmp_path / "out/result.json").read_text("utf-8")))
