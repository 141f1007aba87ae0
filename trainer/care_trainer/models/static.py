"""A static embedding table, and how a transformer starts from one.

A text's vector is the sum of its tokens' vectors. In a transformer with mean pooling the normalisation layers make all
token vectors equally long, so their norms become the weights of a `WordWeights` module, which stock
sentence-transformers loads. The layers' output projections start at zero: each layer is then the identity, and
learns from the first step on.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding, WordWeights
from tokenizers import Tokenizer
from torch import Tensor, nn

from care_qdrant.errors import InputError
from care_trainer.models import towers
from care_trainer.models.tokens import Parts, rarity, tokenize

PIECE_TEXTS = 4096
"""Texts counted at once."""


def random_static(tokenizer: Tokenizer, dim: int, texts: Iterable[str], max_tokens: int) -> SentenceTransformer:
    """Build a table of random directions, as long as their tokens are rare (logarithm of the inverse frequency)."""
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_tokens)
    size, remaining = tokenizer.get_vocab_size(), iter(texts)
    counts = np.zeros(size, np.int64)
    while piece := list(islice(remaining, PIECE_TEXTS)):
        counts += tokenize(tokenizer, piece).counts(size)
    table = torch.randn(size, dim) / dim**0.5 * torch.from_numpy(rarity(counts)).float()[:, None]
    return SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_weights=table)])


class Expansion(nn.Module):
    """Replaces tokens by their parts, on the device of its loss."""

    counts: Tensor
    starts: Tensor
    flat: Tensor

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        for name, values in (
            ("counts", parts.lists.lengths),
            ("starts", parts.lists.starts[:-1]),
            ("flat", parts.lists.flat),
        ):
            self.register_buffer(name, torch.from_numpy(values.copy()), persistent=False)

    def forward(self, ids: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the parts of all tokens of a flat column, and the new offsets of its texts."""
        counts = self.counts[ids]
        ends = counts.cumsum(0)
        begins = (ends - counts).repeat_interleave(counts)
        within = torch.arange(begins.shape[0], device=ids.device) - begins
        before = torch.cat([ends.new_zeros(1), ends])
        return self.flat[self.starts[ids].repeat_interleave(counts) + within], before[offsets]


def static_module(model: SentenceTransformer) -> StaticEmbedding:
    """Return the first module of a static encoder."""
    static = model[0]
    assert isinstance(static, StaticEmbedding)
    return static


def weighted_sums(table: StaticEmbedding, ids: Tensor, offsets: Tensor, lead_tokens: int) -> Tensor:
    """Return the sums of the token vectors of texts, (texts, dim), a token at position p weighed as by a BERT."""
    lengths = torch.diff(offsets, append=torch.tensor([len(ids)], device=offsets.device))
    positions = torch.arange(len(ids), device=ids.device) - offsets.repeat_interleave(lengths)
    weights = 1 / (1 + positions / lead_tokens)
    return nn.functional.embedding_bag(
        ids, table.embedding.weight, offsets, mode="sum", per_sample_weights=weights, sparse=table.embedding.sparse
    )


def start_from_static(
    encoder: SentenceTransformer, table: Tensor, lead_tokens: int | None = None
) -> SentenceTransformer:
    """Set an encoder to compute what a static table does, with layers that are ready to learn more.

    With ``lead_tokens`` a BERT weighs the token at position p by ``1 / (1 + p / lead_tokens)``: what a document is
    about, it says first.
    """
    modules = list(encoder.children())
    transformer, pooling = towers.transformer_of(encoder), modules[1]
    if not isinstance(pooling, Pooling) or pooling.pooling_mode != "mean":
        raise InputError("stage static: the encoders need pooling = 'mean': a static vector is a mean of its tokens")
    embeddings = towers.word_embeddings(encoder)
    if len(embeddings) != len(table):
        raise InputError(
            f"stage static: the table has {len(table)} tokens, the encoder {len(embeddings)}; train both again"
        )
    norms = table.norm(dim=1).clamp(min=1e-6)
    with torch.no_grad():
        embeddings.zero_()
        embeddings[:, : table.shape[1]] = table / norms[:, None] * embeddings.shape[1] ** 0.5
    _flatten(transformer.model)
    if lead_tokens is not None:
        _weigh_positions(transformer.model, table.shape[1], lead_tokens)
    weights = _token_weights(transformer.tokenizer, norms)
    return SentenceTransformer(
        modules=[transformer, weights, *modules[1:]],
        prompts=towers.prompts_of(encoder),
        similarity_fn_name=encoder.similarity_fn_name,
    )


def _flatten(model: nn.Module) -> None:
    """Make each layer the identity: BERT's and Qwen3's residual branches end in these projections."""
    outputs = (
        "attention.output.dense",
        "output.dense",
        "o_proj",
        "down_proj",
        "position_embeddings",
        "type_embeddings",
    )
    with torch.no_grad():
        for name, module in model.named_modules():
            if name.endswith(outputs):
                for parameter in module.parameters():
                    parameter.zero_()


def _weigh_positions(model: Any, width: int, lead_tokens: int) -> None:
    """Let position embeddings fill the dimensions beyond the table's, so that normalising leaves the table less.

    They are g times the length of a token, and (1 + g²) the square of what the normalisation divides by.
    """
    positions: Tensor = model.embeddings.position_embeddings.weight
    size = positions.shape[1]
    divisors = 1 + torch.arange(len(positions)) / lead_tokens
    signs = torch.tensor([1.0, -1.0]).repeat((size - width) // 2)  # of mean 0, which the normalisation takes away
    with torch.no_grad():
        positions[:, width : width + len(signs)] = (
            (divisors**2 - 1).sqrt()[:, None] * signs * (size / len(signs)) ** 0.5
        )


def _token_weights(tokenizer: Any, norms: Tensor) -> WordWeights:
    """Return the weights of the mean: the vectors' norms, and 0 for the special tokens that every text has."""
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(norms))))
    marks = {tokenizer.cls_token, tokenizer.sep_token, tokenizer.eos_token, tokenizer.pad_token, tokenizer.mask_token}
    weights = {
        token: 0.0 if token in marks else round(norm, 4) for token, norm in zip(tokens, norms.tolist(), strict=True)
    }
    return WordWeights(tokens, weights)
