"""The fingerprint covers all that is loaded: stray files, foreign ONNX files, changes while it loads."""

import json
import os
import random
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from care_qdrant.errors import AlteredModel, IncompleteModel, ModelError
from care_qdrant.model.card import CARD_FILE, read_card, sha256, verified
from care_qdrant.model.care_model import CareModel
from care_qdrant.model.folder import write_checkpoint
from care_qdrant.model.hub import BUILT_IN, find_folder
from tests import tiny


@pytest.mark.parametrize("side", ["query", "document"])
@pytest.mark.parametrize("name", ["adapter_config.json", "pytorch_model.bin", "modeling_extra.py", "onnx/weights.data"])
def test_a_stray_file_is_refused_when_its_side_is_loaded(copy: Path, side: str, name: str) -> None:
    """transformers loads an adapter that lies in the folder by itself: other vectors under the same fingerprint."""
    stray = copy / side / name
    stray.parent.mkdir(exist_ok=True)
    stray.write_text("{}")
    model = CareModel.load(copy)
    with pytest.raises(AlteredModel, match=f"{side}/{name} was added after the model was saved"):
        _ = model.query_encoder if side == "query" else model.document_encoder
    other = model.document_encoder if side == "query" else model.query_encoder
    assert other.dim == model.dim


@pytest.mark.parametrize("name", [".gitattributes", "README.md", ".cache/lock"])
def test_hidden_files_and_texts_for_people_are_no_part_of_a_model(copy: Path, name: str) -> None:
    (copy / "query" / name).parent.mkdir(exist_ok=True)
    (copy / "query" / name).write_text("x")
    assert CareModel.load(copy).encode_query(["高血压"]).shape == (1, 32)


def test_the_onnx_files_of_another_model_are_refused_with_their_own_hashes(copy: Path, tmp_path: Path) -> None:
    other = tiny.care_folder(tmp_path / "other", seed=11, onnx=True)
    shutil.copytree(other / "query" / "onnx", copy / "query" / "onnx", dirs_exist_ok=True)
    card, foreign = (json.loads((folder / CARD_FILE).read_text()) for folder in (copy, other))
    files = {path: entry for path, entry in foreign["files"].items() if path.startswith("query/onnx/")}
    card["files"] |= files
    (copy / CARD_FILE).write_text(json.dumps(card))
    for precision in ("int8", "fp32"):
        with pytest.raises(AlteredModel, match="other vectors than the model's weights"):
            _ = CareModel.load(copy, precision=precision).query_encoder  # type: ignore[arg-type]  # of the parameters
    # Nor do the other model's reference vectors help.
    card["onnx"] = foreign["onnx"]
    (copy / CARD_FILE).write_text(json.dumps(card))
    with pytest.raises(AlteredModel, match="do not belong to fingerprint"):
        CareModel.load(copy)


@given(seed=st.integers(0, 10**6), part=st.sampled_from(["onnx", "gate", "alpha"]))
@example(seed=0, part="alpha")
@settings(max_examples=60)
def test_what_the_fingerprint_does_not_cover_is_checked_when_a_model_is_opened(
    pair_folder: Path, seed: int, part: str
) -> None:
    """Paths, bounds and shares of a card may change without another fingerprint."""
    file, at_random = pair_folder / CARD_FILE, random.Random(seed)
    whole = file.read_text(encoding="utf-8")
    card = json.loads(whole)
    if part == "alpha":
        card["alpha"] = at_random.choice([2.0, -0.1, float("nan"), "x"])
    elif part == "gate":
        card["onnx"]["gate"] = {"min_cosine": tiny.broken(1.0, at_random)}
    else:
        references = card["onnx"].pop("references")
        card["onnx"] = tiny.broken({**card["onnx"], "fp32": "../x.onnx"}, at_random)
        if isinstance(card["onnx"], dict):
            card["onnx"]["references"] = references
    try:
        file.write_text(json.dumps(card), encoding="utf-8")
        with suppress(ModelError):
            for precision in ("int8", "fp32"):
                model = CareModel.load(pair_folder, precision=precision)  # type: ignore[arg-type]  # a plain text
                assert model.alpha is None or 0 <= model.alpha <= 1
                assert model.encode_query(["高血压"]).shape == (1, 32)
    finally:
        file.write_text(whole, encoding="utf-8")


def test_a_file_that_cannot_be_read_is_named(copy: Path) -> None:
    link = copy / "query" / "onnx" / "model_int8.onnx"
    link.unlink()
    link.symlink_to(link)
    with pytest.raises(IncompleteModel, match=r"query/onnx/model_int8\.onnx is missing"):
        CareModel.load(copy, precision="int8").encode_query(["高血压"])


