from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from care_qdrant.corpus.chunking import cut_documents, sentence_spans, split
from care_qdrant.corpus.rows import Reject
from care_qdrant.encoders.batching import TokenizerFile
from care_qdrant.encoders.side import Side
from care_qdrant.encoders.usable import encodable
from care_qdrant.types import Chunk, Document, embedded_text, is_blank
from tests.tiny import HashEncoder, medical_texts

COUNTER = HashEncoder(max_tokens=24)  # a character is a token, and two special ones
TEXTS = st.text(alphabet="糖尿病。！？；.!?\n \t，,ab”)", min_size=1, max_size=200).filter(str.strip)


def chunks_of(
    text: str, title: str = "", overflow: str = "split", counter: HashEncoder = COUNTER
) -> list[Chunk] | Reject:
    [result] = cut_documents([Document("1", text, title, line=1)], counter, overflow)  # type: ignore[arg-type]
    return result


@given(TEXTS)
def test_sentences_join_to_the_text(text: str) -> None:
    assert "".join(text[span.start : span.end] for span in sentence_spans(text)) == text


def test_sentences_end_where_chinese_and_latin_sentences_end() -> None:
    text = "他说：“发热三天。”随后就诊！Take 1.5 mg. Then rest.\n第二段"
    parts = [text[span.start : span.end] for span in sentence_spans(text)]
    assert parts == ["他说：“发热三天。”", "随后就诊！", "Take 1.5 mg. ", "Then rest.\n", "第二段"]


@given(TEXTS, st.sampled_from(["", "标题", "九个字的一个标题啊"]))
def test_chunks_cover_the_text_in_order_and_fit(text: str, title: str) -> None:
    spans = split(text, title, COUNTER)
    assert not text[: spans[0].start].strip()
    assert spans[-1].end == len(text)
    assert all(before.start < after.start <= before.end < after.end for before, after in pairwise(spans))
    for span in spans:
        chunk = text[span.start : span.end]
        assert chunk.strip()
        assert COUNTER.count_tokens([embedded_text(title, chunk.strip())])[0] <= COUNTER.max_tokens


@given(TEXTS)
def test_the_text_can_be_rebuilt(text: str) -> None:
    rebuilt = text[: split(text, "", COUNTER)[0].start]
    for span in split(text, "", COUNTER):
        rebuilt += text[max(span.start, len(rebuilt)) : span.end]
    assert rebuilt == text


@given(
    st.lists(
        st.sampled_from(["\u200b", "\ue000\n", "\x07", "\ufeff ", "糖尿病人。", "字" * 22, " "]),
        min_size=1,
        max_size=30,
    )
)
def test_no_chunk_is_refused_for_showing_nothing(parts: list[str]) -> None:
    """One such chunk would take the whole document along."""
    text = "".join(parts)
    if is_blank(text):
        return
    chunks = chunks_of(text)
    assert isinstance(chunks, list)
    encodable([chunk.embedded_text for chunk in chunks])
    shown = {character for chunk in chunks for character in chunk.text if not is_blank(character)}
    assert shown == {character for character in text if not is_blank(character)}


def test_chunks_overlap_by_whole_sentences() -> None:
    counter = HashEncoder(max_tokens=82)
    text = "".join(f"这是第{number}句话。" for number in range(10, 40))
    chunks = chunks_of(text, counter=counter)
    assert isinstance(chunks, list)
    for before, after in pairwise(chunks):
        assert before.text.endswith(after.text[:8])
        assert after.text.startswith("这是第")


def test_a_short_document_is_one_chunk_as_it_is() -> None:
    [sized] = chunks_of(" 短文。\n")  # type: ignore[misc]
    assert (sized.text, sized.total, sized.tokens) == (" 短文。\n", 1, 5)


def test_truncate_keeps_one_chunk_with_the_whole_text() -> None:
    [sized] = chunks_of("长" * 100, overflow="truncate")  # type: ignore[misc]
    assert (sized.text, sized.tokens) == ("长" * 100, 24)


def test_a_title_that_fills_the_encoder_is_rejected() -> None:
    result = chunks_of("长" * 100, title="题" * 20)
    assert isinstance(result, Reject)
    assert "title leaves no room for the text: 22 of the encoder's 24 tokens" in result.reason


