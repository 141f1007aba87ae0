import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from care_trainer.models import vector_cache
from care_trainer.models.vector_cache import VectorCache, encoder_digest
from filelock import FileLock

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


def test_another_encoder_has_its_own_vectors(tmp_path: Path, encoder: HashEncoder) -> None:
    other = HashEncoder(dim=8, salt="other")
    VectorCache(tmp_path, "a" * 64, 8).encode(TEXTS, encoder.encode)
    found = VectorCache(tmp_path, "b" * 64, 8).encode(TEXTS, other.encode)
    np.testing.assert_array_equal(found, other.encode(TEXTS).astype(np.float16))


def test_what_a_killed_process_left_half_written_does_not_count(tmp_path: Path, encoder: HashEncoder) -> None:
    cache = VectorCache(tmp_path, "a" * 64, 8)
    cache.encode(TEXTS[:3], encoder.encode)
    with (cache.folder / "vectors.f16").open("ab") as stream:
        stream.write(b"\x00" * 21)  # one vector and a piece of the next, without their keys
    encoder.encoded.clear()
    found = cache.encode(TEXTS, encoder.encode)
    assert encoder.encoded == TEXTS[3:]
    np.testing.assert_array_equal(found, encoder.encode(TEXTS).astype(np.float16))


def test_the_lock_is_free_while_texts_are_encoded_and_a_vector_is_stored_once(
    tmp_path: Path, encoder: HashEncoder
) -> None:
    other = HashEncoder(dim=8)

    def encode(texts: list[str]) -> Vectors:
        with FileLock(tmp_path / ("a" * 16) / "lock", timeout=0):
            pass
        VectorCache(tmp_path, "a" * 64, 8).encode(texts[:2], other.encode)  # a second process, meanwhile
        return encoder.encode(texts)

    cache = VectorCache(tmp_path, "a" * 64, 8)
    found = cache.encode(TEXTS, encode)
    np.testing.assert_array_equal(found, encoder.encode(TEXTS).astype(np.float16))
    assert other.encoded == list(dict.fromkeys(TEXTS))[:2]
    assert (cache.folder / "keys.bin").stat().st_size == 16 * len(set(TEXTS))


def test_the_keys_are_read_once(tmp_path: Path, encoder: HashEncoder) -> None:
    cache = VectorCache(tmp_path, "a" * 64, 8)
    cache.encode(TEXTS[:2], encoder.encode)
    keys = cache.folder / "keys.bin"
    keys.write_bytes(b"?" * keys.stat().st_size)  # only who reads the keys again would miss the texts
    VectorCache(tmp_path, "b" * 64, 8).encode(TEXTS, encoder.encode)
    encoder.encoded.clear()
    cache.encode(TEXTS[:3], encoder.encode)
    assert encoder.encoded == [TEXTS[2]]


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
    assert encoder_digest(tmp_path, "query: ") != plain
    (tmp_path / "model.safetensors").write_bytes(b"others")
    assert encoder_digest(tmp_path) != plain


@pytest.mark.parametrize("most", [0, 3, 1000])
def test_sorted_keys_find_what_a_dictionary_finds(
    tmp_path: Path, encoder: HashEncoder, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_cache, "_MOST_RECENT", most)
    cache = VectorCache(tmp_path, "a" * 64, 8)
    for start in range(0, 40, 7):
        texts = [f"text {number}" for number in range(start + 6, -1, -1)]
        np.testing.assert_array_equal(cache.encode(texts, encoder.encode), encoder.encode(texts).astype(np.float16))
    assert (cache.folder / "keys.bin").stat().st_size == 16 * 42


def test_a_million_keys_take_a_tenth_of_a_dictionary_s_memory(tmp_path: Path, encoder: HashEncoder) -> None:
    """16 MB in each process, where a dictionary of them took 167."""
    cache = VectorCache(tmp_path, "a" * 64, 8)
    keys = np.random.default_rng(0).integers(0, 2**63, (1_000_000, 2), np.int64)
    keys.tofile(cache.folder / "keys.bin")
    np.zeros((1_000_000, 8), np.float16).tofile(cache.folder / "vectors.f16")
    del keys
    tracemalloc.start()
    cache.encode(["a"], encoder.encode)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 17_000_000
