"""The CARE folder: one folder that stock sentence-transformers loads in three ways.

::

    modules.json  router_config.json  care.json  README.md  term_weights.npz
    query/        a complete sentence-transformers model, with onnx/; a learned one also has stand_in.npy
    document/     a complete sentence-transformers model, LoRA merged; model.onnx reads the weights next to it

A side may have ``int8.safetensors`` in the place of its weights (`care_qdrant.encoders.local.weights.INT8`): it is then
for this library alone, and sentence-transformers refuses it.

The root is a sentence-transformers ``Router`` without a default route: the stock stack embeds queries with the document
encoder when there is one. Each side also loads alone. No ``trust_remote_code`` anywhere.
"""

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from care_qdrant.destinations import require_new_folder
from care_qdrant.encoders.batching import read_tokenizer
from care_qdrant.encoders.local.weights import (
    INT8,
    check_model,
    kinds_of,
    read_header,
    read_json,
    read_matrix,
    read_modules,
    read_settings,
    reading_folder,
    settings_of,
    write_json,
)
from care_qdrant.encoders.side import UNLIMITED, Geometry, Side, geometry_by, static_limit
from care_qdrant.errors import IncompleteModel, InputError, ModelError
from care_qdrant.model.card import (
    CARD_FILE,
    STORED,
    TERM_WEIGHTS,
    Card,
    FileEntry,
    OnnxFiles,
    TermWeightsEntry,
    bind_references,
    fingerprint,
    list_files,
    read_card,
    refuse_unlisted,
    sha256,
    verify_files,
    verify_term_weights,
)

if TYPE_CHECKING:
    from care_qdrant.encoders.terms.weights import TermWeights