def test_a_text_without_any_end_is_cut_anyway() -> None:
    chunks = chunks_of("长" * 100)
    assert isinstance(chunks, list)
    assert all(sized.tokens <= 24 for sized in chunks)
    assert [sized.number for sized in chunks] == list(range(len(chunks)))
    assert {sized.total for sized in chunks} == {len(chunks)}


@pytest.mark.parametrize("text", ["字。" + " " * 300, " " * 300 + "字。", "字。" + " " * 300 + "词。" * 20])
def test_white_space_never_is_a_chunk(text: str) -> None:
    chunks = chunks_of(text)
    assert isinstance(chunks, list)
    assert all(sized.text.strip() for sized in chunks)


@given(
    st.lists(st.sampled_from(["糖尿病人可以吃水果。", "字", "a b, ", "\n"]), min_size=1, max_size=30),
    st.integers(0, 400),
    st.integers(0, 30),
    st.sampled_from(["", "标题"]),
)
def test_a_run_of_blanks_costs_few_chunks(parts: list[str], blanks: int, place: int, title: str) -> None:
    text = "".join([*parts[:place], " " * blanks, *parts[place:]])
    if not text.strip():
        return
    plain = split("".join(parts), title, COUNTER)
    spans = split(text, title, COUNTER)
    assert len(spans) <= 2 * len(plain) + 1
    left_out = text[: spans[0].start]
    assert not left_out.strip()
    assert spans[-1].end == len(text)


def test_a_real_tokenizer_counts_like_the_document_encoder(pair_folder) -> None:  # type: ignore[no-untyped-def]
    from care_qdrant.model.care_model import CareModel

    model = CareModel.load(pair_folder)
    texts = [*medical_texts(20), "长" * 200, ""]
    assert isinstance(model.document_tokenizer, TokenizerFile)
    assert model.document_tokenizer.count_tokens(texts) == model.document_encoder.count_tokens(texts)
    assert model.document_tokenizer.max_tokens == model.document_encoder.max_tokens
    long = "".join(medical_texts(30))
    for span in split(long, "标题", model.document_tokenizer):
        text = embedded_text("标题", long[span.start : span.end])
        assert model.document_encoder.count_tokens([text])[0] <= model.document_encoder.max_tokens


@pytest.mark.parametrize("text", ["一", "糖", "a", "1", "。"])
def test_a_document_of_one_token_is_read_behind_any_prompt(text: str) -> None:
    """A blank that ends the prompt is a token of its own, or a part of the first one that follows."""
    pieces = [("<unk>", 0.0), ("▁", -3.0), ("▁passage:", -1.0), *((f"▁{mark}", -2.0) for mark in "一糖a1。")]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    with TemporaryDirectory() as folder:
        file = Path(folder) / "tokenizer.json"
        tokenizer.save(str(file))
        counter = TokenizerFile(file.parent, Side("static", 24, "passage: "))
    assert counter.count_tokens([text]) == counter.count_tokens([""])
    [chunks] = cut_documents([Document("1", text)], counter, "split")
    assert isinstance(chunks, list)
    [nothing] = cut_documents([Document("1", "")], counter, "split")
    assert isinstance(nothing, Reject)


@given(
    st.lists(st.text("甲 。", min_size=1, max_size=60).map(lambda text: text + "甲") | st.text("甲乙 。", max_size=60))
)
def test_a_text_on_which_the_tokenizer_fails_takes_no_other_along(texts: list[str]) -> None:
    tokenizer = Tokenizer(models.WordLevel({"甲": 0, "。": 1}))  # knows no other character, and has no token for them
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split("", "isolated")]
    )
    with TemporaryDirectory() as folder:
        tokenizer.save(f"{folder}/tokenizer.json")
        counter = TokenizerFile(Path(folder), Side("static", 8))
    documents = [Document(str(number), text) for number, text in enumerate(texts)]
    together = list(cut_documents(documents, counter, "split"))
    assert together == [next(cut_documents([document], counter, "split")) for document in documents]
    failed = [number for number, cut in enumerate(together) if isinstance(cut, Reject) and "tokenizer" in cut.reason]
    assert failed == [number for number, text in enumerate(texts) if "乙" in text]
