"""The pair: each side as stock sentence-transformers has it, loaded when used, from wherever it is."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer

from care_qdrant.encoders.engine import Engine
from care_qdrant.encoders.terms import bm25
from care_qdrant.errors import AlteredModel, IncompleteModel, InputError, ModelError
from care_qdrant.model.adopt.importing import join_encoders
from care_qdrant.model.card import TERM_WEIGHTS
from care_qdrant.model.care_model import CareModel
from care_qdrant.model.folder import add_term_weights, copy_term_weights, verify_checkpoint
from tests import tiny


def test_both_sides_give_the_vectors_of_stock_sentence_transformers(pair_folder: Path) -> None:
    model = CareModel.load(pair_folder, precision="fp32")
    stock = SentenceTransformer(str(pair_folder), device="cpu")
    np.testing.assert_allclose(model.encode_query(tiny.TEXTS), stock.encode_query(tiny.TEXTS), atol=1e-5)
    np.testing.assert_allclose(model.encode_document(tiny.TEXTS), stock.encode_document(tiny.TEXTS), atol=1e-6)
    assert model.encode_document([]).shape == (0, model.dim)


def test_a_document_has_one_vector_whatever_it_is_batched_with(pair_folder: Path) -> None:
    model = CareModel.load(pair_folder)
    texts = tiny.medical_texts(40)
    alone = np.concatenate([model.encode_document([text]) for text in texts])
    np.testing.assert_allclose(model.encode_document(texts), alone, atol=2e-6)


def test_without_onnx_the_query_side_runs_on_torch(pair_folder: Path, tmp_path: Path) -> None:
    joined = tmp_path / "joined"
    shutil.copytree(pair_folder / "query", tmp_path / "query", ignore=shutil.ignore_patterns("onnx"))
    join_encoders(tmp_path / "query", pair_folder / "document", joined, name="joined")
    stock = SentenceTransformer(str(joined / "query"), device="cpu")
    np.testing.assert_allclose(CareModel.load(joined).encode_query(tiny.TEXTS), stock.encode(tiny.TEXTS), atol=1e-6)
    with pytest.raises(ModelError, match="no ONNX query encoder"):
        CareModel.load(joined, precision="int8")


def test_a_plain_model_is_refused_where_an_int8_encoder_is_asked_for(pair_folder: Path) -> None:
    with pytest.raises(ModelError, match="precision 'int8' is not available"):
        CareModel.load(pair_folder / "document", precision="int8")
    assert CareModel.load(pair_folder / "document", precision="fp32").dim


@pytest.mark.parametrize(
    ("misspelt", "choices"),
    [
        (lambda folder: CareModel.load(folder, precision="INT8"), "auto, int8, fp32"),
        (lambda _: Engine(kind="Torch"), "torch, onnx, server, None"),
        (lambda _: Engine(dtype="fp32"), "auto, float32, bfloat16"),
        (lambda _: Engine(sent="ids"), "tokens, text, text-without-prompt"),
    ],
)
def test_a_misspelt_setting_does_not_leave_another_one_in_force(
    pair_folder: Path, misspelt: Callable[[Path], object], choices: str
) -> None:
    with pytest.raises(InputError, match=f"expected one of {choices}$"):
        misspelt(pair_folder)


def test_any_sentence_transformers_model_stands_in_on_both_sides(pair_folder: Path) -> None:
    model = CareModel.load(pair_folder / "query")
    stock = SentenceTransformer(str(pair_folder / "query"), device="cpu")
    np.testing.assert_allclose(model.encode_document(tiny.TEXTS), stock.encode(tiny.TEXTS), atol=1e-6)
    np.testing.assert_array_equal(model.encode_query(tiny.TEXTS), model.encode_document(tiny.TEXTS))
    assert model.fingerprint != CareModel.load(pair_folder / "document").fingerprint


def test_two_models_have_two_fingerprints_whatever_holds_their_weights(pair_folder: Path, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "other")]
    for number, folder in enumerate(folders):
        shutil.copytree(pair_folder / "document", folder)
        weights = load_file(folder / "model.safetensors")
        weights = {name: value + number if value.is_floating_point() else value for name, value in weights.items()}
        torch.save(weights, folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    one, other = (CareModel.load(folder).fingerprint for folder in folders)
    assert one != other
    (folders[0] / "README.md").write_text("# For people")
    (folders[0] / ".git").mkdir()
    (folders[0] / ".git" / "HEAD").write_text("main")
    assert CareModel.load(folders[0]).fingerprint == one


def test_a_model_is_named_after_its_folder(pair_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty name would be that of Qdrant's unnamed vector."""
    shutil.copytree(pair_folder / "document", tmp_path / "mine")
    monkeypatch.chdir(tmp_path / "mine")
    assert CareModel.load(".").name == CareModel.load(tmp_path / "mine").name == "mine"


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no such folder"):
        CareModel.load(tmp_path / "nowhere")
    with pytest.raises(IncompleteModel, match=r"neither care\.json nor modules\.json"):
        CareModel.load(tmp_path)


def test_a_hub_name_is_looked_up_for_real_and_offline_is_said() -> None:
    with pytest.raises(ModelError, match="hub cannot be reached"):
        CareModel.load("care-qdrant/not-published-anywhere")


def test_a_hub_model_loads_from_the_cache(pair_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = "0" * 40
    repository = tmp_path / "models--someone--tiny-pair"
    shutil.copytree(pair_folder, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    model = CareModel.load("someone/tiny-pair")
    assert model.name == "tiny-pair"
    np.testing.assert_array_equal(
        model.encode_document(tiny.TEXTS), CareModel.load(pair_folder).encode_document(tiny.TEXTS)
    )


def test_weights_of_query_terms_come_with_the_pair_and_leave_its_fingerprint(pair_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(pair_folder, tmp_path / "copy"))
    before = CareModel.load(folder)
    assert before.query_terms("什么病") == bm25.query_vector("什么病")
    card = add_term_weights(folder, tiny.TERM_WEIGHTS, {"held_out": 10})
    assert card == verify_checkpoint(folder) and card.fingerprint == before.fingerprint
    found = CareModel.load(folder).query_terms("什么病")
    assert found.values == pytest.approx(tiny.TERM_WEIGHTS.query_vector("什么病").values, abs=1e-3)
    assert min(found.values) < 1
    other = Path(shutil.copytree(pair_folder, tmp_path / "other"))
    assert copy_term_weights(pair_folder, other) is None and copy_term_weights(pair_folder / "query", other) is None
    assert copy_term_weights(folder, other) == verify_checkpoint(other) == card


def test_other_weights_of_query_terms_are_refused(pair_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(pair_folder, tmp_path / "copy"))
    add_term_weights(folder, tiny.TERM_WEIGHTS, {})
    file = folder / TERM_WEIGHTS
    saved = file.read_bytes()
    file.write_bytes(saved[:-1] + b"\1")
    with pytest.raises(AlteredModel, match=TERM_WEIGHTS):
        CareModel.load(folder).query_terms("什么病")
    file.unlink()
    with pytest.raises(IncompleteModel, match=f"{TERM_WEIGHTS} is missing"):
        verify_checkpoint(folder)
