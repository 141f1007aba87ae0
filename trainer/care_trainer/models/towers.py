"""The two encoders: assembled from base models, reloaded from stages, and made trainable explicitly.

A reloaded adapter is frozen and a reloaded identity slice is trainable, both silently. So the trainable parameters are
set here after every load, counted and logged, and a side that should train but has nothing to train is refused.

Published bases are bfloat16, and transformers gives an adapter the dtype of its base. Adam at a learning rate of 1e-4
hardly moves a bfloat16 weight, so everything that trains is float32; a frozen base keeps its own dtype.
"""

import importlib.util
import logging
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from peft import LoraConfig, PeftConfig, TaskType, set_peft_model_state_dict
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Module, Normalize, Router, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding, WordWeights
from tokenizers.processors import TemplateProcessing
from transformers import AutoConfig, BitsAndBytesConfig, PreTrainedTokenizerFast
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from care_qdrant.encoders.local.torch import loading
from care_qdrant.encoders.local.weights import readable_model
from care_qdrant.encoders.references import check_adapter_vectors
from care_qdrant.errors import InputError, MissingExtra, ModelError
from care_qdrant.model.adopt.published import plain_vectors
from care_qdrant.model.card import CARD_FILE
from care_qdrant.model.hub import fetch_document_side
from care_trainer.config import Geometry, Lora, Side, Tower

logger = logging.getLogger(__name__)

ADAPTER_FILE = "adapter_config.json"
"""The file in which peft describes an encoder's adapter."""
_ADAPTER_WEIGHTS = "adapter_model.safetensors"


def build_query(base: str, tower: Tower, dim: int) -> SentenceTransformer:
    """Assemble a query encoder: transformer, pooling, unit length."""
    modules, width = _pooled(base, "query", tower)
    if width != dim and not tower.projection:
        raise InputError(
            f"query base {base}: gives {width} dimensions, but dim is {dim}; set dim = {width}, or query.projection = "
            "true"
        )
    return _query_model(modules, width, tower, dim)


def build_document(base: str, tower: Tower, dim: int, geometry: Geometry = "unit") -> SentenceTransformer:
    """Assemble a document encoder: transformer, last-token pooling, frozen slice to ``dim``, unit length.

    In the geometry ``cut`` the vector has unit length before the slice, and not after it.

    The slice is a `Dense` that holds the identity: ``truncate_dim`` of sentence-transformers acts in ``encode`` only,
    after normalisation, so it does not act in training and leaves vectors that are not of unit length.
    """
    modules, width = _pooled(base, "document", tower)
    if width < dim:
        raise InputError(f"document base {base}: gives {width} dimensions, fewer than dim = {dim}; use a larger base")
    ending: list[torch.nn.Module] = [identity_slice(width, dim)] if width > dim else []
    ending.insert(0 if geometry == "cut" else len(ending), Normalize())
    model = SentenceTransformer(
        modules=[*modules, *ending],
        prompts={"document": tower.prompt},
        similarity_fn_name="dot" if geometry == "cut" else "cosine",
    )
    if tower.lora is not None:
        transformer_of(model).model.add_adapter(adapter_config(tower.lora))
        _adapters_in_float32(model)
    return model


def _pooled(base: str, side: Side, tower: Tower) -> tuple[list[torch.nn.Module], int]:
    """Return the modules of a base that give one vector of a text, and its dimensions."""
    if tower.pooling == "own":
        modules = _own(base, side, tower)
        ends = [module for module in modules if isinstance(module, Dense | Pooling | StaticEmbedding)]
        return modules, int(ends[-1].get_embedding_dimension())
    transformer = _transformer(base, tower)
    if tower.pooling == "lasttoken":
        append_marker(transformer, tower.eos)
    hidden = transformer.get_embedding_dimension()
    return [transformer, Pooling(hidden, tower.pooling)], hidden


def adapter_config(lora: Lora) -> LoraConfig:
    """Return peft's configuration of the adapters."""
    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=lora.targets,
        task_type=TaskType.FEATURE_EXTRACTION,
    )


