"""The queries of which a learned encoder is least sure go to the model that made the vectors, and to no other."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from care_trainer.learn.learn import learn
from care_trainer.learn.settings import LearnSettings
from click.testing import CliRunner
from llama_index.core import VectorStoreIndex
from llama_index.embeddings.care import CareEmbedding
from llama_index.vector_stores.care import CareVectorStore
from qdrant_client import QdrantClient, models

from care_qdrant.cli import care
from care_qdrant.console.configuration import read_defaults
from care_qdrant.encoders.remote.old_model import open_old_model
from care_qdrant.errors import EncodingError, InputError, ModelError
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.model.care_model import CareModel
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import open_client
from care_qdrant.search import fallback as fallback_module
from care_qdrant.search.fallback import Fallback, deviations
from care_qdrant.search.resolved import StoreConfig, resolve_vectors
from care_qdrant.search.retriever import Retriever
from care_qdrant.types import Document, Vectors
from tests.listener import listening
from tests.serve.conftest import KEY, Ask, pair
from tests.serve.test_vendor import WordEncoder
from tests.trainer.learn.collections import WordModel, word_texts, write_langchain

pytestmark = pytest.mark.timeout(400)

TEXTS = word_texts(400)
QUESTIONS = [text.split("。")[1] for text in TEXTS[:100]]
SETTINGS = LearnSettings(vocabulary=200, batch=64, epochs=4, learning_rate=2e-2)
OLD = WordModel()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an encoder that was learned badly, and the collection in ``qdrant`` beside it."""
    place = tmp_path_factory.mktemp("learned")
    with open_client(path=place / "qdrant") as client:
        write_langchain(client, TEXTS, OLD.encode(TEXTS))
        learn(client, "articles", place / "articles-queries", settings=SETTINGS, force=True)
    return place


@pytest.fixture
def client(folder: Path):  # type: ignore[no-untyped-def]
    with open_client(path=folder / "qdrant") as opened:
        yield opened


@pytest.fixture
def model(folder: Path) -> CareModel:
    return CareModel.load(folder / "articles-queries")


