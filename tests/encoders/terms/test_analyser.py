"""The analysers: languages, stems, characters without a width, and the one that a collection keeps."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qdrant_client import QdrantClient

from care_qdrant.contracts.contract import SparseContract
from care_qdrant.encoders.terms import bm25
from care_qdrant.encoders.terms.analyser import analyser_for, find_analyser
from care_qdrant.encoders.terms.languages import FUNCTION_WORDS, LANGUAGES, language_of
from care_qdrant.errors import FingerprintMismatch
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.settings import IngestSettings
from care_qdrant.qdrant.collection import Collection
from care_qdrant.search.retriever import Retriever
from care_qdrant.vectors.attach import AttachSettings, attach_vector
from care_qdrant.vectors.attach_plan import plan_attach
from tests.tiny import HashModel

TEXTS = (
    "糖尿病患者 HbA1c 6.5 % 吃 500 mg",
    "Hypertension in well-known IL-6 patients",
    "Лечение болезни",
    "हिन्दी भाषा",
    "高カロリー食",
)
INVISIBLE = "\u00ad\u200b\u200c\u200d\u200e\u2060\ufe0f\ufeff"
SAMPLES = {
    "chinese": "糖尿病患者应控制饮食，定期监测血糖，遵医嘱使用胰岛素 insulin。",
    "english": "The patients were treated with insulin, and they should monitor their blood glucose.",
    "german": "Die Patienten wurden mit Insulin behandelt und sollten ihren Blutzucker nicht nur einmal messen.",
    "french": "Les patients ont été traités par insuline et ils mesurent leur glycémie avec un appareil.",
    "spanish": "Los pacientes fueron tratados con insulina y no deben olvidar las visitas a su médico.",
    "italian": "I pazienti sono stati trattati con insulina e non devono dimenticare la visita del medico.",
    "portuguese": "Os pacientes foram tratados com insulina e não devem esquecer as visitas ao seu médico.",
    "dutch": "De patiënten werden met insuline behandeld en zij moeten hun bloedsuiker niet vergeten.",
    "russian": "Пациенты получали инсулин, и они должны были не забывать о том, что врач им сказал.",
    "words": "糖の病気について、わたしたちはよくたべものをかんがえなければなりません",
}


@pytest.mark.parametrize("language", LANGUAGES)
@settings(max_examples=30, deadline=None)
@given(text=st.sampled_from(TEXTS), mark=st.sampled_from(INVISIBLE), data=st.data())
def test_characters_without_a_width_change_no_terms(language: str, text: str, mark: str, data: st.DataObject) -> None:
    analyser = analyser_for(language)
    place = data.draw(st.integers(0, len(text)))
    assert list(analyser.placed_terms(text[:place] + mark + text[place:])) == list(analyser.placed_terms(text))


@pytest.mark.parametrize(("language", "text"), SAMPLES.items())
def test_a_language_is_told_by_its_texts(language: str, text: str) -> None:
    assert SparseContract.of_texts([text]).analyser.language == language_of([text]) == language


def test_english_is_stemmed_without_function_words() -> None:
    """Collections hold these terms: if this fails, the analyser needs another name."""
    text = "The patient's follow-up visits: IL-6 running 5 mg of nationalities 糖尿病"
    found = list(analyser_for("english").terms(text))
    assert found == ["patient", "follow", "visit", "il6", "run", "5mg", "nation", "糖", "尿", "病", "糖尿", "尿病"]


@pytest.mark.parametrize("language", FUNCTION_WORDS)
def test_each_language_has_a_stemmer(language: str) -> None:
    assert list(analyser_for(language).terms("Insulin"))


def test_words_of_other_scripts_are_whole_or_characters() -> None:
    found = list(analyser_for("words").terms("हिन्दी ไทย 한국"))
    assert found == ["हिन्दी", "ไ", "ท", "ย", "ไท", "ทย", "한", "국", "한국"]


def test_the_former_analyser_finds_what_it_wrote() -> None:
    former = find_analyser("zh-char-bigram-1")
    assert former is not None
    assert list(former.terms("hyper\u200btension")) == ["hyper", "tension"]
    assert list(former.terms(TEXTS[0])) == list(analyser_for("chinese").terms(TEXTS[0]))


def test_a_collection_keeps_the_language_of_its_first_texts(tmp_path: Path) -> None:
    rows = [{"id": str(number), "text": f"{SAMPLES['english']} Runner {number}."} for number in range(5)]
    rows.append({"id": "x", "text": "The nurse was running to the hospital with the bandages."})
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    client, model = QdrantClient(":memory:"), HashModel()
    ingest(str(corpus), model, client, "c", settings=IngestSettings(sparse=True))
    ingest(str(corpus), model, client, "c", settings=IngestSettings(bm25_language="english"))
    sparse = Collection(client, "c").resolve().schema.contracts["bm25"]
    assert sparse.fingerprint == "english-1"
    [hits] = Retriever(client, "c", mode="sparse").search(["runs hospitals with a bandage"], top_k=1)
    assert hits[0].document_id == "x"
    with pytest.raises(FingerprintMismatch, match="by english-1, for --bm25-language english, and not for german"):
        ingest(str(corpus), model, client, "c", settings=IngestSettings(bm25_language="german"))
    with pytest.raises(FingerprintMismatch, match="and not for german"):
        attach_vector(client, "c", None, settings=AttachSettings(bm25_language="german"))


def test_bm25_is_attached_in_the_language_of_the_texts(tmp_path: Path) -> None:
    client, text = QdrantClient(":memory:"), "Die Ärzte sind nicht mit den Häusern da."
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(json.dumps({"id": "a", "text": text}) + "\n", encoding="utf-8")
    ingest(str(corpus), HashModel(), client, "c", settings=IngestSettings(sparse=False))
    assert plan_attach(client, "c", None).model == "german-1"
    assert attach_vector(client, "c", None).fingerprint == "german-1"
    assert attach_vector(client, "c", None).encoded == 0
    stored = client.retrieve("c", [client.scroll("c")[0][0].id], with_vectors=["bm25"])[0].vector
    average = bm25.average_length([text], analyser=analyser_for("german"))
    expected = bm25.document_vector(text, average_length=average, analyser=analyser_for("german"))
    assert isinstance(stored, dict)
    assert set(stored["bm25"].indices) == set(expected.indices)  # type: ignore[union-attr]
