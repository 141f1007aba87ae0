"""The CARE folder: what it promises to stock sentence-transformers, and what it refuses."""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer

from care_qdrant.errors import AlteredModel, IncompleteModel, InputError, ModelError, NewerFormat
from care_qdrant.model.card import CARD_FILE, read_card
from care_qdrant.model.care_model import CareModel
from care_qdrant.model.folder import verify_checkpoint, write_checkpoint
from tests import tiny


def test_stock_sentence_transformers_loads_the_root_and_each_side(pair_folder: Path) -> None:
    root = SentenceTransformer(str(pair_folder), device="cpu")
    query = SentenceTransformer(str(pair_folder / "query"), device="cpu")
    document = SentenceTransformer(str(pair_folder / "document"), device="cpu")
    np.testing.assert_array_equal(root.encode_query(tiny.TEXTS), query.encode(tiny.TEXTS))
    np.testing.assert_array_equal(root.encode_document(tiny.TEXTS), document.encode(tiny.TEXTS))
    assert root.get_embedding_dimension() == query.get_embedding_dimension() == document.get_embedding_dimension()


@pytest.mark.parametrize("side", ["query", "document"])
def test_each_side_is_written_as_embeddings_servers_read_it(pair_folder: Path, side: str) -> None:
    """The files that text-embeddings-inference 1.9 and infinity 0.0.78 read, by their source and by trials."""

    def read(path: str) -> dict[str, Any]:
        return json.loads((pair_folder / side / path).read_text(encoding="utf-8"))

    kinds = [module["type"] for module in read("modules.json")]  # type: ignore[union-attr]
    assert kinds[:2] == ["sentence_transformers.models.Transformer", "sentence_transformers.models.Pooling"]
    pooling = read("1_Pooling/config.json")
    flags = [key for key, value in pooling.items() if key.startswith("pooling_mode_") and value]
    assert flags == [f"pooling_mode_{'cls_token' if side == 'query' else 'lasttoken'}"]
    assert "pooling_mode" not in pooling
    assert read("sentence_bert_config.json") == {
        "max_seq_length": 48 if side == "query" else 96,
        "do_lower_case": False,
    }
    if side == "document":
        assert read("config.json")["rope_theta"] == read("config.json")["rope_parameters"]["rope_theta"]


@pytest.mark.parametrize(
    ("file", "settings", "is_renamed"),
    [
        ("sentence_bert_config.json", {"do_lower_case": True}, True),
        ("sentence_bert_config.json", {"tokenizer_args": {"model_max_length": 7}}, False),
        ("Dense", {"use_residual": True, "activation_function": "torch.nn.modules.activation.Tanh"}, False),
    ],
)
def test_a_setting_that_changes_vectors_is_kept(
    tmp_path: Path, file: str, settings: dict[str, Any], is_renamed: bool
) -> None:
    """Each of them would be lost in the form that embeddings servers read, or has no place in it."""
    source = tiny.document_tower(tmp_path / "tower", dim=64)
    paths = [module["path"] for module in json.loads((source / "modules.json").read_text())]
    path = source / next((f"{each}/config.json" for each in paths if each.endswith(file)), file)
    plain = SentenceTransformer(str(source), device="cpu").encode_document(tiny.TEXTS)
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    expected = SentenceTransformer(str(source), device="cpu").encode_document(tiny.TEXTS)
    query = tiny.query_tower(tmp_path / "query", dim=64)
    write_checkpoint(tmp_path / "pair", name="pair", query=query, document=source)
    found = SentenceTransformer(str(tmp_path / "pair/document"), device="cpu").encode_document(tiny.TEXTS)
    assert not np.array_equal(expected, plain)
    np.testing.assert_array_equal(found, expected)
    own = CareModel.load(tmp_path / "pair", device="cpu").encode_document(tiny.TEXTS)
    np.testing.assert_allclose(own, expected, atol=1e-4)
    kinds = [module["type"] for module in json.loads((tmp_path / "pair/document/modules.json").read_text())]
    assert kinds[0].startswith("sentence_transformers.models.") is is_renamed


def test_the_root_refuses_to_guess_a_side(pair_folder: Path) -> None:
    # With a default route, LlamaIndex's HuggingFaceEmbedding embeds queries with the document encoder, silently.
    root = SentenceTransformer(str(pair_folder), device="cpu")
    with pytest.raises(ValueError, match="route"):
        root.encode(tiny.TEXTS)


