"""A learned query encoder encodes new documents where the old model is gone: asked for, marked, and undone."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from care_trainer.learn.learn import learn
from care_trainer.learn.settings import LearnSettings
from care_trainer.learn.stand_in import shift
from click.testing import CliRunner
from qdrant_client import QdrantClient

from care_qdrant.cli import care
from care_qdrant.errors import FingerprintMismatch, InputError, ModelError
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.settings import IngestReport, IngestSettings
from care_qdrant.model.card import read_card
from care_qdrant.model.care_model import CareModel
from care_qdrant.model.folder import write_checkpoint
from care_qdrant.model.sides import STAND_IN_FILE
from care_qdrant.qdrant.collection import Collection
from care_qdrant.search.retriever import Retriever
from care_qdrant.types import Document, Vectors
from care_qdrant.vectors.status import inspect_collection
from care_qdrant.vectors.verify import verify_collection
from care_qdrant.vectors.verify_report import VerifySettings
from tests.tiny import document_tower, medical_texts
from tests.trainer.learn.collections import WordModel, word_texts, write_langchain
from tests.trainer.learn.conftest import TEXTS

SAMPLE = Path(__file__).parents[3] / "examples" / "sample" / "corpus.jsonl"
NEW = [Document(f"new-{number}", text) for number, text in enumerate(word_texts(40, seed=5))]
pytestmark = pytest.mark.timeout(400)
STAND_IN = IngestSettings(stand_in=True)
QUICK = LearnSettings(vocabulary=200, batch=64, epochs=2, learning_rate=2e-2)


def unit(vectors: npt.NDArray[np.floating]) -> Vectors:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), dtype=np.float32)


def vectors_of(client: QdrantClient, vector_name: str) -> dict[str, Any]:
    """Return the vectors of a collection by the text of their points, unit rows."""
    records, _ = client.scroll("articles", limit=2_000, with_payload=True, with_vectors=True)
    found = {}
    for record in records:
        assert record.payload is not None
        vector: Any = record.vector if isinstance(record.vector, list) else (record.vector or {})[vector_name]
        found[record.payload.get("text") or record.payload["page_content"]] = np.array(vector)
    return found


def marked(client: QdrantClient) -> set[str]:
    """Return the texts of the points that say that a learned encoder made their vector."""
    records, _ = client.scroll("articles", limit=2_000, with_payload=True)
    return {record.payload["text"] for record in records if (record.payload or {}).get("_care", {}).get("stand_ins")}  # type: ignore[index]


def test_documents_are_refused_until_it_is_asked_for(copied: tuple[QdrantClient, Path]) -> None:
    client, folder = copied
    model, before = CareModel.load(folder), client.get_collection("articles").config.metadata
    with pytest.raises(ModelError, match="--stand-in"):
        ingest(NEW, model, client, "articles")
    with pytest.raises(InputError, match="there is no collection 'others'"):
        ingest(NEW, model, client, "others", settings=STAND_IN)
    write_langchain(client, TEXTS[:20], WordModel().encode(TEXTS[:20]), name="others", vector_name=model.name)
    with pytest.raises(FingerprintMismatch, match="carries no fingerprint"):
        ingest(NEW, model, client, "others", settings=STAND_IN)
    with pytest.raises(InputError, match="has a document encoder"):
        ingest(NEW, CareModel.load(), client, "articles", settings=STAND_IN)
    with pytest.raises(InputError, match="--replace-others would delete"):
        IngestSettings(stand_in=True, replace_others=True)
    assert client.get_collection("articles").config.metadata == before
    assert client.count("articles").count == len(TEXTS)


def test_documents_are_moved_among_the_stored_ones() -> None:
    """An old model whose vectors lie close together, and an encoder that spreads them and knows no common direction."""
    generator = np.random.default_rng(0)
    common, subjects = generator.normal(size=64), generator.normal(size=(400, 64))
    stored = unit(2 * common + subjects)
    encoded = unit(subjects + 0.5 * generator.normal(size=(400, 64)))
    questions = unit(common + subjects[:50] + generator.normal(size=(50, 64)))
    moved = unit(encoded + shift(encoded[:200], stored[:200], questions))[200:]

    scores, new = questions @ stored[200:].T, questions @ moved.T
    assert abs(new.mean() - scores.mean()) < 0.1 * scores.std()
    assert new.std(axis=1).mean() == pytest.approx(scores.std(axis=1).mean(), rel=0.1)
    as_it_is = questions @ encoded[200:].T
    assert abs(as_it_is.mean() - scores.mean()) > 2 * scores.std(), "else nothing is shown"


def test_an_encoder_of_an_earlier_version_is_learned_again_first(
    copied: tuple[QdrantClient, Path], tmp_path: Path
) -> None:
    client, folder = copied
    query = shutil.copytree(folder / "query", tmp_path / "query")
    (query / STAND_IN_FILE).unlink()
    earlier = tmp_path / "earlier"
    write_checkpoint(earlier, name="earlier", query=query, document=None, onnx=read_card(folder).onnx)
    with pytest.raises(ModelError, match="learn again"):
        ingest(NEW, CareModel.load(earlier), client, "articles", settings=STAND_IN)
    assert client.count("articles").count == len(TEXTS)
    assert len(CareModel.load(earlier).encode_query(["心痛"])) == 1, "queries are encoded as before"


def test_its_documents_are_found_marked_and_never_learned_from(
    copied: tuple[QdrantClient, Path], tmp_path: Path
) -> None:
    client, folder = copied
    model, old = CareModel.load(folder), vectors_of(client, "")
    report = ingest(NEW, model, client, "articles", settings=STAND_IN)
    assert (report.vector_name, report.encoded, report.stand_ins) == ("", len(NEW), len(NEW))
    assert marked(client) == {document.text for document in NEW}
    now = vectors_of(client, "")
    assert all(np.array_equal(now[text], vector) for text, vector in old.items())
    hits = Retriever(client, "articles", model).search([document.text[:11] for document in NEW], 10)
    assert np.mean([one.text in {hit.text for hit in found} for one, found in zip(NEW, hits, strict=True)]) > 0.7

    again = ingest(NEW, model, client, "articles", settings=STAND_IN)
    assert (again.unchanged, again.encoded, again.stand_ins) == (len(NEW), 0, len(NEW))
    [shown] = inspect_collection(client, "articles").summary.vectors
    assert (shown.stand_ins, shown.stand_in_models) == (len(NEW), (model.name,))
    verified = verify_collection(client, "articles", model, settings=VerifySettings(sample=600))
    assert (verified.problems, verified.stand_ins, verified.outdated) == ([], len(NEW), 0)
    assert verified.lowest_cosine is not None
    assert verified.lowest_cosine > 0.999

    learned = learn(client, "articles", tmp_path / "again", settings=QUICK, force=True)
    assert (learned.sample.texts, learned.sample.stand_ins) == (len(TEXTS), len(NEW))
    renewed = ingest(NEW, CareModel.load(tmp_path / "again"), client, "articles", settings=STAND_IN)
    assert (renewed.encoded, renewed.stand_ins) == (len(NEW), len(NEW))  # by the encoder that reads the collection now


def test_the_model_that_made_the_collection_takes_its_place_back(tmp_path: Path) -> None:
    """A document that the model has encoded keeps its vector; what was edited meanwhile is encoded again, once."""
    client, model = QdrantClient(":memory:"), CareModel.load()
    rows = [json.loads(line) for line in SAMPLE.read_text("utf-8").splitlines()][:300]
    corpus = [Document(str(number), row["text"][:200]) for number, row in enumerate(rows)]
    ingest(corpus, model, client, "articles")
    before = vectors_of(client, model.name)
    learn(client, "articles", tmp_path / "learned", settings=QUICK, force=True)
    learned, edited = CareModel.load(tmp_path / "learned"), [Document("7", "心痛，肝炎。肺热，胃寒"), *NEW]

    report = ingest([*corpus[:7], *edited, *corpus[8:]], learned, client, "articles", settings=STAND_IN)
    assert (report.encoded, report.unchanged, report.stand_ins) == (len(edited), 299, len(edited))
    assert marked(client) == {document.text for document in edited}
    kept = vectors_of(client, model.name)
    assert all(np.array_equal(kept[document.text], before[document.text]) for document in corpus if document.id != "7")
    quiet = VerifySettings(least_known=0)
    by_learned = verify_collection(client, "articles", learned, vector_name=model.name, settings=quiet)
    assert (by_learned.problems, by_learned.stand_ins) == ([], len(edited))
    by_model = verify_collection(client, "articles", model, vector_name=model.name, settings=quiet)
    assert (by_model.outdated, by_model.stand_ins) == (0, len(edited))
    assert ["without --stand-in" in said for said in by_model.problems] == [True]

    back = ingest(edited, model, client, "articles")
    assert (back.encoded, back.stand_ins, marked(client)) == (len(edited), 0, set())
    assert "care_stand_in:" not in str(client.get_collection("articles").config.metadata)
    assert verify_collection(client, "articles", model, settings=quiet).problems == []
    now = vectors_of(client, model.name)
    vectors = model.encode_document([document.text for document in edited])
    assert min(now[document.text] @ vector for document, vector in zip(edited, vectors, strict=True)) > 0.9999


def test_a_pair_with_the_old_model_encodes_them_again_in_a_foreign_collection(tmp_path: Path) -> None:
    client, old, texts = QdrantClient(":memory:"), document_tower(tmp_path / "old"), medical_texts(400)
    write_langchain(client, texts, CareModel.load(old).encode_document(texts), vector_name="openai")
    learn(client, "articles", tmp_path / "alone", settings=QUICK, force=True)
    report = ingest(NEW, CareModel.load(tmp_path / "alone"), client, "articles", settings=STAND_IN)
    assert (report.vector_name, report.stand_ins) == ("openai", len(NEW))
    before = vectors_of(client, "openai")
    learn(client, "articles", tmp_path / "pair", settings=QUICK, document=old, force=True)
    back: IngestReport = ingest(NEW, CareModel.load(tmp_path / "pair"), client, "articles")
    assert (back.vector_name, back.encoded, back.stand_ins, marked(client)) == ("openai", len(NEW), 0, set())
    now = vectors_of(client, "openai")
    assert all(np.array_equal(now[text], before[text]) for text in texts)
    vectors = CareModel.load(old).encode_document([document.text for document in NEW])
    assert min(now[document.text] @ vector for document, vector in zip(NEW, vectors, strict=True)) > 0.9999


def test_the_command_warns_and_status_and_verify_tell(learned: Any, tmp_path: Path) -> None:
    """The three commands, on a database of a folder."""
    client, folder, _ = learned
    database = QdrantClient(path=str(tmp_path / "qdrant"))
    write_langchain(database, TEXTS, WordModel().encode(TEXTS))
    Collection(database, "articles").write_learned("", Collection(client, "articles").schema.learned[""])
    database.close()
    (tmp_path / "new.jsonl").write_text('{"id": "a", "text": "心痛，肝炎，脾热，肺寒"}\n', encoding="utf-8")
    place = ["--path", str(tmp_path / "qdrant")]

    def said(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(care, [*arguments, *place], catch_exceptions=False)
        return done.exit_code, done.output

    ingestion = ["ingest", str(tmp_path / "new.jsonl"), "--collection", "articles", "--model", str(folder)]
    with pytest.raises(ModelError, match="encodes queries only"):
        said(*ingestion)
    code, output = said(*ingestion, "--stand-in")
    assert code == 0
    assert "1 of 601 points has a vector of a learned query encoder" in output
    assert "articles: 601 points with the unnamed vector; " in output
    assert "1 of them by the learned articles-queries, which stands in" in said("status", "articles")[1]
    code, output = said("verify", "articles", "--model", str(folder))
    assert (code, "1 by a learned encoder that stands in" in output) == (0, True)
