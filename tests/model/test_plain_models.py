"""Folders of sentence-transformers in place of a CARE folder: its vectors for both roles, or a refusal."""

import json
import random
import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from care_trainer.learn.token_table import TokenTable
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import CNN, Dense, LayerNorm, Pooling, Router
from transformers import AutoConfig, AutoModel, set_seed

from care_qdrant.encoders.local.torch import load_sentence_transformer
from care_qdrant.encoders.remote.old_model import open_old_model
from care_qdrant.errors import AlteredModel, EncodingError, IncompleteModel, ModelError
from care_qdrant.model.adopt.importing import write_sides
from care_qdrant.model.care_model import CareModel
from care_qdrant.model.folder import write_checkpoint
from tests import tiny

TEXTS = [*tiny.medical_texts(6), "Fever and COUGH", "短", "咳嗽 [SEP] 发烧"]
WIDTH = 32
POOLINGS = ("cls", "mean", "max", "lasttoken", "weightedmean", "mean_sqrt_len_tokens", ("mean", "max"), ("cls", "mean"))
PROMPTS: tuple[dict[str, str] | None, ...] = (
    None,
    {"query": "q: ", "document": "d: "},
    {"passage": "p: "},
    {"query": "q: ", "other": "o: "},
)
T5 = {"d_model": WIDTH, "d_ff": 64, "num_layers": 2, "num_heads": 4, "d_kv": 8}
BART = {"d_model": WIDTH} | {
    f"{half}_{name}": value
    for half in ("encoder", "decoder")
    for name, value in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 64))
}
LONGROPE = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 8,
        "short_factor": [1.0] * 4,
        "long_factor": [4.0] * 4,
    },
}
"""Other positions for all texts of a batch where the longest has more than 8 tokens."""
AFTER = st.lists(st.sampled_from(["dense", "narrow", "norm"]), max_size=2)
TAILS = {
    "unit": ["normalize"],
    "unit twice": ["normalize", "dense", "normalize"],
    "dense": ["normalize", "dense"],
    "cut": ["normalize", "slice"],
    "any length": [],
}
"""Last modules by what they make of a vector."""
ACCEPTED = {
    **dict.fromkeys([None, "cosine"], ("unit", "unit twice", "dense", "cut")),
    "dot": ("unit", "unit twice", "cut"),
    "euclidean": ("unit", "unit twice"),
    "manhattan": (),
}
"""Tails by the similarity with which they rank as the product does."""