def test_the_card_describes_both_sides(pair_folder: Path) -> None:
    card = verify_checkpoint(pair_folder)
    assert (card.name, card.dim) == ("tiny-pair", 32)
    assert (card.query.pooling, card.document.pooling) == ("cls", "lasttoken")
    assert (card.query.max_tokens, card.document.max_tokens) == (48, 96)
    assert card.document.eos == "<|im_end|>"


def test_one_changed_byte_of_a_weight_is_found(copy: Path) -> None:
    weights = copy / "document" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(AlteredModel, match=r"document/model\.safetensors is not the file that was saved"):
        verify_checkpoint(copy)


@pytest.mark.parametrize("missing", ["query/tokenizer.json", "document/model.safetensors", "router_config.json"])
def test_a_missing_file_is_named(copy: Path, missing: str) -> None:
    (copy / missing).unlink()
    with pytest.raises(IncompleteModel, match=missing.replace(".", r"\.")):
        verify_checkpoint(copy)


def test_an_added_file_is_found(copy: Path) -> None:
    (copy / "document" / "added_tokens.json").write_text("{}")
    with pytest.raises(AlteredModel, match=r"added_tokens\.json was added"):
        verify_checkpoint(copy)


@pytest.mark.parametrize(
    ("edit", "error", "message"),
    [
        (lambda card: card.update(format=99), NewerFormat, "format 99"),
        (lambda card: card["query"].update(prompt="问题："), AlteredModel, "fingerprint"),
        (lambda card: card.pop("dim"), IncompleteModel, "dim"),
    ],
)
def test_a_card_that_was_edited_is_refused(
    copy: Path, edit: Callable[[dict[str, Any]], object], error: type[ModelError], message: str
) -> None:
    card = json.loads((copy / CARD_FILE).read_text())
    edit(card)
    (copy / CARD_FILE).write_text(json.dumps(card))
    with pytest.raises(error, match=message):
        read_card(copy)


@pytest.mark.parametrize("value", [None, [], {}, "x", 1, True, [1], {"x": 1}])
def test_a_card_with_a_value_of_another_type_is_read_or_refused(copy: Path, value: object) -> None:
    """At every place, the whole included: a card, or an error of this package."""
    whole = json.loads((copy / CARD_FILE).read_text())
    for changed in (value, *_with(value, whole)):
        (copy / CARD_FILE).write_text(json.dumps(changed))
        with suppress(ModelError):
            read_card(copy)


def _with(value: object, whole: Any) -> Iterator[Any]:
    """Yield what JSON holds with a value in place of each other part of it."""
    places = whole if isinstance(whole, dict) else range(len(whole)) if isinstance(whole, list) else ()
    for place in places:
        for part in (value, *_with(value, whole[place])):
            changed = whole.copy()
            changed[place] = part
            yield changed


@given(side=st.sampled_from(["query", "document"]), place=st.integers(0, 10**6), seed=st.integers(0, 10**6))
@settings(max_examples=100)
def test_a_damaged_side_is_refused_and_nothing_is_left(
    pair_folder: Path, tmp_path_factory: pytest.TempPathFactory, side: str, place: int, seed: int
) -> None:
    """Any file of it missing, cut off, or with a part of its JSON replaced; a folder that is written is whole."""
    root = tmp_path_factory.mktemp("damaged")
    source = Path(shutil.copytree(pair_folder / side, root / "source"))
    files = sorted(path for path in source.rglob("*") if path.is_file())
    file = files[place % len(files)]
    if file.suffix == ".json" and seed % 4:
        changed = tiny.broken(json.loads(file.read_text(encoding="utf-8")), random.Random(seed))
        file.write_text(json.dumps(changed), encoding="utf-8")
    elif seed % 2:
        file.write_bytes(file.read_bytes()[: seed % file.stat().st_size])
    else:
        file.unlink()
    sides = {"query": pair_folder / "query", "document": pair_folder / "document", side: source}
    try:
        write_checkpoint(root / "pair", name="pair", **sides)
    except ModelError:
        assert sorted(path.name for path in root.iterdir()) == ["source"]
    else:
        verify_checkpoint(root / "pair")
    shutil.rmtree(root)