@pytest.fixture
async def vendor(serve_with_key: Ask, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the address of the old model behind OpenAI's protocol; the environment holds its name and key."""
    encoder = WordEncoder()
    monkeypatch.setenv("CARE_ENDPOINT_MODEL", "vendor")
    monkeypatch.setenv("CARE_ENDPOINT_KEY", KEY)
    return str(await serve_with_key(pair("vendor", query=encoder, document=encoder)))


def found(hits: Sequence[Sequence[Any]]) -> list[list[str]]:
    return [[hit.text for hit in each] for each in hits]


def first(texts: list[list[str]]) -> float:
    """Return the fraction of the questions that find their own document first."""
    return float(np.mean([TEXTS[row] == each[0] for row, each in enumerate(texts)]))


def test_unsure_queries_get_the_old_models_vectors(client: QdrantClient, model: CareModel, folder: Path) -> None:
    alone = found(Retriever(client, "articles", model).search(QUESTIONS))
    fallback = Fallback(OLD.encode, OLD.encode, share=0.3)
    helped = found(Retriever(client, "articles", model, fallback=fallback).search(QUESTIONS))
    assert (fallback.asked, 10 <= fallback.sent <= 45) == (100, True)
    order = np.argsort(-(OLD.encode(QUESTIONS) @ OLD.encode(TEXTS).T), axis=1)[:, :10]
    theirs = [[TEXTS[place] for place in row] for row in order]
    changed = [row for row in range(len(QUESTIONS)) if helped[row] != alone[row]]
    assert 0 < len(changed) <= fallback.sent
    assert [helped[row] for row in changed] == [theirs[row] for row in changed]
    assert [alone[row] for row in changed] != [theirs[row] for row in changed]
    store = CareVectorStore("articles", client, fallback=Fallback(OLD.encode, share=0.3))
    embedding = CareEmbedding(model=str(folder / "articles-queries"), documents=False)
    index = VectorStoreIndex.from_vector_store(store, embed_model=embedding)
    nodes = [index.as_retriever(similarity_top_k=10).retrieve(text) for text in QUESTIONS]
    by_nodes = [[node.text for node in row] for row in nodes]
    assert sum(row != own for row, own in zip(by_nodes, alone, strict=True)) > 0
    assert all(row in (own, old) for row, own, old in zip(by_nodes, alone, theirs, strict=True))


def test_the_first_query_of_a_process_is_measured_by_what_was_recorded(client: QdrantClient, model: CareModel) -> None:
    collection = Collection(client, "articles")
    config = StoreConfig(contract=model.contract(), encode=model.encode_query)
    recorded = resolve_vectors(collection, collection.schema, config, checked_at=0.0).held_out_deviations
    assert len(recorded) == 21
    assert list(recorded) == sorted(recorded)
    fallback = Fallback(OLD.encode, share=1.0)
    Retriever(client, "articles", model, fallback=fallback).search(QUESTIONS[:1])
    assert fallback.sent == 1


@pytest.mark.parametrize("error", [EncodingError("503"), RuntimeError("of a client library")])
def test_an_old_model_that_fails_costs_no_answer(
    client: QdrantClient, model: CareModel, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    calls = []

    def fail(texts: Sequence[str]) -> Vectors:
        calls.append(texts)
        raise error

    retriever = Retriever(client, "articles", model, fallback=Fallback(fail, share=0.5))
    alone = found(Retriever(client, "articles", model).search(QUESTIONS))
    assert found(retriever.search(QUESTIONS)) == alone
    assert found(retriever.search(QUESTIONS)) == alone
    assert len(calls) == 1, "it rests after a failure"
    monkeypatch.setattr(fallback_module, "_PAUSE_SECONDS", 0.0)
    again = Retriever(client, "articles", model, fallback=Fallback(fail, share=0.5))
    again.search(QUESTIONS[:64])
    again.search(QUESTIONS[:64])
    assert len(calls) == 3


@pytest.mark.parametrize("other", [WordModel(seed=9), WordModel(dim=32)], ids=["same width", "another width"])
def test_another_model_is_refused(client: QdrantClient, model: CareModel, other: WordModel) -> None:
    fallback = Fallback(other.encode, other.encode, share=0.5)
    with pytest.raises(ModelError, match="model to fall back to"):
        Retriever(client, "articles", model, fallback=fallback).search(QUESTIONS)
    assert fallback.sent == 0


@pytest.mark.parametrize("other", [WordModel(seed=9), WordModel(dim=32)], ids=["same width", "another width"])
def test_a_collection_that_is_made_again_is_checked_again(folder: Path, tmp_path: Path, other: WordModel) -> None:
    """The fallback is drawn and checked again: its state belonged to the former vectors of that name."""
    fallback, client = Fallback(OLD.encode, OLD.encode, share=0.5), QdrantClient(":memory:")
    with open_client(path=folder / "qdrant") as before:
        before.migrate(client, ["articles"])
    Retriever(client, "articles", CareModel.load(folder / "articles-queries"), fallback=fallback).search(QUESTIONS)
    assert (sent := fallback.sent)
    client.delete_collection("articles")
    write_langchain(client, TEXTS, other.encode(TEXTS))
    learn(client, "articles", tmp_path / "again", settings=SETTINGS, force=True)
    with pytest.raises(ModelError, match="model to fall back to"):
        Retriever(client, "articles", CareModel.load(tmp_path / "again"), fallback=fallback).search(QUESTIONS)
    assert fallback.sent == sent


def test_a_vector_from_which_nothing_was_learned_is_searched_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    client, built_in = QdrantClient(":memory:"), CareModel.load()
    ingest([Document(str(row), text) for row, text in enumerate(TEXTS[:60])], built_in, client, "other")
    asked: list[str] = []

    def encode(texts: Sequence[str]) -> Vectors:
        asked.extend(texts)
        return np.ones((len(texts), built_in.dim), dtype=np.float32)

    alone = Retriever(client, "other", built_in).search(QUESTIONS[:30])
    helped = Retriever(client, "other", built_in, fallback=Fallback(encode, share=1.0)).search(QUESTIONS[:30])
    assert (found(helped), asked) == (found(alone), [])
    assert caplog.text.count("no query encoder was learned") == 1


async def test_a_service_is_asked_as_openais(
    client: QdrantClient, model: CareModel, vendor: str, make_service, connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = open_old_model(vendor)
    assert old.encode_query(QUESTIONS[:3]) == pytest.approx(OLD.encode(QUESTIONS[:3]), abs=1e-6)
    helped = found(
        Retriever(client, "articles", model, fallback=Fallback(old.encode_query, share=0.3)).search(QUESTIONS)
    )
    service = make_service(
        model,
        collections=("articles",),
        over=client,
        open_fallback=lambda: Fallback(old.encode_query, share=0.3),
    )
    http = connect(service)
    answers = [(await http.post("/search", json={"query": text})).json()["hits"] for text in QUESTIONS]
    assert first([[hit["text"] for hit in hits] for hits in answers]) == pytest.approx(first(helped), abs=0.1)
    monkeypatch.setenv("CARE_ENDPOINT_KEY", "another-key-entirely")
    with pytest.raises(EncodingError, match="401"):
        open_old_model(vendor).encode_query(["一"])


def test_the_command_takes_a_folder_or_a_service(
    folder: Path, vendor: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CARE_FALLBACK_SHARE", "1")
    where = ["--path", str(folder / "qdrant"), "--model", str(folder / "articles-queries"), "--json"]
    done = CliRunner().invoke(care, ["search", QUESTIONS[7], *where, "--fallback", vendor])
    assert done.exit_code == 0, done.output
    best = int(np.argmax(OLD.encode(TEXTS) @ OLD.encode(QUESTIONS[7:8])[0]))
    assert json.loads(done.stdout)["hits"][0]["text"] == TEXTS[best]
    with pytest.raises(InputError, match="no sentence-transformers folder"):
        open_old_model(str(tmp_path))
    monkeypatch.delenv("CARE_ENDPOINT_MODEL")
    with pytest.raises(InputError, match="CARE_ENDPOINT_MODEL"):
        open_old_model(vendor)


@pytest.mark.parametrize("is_typed", [False, True])
def test_a_service_that_a_folder_names_gets_no_key(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_typed: bool
) -> None:
    monkeypatch.setenv("CARE_FALLBACK_SHARE", "1")
    monkeypatch.setenv("CARE_ENDPOINT_MODEL", "vendor")
    monkeypatch.setenv("CARE_ENDPOINT_KEY", KEY)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    where = ["--path", str(folder / "qdrant"), "--model", str(folder / "articles-queries")]
    with listening() as listener:
        if not is_typed:
            Path("care.toml").write_text(f'fallback = "{listener.url}"\n')
        typed = ["--fallback", listener.url] if is_typed else []
        done = CliRunner().invoke(care, ["search", QUESTIONS[7], *where, *typed], default_map=read_defaults(care))
        assert done.exit_code == 0, done.output
        assert listener.received, "it is asked all the same"
        assert listener.got(KEY) is is_typed


@pytest.mark.parametrize("distance", [models.Distance.COSINE, models.Distance.DOT, models.Distance.EUCLID])
def test_deviations_are_those_of_the_scores_of_the_server(distance: models.Distance) -> None:
    random = np.random.default_rng(0)
    queries, documents = (random.normal(size=(count, 8)).astype(np.float32) for count in (5, 60))
    client = QdrantClient(":memory:")
    client.create_collection("c", models.VectorParams(size=8, distance=distance))
    client.upsert("c", [models.PointStruct(id=n, vector=row.tolist()) for n, row in enumerate(documents)])
    found = [client.query_points("c", query.tolist(), limit=60).points for query in queries]
    sign = -1 if distance is models.Distance.EUCLID else 1
    scores = sign * np.array([[point.score for point in points] for points in found])
    wanted = (scores[:, 0] - scores.mean(axis=1)) / scores.std(axis=1)
    best = [points[0].score for points in found]
    *made, nothing = deviations([*best, None], queries[[0, 1, 2, 3, 4, 0]], documents, distance)
    assert nothing is None
    np.testing.assert_allclose(made, wanted, rtol=1e-3)
