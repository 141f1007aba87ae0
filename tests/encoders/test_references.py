"""Reference vectors keep their numbers in every form, and another model's are refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from care_qdrant.encoders.references import (
    REFERENCE_TEXTS,
    check_references,
    load_references,
    make_references,
    save_references,
)
from care_qdrant.errors import AlteredModel, InputError, ModelError
from care_qdrant.types import Vectors
from tests.tiny import HashEncoder

OWN, OTHER = HashEncoder(salt="own"), HashEncoder(salt="other")
FINGERPRINT = "a" * 64


def test_a_file_gives_back_the_vectors_that_were_made(tmp_path: Path) -> None:
    made = make_references(OWN.encode)
    assert [each.text for each in made] == list(REFERENCE_TEXTS)
    np.testing.assert_array_equal([each.numbers for each in made], OWN.encode(REFERENCE_TEXTS))
    save_references(tmp_path / "file.json", FINGERPRINT, made)
    assert load_references(tmp_path / "file.json", FINGERPRINT) == made
    with pytest.raises(ModelError, match="make them again"):
        load_references(tmp_path / "file.json", "b" * 64)


@pytest.mark.parametrize(
    "change", [{"vectors": [[1.0]]}, {"texts": [], "vectors": []}, {"texts": None}, {"vectors": [["x"]] * 3}]
)
def test_a_file_without_a_vector_for_each_text_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "file.json"
    save_references(path, FINGERPRINT, make_references(OWN.encode))
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **change}), encoding="utf-8")
    with pytest.raises(InputError, match="holds no reference vectors; make them with care model reference-vectors"):
        load_references(path, FINGERPRINT)


def test_another_encoder_and_another_length_are_refused(tmp_path: Path) -> None:
    references = make_references(OWN.encode)
    check_references(OWN.encode, references, tmp_path, 0.9999)

    def shorter(texts: list[str]) -> Vectors:
        return OWN.encode(texts) * np.float32(0.5)

    for encode in (OTHER.encode, shorter):
        with pytest.raises(AlteredModel, match="gives other vectors than the model's weights"):
            check_references(encode, references, tmp_path, 0.9)
    with pytest.raises(AlteredModel, match="gives vectors of shape"):
        check_references(HashEncoder(8).encode, references, tmp_path, 0.9)