SIDES = ("query", "document")
_ROUTER = "sentence_transformers.base.modules.router.Router"
_POOLING_FLAGS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
_IDENTITY = "torch.nn.modules.linear.Identity"
_READING = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""Files of the settings of a Transformer, of which the first one counts."""
_KNOWN_SETTINGS = {"max_seq_length", "do_lower_case", "in_features", "out_features", "bias", "activation_function"}
"""Settings of a Transformer and a Dense that every version of sentence-transformers has."""
_OTHER_TOKENS = ("processing_kwargs", "query_length", "document_length", "query_expansion")
"""Settings by which sentence-transformers alone cuts a text into tokens."""
_LATER_SETTINGS: dict[str, tuple[Any, ...]] = {
    "transformer_task": ("feature-extraction",),
    "modality_config": ({"text": {"method": "forward", "method_output_name": "last_hidden_state"}},),
    "module_input_name": ("sentence_embedding",),
    "module_output_name": ("token_embeddings", "sentence_embedding"),
    "processing_kwargs": (),
    "unpad_inputs": (),
    "query_length": (),
    "document_length": (),
    "query_expansion": (),
    "use_residual": (),
}
"""Settings of a Transformer and a Dense since sentence-transformers 5, with the values that change nothing."""


def write_checkpoint(
    folder: str | Path,
    *,
    name: str,
    query: str | Path,
    document: str | Path | None,
    onnx: OnnxFiles | None = None,
    document_onnx: OnnxFiles | None = None,
    temperature: float = 0.02,
    query_tasks: Mapping[str, str] | None = None,
    document_tasks: Mapping[str, str] | None = None,
    license: str = "",
    alpha: float | None = None,
    stages: Sequence[Mapping[str, Any]] = (),
    bases: Sequence[Mapping[str, Any]] = (),
    data: Sequence[Mapping[str, Any]] = (),
    model_card: str = "",
) -> Card:
    """Assemble a CARE folder from two saved sentence-transformers models, verify it, and move it into place.

    The folder appears whole or not at all: it is built next to its destination and renamed at the end. A folder that is
    replaced is renamed first and removed last, so that a whole model exists at every moment; one that an interrupted
    call left under that name is put back.

    Args:
        folder: Destination; must not exist, or be a CARE folder (which is replaced).
        name: Name of the model; the default name of its vectors in Qdrant.
        query: Folder of the query encoder; an ``onnx/`` folder in it comes along.
        document: Folder of the document encoder; None where the documents are the vectors that a collection holds.
        onnx: Content of the query encoder's ``onnx/`` folder.
        document_onnx: Files of the document encoder's folder for onnxruntime.
        temperature: Temperature of the contrastive loss.
        query_tasks: Prompts of the query side by task name.
        document_tasks: Prompts of the document side by task name.
        license: SPDX identifier of the weights.
        alpha: Share of the dense score in hybrid searches; None lets each collection measure it.
        stages: Training history.
        bases: Base models.
        data: Training data.
        model_card: Content of README.md; empty for a plain one.

    Raises:
        InputError: The destination holds something else, or cannot be written.
        ModelError: The two sides do not fit together.
    """
    folder, query, document = Path(folder), Path(query), None if document is None else Path(document)
    folder = folder.resolve() if folder.is_symlink() else folder  # a link stays, and leads to the new folder
    require_destination(folder)
    for encoder in filter(None, (query, document)):  # errors here name the caller's path, not the copy's
        with settings_of(encoder):
            read_modules(encoder)
            check_model(encoder)
            read_tokenizer(encoder)
    replaced = folder.with_name(f".{folder.name}.replaced")
    if replaced.exists() and not folder.exists():
        replaced.rename(folder)
    building = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    shutil.rmtree(building, ignore_errors=True)
    try:
        for side, source in zip(SIDES, (query, document), strict=True):
            if source is None:
                continue
            shutil.copytree(source, building / side, ignore=shutil.ignore_patterns("README.md", ".*"))
            with settings_of(source):
                _move_to_root(building / side)
                write_for_servers(building / side)
        query_side, document_side, dim, geometry = _sides(building)
        query_side = replace(query_side, tasks=dict(query_tasks or {}))
        document_side = replace(document_side, tasks=dict(document_tasks or {}))
        files = {
            path: FileEntry(sha256(building / path), (building / path).stat().st_size)
            for side in SIDES
            if (building / side).is_dir()
            for path in list_files(building / side, building)
        }
        digest = fingerprint(dim, query_side, document_side, files, geometry)
        card = Card(
            name=name,
            dim=dim,
            query=query_side,
            document=document_side,
            temperature=temperature,
            files=files,
            fingerprint=digest,
            onnx=onnx,
            document_onnx=document_onnx,
            geometry=geometry,
            references_sha256=bind_references(digest, onnx, document_onnx),
            license=license,
            alpha=alpha,
            stages=tuple(stages),
            bases=tuple(bases),
            data=tuple(data),
        )
        _write_router(building, card)
        (building / "README.md").write_text(model_card or f"# {name}\n\nA CARE model.\n", encoding="utf-8")
        card.save(building)
        verify_checkpoint(building)
        shutil.rmtree(replaced, ignore_errors=True)
        if folder.exists():
            folder.rename(replaced)
        building.rename(folder)
        shutil.rmtree(replaced, ignore_errors=True)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return card


def require_destination(folder: Path, stages: Sequence[str] | None = None) -> None:
    """Refuse a folder that `write_checkpoint` could not write, before the work for it is done.

    Args:
        folder: Destination.
        stages: Names of the training stages of the only models that may be replaced; None replaces any.

    Raises:
        InputError: It holds something else than such a CARE folder, or cannot be written.
    """
    require_new_folder(folder)
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    if not (folder / CARD_FILE).exists():
        raise InputError(f"{folder}: exists and is not a CARE folder; give another destination")
    if stages is not None and [stage.get("name") for stage in read_card(folder).stages] != list(stages):
        raise InputError(f"{folder}: holds another kind of model, which would be lost; give another destination")


def add_term_weights(folder: Path, weights: "TermWeights", gate: Mapping[str, Any]) -> Card:
    """Add weights of the terms of queries to a CARE folder, or replace them; its fingerprint stays.

    Args:
        folder: Folder of the model.
        weights: Weights of the terms.
        gate: Gain in nDCG@10 by them, for the card.
    """
    building = folder / f".{TERM_WEIGHTS}"  # ends in .npz, or numpy would add that
    weights.save(building)
    return _enter_term_weights(folder, building, gate)


def copy_term_weights(source: Path, folder: Path) -> Card | None:
    """Copy the weights of query terms from another CARE folder; None if that is not a CARE folder, or has none."""
    card = read_card(source) if (source / CARD_FILE).is_file() else None
    if card is None or card.term_weights is None:
        return None
    verify_term_weights(source, card)
    building = Path(shutil.copyfile(source / TERM_WEIGHTS, folder / f".{TERM_WEIGHTS}"))
    return _enter_term_weights(folder, building, card.term_weights.gate)


def _enter_term_weights(folder: Path, building: Path, gate: Mapping[str, Any]) -> Card:
    entry = FileEntry(sha256(building), building.stat().st_size)
    building.replace(folder / TERM_WEIGHTS)
    card = replace(read_card(folder), term_weights=TermWeightsEntry(entry, dict(gate)))
    card.save(folder)
    return card


def verify_checkpoint(folder: str | Path, sides: Iterable[str] | None = None) -> Card:
    """Check that a CARE folder is whole and unaltered, reading every byte of the given sides; None takes all.

    Raises:
        IncompleteModel: A file is missing.
        AlteredModel: A file differs from the one that was saved, or one was added that would change a vector.
        NewerFormat: a newer version wrote the folder.
        ModelError: Dimensions disagree, or a tokenizer does not append its end marker.
    """
    folder = Path(folder)
    card = read_card(folder)
    sides = card.saved_sides if sides is None else tuple(sides)
    for side in sides:
        verify_files(folder, card, [path for path in card.files if path.startswith(f"{side}/")])
        refuse_unlisted(folder, card, side)
        _check_side(folder / side, card.query if side == "query" else card.document, card.dim)
    verify_term_weights(folder, card)
    if "document" in sides and geometry_of(folder / "document") != card.geometry:
        raise ModelError(
            f"{folder}: its document encoder does not have the geometry {card.geometry!r} that care.json names"
        )
    for required in ("modules.json", "router_config.json"):
        if not (folder / required).is_file():
            raise IncompleteModel(f"{folder}: {required} is missing, so sentence-transformers cannot load it")
    return card


def describe_side(folder: Path, side: str) -> tuple[Side, int]:
    """Read from a saved sentence-transformers model how it encodes one side, and its output dimension.

    Raises:
        ModelError: It is not such a model, or it would give other vectors here.
    """
    with settings_of(folder):
        return _described(folder, side)


def _described(folder: Path, side: str) -> tuple[Side, int]:
    modules = read_modules(folder)
    kinds = kinds_of(modules)
    by_type = {kind: folder / module["path"] for kind, module in zip(kinds, modules, strict=True)}
    settings, reading = read_settings(folder), _reading(folder)
    if "Router" in by_type:
        raise ModelError(
            f"{folder}: has a Router, so its two sides are two encoders: care model import makes a CARE folder of one "
            "at the root; where it stands behind other modules, save each side as a model of its own and import those"
        )
    require_whole_vectors(folder, settings)
    is_static = "StaticEmbedding" in by_type
    if not is_static and not {"Transformer", "Pooling"} <= by_type.keys():
        raise ModelError(
            f"{folder}: needs a Transformer and a Pooling module, or a StaticEmbedding, has {sorted(by_type)}"
        )
    if "Normalize" not in by_type:
        raise ModelError(f"{folder}: lacks a Normalize module, so its vectors have no unit length; add one")
    if not _ranks_as_cosine(kinds, settings.get("similarity_fn_name"), folder / modules[-1]["path"]):
        raise ModelError(
            f"{folder}: compares vectors of any length by {settings['similarity_fn_name']}, and here they are compared "
            "by cosine; train it for that, with a Normalize module at its end"
        )
    prompt = settings["prompts"].get(side, "")
    if is_static:
        described = Side(pooling="static", max_tokens=static_limit(read_tokenizer(folder)), prompt=prompt)
        dim = _table_width(folder)
    else:
        pooling = read_json(by_type["Pooling"] / "config.json")
        modes = pooling_modes(pooling)
        if own := [key for key in _OTHER_TOKENS if reading.get(key)]:
            raise ModelError(
                f"{folder}: sets {', '.join(own)}, by which sentence-transformers alone reads a text; save it without"
            )
        eos = _eos(folder) if "lasttoken" in modes else None
        described = Side(pooling="+".join(modes), max_tokens=_max_tokens(folder), prompt=prompt, eos=eos)
        dim = len(modes) * (pooling.get("embedding_dimension") or pooling.get("word_embedding_dimension"))
    for module, kind in list(zip(modules, kinds, strict=True))[
        kinds.index("StaticEmbedding" if is_static else "Pooling") :
    ]:
        if kind == "Dense":
            dim = read_json(folder / module["path"] / "config.json")["out_features"]
    return described, int(dim)


def _ranks_as_cosine(kinds: Sequence[str], similarity: str | None, last: Path) -> bool:
    """Return whether a similarity ranks as the cosine of the vectors does, or as the dot product of cut unit vectors.

    Args:
        kinds: Kinds of all modules.
        similarity: Saved similarity; None is the cosine.
        last: Folder of the last module.
    """
    if similarity in (None, "cosine"):
        return True
    if kinds[-1] == "Normalize":
        return similarity in ("dot", "euclidean")
    return geometry_by(kinds, similarity) == "cut" and _is_slice(last)


def _is_slice(folder: Path) -> bool:
    """Return whether a Dense module keeps the first numbers of a vector as they are."""
    settings = read_json(folder / "config.json")
    if settings.get("bias", True) or settings.get("use_residual") or settings["activation_function"] != _IDENTITY:
        return False
    weight = read_matrix(folder / "model.safetensors", "linear.weight")
    return np.array_equal(weight, np.eye(*weight.shape))


def require_whole_vectors(folder: Path, settings: Mapping[str, Any]) -> None:
    """Refuse a saved model that sentence-transformers cuts to fewer dimensions."""
    if settings.get("truncate_dim") is not None:
        raise ModelError(
            f"{folder}: was saved with truncate_dim={settings['truncate_dim']}, which cuts vectors after they are "
            "normalised; save it without, with a Dense module of that many dimensions in front of Normalize"
        )


def pooling_modes(settings: Mapping[str, Any]) -> list[str]:
    """Return the pooling modes of a Pooling module, by default the mean; the vectors of several are concatenated."""
    named = settings.get("pooling_mode") or [mode for mode, flag in _POOLING_FLAGS.items() if settings.get(flag)]
    return [named] if isinstance(named, str) else list(named) or ["mean"]


def geometry_of(folder: Path) -> Geometry:
    """Read from a saved sentence-transformers model whether its vectors are cut after they are normalised."""
    return geometry_by(kinds_of(read_modules(folder)), read_settings(folder).get("similarity_fn_name"))


def _sides(folder: Path) -> tuple[Side, Side, int, Geometry]:
    """Read the two sides of a folder, their dimension and their geometry, and refuse those that do not fit."""
    query, query_dim = describe_side(folder / "query", "query")
    document, document_dim = Side(STORED, UNLIMITED), query_dim
    geometry: Geometry = "unit"
    if (folder / "document").is_dir():
        document, document_dim = describe_side(folder / "document", "document")
        geometry = geometry_of(folder / "document")
    if query_dim != document_dim:
        raise ModelError(
            f"the query encoder gives {query_dim} dimensions and the document encoder {document_dim}: "
            "they cannot share a space. Slice the document encoder to the query dimension (stage 'document')."
        )
    if geometry_of(folder / "query") != "unit":
        raise ModelError(f"{folder / 'query'}: cuts its vectors after normalising them; only a document encoder may")
    return query, document, query_dim, geometry


def _write_router(folder: Path, card: Card) -> None:
    """Make the folder's root a Router whose module ids are paths into the two sides."""
    types: dict[str, str] = {}
    structure: dict[str, list[str]] = {}
    for side in card.saved_sides:
        modules = read_modules(folder / side)
        paths = [f"{side}/{module['path']}".rstrip("/") for module in modules]
        types |= dict(zip(paths, (module["type"] for module in modules), strict=True))
        structure[side] = paths
    parameters: dict[str, Any] = {"default_route": None, "allow_empty_key": False, "route_mappings": {}}
    prompts = {"query": card.query.prompt, "document": card.document.prompt}
    write_json(folder / "router_config.json", {"types": types, "structure": structure, "parameters": parameters})
    write_json(folder / "modules.json", [{"idx": 0, "name": "0", "path": "", "type": _ROUTER}])
    write_json(
        folder / "config_sentence_transformers.json",
        {
            "model_type": "SentenceTransformer",
            "prompts": prompts,
            "default_prompt_name": None,
            "similarity_fn_name": "cosine" if card.geometry == "unit" else "dot",
        },
    )