@pytest.fixture(scope="module")
def towers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders whose first module is a small transformer with random weights."""
    root = tmp_path_factory.mktemp("plain")
    return {
        "bert": tiny.query_tower(root / "bert"),
        "qwen3": tiny.document_tower(root / "qwen3"),
        "fnet": transformer(root / "fnet", tpu_short_seq_length=64),  # mixes padding into every token
        "gpt2": transformer(root / "gpt2", padding_side="left", n_embd=WIDTH, n_layer=2, n_head=4),  # places move
        "t5": transformer(root / "t5", **T5),
        "longrope": transformer(root / "longrope" / "qwen3", **LONGROPE),
        "types": with_token_types(tiny.query_tower(root / "types")),
    }


def transformer(folder: Path, *, padding_side: str = "right", **settings: Any) -> Path:
    """Save a transformer of the kind that the folder names, with the tokenizer of the BERT."""
    tokenizer = tiny.bert_tokenizer()
    tokenizer.padding_side = padding_side
    common = {"hidden_size": WIDTH, "num_hidden_layers": 2, "intermediate_size": 64}
    set_seed(0)
    config = AutoConfig.for_model(folder.name, **(common if folder.name == "fnet" else {}), **settings)
    config.vocab_size, config.pad_token_id = len(tokenizer), 0
    model = AutoModel.from_config(config)
    for parameter in model.parameters():  # small random weights would hide what padding does
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    base = folder.with_name(folder.name + "-base")
    model.save_pretrained(base)
    tokenizer.save_pretrained(base)
    SentenceTransformer(modules=[Transformer(str(base)), Pooling(WIDTH), Normalize()], device="cpu").save_pretrained(
        str(folder), create_model_card=False
    )
    return folder


def with_token_types(folder: Path) -> Path:
    """Let a tokenizer give its first marker a type of its own, as those of XLNet and Funnel do."""
    file, of_tokenizer = folder / "tokenizer.json", folder / "tokenizer_config.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    content["post_processor"]["single"][0]["SpecialToken"]["type_id"] = 1
    file.write_text(json.dumps(content), encoding="utf-8")
    names = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
    of_tokenizer.write_text(json.dumps({**json.loads(of_tokenizer.read_text(encoding="utf-8")), **names}))
    return folder


def heads(names: Sequence[str], width: int) -> tuple[list[torch.nn.Module], int]:
    """Return modules that change a vector, and the dimension of the last one."""
    made: list[torch.nn.Module] = []
    for name in names:
        if name == "normalize":
            made.append(Normalize())
        elif name == "norm":
            made.append(LayerNorm(width))
        elif name == "slice":
            made.append(sliced := Dense(width, width // 2, bias=False, activation_function=torch.nn.Identity()))
            with torch.no_grad():
                sliced.linear.weight.copy_(torch.eye(width // 2, width))
            width //= 2
        else:
            made.append(Dense(width, width if name == "dense" else width // 2))
            width = made[-1].out_features  # type: ignore[assignment]
    return made, width


PLAIN: dict[str, Any] = {
    **dict.fromkeys(("between", "prompts", "default", "truncate", "similarity", "saved")),
    "pooling": "mean",
    "include_prompt": True,
    "after": [],
    "lower": False,
    "length": 32,
    "tail": "unit",
    "moved": False,
}
ASYM = "sentence_transformers.models.Asym"
OTHER_TOKENS: dict[str, Any] = {
    "processing_kwargs": {"text": {"add_special_tokens": False}},
    "query_length": 6,
    "document_length": 6,
    "split_special_tokens": True,
}
SAVED = (*OTHER_TOKENS, "limit of the tokenizer", "former name", "cut at the beginning")


def save_otherwise(folder: Path, how: str, *, lower: bool) -> None:
    """Change the settings of a saved model to what other versions, or their options, write."""
    reading, of_tokenizer = folder / "sentence_bert_config.json", folder / "tokenizer_config.json"
    files = {file: json.loads(file.read_text(encoding="utf-8")) for file in (reading, of_tokenizer)}
    if how == "former name":
        reading.unlink()
        files = {folder / "sentence_roberta_config.json": {"max_seq_length": 16, "do_lower_case": lower}}
    elif how == "limit of the tokenizer":
        files[reading]["tokenizer_args"] = {"model_max_length": 12}
    elif how == "cut at the beginning":
        files[of_tokenizer]["truncation_side"] = "left"
    else:
        files[of_tokenizer if how == "split_special_tokens" else reading][how] = OTHER_TOKENS[how]
    for file, content in files.items():
        file.write_text(json.dumps(content), encoding="utf-8")


def move_transformer(folder: Path) -> None:
    """Put the first module into a folder of its own, where sentence-transformers before version 2 had it."""
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    inner = folder / f"0_{modules[0]['type'].rsplit('.', 1)[-1]}"
    own = [file for file in folder.iterdir() if file.is_file() and file.name not in OF_THE_WHOLE]
    inner.mkdir()
    for file in own:
        file.rename(inner / file.name)
    modules[0]["path"] = inner.name
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")


OF_THE_WHOLE = ("modules.json", "config_sentence_transformers.json", "README.md")


@pytest.mark.parametrize("side", ["query", "document"])
@pytest.mark.parametrize("make", [tiny.query_tower, tiny.static_tower])
def test_a_care_folder_is_the_same_of_a_model_in_either_layout(
    tmp_path: Path, make: Callable[[Path], Path], side: str
) -> None:
    """Those of many public models have the transformer in ``0_Transformer`` and tables in ``0_StaticEmbedding``."""
    sides = {"query": tiny.query_tower(tmp_path / "q"), "document": tiny.query_tower(tmp_path / "d")}
    sides[side] = make(tmp_path / "at the root")
    moved = {**sides, side: shutil.copytree(sides[side], tmp_path / "in its own folder")}
    move_transformer(moved[side])
    files, counts = [], []
    for layout, given_sides in (("root", sides), ("own folder", moved)):
        card = write_checkpoint(tmp_path / layout, name="pair", **given_sides)
        files.append({path: entry for path, entry in card.files.items() if path != f"{side}/modules.json"})
        counts.append(CareModel.load(given_sides[side], device="cpu").document_tokenizer.count_tokens(TEXTS))
    assert files[0] == files[1] and counts[0] == counts[1]


@pytest.fixture(scope="module")
def routed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CARE folder whose query side is a table of token vectors."""
    root = tmp_path_factory.mktemp("routed")
    query = tiny.static_tower(root / "q")
    write_checkpoint(root / "pair", name="pair", query=query, document=tiny.document_tower(root / "d"))
    return root / "pair"