def test_sides_of_different_dimension_are_refused(tmp_path: Path) -> None:
    query = tiny.query_tower(tmp_path / "q", dim=32)
    document = tiny.document_tower(tmp_path / "d", dim=48)
    with pytest.raises(ModelError, match="query encoder gives 32 dimensions and the document encoder 48"):
        write_checkpoint(tmp_path / "pair", name="odd", query=query, document=document)
    assert not (tmp_path / "pair").exists()
    assert not list(tmp_path.glob(".*.partial"))


def test_a_tokenizer_without_end_marker_is_refused(tmp_path: Path) -> None:
    # Base Qwen3 tokenizers append nothing, and add_eos_token is ignored by transformers 5.
    query = tiny.query_tower(tmp_path / "q")
    document = tiny.document_tower(tmp_path / "d", eos=False)
    with pytest.raises(ModelError, match="appends no end marker"):
        write_checkpoint(tmp_path / "pair", name="no-eos", query=query, document=document)


def test_a_folder_with_other_things_is_not_overwritten(pair_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="exists and is not a CARE folder"):
        write_checkpoint(tmp_path, name="x", query=pair_folder / "query", document=pair_folder / "document")
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


@given(
    place=st.integers(0, 2),
    out=st.sampled_from(["{victim}", "../../victim", "../{pair}/../../victim", "1_Pooling/../../../victim"]),
)
@settings(max_examples=12)
def test_a_module_outside_its_model_is_refused_and_stays_as_it_is(
    pair_folder: Path, tmp_path_factory: pytest.TempPathFactory, place: int, out: str
) -> None:
    """A model of strangers could name any folder of the user, which joining would move into the copy or rewrite."""
    root = tmp_path_factory.mktemp("outside")
    query = shutil.copytree(pair_folder / "query", root / "query")
    modules = json.loads((query / "modules.json").read_text(encoding="utf-8"))
    victim = shutil.copytree(query / modules[place]["path"], root / "pairs" / "victim", dirs_exist_ok=True)
    (victim / "thesis.tex").write_text("years of work")
    before = {file: file.read_bytes() for file in victim.rglob("*") if file.is_file()}
    modules[place]["path"] = out.format(victim=victim, pair=".pair")
    (query / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    with pytest.raises(AlteredModel, match="outside"):
        write_checkpoint(root / "pairs" / "pair", name="x", query=query, document=pair_folder / "document")
    assert before == {file: file.read_bytes() for file in victim.rglob("*") if file.is_file()}


def test_a_model_without_the_file_of_its_tokenizer_is_refused(pair_folder: Path, tmp_path: Path) -> None:
    """transformers reads ``vocab.txt`` alone; chunks are counted by ``tokenizer.json``."""
    document = shutil.copytree(pair_folder / "query", tmp_path / "document")
    vocabulary = json.loads((document / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    (document / "tokenizer.json").unlink()
    (document / "vocab.txt").write_text("\n".join(sorted(vocabulary, key=vocabulary.get)), encoding="utf-8")
    with pytest.raises(IncompleteModel, match="save the model again, with a fast tokenizer"):
        write_checkpoint(tmp_path / "pair", name="x", query=pair_folder / "query", document=document)


def test_a_link_to_a_folder_stays_where_that_is_replaced(pair_folder: Path, tmp_path: Path) -> None:
    sides = {"query": pair_folder / "query", "document": pair_folder / "document"}
    (tmp_path / "current").symlink_to(tmp_path / "real")
    (tmp_path / "real").mkdir()
    for name in ("first", "second", "third"):
        write_checkpoint(tmp_path / "current", name=name, **sides)
    assert (tmp_path / "current").is_symlink() and read_card(tmp_path / "real").name == "third"
    assert {path.name for path in tmp_path.iterdir()} == {"current", "real"}


def test_the_fingerprint_is_of_the_weights_and_not_of_the_name(pair_folder: Path, tmp_path: Path) -> None:
    sides = {"query": pair_folder / "query", "document": pair_folder / "document"}
    same = write_checkpoint(tmp_path / "renamed", name="another-name", **sides)
    other = tiny.care_folder(tmp_path / "other", seed=7)
    assert same.fingerprint == read_card(pair_folder).fingerprint
    assert read_card(other).fingerprint != same.fingerprint