def build_static(table: StaticEmbedding, tower: Tower, dim: int) -> SentenceTransformer:
    """Assemble a static query encoder: the mean of its token vectors, unit length."""
    width = table.embedding.weight.shape[1]
    if width != dim and not tower.projection:
        raise InputError(f"query.static: gives {width} dimensions, but dim is {dim}; set static = {dim}")
    return _query_model([table], width, tower, dim)


def _query_model(modules: list[torch.nn.Module], width: int, tower: Tower, dim: int) -> SentenceTransformer:
    projection = [Dense(width, dim, activation_function=torch.nn.Identity())] if tower.projection else []
    return SentenceTransformer(
        modules=[*modules, *projection, Normalize()], prompts={"query": tower.prompt}, similarity_fn_name="cosine"
    )


def own_folder(base: str, side: Side, revision: str | None = None) -> Path:
    """Return the folder of a sentence-transformers model, or of one side of a CARE folder."""
    folder = fetch_document_side(base, revision=revision)
    return folder / side if (folder / CARD_FILE).is_file() else folder


def _own(base: str, side: Side, tower: Tower) -> list[torch.nn.Module]:
    """Return the modules of a saved encoder as they are, but for its normalisation and its slice."""
    folder = own_folder(base, side, tower.revision)
    if not (folder / "modules.json").is_file():
        raise InputError(
            f"{side} base {base}: has no modules.json, so it has no pooling of its own; set {side}.pooling"
        )
    encoder = load(folder, tower)
    if is_static(encoder):
        if side == "document":
            raise InputError(f"{side} base {base}: is a table of token vectors, without layers; expected a transformer")
        return [module for module in encoder.children() if not isinstance(module, Normalize)]
    modules = list(encoder.children())
    transformer = cast(Transformer, modules[0])
    _settle(transformer, base, replace(tower, max_tokens=min(tower.max_tokens, encoder.max_seq_length or 10**9)))
    if (own := prompts_of(encoder).get(side)) and own != tower.prompt:
        logger.warning("%s base %s: was trained with the prompt %r; [%s] prompt is another one", side, base, own, side)
    kept = [module for module in modules if not isinstance(module, Normalize)]
    while is_slice(kept[-1]) and _is_identity(cast(Dense, kept[-1])):
        kept.pop()
    return kept


def _is_identity(dense: Dense) -> bool:
    weight = dense.linear.weight.detach()
    return torch.equal(weight, torch.eye(*weight.shape, dtype=weight.dtype, device=weight.device))


def is_static(model: SentenceTransformer) -> bool:
    """Return whether an encoder is a table of token vectors, without layers."""
    return isinstance(model[0], StaticEmbedding)


def reads_both_ways(model_type: str) -> bool:
    """Return whether models of a type are bidirectional encoders; decoders have no ONNX export."""
    return model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES


def _transformer(base: str, tower: Tower) -> Transformer:
    try:
        # The folder of one revision: a hub name would be resolved again, to the newest one, at every reload.
        source = fetch_document_side(base, revision=tower.revision)
        with loading(source), readable_model(source) as folder:
            if tower.lora is not None and folder != source:
                raise InputError(
                    f"base {base}: its model_type or the names of its weights are not transformers' own, by which a "
                    "saved adapter finds its base again; leave lora out to train all weights"
                )
            transformer: Transformer = Transformer(
                str(folder), max_seq_length=tower.max_tokens, model_kwargs=loading_options(tower)
            )
        transformer.model.name_or_path = transformer.model.config.name_or_path = str(source)
    except ModelError as error:
        raise InputError(f"base {base}: cannot be loaded ({error})") from error
    _settle(transformer, base, tower)
    return transformer


def _settle(transformer: Transformer, base: str, tower: Tower) -> None:
    """Set how the tokenizer of a base pads and cuts."""
    if not isinstance(transformer.tokenizer, PreTrainedTokenizerFast):
        raise InputError(f"base {base}: has no fast tokenizer (tokenizer.json); convert it first")
    # Left padding would make mini-batches carry the widest text's padding; causal attention does not mind the side.
    transformer.tokenizer.padding_side = "right"
    transformer.tokenizer.model_max_length = tower.max_tokens