JSON_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=3)),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["query", "document", "passage"]), inner, max_size=2)
    ),
    max_leaves=4,
)


@given(
    base=st.sampled_from(["bert", "qwen3", "fnet", "gpt2", "t5", "longrope", "types"]),
    between=st.sampled_from([None, None, "cnn", "dense"]),
    pooling=st.sampled_from(POOLINGS),
    include_prompt=st.booleans(),
    after=AFTER,
    routed=st.sampled_from(["no", "no", "no", "after pooling", "by its former name", "whole"]),
    prompts=st.sampled_from(PROMPTS),
    default=st.sampled_from([None, "other"]),
    lower=st.booleans(),
    length=st.sampled_from([8, 32]),
    truncate=st.sampled_from([None, None, None, 8]),
    tail=st.sampled_from(["unit", "unit", *TAILS]),
    similarity=st.sampled_from([None, None, *ACCEPTED]),
    saved=st.sampled_from([None, None, None, *SAVED]),
    moved=st.booleans(),
)
@example(base="types", routed="no", **PLAIN)
@example(base="longrope", routed="no", **PLAIN)
@example(base="bert", routed="by its former name", **PLAIN)
@settings(max_examples=60)
def test_vectors_are_those_of_sentence_transformers_or_refused(
    towers: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
    base: str,
    between: str | None,
    pooling: str | tuple[str, str],
    include_prompt: bool,
    after: list[str],
    routed: str,
    prompts: dict[str, str] | None,
    default: str | None,
    lower: bool,
    length: int,
    truncate: int | None,
    tail: str,
    similarity: str | None,
    saved: str | None,
    moved: bool,
) -> None:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("random") / "model"
    first = Transformer(str(towers[base]), max_seq_length=length, do_lower_case=lower)
    width = int(first.get_embedding_dimension())
    own: dict[str | None, list[torch.nn.Module]] = {
        "cnn": [CNN(width, out_channels=width // 2, kernel_sizes=[1, 3])],
        "dense": [Dense(width, width, module_input_name="token_embeddings")],
    }
    of_tokens = own.get(between, [])
    pooled = Pooling(width, pooling, include_prompt=include_prompt)  # type: ignore[arg-type]
    width = int(pooled.get_embedding_dimension())
    last, dim = heads(after, width)
    ending, _ = heads(TAILS[tail], dim)
    modules: list[torch.nn.Module] = [first, *of_tokens, pooled, *last, *ending]
    if routed in ("after pooling", "by its former name"):
        routes = [[*last, Dense(dim, 8)] for _ in range(2)]
        modules = [first, *of_tokens, pooled, Router.for_query_document(*routes), *heads(TAILS[tail], 8)[0]]
    elif routed == "whole":
        modules = [Router.for_query_document([first, pooled, *ending], [first, pooled, *ending])]
    known = default if default in (prompts or {}) else None
    made = SentenceTransformer(
        modules=modules,
        device="cpu",
        prompts=prompts,
        default_prompt_name=known,
        truncate_dim=truncate,
        similarity_fn_name=similarity,
    )
    made.save_pretrained(str(folder), create_model_card=False)
    if routed == "by its former name":
        file = folder / "modules.json"
        former = file.read_text(encoding="utf-8").replace("sentence_transformers.base.modules.router.Router", ASYM)
        assert ASYM in former
        file.write_text(former, encoding="utf-8")
    if routed != "whole" and saved is not None:
        save_otherwise(folder, saved, lower=lower)
    if routed != "whole" and moved:
        move_transformer(folder)
    stock = SentenceTransformer(str(folder), device="cpu")
    try:
        model = CareModel.load(folder, device="cpu")
        assert model.query_encoder.dim == model.dim and model.document_tokenizer.max_tokens == stock.max_seq_length
    except ModelError as error:
        fits = tail in ACCEPTED[similarity]
        assert routed != "no" or truncate is not None or not fits or saved in OTHER_TOKENS, error
        return
    assert routed == "no" and truncate is None and tail in ACCEPTED[similarity]
    assert (model.geometry == "cut") == (tail == "cut" and similarity == "dot")
    vectors = []
    for own, theirs in ((model.encode_query, stock.encode_query), (model.encode_document, stock.encode_document)):
        expected = theirs(TEXTS, batch_size=1, normalize_embeddings=model.geometry == "unit")
        assert expected.shape == (len(TEXTS), model.dim)
        vectors.append(own(TEXTS))
        np.testing.assert_allclose(vectors[-1], expected, atol=1e-4)
    ranked = stock.similarity(stock.encode_query(TEXTS, batch_size=1), stock.encode_document(TEXTS, batch_size=1))
    scores = np.take_along_axis(vectors[0] @ vectors[1].T, (-ranked.numpy()).argsort(axis=1), axis=1)
    assert (np.diff(scores, axis=1) < 1e-3).all()
    shutil.rmtree(folder)


@given(
    behind=st.lists(st.sampled_from(["dense", "norm", "slice"]), max_size=2),
    names=st.sampled_from([("query", "document"), ("document", "query"), ("small", "large")]),
    wildcard=st.booleans(),
    normalised=st.booleans(),
    prompts=st.sampled_from(PROMPTS),
    truncate=st.sampled_from([None, None, None, 8]),
    similarity=st.sampled_from([None, "cosine", "dot"]),
)
@example(
    behind=["dense", "norm"],
    names=("query", "document"),
    wildcard=False,
    normalised=True,
    prompts=None,
    truncate=None,
    similarity=None,
)
@settings(max_examples=25)
def test_each_side_of_a_router_is_imported_with_the_vectors_of_sentence_transformers_or_refused(
    towers: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
    behind: list[str],
    names: tuple[str, str],
    wildcard: bool,
    normalised: bool,
    prompts: dict[str, str] | None,
    truncate: int | None,
    similarity: str | None,
) -> None:
    folder = tmp_path_factory.mktemp("router")
    routes = [[*SentenceTransformer(str(towers[name]), device="cpu").children()] for name in ("bert", "qwen3")]
    if not normalised:
        routes = [modules[:-1] for modules in routes]
    tail, _ = heads(behind, WIDTH)
    mapped = {
        (side, None if wildcard else "text"): name for side, name in zip(("query", "document"), names, strict=True)
    }
    router = Router(dict(zip(names, routes, strict=True)), route_mappings=mapped)
    made = SentenceTransformer(
        modules=[router, *tail], device="cpu", prompts=prompts, truncate_dim=truncate, similarity_fn_name=similarity
    )
    made.save_pretrained(str(folder / "router"), create_model_card=False)
    stock = SentenceTransformer(str(folder / "router"), device="cpu")
    sides = {side: folder / side for side in ("query", "document")}
    if truncate is not None:
        with pytest.raises(ModelError, match="truncate_dim=8"):
            write_sides(folder / "router", sides)
        return
    kept = ["normalize"] * normalised + behind
    if similarity == "dot" and kept[-2:] != ["normalize", "slice"] and kept[-1:] != ["normalize"]:
        with pytest.raises(ModelError, match="compares vectors of any length by dot"):
            write_sides(folder / "router", sides)
            CareModel.load(sides["query"], device="cpu")
        return
    write_sides(folder / "router", sides)
    for side, encode in (("query", stock.encode_query), ("document", stock.encode_document)):
        model = CareModel.load(sides[side], device="cpu")
        assert (model.geometry == "cut") == (similarity == "dot" and kept[-1] == "slice")
        own = model.encode_query if side == "query" else model.encode_document
        expected = encode(TEXTS, batch_size=1, normalize_embeddings=model.geometry == "unit")
        np.testing.assert_allclose(own(TEXTS), expected, atol=1e-4)
    shutil.rmtree(folder)


SETTINGS = (
    *("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json", "1_Pooling/config.json"),
    *("config.json", "tokenizer_config.json", "tokenizer.json"),
)


def test_a_tokenizer_without_a_limit_is_refused_where_the_model_has_none_either(
    towers: dict[str, Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(towers["t5"], tmp_path / "t5"))
    for name, unlimited in (
        ("sentence_bert_config.json", {"max_seq_length": None}),
        ("tokenizer_config.json", {"model_max_length": 10**30}),
    ):
        content = json.loads((folder / name).read_text(encoding="utf-8"))
        (folder / name).write_text(json.dumps({**content, **unlimited}), encoding="utf-8")
    with pytest.raises(ModelError, match="says nowhere how many tokens"):
        CareModel.load(folder, device="cpu")


@pytest.mark.parametrize("flags", [{}, {"pooling_mode_cls_token": False}, {"pooling_mode_max_tokens": True}])
def test_a_pooling_without_a_named_mode_is_the_mean_as_in_sentence_transformers(
    towers: dict[str, Path], tmp_path: Path, flags: dict[str, bool]
) -> None:
    folder = Path(shutil.copytree(towers["bert"], tmp_path / "bert"))
    settings = {"word_embedding_dimension": WIDTH, **flags}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    expected, model = SentenceTransformer(str(folder), device="cpu").encode(TEXTS), CareModel.load(folder, device="cpu")
    assert model.dim == WIDTH
    np.testing.assert_allclose(model.encode_query(TEXTS), expected, atol=1e-5)


def test_a_width_without_an_end_is_refused(towers: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(towers["bert"], tmp_path / "bert"))
    (folder / "1_Pooling" / "config.json").write_text('{"embedding_dimension": 1e400}', encoding="utf-8")
    with pytest.raises(ModelError, match="save the model again"):
        CareModel.load(folder, device="cpu")


@given(name=st.sampled_from(SETTINGS), seed=st.integers(0, 10**6))
@settings(max_examples=150)
def test_broken_settings_are_refused_before_a_model_is_used(towers: dict[str, Path], name: str, seed: int) -> None:
    folder = towers["bert"]
    file = folder / name
    whole = file.read_text(encoding="utf-8")
    try:
        file.write_text(json.dumps(tiny.broken(json.loads(whole), random.Random(seed))), encoding="utf-8")
        with suppress(ModelError, EncodingError):
            model = CareModel.load(folder, device="cpu")
            if seed % 3 == 0:
                model.encode_query(TEXTS)
    finally:
        file.write_text(whole, encoding="utf-8")


ENCODER_ALONE = ("t5", "m2m_100", "pegasus", "marian", "blenderbot", "blenderbot-small", "switch_transformers")
"""Pairs of an encoder and a decoder of which sentence-transformers loads the encoder alone."""


@pytest.mark.parametrize("kind", [*ENCODER_ALONE, "bart", "mbart"])
def test_pairs_of_an_encoder_and_a_decoder_have_the_vectors_of_sentence_transformers(kind: str, tmp_path: Path) -> None:
    settings = T5 if kind in ("t5", "switch_transformers") else {**BART, "eos_token_id": 3, "bos_token_id": 2}
    folder = transformer(tmp_path / kind, **settings)
    expected = SentenceTransformer(str(folder), device="cpu").encode(TEXTS, batch_size=1)
    np.testing.assert_allclose(CareModel.load(folder, device="cpu").encode_query(TEXTS), expected, atol=1e-5)


@pytest.mark.parametrize("role", ["encode_query", "encode_document"])
def test_an_old_model_gives_a_text_one_vector_whatever_it_is_encoded_with(towers: dict[str, Path], role: str) -> None:
    """FNet mixes padding into every token, so that a batch of sentence-transformers has other vectors."""
    encode = getattr(open_old_model(str(towers["fnet"])), role)
    alone = np.concatenate([encode([text]) for text in TEXTS])
    np.testing.assert_array_equal(encode(TEXTS), alone)
    stock = SentenceTransformer(str(towers["fnet"]), device="cpu")
    assert np.abs(stock.encode(TEXTS) - alone).max() > 0.01


def test_a_padding_token_beyond_the_table_is_refused_when_the_model_is_loaded(tmp_path: Path) -> None:
    """One text needs no padding, so it shows nothing."""
    folder = tiny.query_tower(tmp_path / "bert")
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text(encoding="utf-8")), "pad_token": "[NEW]"}))
    with pytest.raises(ModelError, match=r"cannot run it \(IndexError"):
        CareModel.load(folder, device="cpu").encode_query(["头痛"])


