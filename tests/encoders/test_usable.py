"""Texts that no vector can be made of: every encoder says which, whatever else the call holds."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from care_qdrant.encoders.batching import TokenizerFile
from care_qdrant.encoders.local.torch import TorchEncoder, load_sentence_transformer
from care_qdrant.encoders.side import Side
from care_qdrant.encoders.usable import require_texts
from care_qdrant.errors import InputError, UnusableText
from care_qdrant.model.care_model import CareModel
from tests import tiny


@pytest.mark.parametrize("call", ["encode", "count_tokens"])
@pytest.mark.parametrize("kind", ["onnx", "torch", "weighted"])
def test_half_a_character_is_named_by_every_encoder(pair_folder: Path, tmp_path: Path, kind: str, call: str) -> None:
    encoder = {
        "onnx": lambda: CareModel.load(pair_folder).query_encoder,
        "torch": lambda: CareModel.load(pair_folder).document_encoder,
        "weighted": lambda: TorchEncoder(
            load_sentence_transformer(tiny.weighted_tower(tmp_path / "weighted"), "cpu"), "document"
        ),
    }[kind]()
    with pytest.raises(UnusableText, match=r"text 1 .*an unpaired surrogate \(\\ud835\).*1 more") as raised:
        getattr(encoder, call)(["头痛", "公式：\ud835 = 体重", "咳嗽", "\udcff"])
    assert raised.value.problems.keys() == {1, 3}


@pytest.mark.parametrize("blank", ["", " \n", "\u3000", "\u200b\ufeff"])
@pytest.mark.parametrize("side", ["query_encoder", "document_encoder"])
def test_a_blank_text_is_named_by_every_encoder(pair_folder: Path, side: str, blank: str) -> None:
    """Its vector would be that of the prompt, which is near to every other one."""
    encoder = getattr(CareModel.load(pair_folder), side)
    with pytest.raises(UnusableText) as raised:
        encoder.encode(["头痛", blank])
    assert raised.value.problems.keys() == {1}
    assert len(encoder.count_tokens(["头痛", blank])) == 2


@pytest.mark.parametrize("call", ["encode", "count_tokens"])
@pytest.mark.parametrize("side", ["query_encoder", "document_encoder"])
def test_what_is_no_list_of_texts_is_refused_by_every_encoder(pair_folder: Path, side: str, call: str) -> None:
    encoder = getattr(CareModel.load(pair_folder), side)
    with pytest.raises(InputError, match=r"one text \('头痛怎么办'\) is given where a list"):
        getattr(encoder, call)("头痛怎么办")
    with pytest.raises(UnusableText, match=r"text 1 is None \(NoneType\), which is not text.*1 more") as raised:
        getattr(encoder, call)(["头痛", None, "咳嗽", 5])
    assert raised.value.problems.keys() == {1, 3}


def test_half_a_character_is_named_where_only_the_tokenizer_is_there(pair_folder: Path) -> None:
    counter = TokenizerFile(pair_folder / "document", Side("lasttoken", 64))
    with pytest.raises(UnusableText, match=r"text 0 .*an unpaired surrogate"):
        counter.count_tokens(["\ud835"])


@given(st.lists(st.text(st.characters(codec=None, categories=["Cs", "L", "N", "So"]))))
def test_a_text_is_refused_exactly_where_utf_8_has_no_bytes_for_it(texts: list[str]) -> None:
    bad = {place for place, text in enumerate(texts) if text.encode(errors="replace").decode() != text}
    if not bad:
        require_texts(texts)
        return
    with pytest.raises(UnusableText) as raised:
        require_texts(texts)
    assert raised.value.problems.keys() == bad


def test_all_texts_without_a_token_are_named_at_once() -> None:
    texts = ["头痛怎么办", "", "咳嗽", ""]
    for device in (None, "cpu"):
        with pytest.raises(UnusableText, match="no tokens that the model") as raised:
            CareModel.load(device=device).encode_query(texts)
        assert raised.value.problems.keys() == {1, 3}
    others = CareModel.load().encode_query([texts[0], texts[2]])
    assert np.isfinite(others).all()


def test_the_error_crosses_processes_and_takes_the_names_of_its_caller() -> None:
    error = UnusableText({1: "is blank", 3: "is blank"}).named(["a", "document 'b'", "c", "d"])
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert str(error).startswith("document 'b' is blank")


@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from("\u00ad\u200b\u2060\ufeff")), max_size=6))
@pytest.mark.parametrize("side", ["query_encoder", "document_encoder"])
def test_characters_that_only_allow_a_line_break_change_no_vector(
    pair_folder: Path, side: str, inserted: list[tuple[int, str]]
) -> None:
    encoder = getattr(CareModel.load(pair_folder), side)
    text = broken = "糖尿病人可以吃少量 watermelon slices"
    for place, character in inserted:
        broken = broken[:place] + character + broken[place:]
    np.testing.assert_array_equal(encoder.encode([broken]), encoder.encode([text]))
    assert encoder.count_tokens([broken]) == encoder.count_tokens([text])