def append_marker(transformer: Transformer, marker: str | None) -> None:
    """Make the tokenizer end every text, also a cut one, with the token that last-token pooling reads.

    Base Qwen3 tokenizers append nothing, and transformers 5 ignores ``add_eos_token``: only a post-processor in
    ``tokenizer.json`` survives saving.
    """
    tokenizer = tokenizer_of(transformer)
    marker = marker or tokenizer.eos_token
    vocabulary = tokenizer.get_vocab()
    if marker is None or marker not in vocabulary:
        raise InputError(f"document tokenizer: does not know the marker {marker!r}; set document.eos to one of its own")
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"$A {marker}", special_tokens=[(marker, vocabulary[marker])]
    )


def is_slice(module: torch.nn.Module) -> bool:
    """Return whether a module is the frozen slice, not a projection that learns."""
    return isinstance(module, Dense) and not module.bias


def tokenizer_of(transformer: Transformer) -> PreTrainedTokenizerFast:
    """Return the tokenizer of an encoder's first module."""
    tokenizer = transformer.tokenizer
    assert isinstance(tokenizer, PreTrainedTokenizerFast), "bases without a fast tokenizer end in _transformer"
    return tokenizer


def transformer_of(model: SentenceTransformer) -> Transformer:
    """Return an encoder's first module."""
    return cast(Transformer, model[0])


def word_embeddings(model: SentenceTransformer) -> torch.nn.Parameter:
    """Return an encoder's token vectors, (tokens, hidden)."""
    embeddings = transformer_of(model).model.get_input_embeddings()
    assert isinstance(embeddings, torch.nn.Embedding)
    assert isinstance(embeddings.weight, torch.nn.Parameter)
    return embeddings.weight


def prompts_of(model: SentenceTransformer) -> dict[str, str]:
    """Return an encoder's prompts, without those that are not set."""
    return {name: prompt for name, prompt in model.prompts.items() if prompt is not None}


def identity_slice(hidden: int, dim: int) -> Dense:
    """Return a frozen linear layer that keeps the first ``dim`` of ``hidden`` values: exact in every precision."""
    dense = Dense(hidden, dim, bias=False, activation_function=torch.nn.Identity())
    with torch.no_grad():
        dense.linear.weight.copy_(torch.eye(dim, hidden))
    dense.requires_grad_(False)
    return dense


def unsliced(model: SentenceTransformer) -> SentenceTransformer:
    """Return an encoder without its slice, sharing the weights, for training nested dimensions."""
    return SentenceTransformer(modules=[module for module in model.children() if not is_slice(module)])


def loading_options(tower: Tower) -> dict[str, Any]:
    """Return the options with which transformers loads a base: dtype, attention, quantisation."""
    options: dict[str, Any] = {"dtype": tower.dtype, "attn_implementation": tower.attn_implementation}
    if tower.quantization is not None:
        if importlib.util.find_spec("bitsandbytes") is None:
            raise MissingExtra(f"quantization = {tower.quantization!r}: needs bitsandbytes: pip install bitsandbytes")
        if not torch.cuda.is_available():
            raise InputError(f"quantization = {tower.quantization!r}: needs a GPU; leave it out to train on a CPU")
        options["quantization_config"] = BitsAndBytesConfig(  # type: ignore[no-untyped-call]
            load_in_4bit=tower.quantization == "nf4",
            load_in_8bit=tower.quantization == "int8",
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16,
        )
    return {name: value for name, value in options.items() if value is not None}


def load(folder: Path, tower: Tower | None = None) -> SentenceTransformer:
    """Load an encoder that a stage saved, on the available device, with adapters in float32.

    sentence-transformers reads an adapter in the dtype of its base, which rounds it: its weights are read again.
    """
    options = loading_options(tower) if tower is not None else {}
    with loading(folder), readable_model(folder) as readable:
        encoder = SentenceTransformer(str(readable), local_files_only=True, model_kwargs=options or None)
    if readable != folder and not is_static(encoder):
        transformer = transformer_of(encoder).model
        transformer.name_or_path = transformer.config.name_or_path = str(folder)
    if (folder / ADAPTER_FILE).exists():
        _adapters_in_float32(encoder)
        set_peft_model_state_dict(transformer_of(encoder).model, load_file(folder / _ADAPTER_WEIGHTS))
        if tower is None or tower.quantization is None:
            check_adapter_vectors(partial(plain_vectors, encoder), folder)
    return encoder