@given(value=JSON_VALUES)
@settings(max_examples=60)
def test_prompts_are_texts_by_name_or_refused_by_every_reader(routed: Path, value: Any) -> None:
    """The readers: a plain model, a table without torch, the import of a model with two routes, the loader itself."""
    plain = routed / "query"
    readers: list[Callable[[], Any]] = [
        lambda: CareModel.load(plain, device="cpu").encode_query(TEXTS),
        lambda: TokenTable.load(plain),
        lambda: load_sentence_transformer(plain, "cpu"),
        lambda: write_sides(routed, {"query": routed / "out"}),
    ]
    is_read = isinstance(value, dict) and all(isinstance(prompt, str | None) for prompt in value.values())
    for folder in (routed, plain):
        file = folder / "config_sentence_transformers.json"
        content = json.loads(file.read_text(encoding="utf-8"))
        file.write_text(json.dumps({**content, "prompts": value}), encoding="utf-8")
    for read in readers:
        shutil.rmtree(routed / "out", ignore_errors=True)
        with nullcontext() if is_read else pytest.raises(AlteredModel, match="prompts are not texts by name"):
            read()


@pytest.mark.parametrize("kind", ["t5", "bart"])
@pytest.mark.parametrize("part", ["encoder", "decoder"])
def test_both_halves_of_a_pair_are_required_where_both_make_the_vector(kind: str, part: str, tmp_path: Path) -> None:
    """sentence-transformers loads only the encoder of a T5; the vector of a BART comes from its decoder."""
    settings = {"t5": T5, "bart": {**BART, "pad_token_id": 0, "eos_token_id": 3, "bos_token_id": 2}}[kind]
    file = transformer(tmp_path / kind, **settings) / "model.safetensors"
    weights = load_file(file)
    halved = {name: tensor for name, tensor in weights.items() if not name.startswith(f"{part}.")}
    save_file(halved, file, metadata={"format": "pt"})
    if halved.keys() == weights.keys():  # saved without
        assert (kind, part) == ("t5", "decoder")
        CareModel.load(file.parent, device="cpu").encode_query(TEXTS)
        return
    with pytest.raises(IncompleteModel, match="lacks"):
        CareModel.load(file.parent, device="cpu").encode_query(TEXTS)