def test_external_weights_of_an_onnx_file_are_hashed(copy: Path) -> None:
    onnx = pytest.importorskip("onnx")
    graph = onnx.load(copy / "query" / "onnx" / "model.onnx")
    onnx.save(graph, copy / "query" / "onnx" / "model.onnx", save_as_external_data=True, location="model.data")
    card = json.loads((copy / CARD_FILE).read_text())
    for name in ("model.onnx", "model.data"):
        file = copy / "query" / "onnx" / name
        card["files"][f"query/onnx/{name}"] = {"sha256": sha256(file), "bytes": file.stat().st_size}
    (copy / CARD_FILE).write_text(json.dumps(card))
    assert CareModel.load(copy, precision="fp32").encode_query(["高血压"]).shape == (1, 32)
    data = bytearray((copy / "query" / "onnx" / "model.data").read_bytes())
    data[-1] ^= 1
    (copy / "query" / "onnx" / "model.data").write_bytes(data)
    with pytest.raises(AlteredModel, match=r"model\.data is not the file that was saved"):
        _ = CareModel.load(copy, precision="fp32").query_encoder


def test_a_plain_model_that_is_updated_between_opening_and_use_is_refused(pair_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(pair_folder / "document", tmp_path / "model"))
    model = CareModel.load(folder)
    shutil.copytree(tiny.document_tower(tmp_path / "newer", seed=5), folder, dirs_exist_ok=True)
    with pytest.raises(AlteredModel, match="changed since it was opened"):
        model.encode_document(["高血压"])


def test_a_file_that_is_replaced_while_it_is_loaded_is_noticed(copy: Path) -> None:
    card, weights = read_card(copy), copy / "query" / "model.safetensors"
    with (
        pytest.raises(AlteredModel, match=r"model\.safetensors changed while it was loaded"),
        verified(copy, card, "query", ["query/model.safetensors"]),
    ):
        content, times = weights.read_bytes(), weights.stat()
        weights.write_bytes(content[::-1])
        weights.write_bytes(content)
        os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_a_folder_of_format_1_is_read(copy: Path) -> None:
    card = asdict(read_card(copy))
    for key in ("document_onnx", "references_sha256"):
        del card[key]
    del card["onnx"]["references"]
    (copy / CARD_FILE).write_text(json.dumps({**card, "format": 1}))
    assert CareModel.load(copy).encode_query(["高血压"]).shape == (1, 32)


@pytest.mark.parametrize("killed_at", [1, 2])
def test_a_writer_that_is_killed_loses_no_model(pair_folder: Path, tmp_path: Path, killed_at: int) -> None:
    """Each of the two renames is a moment at which the process may end."""
    folder = Path(shutil.copytree(pair_folder, tmp_path / "model"))
    fingerprint = read_card(folder).fingerprint
    script = f"""
import os, pathlib
from care_qdrant.model.folder import write_checkpoint
rename, calls = pathlib.Path.rename, []
def rename_or_die(self, target):
    calls.append(self)
    if len(calls) == {killed_at}:
        os._exit(9)
    return rename(self, target)
pathlib.Path.rename = rename_or_die
source = pathlib.Path({str(pair_folder)!r})
write_checkpoint(pathlib.Path({str(folder)!r}), name="new", query=source / "query", document=source / "document")
"""
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=60).returncode == 9
    if not folder.exists():
        with pytest.raises(ModelError, match=r"the whole former model is .*\.model\.replaced"):
            CareModel.load(folder)
    write_checkpoint(folder, name="new", query=pair_folder / "query", document=pair_folder / "document")
    assert read_card(folder).name == "new"
    assert read_card(folder).fingerprint == fingerprint
    assert not list(tmp_path.glob(".model.replaced"))


def test_the_built_in_pair_encodes_documents_without_torch_and_nearly_as_with_it() -> None:
    script = (
        "import sys; from care_qdrant import CareModel; "
        "assert CareModel.load().encode_document(['高血压']).shape == (1, 384); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
    texts = [*tiny.medical_texts(20), "长文档。" * 200]
    found, expected = (CareModel.load(device=device).encode_document(texts) for device in (None, "cpu"))
    assert (found * expected).sum(axis=1).min() > 0.98  # onnxruntime rounds activations to 8 bits, too


def test_the_built_in_pair_is_bound_to_its_fingerprint() -> None:
    card = read_card(find_folder(BUILT_IN))
    assert card.onnx is not None and card.onnx.references
    assert card.document_onnx is not None and card.document_onnx.references
    assert card.references_sha256
