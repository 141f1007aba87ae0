"""Broken and odd checkpoints: their vectors are right, or they are refused with the reason; none is silently wrong."""

import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from care_trainer.models import towers
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModel

from care_qdrant.cli import model as model_cli
from care_qdrant.encoders.local.torch import load_sentence_transformer
from care_qdrant.encoders.local.weights import check_model
from care_qdrant.encoders.references import keep_check_vectors
from care_qdrant.errors import AlteredModel, IncompleteModel, InputError, ModelError
from care_qdrant.model.adopt.importing import join_encoders
from care_qdrant.model.adopt.published import plain_vectors, write_document_side, write_query_side
from care_qdrant.model.care_model import CareModel
from tests.trainer import bases

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft asks
TEXTS = ["高血压吃什么好？", "孩子发烧三天", "EGFR 突变"]
SIDES = ("query_encoder", "doc_encoder")


def written_vectors(source: Path, side: str, folder: Path) -> np.ndarray:
    if side == "query_encoder":
        write_query_side(source, folder)
    else:
        write_document_side(source, folder, 768)
    return np.asarray(
        SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": torch.float32}).encode(TEXTS)
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which both sides lie as sentence-transformers saves them, after `right`."""
    return tmp_path_factory.mktemp("whole")


@pytest.fixture(scope="module")
def right(published: Path, whole: Path) -> dict[str, np.ndarray]:
    return {side: written_vectors(published / side, side, whole / side) for side in SIDES}


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    """Save the tensors of each file anew, the index with them."""
    weights = {}
    for file in folder.glob("*.safetensors"):
        tensors = change(load_file(file))
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file, metadata={"format": "pt"})
        weights |= dict.fromkeys(tensors, file.name)
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        index.write_text(json.dumps(json.loads(index.read_text()) | {"weight_map": weights}))


def prefixed(prefix: str) -> Callable[[Path], None]:
    return lambda folder: rewrite(folder, lambda tensors: {prefix + name: value for name, value in tensors.items()})


def without(part: str) -> Callable[[Path], None]:
    return lambda folder: rewrite(folder, lambda tensors: {n: v for n, v in tensors.items() if part not in n})


def first(folder: Path) -> Path:
    return min(folder.glob("*.safetensors"))


def cut_off(folder: Path) -> None:
    file = max(folder.glob("*.safetensors"), key=lambda file: file.stat().st_size)
    file.write_bytes(file.read_bytes()[:-100])


def no_header(folder: Path) -> None:
    first(folder).write_bytes(b"<!DOCTYPE html><p>Not found</p>")


def narrower(folder: Path) -> None:
    rewrite(folder, lambda tensors: {n: v[:-1] if "layer" in n and v.ndim == 2 else v for n, v in tensors.items()})


def twice(folder: Path) -> None:
    """Save one tensor again in a file of its own, which the index names as well."""
    files = sorted(folder.glob("model*.safetensors"))
    weights = {name: file.name for file in files for name in load_file(file)}
    tensors = load_file(files[0])
    name = min(tensors)
    if len(files) == 1:
        files[0].rename(folder / "model-1.safetensors")
        weights = dict.fromkeys(weights, "model-1.safetensors")
    save_file({name: tensors[name].clone()}, folder / "more.safetensors", metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": weights | {"again": "more.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def integers(folder: Path) -> None:
    rewrite(folder, lambda tensors: {n: v.to(torch.int8) if v.ndim == 2 else v for n, v in tensors.items()})


def more_layers(folder: Path) -> None:
    """Write the first layers of a model with its old config, or a config of a smaller one."""

    def change(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return tensors | {n.replace(".0.", ".1.", 1): v.clone() for n, v in tensors.items() if ".0." in n}

    rewrite(folder, change)


def fewer_layers(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["num_hidden_layers"] += 1
    config.pop("layer_types", None)
    (folder / "config.json").write_text(json.dumps(config))


def missing_file(folder: Path) -> None:
    first(folder).unlink()


BROKEN = {
    "a layer's tensor is missing": (without("layer.0.mlp"), without("layers.0.mlp"), "lacks"),
    "the last norm is missing": (without("attn_ln"), without("model.norm"), "lacks"),
    "the table of tokens is missing": (without("word_embeddings"), without("embed_tokens"), "lacks"),
    "a file is cut off": (cut_off, cut_off, "cut off"),
    "a file is a page": (no_header, no_header, "cut off"),
    "a tensor is narrower": (narrower, narrower, "has the shape"),
    "a tensor is there twice": (twice, twice, "a second time"),
    "weights are integers": (integers, integers, "stored as I8"),
    "more layers than the config": (more_layers, more_layers, "does not read"),
    "fewer layers than the config": (fewer_layers, fewer_layers, "lacks"),
    "a file is missing": (missing_file, missing_file, "is missing"),
    "another prefix": (prefixed("student."), prefixed("student."), "lacks|does not read"),
    "the names of a wrapper": (prefixed("module._orig_mod."), prefixed("module."), "outside of any wrapper"),
}


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("kind", BROKEN)
def test_broken_weights_are_refused_by_name(published: Path, side: str, kind: str, tmp_path: Path) -> None:
    source = shutil.copytree(published / side, tmp_path / "source")
    query, document, reason = BROKEN[kind]
    (query if side == "query_encoder" else document)(source)
    with pytest.raises(ModelError, match=reason):
        written_vectors(source, side, tmp_path / "written")


def adapter(published: Path, folder: Path, **settings: object) -> Path:
    """A LoRA adapter of the document encoder with weights that change it, as peft saves it."""
    base = published / "doc_encoder"
    torch.manual_seed(0)
    options = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], **settings}
    model = get_peft_model(AutoModel.from_pretrained(base, dtype=torch.float32), LoraConfig(**options))  # type: ignore[arg-type]
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    model.save_pretrained(str(folder))
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        shutil.copyfile(base / name, folder / name)
    return folder


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("pissa", "init_lora_weights = 'pissa'"),
        ("olora", "init_lora_weights = 'olora'"),
        ("layers", "lacks"),
        ("cut", "cut off"),
        ("no base", "is not on this machine"),
        ("another base", "needs|does not have"),
        ("both", "an adapter and whole weights"),
    ],
)
def test_adapters_that_would_be_wrong_are_refused(published: Path, damage: str, reason: str, tmp_path: Path) -> None:
    source = adapter(published, tmp_path / "source")
    config, weights = source / "adapter_config.json", source / "adapter_model.safetensors"
    settings = json.loads(config.read_text())
    if damage in ("pissa", "olora"):
        settings["init_lora_weights"] = damage
    elif damage == "layers":
        save_file({n: v for n, v in load_file(weights).items() if "layers.0." not in n}, weights)
    elif damage == "cut":
        weights.write_bytes(weights.read_bytes()[:-64])
    elif damage == "no base":
        settings["base_model_name_or_path"] = str(tmp_path / "elsewhere")
    elif damage == "another base":
        bases.qwen3_base(tmp_path / "other", hidden=512)
        settings["base_model_name_or_path"] = str(tmp_path / "other")
    else:
        shutil.copyfile(first(published / "doc_encoder"), source / "model.safetensors")
    config.write_text(json.dumps(settings))
    with pytest.raises(ModelError, match=reason):
        written_vectors(source, "doc_encoder", tmp_path / "written")


def test_an_adapter_over_another_base_of_the_same_shape_is_refused_or_said(
    published: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sources = [adapter(published, tmp_path / name) for name in ("checked", "unchecked")]
    written_vectors(sources[0], "doc_encoder", tmp_path / "own")
    keep_check_vectors(
        partial(plain_vectors, SentenceTransformer(str(tmp_path / "own"), device="cpu").float()), sources[0]
    )
    caplog.clear()
    written_vectors(sources[0], "doc_encoder", tmp_path / "again")
    assert "not checked" not in caplog.text
    other = Path(shutil.copytree(published / "doc_encoder", tmp_path / "other"))
    rewrite(other, lambda tensors: {name: value.flip(0) for name, value in tensors.items()})
    for config in (source / "adapter_config.json" for source in sources):
        config.write_text(json.dumps(json.loads(config.read_text()) | {"base_model_name_or_path": str(other)}))
    with pytest.raises(AlteredModel, match="another model of the same shape"):
        written_vectors(sources[0], "doc_encoder", tmp_path / "refused")
    assert "not checked" not in caplog.text
    written_vectors(sources[1], "doc_encoder", tmp_path / "written")
    assert "cannot be told from it" in caplog.text


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("use_dora", True),
        ("bias", "all"),
        ("rank_pattern", {"q_proj": 8}),
        ("use_qalora", True),
        ("lora_bias", True),
        ("alora_invocation_tokens", [1, 2]),
        ("kasa_config", {"beta": 1e-4}),
        ("target_parameters", ["mlp.experts.down_proj"]),
        ("a_setting_to_come", 1),
    ],
)
def test_settings_that_a_sum_does_not_honour_are_refused(
    published: Path, setting: str, value: object, tmp_path: Path
) -> None:
    source = adapter(published, tmp_path / "source")
    config = source / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {setting: value}))
    with pytest.raises(ModelError, match=f"not a plain LoRA adapter .*{setting}"):
        written_vectors(source, "doc_encoder", tmp_path / "written")


@pytest.mark.parametrize("side", ["query", "document"])
def test_a_pair_is_not_joined_of_a_side_with_a_hole(pair_folder: Path, side: str, tmp_path: Path) -> None:
    sides = {name: shutil.copytree(pair_folder / name, tmp_path / name) for name in ("query", "document")}
    without("layer.0." if side == "query" else "layers.0.")(sides[side])
    with pytest.raises(IncompleteModel, match="lacks"):
        join_encoders(sides["query"], sides["document"], tmp_path / "pair", name="pair")
    with pytest.raises(IncompleteModel, match="lacks"):
        load_sentence_transformer(sides[side])


def test_pickled_weights_are_read_right(published: Path, right: dict[str, np.ndarray], tmp_path: Path) -> None:
    source = shutil.copytree(published / "query_encoder", tmp_path / "source")
    file = first(source)
    torch.save(load_file(file), source / "pytorch_model.bin")
    file.unlink()
    found = written_vectors(source, "query_encoder", tmp_path / "written")
    np.testing.assert_allclose(found, right["query_encoder"], atol=1e-5)


def old_layout(source: Path, folder: Path) -> Path:
    """A saved encoder as sentence-transformers wrote it before: the transformer in a folder of its own."""
    modules = json.loads((source / "modules.json").read_text())
    inner = folder / "0_Transformer"
    inner.mkdir(parents=True)
    own = {entry["path"] for entry in modules if entry["path"]}
    for path in source.iterdir():
        if path.name in own:
            shutil.copytree(path, folder / path.name)
        elif path.is_file() and path.name not in ("modules.json", "config_sentence_transformers.json"):
            shutil.copyfile(path, inner / path.name)
    shutil.copyfile(source / "config_sentence_transformers.json", folder / "config_sentence_transformers.json")
    modules[0]["path"] = inner.name
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


@pytest.mark.parametrize("layout", ["flat", "0_Transformer"])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("kind", BROKEN)
def test_broken_weights_are_refused_in_both_layouts_of_sentence_transformers(
    right: dict[str, np.ndarray], whole: Path, layout: str, side: str, kind: str, tmp_path: Path
) -> None:
    flat = shutil.copytree(whole / side, tmp_path / side)
    folder = flat if layout == "flat" else old_layout(flat, tmp_path / "old")
    query, document, reason = BROKEN[kind]
    (query if side == "query_encoder" else document)(folder if layout == "flat" else folder / layout)
    for load in (towers.load, load_sentence_transformer):
        with pytest.raises(ModelError, match=reason):
            load(folder)


@pytest.mark.parametrize("side", ["query", "document"])
def test_the_old_layout_is_checked_and_read(pair_folder: Path, side: str, tmp_path: Path) -> None:
    expected = SentenceTransformer(str(pair_folder / side), device="cpu").encode(TEXTS)
    folder = old_layout(pair_folder / side, tmp_path / "plain")
    for load in (towers.load, load_sentence_transformer):
        np.testing.assert_allclose(load(folder).cpu().encode(TEXTS), expected, atol=1e-5)
    without("layer.0." if side == "query" else "layers.0.")(tmp_path / "plain/0_Transformer")
    for load in (towers.load, load_sentence_transformer):
        with pytest.raises(IncompleteModel, match="0_Transformer: lacks"):
            load(tmp_path / "plain")


def test_a_module_behind_the_transformer_that_is_cut_off_is_refused(published: Path, tmp_path: Path) -> None:
    written_vectors(published / "doc_encoder", "doc_encoder", tmp_path / "document")
    [dense] = (tmp_path / "document").glob("*_Dense/model.safetensors")
    dense.write_bytes(dense.read_bytes()[:-64])
    for load in (towers.load, load_sentence_transformer):
        with pytest.raises(IncompleteModel, match="cut off"):
            load(tmp_path / "document")


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04cut off"])
def test_a_module_of_pickled_weights_that_is_damaged_is_refused(
    pair_folder: Path, content: bytes, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(pair_folder / "document", tmp_path / "document"))
    [dense] = folder.glob("*_Dense/model.safetensors")
    dense.unlink()
    dense.with_name("pytorch_model.bin").write_bytes(content)
    with pytest.raises(IncompleteModel, match=r"Dense/pytorch_model.bin: is cut off"):
        CareModel.load(folder, device="cpu").encode_document(TEXTS)
    with pytest.raises(IncompleteModel, match=r"Dense/pytorch_model.bin: is cut off"):
        join_encoders(pair_folder / "query", folder, tmp_path / "pair", name="pair")
    assert not (tmp_path / "pair").exists()


@given(
    dtype=st.sampled_from([torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int32]),
    value=st.sampled_from([float("nan"), -float("nan"), float("inf"), -float("inf"), 65504.0, -1e-7, 0.0]),
    place=st.integers(0, 9),
)
def test_weights_that_are_not_numbers_are_found_wherever_they_lie(
    tmp_path_factory: pytest.TempPathFactory, dtype: torch.dtype, value: float, place: int
) -> None:
    folder = tmp_path_factory.mktemp("numbers")
    weights = torch.ones(2, 5).to(dtype)
    if dtype.is_floating_point:
        weights.view(-1)[place] = value
    save_file({"first": torch.ones(3), "weights": weights, "none": torch.ones(0)}, folder / "model.safetensors")
    with pytest.raises(ModelError, match="'weights' holds") if weights.isnan().any() else nullcontext():
        check_model(folder)


@pytest.mark.parametrize("side", ["query", "document"])
def test_a_side_whose_weights_are_not_numbers_is_neither_joined_nor_loaded(
    pair_folder: Path, side: str, tmp_path: Path
) -> None:
    sides = {name: Path(shutil.copytree(pair_folder / name, tmp_path / name)) for name in ("query", "document")}
    rewrite(sides[side], lambda tensors: {name: tensor.fill_(torch.nan) for name, tensor in tensors.items()})
    with pytest.raises(ModelError, match="not numbers"):
        join_encoders(sides["query"], sides["document"], tmp_path / "pair", name="pair")
    assert not (tmp_path / "pair").exists()
    with pytest.raises(ModelError, match="not numbers"):
        CareModel.load(sides[side], device="cpu").encode_query(TEXTS)


def test_the_command_refuses_and_leaves_nothing(published: Path, tmp_path: Path) -> None:
    source = shutil.copytree(published, tmp_path / "source")
    without("layers.0.mlp")(source / "doc_encoder")
    done = CliRunner().invoke(model_cli.command, ["import", str(source), str(tmp_path / "pair")])
    assert isinstance(done.exception, ModelError) and "lacks" in str(done.exception)
    assert not (tmp_path / "pair").exists()


def test_a_folder_has_no_revision(published: Path, tmp_path: Path) -> None:
    arguments = ["import", str(published), str(tmp_path / "pair"), "--revision", "main"]
    done = CliRunner().invoke(model_cli.command, arguments)
    assert isinstance(done.exception, InputError) and "leave out --revision" in str(done.exception)


def test_a_folder_is_not_loaded_by_a_revision(pair_folder: Path) -> None:
    for source in (pair_folder, "built-in"):
        with pytest.raises(InputError, match="leave out --revision"):
            CareModel.load(source, revision="v1")


def test_a_stage_that_was_not_evaluated_is_shown(pair_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(pair_folder, tmp_path / "pair")
    card = json.loads((folder / "care.json").read_text(encoding="utf-8"))
    card["stages"] = [{"stage": "retromae", "evaluation": None}]
    (folder / "care.json").write_text(json.dumps(card), encoding="utf-8")
    done = CliRunner().invoke(model_cli.command, ["info", str(folder)], catch_exceptions=False)
    assert "retromae" in done.output
