"""Which words of a query a tokenizer does not read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from care_qdrant.encoders.unread import UnreadWords, some_of
from care_qdrant.model.care_model import CareModel

MODEL = CareModel.load()


@pytest.mark.parametrize(
    ("query", "unread"),
    [
        ("can diabetics eat watermelon", []),
        (
            "Was soll die Familie tun bei einem Herzinfarkt",
            ["Was", "soll", "die", "Familie", "tun", "bei", "einem", "Herzinfarkt"],
        ),
        (
            "¿Qué debe hacer la familia cuando alguien tiene un infarto?",
            ["Qué", "debe", "hacer", "familia", "cuando", "alguien", "tiene", "infarto"],
        ),
        ("Apa yang harus dilakukan keluarga", ["Apa", "yang", "harus", "dilakukan", "keluarga"]),
        ("диабет арбуз", ["диабет", "арбуз"]),
        ("수박", ["수", "박"]),
        ("दिल का दौरा पड़ने पर क्या करें", ["दिल", "दौरा", "पड़ने", "क्या", "करें"]),
        ("ครอบครัวควรทำอย่างไร", ["ครอบครัวควรทำอย่างไร"]),
        ("ibuprofen", []),
        ("糖尿病人能吃西瓜吗", []),
        ("HbA1c 6.5%", []),
        ("COPD", []),
        ("EGFR 突变的肺癌可以用靶向药", []),
        ("糖尿病患者可以喝coffee吗", []),
        ("β受体阻滞剂", []),
        ("38.5℃ …", []),
        ("", []),
    ],
)
def test_the_built_in_pair_reads_chinese_english_and_codes(query: str, unread: list[str]) -> None:
    assert MODEL.unread(query) == unread


def test_a_tokenizer_that_knows_the_words_reads_them() -> None:
    pieces = ["[UNK]", "can", "dia", "##bet", "##ics", "eat", "water", "##mel", "##on"]
    tokenizer = Tokenizer(models.WordPiece(dict(zip(pieces, range(len(pieces)), strict=True)), unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    for query, unread in (("can diabetics eat watermelon", []), ("диабет арбуз", ["диабет", "арбуз"])):
        assert UnreadWords(tokenizer)(query, tokenizer.encode(query)) == unread


def test_what_a_unigram_tokenizer_does_not_know_is_unread() -> None:
    """Its token of an unknown word is the word itself."""
    pieces = [("<unk>", 0.0), ("can", -1.0), ("eat", -1.0), ("糖", -2.0), ("尿", -2.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    for query in ("диабет арбуз", "दिल का दौरा", "ครอบครัว", "심장마비"):
        assert UnreadWords(tokenizer)(query, tokenizer.encode(query))
    for query in ("can eat", "糖尿", "can eat диабет"):
        assert not UnreadWords(tokenizer)(query, tokenizer.encode(query))


@pytest.mark.parametrize(("filler", "is_read"), [(0, False), (60_000, True)])
def test_a_long_text_in_thirds_of_words_is_read_by_a_vocabulary_of_many_languages(filler: int, is_read: bool) -> None:
    pieces = ["[UNK]", "fi", "##eb", "##er", "hu", "##st", "##en", *map(str, range(filler))]
    tokenizer = Tokenizer(models.WordPiece(dict(zip(pieces, range(len(pieces)), strict=True)), unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    text = "fieber husten fieber husten fieber"
    assert (UnreadWords(tokenizer)(text, tokenizer.encode(text)) == []) == is_read


@given(st.text(max_size=200))
def test_what_is_unread_is_a_part_of_the_query(query: str) -> None:
    for word in MODEL.unread(query):
        assert word in query


@given(
    st.text("糖尿病人能吃西瓜吗发烧三天，。？ 0123456789", max_size=80), st.sampled_from(["", "CT", "HbA1c", "IL-6"])
)
def test_chinese_with_codes_and_numbers_is_read(text: str, code: str) -> None:
    assert MODEL.unread(text + code) == []


def test_a_message_names_a_few_unread_words() -> None:
    assert some_of(["une", "fois", "une"]) == "une, fois"
    assert some_of(list("abcdefgh")) == "a, b, c, d, e and 3 more"
