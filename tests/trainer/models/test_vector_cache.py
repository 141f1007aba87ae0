from pathlib import Path

import numpy as np
import pytest
from care_trainer.models.vector_cache import VectorCache, encoder_digest

from care_qdrant.types import Vectors
from tests.tiny import TEXTS, HashEncoder


@pytest.fixture
def encoder() -> HashEncoder:
    return HashEncoder(dim=8)


def test_each_text_is_encoded_once_whoever_asks(tmp_path: Path, encoder: HashEncoder) -> None:
    asked = [TEXTS[0], TEXTS[1], TEXTS[0]]
    first = VectorCache(tmp_path, "a" * 64, 8).encode(asked, encoder.encode)
    np.testing.assert_array_equal(first, encoder.encode(asked).astype(np.float16))
    encoder.encoded.clear()
    again = VectorCache(tmp_path, "a" * 64, 8).encode([TEXTS[2], TEXTS[1]], encoder.encode)
    assert encoder.encoded == [TEXTS[2]]
    np.testing.assert_array_equal(again[1], first[1])


def test_nothing_is_locked_while_texts_are_encoded_and_the_first_vector_stays(
    tmp_path: Path, encoder: HashEncoder
) -> None:
    other = HashEncoder(dim=8)

    def encode(texts: list[str]) -> Vectors:
        VectorCache(tmp_path, "a" * 64, 8).encode(texts[:2], other.encode)  # a second process, meanwhile
        return encoder.encode(texts)

    found = VectorCache(tmp_path, "a" * 64, 8).encode(TEXTS, encode)
    np.testing.assert_array_equal(found, encoder.encode(TEXTS).astype(np.float16))
    assert other.encoded == list(dict.fromkeys(TEXTS))[:2]


def test_an_encoder_that_stops_leaves_what_it_has_done(
    tmp_path: Path, encoder: HashEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("care_trainer.models.vector_cache._PIECE_TEXTS", 2)

    def stopping(texts: list[str]) -> Vectors:
        if len(encoder.encoded) >= 4:
            raise KeyboardInterrupt
        return encoder.encode(texts)

    with pytest.raises(KeyboardInterrupt):
        VectorCache(tmp_path, "a" * 64, 8).encode(TEXTS, stopping)
    encoder.encoded.clear()
    found = VectorCache(tmp_path, "a" * 64, 8).encode(TEXTS, encoder.encode)
    assert encoder.encoded == TEXTS[4:]
    np.testing.assert_array_equal(found, encoder.encode(TEXTS).astype(np.float16))


def test_the_digest_is_of_the_files_and_the_prompt_and_not_of_the_model_card(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    plain = encoder_digest(tmp_path)
    (tmp_path / "README.md").write_text("card")
    assert encoder_digest(tmp_path) == plain
    assert len({plain, encoder_digest(tmp_path, "query: "), encoder_digest(tmp_path, "")}) == 3
    (tmp_path / "model.safetensors").write_bytes(b"others")
    assert encoder_digest(tmp_path) != plain
