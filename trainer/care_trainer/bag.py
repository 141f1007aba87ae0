"""A weighted bag of token vectors, and how a transformer starts as one.

A text's vector is the sum of its tokens' vectors. In a transformer with mean pooling the normalisation layers make all
token vectors equally long, so their lengths become the weights of a `WordWeights` module, which stock
sentence-transformers loads. The layers' output projections start at zero: each layer is then the identity, and
learns from the first step on.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding, WordWeights
from tokenizers import Tokenizer
from torch import Tensor, nn

from care_qdrant.errors import InputError
from care_trainer import towers
from care_trainer.losses import Features, bag_keys, drop_tokens
from care_trainer.objectives import Batch

SMOOTHING = 50.0
"""Added to each token's count: a token that was hardly seen gets no extreme weight."""
PIECE_TEXTS = 4096
"""Counted at once."""


def random_bag(tokenizer: Tokenizer, dim: int, texts: Iterable[str], max_tokens: int) -> SentenceTransformer:
    """Give a bag of random directions, as long as their tokens are rare (logarithm of the inverse frequency)."""
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_tokens)
    counts = torch.zeros(tokenizer.get_vocab_size())
    remaining = iter(texts)
    while piece := list(islice(remaining, PIECE_TEXTS)):
        for encoding in tokenizer.encode_batch(piece, add_special_tokens=False):
            counts += torch.bincount(torch.tensor(encoding.ids, dtype=torch.long), minlength=len(counts))
    rarity = ((counts.sum() + 1) / (counts + SMOOTHING)).log().clamp(min=0.1)
    table = torch.randn(len(counts), dim) / dim**0.5 * (rarity / rarity.mean())[:, None]
    return SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_weights=table)])


def bag_module(bag: SentenceTransformer) -> StaticEmbedding:
    """Give the one module of a bag."""
    static = bag[0]
    assert isinstance(static, StaticEmbedding)
    return static


def bag_table(bag: SentenceTransformer) -> Tensor:
    """Give the token vectors of a bag, (tokens, dim)."""
    return bag_module(bag).embedding.weight.detach()


class Parts:
    """Which tokens make up a token: itself and, for a longer piece, its characters.

    Args:
        tokenizer: Of the bag.
        compose: Without, a token is itself alone.
    """

    def __init__(self, tokenizer: Tokenizer, compose: bool) -> None:
        vocabulary = tokenizer.get_vocab()
        rows = [[number] for number in range(tokenizer.get_vocab_size())]
        for token, number in vocabulary.items():
            plain = token.removeprefix("##")
            if compose and len(plain) > 1 and not token.startswith("["):
                rows[number] += [vocabulary[mark] for mark in plain if mark in vocabulary]
        self.counts = torch.tensor([len(row) for row in rows])
        self.starts = self.counts.cumsum(0) - self.counts
        self.flat = torch.tensor([part for row in rows for part in row])

    def expand(self, ids: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        """Give the parts of all tokens of flat bags, and the bags' new offsets."""
        counts = self.counts[ids]
        ends = counts.cumsum(0)
        within = torch.arange(int(ends[-1]) if len(ends) else 0) - (ends - counts).repeat_interleave(counts)
        before = torch.cat([ends.new_zeros(1), ends])
        return self.flat[self.starts[ids].repeat_interleave(counts) + within], before[offsets]

    def fold(self, table: Tensor) -> Tensor:
        """Give the table whose rows are the sums of their parts: a bag of it needs no parts."""
        ids, offsets = self.expand(torch.arange(len(table)), torch.arange(len(table)))
        return nn.functional.embedding_bag(ids, table, offsets, mode="sum")


class BagLoss(nn.Module):
    """An objective over bags.

    What `losses.EmbeddingLoss` does with flat columns, of tokens that are made of parts.

    Args:
        model: One `StaticEmbedding`.
        objective: Module from `Batch` to a scalar.
        parts: Of each token.
        token_dropout: Share of the tokens left out of each text.
    """

    def __init__(self, model: SentenceTransformer, objective: nn.Module, parts: Parts, token_dropout: float) -> None:
        super().__init__()
        self.model: Any = model
        self.objective, self.parts, self.token_dropout = objective, parts, token_dropout

    def forward(self, sentence_features: Iterable[Features], labels: Tensor | None = None) -> Tensor:
        """Give the loss of a batch, one flat feature dictionary per column."""
        columns = list(sentence_features)
        keys = [bag_keys(column) for column in columns]
        vectors = [self.model(self._parts_of(column))["sentence_embedding"] for column in columns]
        loss: Tensor = self.objective(Batch(vectors, keys, labels))
        return loss

    def _parts_of(self, column: Features) -> Features:
        ids, offsets = drop_tokens(column["input_ids"], column["offsets"], self.token_dropout)
        ids, offsets = self.parts.expand(ids, offsets)
        return {**column, "input_ids": ids, "offsets": offsets}


def start_from_bag(encoder: SentenceTransformer, table: Tensor) -> SentenceTransformer:
    """Give an encoder that computes what a bag of a table's rows does, with layers that are ready to learn more.

    The encoder may be wider than the bag: the bag takes the first dimensions, those that the slice keeps.

    Raises:
        InputError: the encoder does not pool the mean, or does not share the bag's vocabulary.
    """
    modules = list(encoder.children())
    transformer, pooling = towers.transformer_of(encoder), modules[1]
    if not isinstance(pooling, Pooling) or pooling.pooling_mode != "mean":
        raise InputError("stage bag: the encoders need pooling = 'mean': a bag is a mean of its tokens")
    embeddings = towers.word_embeddings(encoder)
    if len(embeddings) != len(table):
        raise InputError(
            f"stage bag: the bag knows {len(table)} tokens, the encoder {len(embeddings)}; train both anew"
        )
    lengths = table.norm(dim=1).clamp(min=1e-6)
    with torch.no_grad():
        embeddings.zero_()
        embeddings[:, : table.shape[1]] = table / lengths[:, None] * embeddings.shape[1] ** 0.5
    _flatten(transformer.model)
    weights = _token_weights(transformer.tokenizer, lengths)
    return SentenceTransformer(
        modules=[transformer, weights, *modules[1:]], prompts=towers.prompts_of(encoder), similarity_fn_name="cosine"
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


def _token_weights(tokenizer: Any, lengths: Tensor) -> WordWeights:
    """Give the weights of the mean: the vectors' lengths, 0 for the marks that every text has."""
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(lengths))))
    marks = {tokenizer.cls_token, tokenizer.sep_token, tokenizer.eos_token, tokenizer.pad_token, tokenizer.mask_token}
    weights = {
        token: 0.0 if token in marks else round(length, 4)
        for token, length in zip(tokens, lengths.tolist(), strict=True)
    }
    return WordWeights(tokens, weights)
