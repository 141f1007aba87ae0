"""The start of training: the built-in pair's table where it reads the texts, random vectors elsewhere."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from care_trainer.learn import table
from care_trainer.learn.learn import learn
from care_trainer.learn.settings import LearnSettings
from care_trainer.learn.start import built_in_reads, mapped_start, token_vectors
from care_trainer.models.tokens import tokenize, train_collection_tokenizer
from qdrant_client import QdrantClient

from care_qdrant.model.care_model import CareModel
from care_qdrant.search.retriever import Retriever
from care_qdrant.vectors.attach import attach_vector
from tests.trainer.learn.collections import WordModel, word_texts, write_langchain

SAMPLE = Path(__file__).parents[3] / "examples" / "sample" / "corpus.jsonl"
CHINESE = ["糖尿病患者应控制饮食，定期监测血糖，遵医嘱使用胰岛素。", "高血压患者应低盐饮食，坚持服药，避免情绪激动。"]
ENGLISH = ["Patients with diabetes should monitor their blood glucose.", "Hypertension calls for a diet without salt."]


@pytest.mark.parametrize(
    ("texts", "is_known"),
    [(CHINESE, True), (ENGLISH, True), (["Сахарный диабет требует лечения."], False), (["。。。", "…"], False)],
)
def test_the_built_in_pair_is_asked_where_it_knows_the_language(texts: Sequence[str], is_known: bool) -> None:
    assert built_in_reads(texts) == is_known


def test_the_mapped_start_knows_what_the_built_in_pair_knows() -> None:
    rows = [json.loads(line) for line in SAMPLE.read_text("utf-8").splitlines()]
    texts, titles = [row["text"] for row in rows], [row["title"] for row in rows]
    model = CareModel.load()
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(model.dim, model.dim)))[0].astype(np.float32)
    stored = model.encode_document(texts) @ rotation
    tokenizer = train_collection_tokenizer(texts, 2_000, 64)
    known = token_vectors(tokenizer, model.query_encoder)
    start = mapped_start(known, tokenize(tokenizer, texts), stored)
    assert start.shape == (tokenizer.get_vocab_size(), model.dim) and np.isfinite(start).all()
    found = (table.encode(start, tokenize(tokenizer, titles)) @ (stored - stored.mean(axis=0)).T).argmax(axis=1)
    assert (found == np.arange(len(texts))).mean() > 0.2  # random token vectors find one of hundreds


@pytest.mark.timeout(400)
def test_the_tokens_that_find_held_out_documents_are_kept(tmp_path: Path) -> None:
    rows = [json.loads(line)["text"] for line in SAMPLE.read_text("utf-8").splitlines()]
    made_up = word_texts(600)  # words that the built-in pair has never read: to it they are characters
    stored = {"real": CareModel.load().encode_document(rows), "made-up": WordModel().encode(made_up)}
    chosen = {}
    for name, texts in (("real", rows), ("made-up", made_up)):
        client = QdrantClient(":memory:")
        write_langchain(client, texts, stored[name])
        settings = LearnSettings(vocabulary=2_000, batch=64, epochs=10, learning_rate=1e-2)
        chosen[name] = learn(client, "articles", tmp_path / name, settings=settings, force=True).training.tokens
    assert chosen == {"real": "built-in", "made-up": "collection"}


@pytest.mark.timeout(400)
def test_a_hybrid_search_weighs_as_learning_recorded(tmp_path: Path) -> None:
    texts = word_texts(400)
    client = QdrantClient(":memory:")
    write_langchain(client, texts, WordModel().encode(texts))
    folder = tmp_path / "queries"
    report = learn(
        client, "articles", folder, settings=LearnSettings(batch=64, epochs=4, learning_rate=2e-2), force=True
    )
    attach_vector(client, "articles", None)
    model = CareModel.load(folder)
    [by_default] = Retriever(client, "articles", model).search([texts[3][:11]])
    [as_recorded] = Retriever(client, "articles", model, mode="hybrid", alpha=report.alpha).search([texts[3][:11]])
    [otherwise] = Retriever(client, "articles", model, mode="hybrid", alpha=0.4).search([texts[3][:11]])
    assert report.alpha is not None and abs(report.alpha - 0.4) > 0.02
    scores = [hit.score for hit in as_recorded]  # two searches of one float32 matrix may differ in the last bit
    assert [hit.score for hit in by_default] == pytest.approx(scores, rel=1e-6)
    assert by_default[0].score != pytest.approx(otherwise[0].score, rel=5e-3), "and not the default"
