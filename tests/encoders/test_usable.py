"""Texts that no vector can be made of: every encoder says which, whatever else the call holds."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from care_qdrant.encoders.batching import TokenizerFile, read_tokenizer, tokenised
from care_qdrant.encoders.engine import Engine
from care_qdrant.encoders.local.torch import TorchEncoder, load_sentence_transformer
from care_qdrant.encoders.onnx import OnnxEncoder
from care_qdrant.encoders.remote.server import ServerEncoder
from care_qdrant.encoders.side import Side
from care_qdrant.encoders.usable import require_texts
from care_qdrant.errors import InputError, UnusableText
from care_qdrant.model.card import OnnxFiles
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


def _without_unknown(folder: Path) -> Path:
    """Leave out of a tokenizer the token for what is unknown, and know the letters that a model is tried with."""
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] != "[UNK]"]
    vocabulary = content["model"]["vocab"]
    spare = iter([vocabulary.pop("[UNK]"), *(vocabulary.pop(token) for token in [*vocabulary] if token[:2] == "##")])
    vocabulary |= {letter: next(spare) for letter in "abcdefghi" if letter not in vocabulary}
    file.write_text(json.dumps(content), encoding="utf-8")
    return folder


@pytest.mark.parametrize("call", ["encode", "count_tokens"])
@pytest.mark.parametrize("kind", ["onnx", "torch", "static", "server", "file"])
def test_a_text_that_the_tokenizer_fails_on_is_named_by_every_encoder(
    exported: Callable[[str], tuple[Path, OnnxFiles]], tmp_path: Path, kind: str, call: str
) -> None:
    """tokenizers raises a bare Exception there, and its Rust code may panic, which passes every handler."""
    whole, files = exported("cls")
    towers = {"torch": tiny.query_tower, "static": tiny.static_tower}
    folder = towers[kind](tmp_path / "q") if kind in towers else Path(shutil.copytree(whole, tmp_path / "q"))
    _without_unknown(folder)
    side = Side("cls", 48)
    encoder: Any = {
        "onnx": lambda: OnnxEncoder(folder, str(files.fp32), side, 32),
        "torch": lambda: TorchEncoder(load_sentence_transformer(folder, "cpu"), "query"),
        "static": lambda: TorchEncoder(load_sentence_transformer(folder, "cpu"), "query"),
        "server": lambda: ServerEncoder(
            Engine("server", endpoints=("http://127.0.0.1:9/v1",)), "m", read_tokenizer(folder), side, (), dim=32
        ),
        "file": lambda: TokenizerFile(folder, side),
    }[kind]()
    texts = ["a b", "腹痛\u2603", "腹痛", "\u2603"]
    if hasattr(encoder, call):
        with pytest.raises(
            UnusableText, match=r"text 1 \('腹痛.'\) makes the tokenizer .*Missing \[UNK\].*1 more"
        ) as raised:
            getattr(encoder, call)(texts)
        assert raised.value.problems.keys() == {1, 3}
    if hasattr(encoder, "unread"):
        assert (encoder.unread("腹痛"), encoder.unread("\u2603 abc")) == ([], ["\u2603", "abc"])


def test_a_panic_of_the_tokenizer_is_an_error_of_its_text() -> None:
    """With this truncation only a text that is too long panics."""
    tokenizer = tiny.bert_tokenizer().backend_tokenizer
    content = json.loads(tokenizer.to_str())
    content["truncation"] = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 10}
    broken = Tokenizer.from_str(json.dumps(content))
    with pytest.raises(UnusableText, match=r"text 1 .*`stride` must be") as raised:
        tokenised(["短", tiny.TEXTS[0], "a"], broken.encode)
    assert raised.value.problems.keys() == {1}


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