def load_trainable(folder: Path, tower: Tower, side: Side) -> tuple[SentenceTransformer, int]:
    """Load a saved encoder for training; return it and the number of parameters that the recipe trains."""
    encoder = load(folder, tower)
    return encoder, make_trainable(encoder, side=side, lora=tower.lora is not None)


def _adapters_in_float32(encoder: SentenceTransformer) -> None:
    for name, parameter in encoder.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.float()


def load_merged(folder: Path) -> SentenceTransformer:
    """Load an encoder in float32, with its adapter merged when it has one."""
    encoder = load(folder).float()
    merge(encoder)
    return encoder


def merge(encoder: SentenceTransformer) -> None:
    """Add the adapters of an encoder to its weights in place, one layer at a time, and take them off.

    What peft and transformers remember of the adapter goes as well: it would give the saved weights other names, and a
    reload would start from random ones.
    """
    model = getattr(transformer_of(encoder), "model", None)
    if model is None:  # a static encoder: a table of token vectors takes no adapter
        return
    for name, layer in [(name, layer) for name, layer in model.named_modules() if isinstance(layer, BaseTunerLayer)]:
        layer.merge()
        model.set_submodule(name, layer.get_base_layer())
    if getattr(model, "_hf_peft_config_loaded", False):
        model._hf_peft_config_loaded = False
        del model.peft_config
        vars(model).pop("_weight_conversions", None)  # of the adapter's names: a save would put its prefix back


def base_dtype(folder: Path) -> torch.dtype:
    """Return the dtype in which the weights of a saved encoder, or of its adapter's base, are stored."""
    source, revision = str(folder), None
    if (folder / ADAPTER_FILE).exists():
        config = PeftConfig.from_pretrained(str(folder))
        source, revision = str(config.base_model_name_or_path), config.revision
    elif not (folder / "config.json").exists():
        return torch.float32  # a static encoder
    dtype = AutoConfig.from_pretrained(source, revision=revision).dtype
    return dtype if isinstance(dtype, torch.dtype) else torch.float32


def pair(query: SentenceTransformer, document: SentenceTransformer) -> SentenceTransformer:
    """Join two encoders into one model that routes by task, without a default route that could be the wrong one."""
    sides = [[module for module in side.children() if isinstance(module, Module)] for side in (query, document)]
    router = Router.for_query_document(sides[0], sides[1], default_route=None, allow_empty_key=False)
    prompts = {"query": query.prompts.get("query") or "", "document": document.prompts.get("document") or ""}
    similarity = document.similarity_fn_name  # the dot product where vectors are cut
    return SentenceTransformer(modules=[router], prompts=prompts, similarity_fn_name=similarity)


def make_trainable(model: torch.nn.Module, *, side: str, lora: bool) -> int:
    """Set which parameters of an encoder train, in float32, and return their number.

    With adapters these are the adapters alone. Otherwise everything but the slice, the token weights
    (sentence-transformers reloads them from their configuration, so their training would be lost) and BERT's unused
    pooler (whose missing gradient would stop distributed training).
    """
    model.requires_grad_(True)
    if not lora:
        model.float()
    for module in model.modules():
        if is_slice(module) or isinstance(module, WordWeights):
            module.requires_grad_(False)
    for name, parameter in model.named_parameters():
        if "pooler" in name or (lora and "lora_" not in name):
            parameter.requires_grad_(False)
    trainable = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    total = sum(parameter.numel() for parameter in model.parameters())
    logger.info("%s encoder: %s of %s parameters train", side, f"{trainable:,}", f"{total:,}")
    if trainable == 0:
        raise InputError(f"the {side} encoder has no trainable parameter ({total:,} in all): is its adapter missing?")
    return trainable
