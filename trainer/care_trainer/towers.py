"""The two encoders: assembled from base models, reloaded from stages, and made trainable explicitly.

A reloaded adapter comes back frozen and a reloaded identity slice comes back trainable, both silently. So what trains
is decided here after every load, counted and logged, and a side that should train but has nothing to train is refused.
"""

import logging
from pathlib import Path
from typing import cast

import torch
from peft import LoraConfig, TaskType
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Module, Normalize, Router, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding, WordWeights
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from care_qdrant.errors import InputError
from care_trainer.config import Tower

logger = logging.getLogger(__name__)


def build_query(base: str, tower: Tower, dim: int) -> SentenceTransformer:
    """Assemble a query encoder: transformer, pooling, unit length.

    Raises:
        InputError: its hidden size is not the dimension of the space.
    """
    transformer = _transformer(base, tower)
    hidden = transformer.get_embedding_dimension()
    if hidden != dim and not tower.projection:
        raise InputError(f"query base {base}: gives {hidden} dimensions, but dim is {dim}; set dim = {hidden}")
    if tower.pooling == "lasttoken":
        append_marker(transformer, tower.eos)
    modules: list[torch.nn.Module] = [transformer, Pooling(hidden, tower.pooling)]
    if tower.projection:
        modules.append(Dense(hidden, dim, activation_function=torch.nn.Identity()))
    modules.append(Normalize())
    return SentenceTransformer(modules=modules, prompts={"query": tower.prompt}, similarity_fn_name="cosine")


def build_document(base: str, tower: Tower, dim: int) -> SentenceTransformer:
    """Assemble a document encoder: transformer, last-token pooling, frozen slice to ``dim``, unit length.

    The slice is a `Dense` that holds the identity: ``truncate_dim`` of sentence-transformers acts in ``encode`` only,
    after normalisation, and so changes neither training nor the length of the vectors as it should.

    Raises:
        InputError: the document side is smaller than the slice, or its tokenizer lacks the marker.
    """
    transformer = _transformer(base, tower)
    hidden = transformer.get_embedding_dimension()
    if hidden < dim:
        raise InputError(f"document base {base}: gives {hidden} dimensions, fewer than dim = {dim}; use a larger base")
    if tower.pooling == "lasttoken":
        append_marker(transformer, tower.eos)
    modules: list[torch.nn.Module] = [transformer, Pooling(hidden, tower.pooling)]
    if hidden > dim:
        modules.append(identity_slice(hidden, dim))
    modules.append(Normalize())
    model = SentenceTransformer(modules=modules, prompts={"document": tower.prompt}, similarity_fn_name="cosine")
    if tower.lora is not None:
        transformer.model.add_adapter(
            LoraConfig(
                r=tower.lora.rank,
                lora_alpha=tower.lora.alpha,
                lora_dropout=tower.lora.dropout,
                target_modules=tower.lora.targets,
                task_type=TaskType.FEATURE_EXTRACTION,
            )
        )
    return model


def build_static(table: StaticEmbedding, tower: Tower, dim: int) -> SentenceTransformer:
    """Assemble a query encoder without layers: the mean of its tokens' vectors, unit length.

    Raises:
        InputError: the table's width is not the dimension of the space.
    """
    width = table.embedding.weight.shape[1]
    if width != dim and not tower.projection:
        raise InputError(f"query.static: gives {width} dimensions, but dim is {dim}; set static = {dim}")
    modules: list[torch.nn.Module] = [table]
    if tower.projection:
        modules.append(Dense(width, dim, activation_function=torch.nn.Identity()))
    modules.append(Normalize())
    return SentenceTransformer(modules=modules, prompts={"query": tower.prompt}, similarity_fn_name="cosine")


def is_static(model: SentenceTransformer) -> bool:
    """Say whether an encoder is a table of token vectors, without layers."""
    return isinstance(model[0], StaticEmbedding)