def _move_to_root(folder: Path) -> None:
    """Move the module that reads texts into the root of a model, where its files are looked for from then on."""
    modules = read_modules(folder)
    if (inner := reading_folder(folder)) != folder:
        shutil.copytree(inner, folder, dirs_exist_ok=True)
        shutil.rmtree(inner)
        write_json(folder / "modules.json", [{**modules[0], "path": ""}, *modules[1:]])


def write_for_servers(folder: Path) -> None:
    """Write a transformer's settings in the names of sentence-transformers before 6 and transformers before 5.

    Current libraries still read them, and embeddings servers know no others (text-embeddings-inference 1.9, infinity
    0.0.78): with the new names they use another pooling, or do not start. A model with a setting that has no former
    name stays as it is.
    """
    modules = read_modules(folder)
    kinds = kinds_of(modules)
    if kinds[0] != "Transformer" or not set(kinds) <= {"Transformer", "Pooling", "Normalize", "Dense"}:
        return
    reading = _reading(folder)
    files = [folder / module["path"] / "config.json" for module in modules]
    dense = [read_json(file) for file, kind in zip(files, kinds, strict=True) if kind == "Dense"]
    for key, value in chain.from_iterable(settings.items() for settings in (reading, *dense)):
        if key not in _KNOWN_SETTINGS and value not in (None, {}, False, *_LATER_SETTINGS.get(key, ())):
            return
    for module, kind, file in zip(modules, kinds, files, strict=True):
        module["type"] = f"sentence_transformers.models.{kind}"
        if kind == "Pooling":
            write_json(file, _served_pooling(read_json(file)))
        elif kind == "Dense":
            write_json(file, {key: value for key, value in read_json(file).items() if key not in _LATER_SETTINGS})
    config = read_json(folder / "config.json")
    if (theta := (config.get("rope_parameters") or {}).get("rope_theta")) is not None:
        write_json(folder / "config.json", {"rope_theta": theta, **config})  # where transformers before 5 looks for it
    tokenizer = _read_optional(folder / "tokenizer_config.json")
    if tokenizer.get("tokenizer_class") == "TokenizersBackend":
        write_json(folder / "tokenizer_config.json", {**tokenizer, "tokenizer_class": "PreTrainedTokenizerFast"})
    lower = bool(reading.get("do_lower_case"))
    write_json(folder / "modules.json", modules)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": _max_tokens(folder), "do_lower_case": lower})


