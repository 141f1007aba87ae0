"""From a foreign collection to a query encoder: what it finds, what is refused, and what stays refused afterwards."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from care_trainer.learn.learn import learn
from care_trainer.learn.settings import LearnSettings
from click.testing import CliRunner
from qdrant_client import QdrantClient, models

from care_qdrant.cli import care
from care_qdrant.encoders.local.weights import read_json
from care_qdrant.errors import EncodingError, FingerprintMismatch, InputError, SchemaMismatch
from care_qdrant.model.adopt.importing import join_encoders
from care_qdrant.model.care_model import CareModel
from care_qdrant.model.folder import verify_checkpoint
from care_qdrant.model.hub import BUILT_IN, find_folder
from care_qdrant.qdrant.checks import check_contract, require_learned_from
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import open_client
from care_qdrant.search.conditions import MandatoryConditions
from care_qdrant.search.judged import QueryFile, Questions
from care_qdrant.search.retriever import Retriever
from tests.trainer.learn.collections import DIM, WordModel, add_points, word_texts, write_langchain
from tests.trainer.learn.conftest import SETTINGS, TEXTS


def test_it_finds_documents_for_questions_of_their_words(learned) -> None:  # type: ignore[no-untyped-def]
    client, folder, report = learned
    assert report.registered and report.refused is None and report.sample.text_field == "page_content"
    assert report.held_out.recall_at_10 > 0.7
    assert verify_checkpoint(folder).saved_sides == ("query",)
    queries = [text.split("。")[1] for text in TEXTS[:100]]
    vectors = CareModel.load(folder).encode_query(queries)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-4)
    answers = client.query_batch_points("articles", [models.QueryRequest(query=v.tolist(), limit=10) for v in vectors])
    found = [number in {point.id for point in answer.points} for number, answer in enumerate(answers)]
    assert np.mean(found) > 0.7


@pytest.mark.timeout(400)
def test_an_interrupted_run_is_continued_to_the_same_encoder(tmp_path: Path) -> None:
    client = QdrantClient(":memory:")
    write_langchain(client, TEXTS, WordModel().encode(TEXTS))
    whole = learn(client, "articles", tmp_path / "whole", settings=SETTINGS)

    def stop(part: str, done: int, _total: int) -> None:
        if part == "training" and done == 100:
            raise KeyboardInterrupt

    state = tmp_path / ".halves.learning"
    with pytest.raises(KeyboardInterrupt):
        learn(client, "articles", tmp_path / "halves", settings=SETTINGS, on_progress=stop)
    steps: list[int] = []

    def note(part: str, done: int, _total: int) -> None:
        steps.extend([done] if part == "training" else [])

    halves = learn(client, "articles", tmp_path / "halves", settings=SETTINGS, on_progress=note)
    assert 80 < steps[0] <= 100 and not state.exists()
    assert halves.training.steps == whole.training.steps and halves.held_out.recall_at_10 == pytest.approx(
        whole.held_out.recall_at_10, abs=0.1
    )


@pytest.mark.parametrize("change", ["nothing", "questions", "texts"])
def test_a_run_of_other_texts_or_questions_does_not_continue_an_interrupted_one(change: str, tmp_path: Path) -> None:
    client, first = QdrantClient(":memory:"), list[int]()
    write_langchain(client, TEXTS, WordModel().encode(TEXTS))

    def run(last: int, questions: QueryFile | None = None) -> None:
        def stop(part: str, done: int, _total: int) -> None:
            if part == "training":
                first.append(done)
                if done >= last:
                    raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            read = None if questions is None else lambda _dim, _name: questions
            learn(client, "articles", tmp_path / "out", settings=SETTINGS, questions=read, on_progress=stop)

    run(100)
    first.clear()
    if change == "texts":
        client.delete_collection("articles")
        write_langchain(client, [f"{text}附记。" for text in TEXTS], WordModel().encode(TEXTS))
    asked = [text[:20] for text in TEXTS[:40]]
    log = QueryFile(Questions(asked, WordModel().encode(asked)), None) if change == "questions" else None
    run(0, log)
    assert (first[0] > 1) == (change == "nothing")


def test_the_tokens_are_those_of_the_texts_that_are_read(tmp_path: Path) -> None:
    """An interrupted run of another collection has left its tokenizer under the same name."""
    client = QdrantClient(":memory:")
    write_langchain(client, [text.replace("痛", "β") for text in TEXTS], WordModel().encode(TEXTS), name="others")
    write_langchain(client, TEXTS, WordModel().encode(TEXTS))

    def stop(part: str, _done: int, _total: int) -> None:
        if part == "training":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learn(client, "others", tmp_path / "queries", settings=SETTINGS, on_progress=stop)
    learn(client, "articles", tmp_path / "queries", settings=SETTINGS)
    tokens = read_json(tmp_path / "queries" / "query" / "tokenizer.json")["model"]["vocab"]
    assert any("痛" in token for token in tokens) and not any("β" in token for token in tokens)


@pytest.mark.parametrize("distance", [models.Distance.DOT, models.Distance.EUCLID])
def test_other_distances_and_named_vectors(tmp_path: Path, distance: models.Distance) -> None:
    client = QdrantClient(":memory:")
    write_langchain(client, TEXTS, WordModel().encode(TEXTS) * 3, vector_name="openai", distance=distance)
    report = learn(client, "articles", tmp_path / "queries", settings=SETTINGS)
    assert report.registered and report.vector_name == "openai"
    collection = Collection(client, "articles")
    check_contract(collection.schema, "openai", CareModel.load(tmp_path / "queries").contract())
    with pytest.raises(SchemaMismatch, match="needs 48 dimensions and Cosine"):
        other = replace(CareModel.load(tmp_path / "queries").contract(), model="another", fingerprint="0" * 64)
        check_contract(collection.schema, "openai", other)


def test_wide_vectors_are_factorised(tmp_path: Path) -> None:
    client = QdrantClient(":memory:")
    write_langchain(client, TEXTS, WordModel(dim=256).encode(TEXTS))
    report = learn(client, "articles", tmp_path / "queries", settings=replace(SETTINGS, width=64))
    assert report.registered and report.contract.dim == 256
    assert CareModel.load(tmp_path / "queries").encode_query(["心痛，肝炎"]).shape == (1, 256)


def replace_probes(client: QdrantClient, share: float, vectors: np.ndarray, texts: list[str] | None = None) -> int:
    """Write a share of the sampled points again, and return how many."""
    ids = [int(key) for key in Collection(client, "articles").schema.learned[""].probes]
    chosen = ids[: round(share * len(ids))]
    add_points(client, chosen, [(texts or TEXTS)[n] for n in chosen], vectors[chosen])
    return len(chosen)


def test_a_tenth_of_foreign_vectors_is_said_and_a_third_is_refused(copied, caplog) -> None:  # type: ignore[no-untyped-def]
    client, folder = copied
    retriever = Retriever(client, "articles", CareModel.load(folder), check_seconds=0)
    retriever.search(["心痛"])
    assert not caplog.records
    other = WordModel(seed=9).encode(TEXTS)
    count = replace_probes(client, 0.1, other)
    retriever.search(["心痛"])
    assert f"32 are left and {count} do not belong to their texts" in caplog.text
    replace_probes(client, 0.3, other)
    with pytest.raises(FingerprintMismatch, match="do not belong to their texts"):
        retriever.search(["心痛"])


def test_new_texts_by_the_same_model_are_searched_without_a_word(copied, caplog) -> None:  # type: ignore[no-untyped-def]
    client, folder = copied
    later = word_texts(len(TEXTS), seed=7)
    replace_probes(client, 1.0, WordModel().encode(later), later)
    Retriever(client, "articles", CareModel.load(folder)).search(["心痛"])
    assert not caplog.records
    # Who has only the fingerprint cannot compare with the texts, and counts what was written again.
    with pytest.raises(FingerprintMismatch, match="32 are left and 32 are other vectors than before"):
        require_learned_from(Collection(client, "articles"), "")


def test_a_text_that_no_model_reads_stops_no_search(copied, caplog) -> None:  # type: ignore[no-untyped-def]
    client, folder = copied
    replace_probes(client, 0.1, WordModel(seed=9).encode(TEXTS), ["\u200b"] * len(TEXTS))
    [hits] = Retriever(client, "articles", CareModel.load(folder)).search(["心痛"])
    assert hits and "32 are left and 3 do not belong to their texts" in caplog.text


def test_a_reader_of_some_points_is_told_nothing_of_the_sampled_ones(  # type: ignore[no-untyped-def]
    copied, caplog, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, folder = copied
    replace_probes(client, 0.3, WordModel(seed=9).encode(TEXTS))
    model, mandatory = CareModel.load(folder), MandatoryConditions(("tenant=a",))

    def fail(texts: list[str], **_: Any) -> None:
        raise EncodingError(f"the graph fails on {texts[0]!r}")

    for error in ("do not belong", "the graph fails"):
        with pytest.raises(FingerprintMismatch, match=r"no longer fits .* the log has the reason") as raised:
            Retriever(client, "articles", model, mandatory=mandatory).search(["心痛"])
        assert error in caplog.text and error not in str(raised.value)
        monkeypatch.setattr(CareModel, "encode_query", lambda _model, texts, **_: fail(texts))


def test_an_update_follows_new_documents(tmp_path: Path) -> None:
    client, folder, settings = QdrantClient(":memory:"), tmp_path / "queries", LearnSettings(batch=64, seed=3)
    write_langchain(client, TEXTS[:400], WordModel().encode(TEXTS[:400]))
    first = learn(client, "articles", folder, settings=SETTINGS)
    add_points(client, range(400, len(TEXTS)), TEXTS[400:], WordModel().encode(TEXTS[400:]))
    second = learn(client, "articles", folder, settings=settings, start=folder)
    assert first.new_documents is None
    assert second.new_documents is not None and second.new_documents.queries == 200
    assert second.registered and second.held_out.mrr >= second.new_documents.mrr - 0.1
    assert second.contract.fingerprint != first.contract.fingerprint


@pytest.mark.parametrize("dim", [DIM, DIM + 16])
def test_an_update_learns_anew_where_another_model_made_the_vectors_since(tmp_path: Path, dim: int) -> None:
    client, folder = QdrantClient(":memory:"), tmp_path / "queries"
    write_langchain(client, TEXTS[:400], WordModel().encode(TEXTS[:400]))
    learn(client, "articles", folder, settings=SETTINGS)
    client.delete_collection("articles")
    write_langchain(client, TEXTS, WordModel(seed=1, dim=dim).encode(TEXTS))
    update = learn(client, "articles", folder, settings=SETTINGS, start=folder)
    anew = learn(client, "articles", tmp_path / "anew", settings=SETTINGS)
    assert (update.training, update.held_out) == (anew.training, anew.held_out)
    assert update.training.tokens == "collection"


def test_an_encoder_that_is_refused_does_not_replace_the_one_that_searches_use(tmp_path: Path) -> None:
    client, folder = QdrantClient(":memory:"), tmp_path / "queries"
    write_langchain(client, TEXTS, WordModel().encode(TEXTS))
    first = learn(client, "articles", folder, settings=SETTINGS)
    noise = np.random.default_rng(0).normal(size=(len(TEXTS), DIM))
    vectors = WordModel().encode(TEXTS) + 1.4 * noise / np.linalg.norm(noise, axis=1, keepdims=True)
    client.delete("articles", models.FilterSelector(filter=models.Filter()))
    add_points(client, range(len(TEXTS)), TEXTS, vectors.astype(np.float32))
    update = learn(client, "articles", folder, settings=SETTINGS, start=folder)
    assert update.refused and not update.registered and Path(update.folder) == tmp_path / "queries-refused"
    assert CareModel.load(folder).fingerprint == first.contract.fingerprint
    assert CareModel.load(update.folder).fingerprint == update.contract.fingerprint
    forced = learn(client, "articles", folder, settings=SETTINGS, start=folder, force=True)
    assert forced.registered and CareModel.load(folder).fingerprint == forced.contract.fingerprint


def test_a_model_that_was_not_learned_from_a_collection_is_not_replaced(tmp_path: Path) -> None:
    client, folder = QdrantClient(":memory:"), tmp_path / "pair"
    write_langchain(client, TEXTS, WordModel().encode(TEXTS))
    shutil.copytree(find_folder(BUILT_IN), folder)
    with pytest.raises(InputError, match="holds another kind of model, which would be lost"):
        learn(client, "articles", folder, settings=SETTINGS)
    with pytest.raises(InputError, match="holds another kind of model, which would be lost"):
        join_encoders(folder / "query", folder / "document", folder, name="pair")
    assert CareModel.load(folder).fingerprint == CareModel.load().fingerprint


@pytest.mark.parametrize("added", [0, 60])
def test_an_update_is_not_measured_on_what_the_earlier_encoder_learned_from(tmp_path: Path, added: int) -> None:
    """It says what an encoder that was learned anew says, where too few documents are new to measure it on those."""
    client, folder = QdrantClient(":memory:"), tmp_path / "queries"
    write_langchain(client, TEXTS[:400], WordModel().encode(TEXTS[:400]))
    learn(client, "articles", folder, settings=SETTINGS)
    if added:
        new = range(400, 400 + added)
        add_points(client, new, [TEXTS[n] for n in new], WordModel().encode([TEXTS[n] for n in new]))
    update = learn(client, "articles", folder, settings=SETTINGS, start=folder)
    anew = learn(client, "articles", tmp_path / "anew", settings=SETTINGS)
    assert update.held_out == anew.held_out


def test_an_update_that_learns_anew_trains_as_much_as_the_first_time(tmp_path: Path) -> None:
    """An update's shorter training is for an encoder that is there already."""
    with open_client(path=tmp_path / "qdrant") as client:
        write_langchain(client, TEXTS[:300], WordModel().encode(TEXTS[:300]))
    words = ["learn", "articles", "--path", str(tmp_path / "qdrant"), "--output", str(tmp_path / "queries"), "--json"]
    first, update = (CliRunner().invoke(care, [*words, *more]) for more in ([], ["--update"]))
    assert (first.exit_code, update.exit_code) == (0, 0), update.output
    trained = [
        {key: json.loads(done.stdout)[key] for key in ("steps", "best_step", "tokens")} for done in (first, update)
    ]
    assert trained[0] == trained[1]