def _transformer(base: str, tower: Tower) -> Transformer:
    options = {"revision": tower.revision} if tower.revision else {}
    try:
        transformer: Transformer = Transformer(
            base, max_seq_length=tower.max_tokens, model_kwargs=dict(options), processor_kwargs=dict(options)
        )
    except (OSError, ValueError) as error:  # ValueError: an architecture that only code from the hub knows
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"base {base}: cannot be loaded without running code from the hub ({reason})") from error
    if not isinstance(transformer.tokenizer, PreTrainedTokenizerFast):
        raise InputError(f"base {base}: has no fast tokenizer (tokenizer.json); convert it first")
    # Left padding would make mini-batches carry the widest text's padding; causal attention does not mind the side.
    transformer.tokenizer.padding_side = "right"
    transformer.tokenizer.model_max_length = tower.max_tokens
    return transformer


def append_marker(transformer: Transformer, marker: str | None) -> None:
    """Make the tokenizer end every text, also a cut one, with the marker that last-token pooling reads.

    Base Qwen3 tokenizers append nothing, and transformers 5 ignores ``add_eos_token``: only a post-processor in
    ``tokenizer.json`` survives saving.

    Raises:
        InputError: the tokenizer does not know the marker.
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
    """Say whether a module is the frozen slice, not a projection that learns."""
    return isinstance(module, Dense) and not module.bias


def tokenizer_of(transformer: Transformer) -> PreTrainedTokenizerFast:
    """Give the tokenizer of an encoder's first module."""
    tokenizer = transformer.tokenizer
    assert isinstance(tokenizer, PreTrainedTokenizerFast), "bases without a fast tokenizer end in _transformer"
    return tokenizer


def transformer_of(model: SentenceTransformer) -> Transformer:
    """Give an encoder's first module."""
    return cast(Transformer, model[0])


def word_embeddings(model: SentenceTransformer) -> torch.nn.Parameter:
    """Give an encoder's token vectors, (tokens, hidden)."""
    embeddings = transformer_of(model).model.get_input_embeddings()
    assert isinstance(embeddings, torch.nn.Embedding)
    assert isinstance(embeddings.weight, torch.nn.Parameter)
    return embeddings.weight


def prompts_of(model: SentenceTransformer) -> dict[str, str]:
    """Give an encoder's prompts, without those that are not set."""
    return {name: prompt for name, prompt in model.prompts.items() if prompt is not None}


def identity_slice(hidden: int, dim: int) -> Dense:
    """Give a frozen linear layer that keeps the first ``dim`` of ``hidden`` values: exact in every precision."""
    dense = Dense(hidden, dim, bias=False, activation_function=torch.nn.Identity())
    with torch.no_grad():
        dense.linear.weight.copy_(torch.eye(dim, hidden))
    dense.requires_grad_(False)
    return dense


def unsliced(model: SentenceTransformer) -> SentenceTransformer:
    """Give an encoder without its slice, sharing the weights: what nested dimensions are trained on."""
    return SentenceTransformer(modules=[module for module in model.children() if not is_slice(module)])


def load(folder: Path) -> SentenceTransformer:
    """Load an encoder that a stage saved, on whatever device there is."""
    return SentenceTransformer(str(folder), local_files_only=True)


def pair(query: SentenceTransformer, document: SentenceTransformer) -> SentenceTransformer:
    """Join two encoders into one model that routes by task; without a default route, so nothing is routed wrong."""
    sides = [[module for module in side.children() if isinstance(module, Module)] for side in (query, document)]
    router = Router.for_query_document(sides[0], sides[1], default_route=None, allow_empty_key=False)
    prompts = {"query": query.prompts.get("query") or "", "document": document.prompts.get("document") or ""}
    return SentenceTransformer(modules=[router], prompts=prompts, similarity_fn_name="cosine")


def freeze(model: torch.nn.Module) -> None:
    """Train nothing of a model."""
    model.requires_grad_(False)


def make_trainable(model: torch.nn.Module, *, side: str, lora: bool) -> int:
    """Train what the recipe trains of one encoder, and give the number of trainable parameters.

    With adapters these alone. Otherwise everything but the slice, the token weights (sentence-transformers reloads
    them from their configuration, so their training would be lost) and BERT's unused pooler (whose missing gradient
    would stop distributed training).

    Raises:
        InputError: nothing would train.
    """
    model.requires_grad_(True)
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