def _served_pooling(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a Pooling module with a flag for each way of pooling."""
    modes = pooling_modes(settings)
    if len(modes) > 1 or modes[0] not in _POOLING_FLAGS:  # flags would put several ways into another order
        return dict(settings)
    flags = {flag: mode == modes[0] for mode, flag in _POOLING_FLAGS.items()}
    width = settings.get("embedding_dimension", settings.get("word_embedding_dimension"))
    return {"word_embedding_dimension": width, **flags, "include_prompt": settings.get("include_prompt", True)}


def _check_side(folder: Path, expected: Side, dim: int) -> None:
    saved, saved_dim = describe_side(folder, folder.name)
    if saved_dim != dim:
        raise ModelError(f"{folder}: gives {saved_dim} dimensions, care.json says {dim}")
    if expected.eos is not None and saved.eos != expected.eos:
        raise ModelError(f"{folder}: the tokenizer does not append {expected.eos!r}, which last-token pooling reads")


def _table_width(folder: Path) -> int:
    """Return the dimension of a static encoder's token vectors, from the header of its weights."""
    folder = reading_folder(folder)
    path = folder / (INT8 if (folder / INT8).is_file() else "model.safetensors")
    if not path.is_file():
        raise IncompleteModel(f"{path} is missing")
    header, _ = read_header(path)
    table = header.get("embedding.weight") or header.get("embeddings")  # as sentence-transformers and model2vec save it
    if table is None or len(table["shape"]) != 2:
        raise ModelError(f"{path}: holds no table of token vectors")
    return int(table["shape"][1])


def _eos(folder: Path) -> str:
    """Return the marker that the tokenizer appends to every text, as its post-processor says."""
    encoding = read_tokenizer(folder).encode("a")
    if not encoding.special_tokens_mask or not encoding.special_tokens_mask[-1]:
        raise ModelError(
            f"{folder}: the tokenizer appends no end marker, so last-token pooling would read the last word; "
            "write one into the post_processor of tokenizer.json"
        )
    return encoding.tokens[-1]


def _max_tokens(folder: Path) -> int:
    reading, folder = _reading(folder), reading_folder(folder)
    own = reading.get("processor_kwargs") or reading.get("tokenizer_args") or {}
    limit = own.get("model_max_length") or reading.get("max_seq_length")
    limit = limit or _read_optional(folder / "tokenizer_config.json").get("model_max_length")
    positions = read_json(folder / "config.json").get("max_position_embeddings")
    # transformers writes 10^30 where a tokenizer has no limit.
    limits = [int(value) for value in (limit, positions) if value and 0 < value < UNLIMITED]
    if not limits:
        raise ModelError(f"{folder}: says nowhere how many tokens it reads at most")
    return min(limits)


def _reading(folder: Path) -> dict[str, Any]:
    """Return the settings of the Transformer of a saved model."""
    return next(filter(None, (_read_optional(reading_folder(folder) / name) for name in _READING)), {})


def _read_optional(path: Path) -> Any:
    return read_json(path) if path.is_file() else {}
