"""The function that an export traces: a query encoder from two arrays to unit vectors (extra ``onnx``)."""

import copy
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding
from torch import Tensor
from transformers import BertModel
from transformers.models.bert.modeling_bert import BertLayer

BERT_OPSET = 23
"""The first with an attention operator."""
OPSET = 21
"""Of other architectures. From 23 on the exporter writes rotary embeddings that onnxruntime 1.31 refuses."""


class QueryGraph(torch.nn.Module):
    """All modules of a query encoder, pooling and normalisation included."""

    def __init__(self, tower: SentenceTransformer) -> None:
        super().__init__()
        self.tower = copy.deepcopy(tower)
        self.opset = OPSET
        transformer, following = self.tower[0], self.tower[1]
        reads_first_only = isinstance(following, Pooling) and following.pooling_mode == "cls"
        if is_static(tower):
            table: Any = transformer.embedding
            self.tower[0] = TokenMean(table.weight)
        elif isinstance(transformer.model, BertModel):
            self.opset = BERT_OPSET
            layers: Any = transformer.model.encoder.layer
            for number, layer in enumerate(layers):
                is_last = number == len(layers) - 1
                layers[number] = FastBertLayer(layer, first_token_only=is_last and reads_first_only)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return (batch, dim) from token ids and mask, both (batch, length)."""
        features: dict[str, Any] = {"input_ids": input_ids, "attention_mask": attention_mask}
        for module in self.tower:
            features = module(features)
        vectors: Tensor = features["sentence_embedding"]
        return vectors


def is_static(tower: SentenceTransformer) -> bool:
    """Return whether an encoder is a table of token vectors, without layers."""
    return isinstance(tower[0], StaticEmbedding)


class TokenMean(torch.nn.Module):
    """What a static encoder computes, over padded tokens: the mean of the vectors of those that count."""

    def __init__(self, table: torch.nn.Parameter) -> None:
        super().__init__()
        self.table = table

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        """Add the means, (batch, dim), to token ids and mask."""
        mask = features["attention_mask"].to(self.table.dtype)
        total = (torch.nn.functional.embedding(features["input_ids"], self.table) * mask[..., None]).sum(dim=1)
        return {**features, "sentence_embedding": total / mask.sum(dim=1, keepdim=True)}


class FastBertLayer(torch.nn.Module):
    """A layer of a BERT with the same result for less work.

    Attention is one ONNX operator over (batch, length, hidden), so nothing is transposed between the operators. In the
    last layer of a model that is pooled at its first token only that token goes on: the others serve as keys and
    values, and five sixths of the layer fall away. The serving side pads on the right, so the first token is the first
    column.
    """

    def __init__(self, layer: BertLayer, *, first_token_only: bool) -> None:
        super().__init__()
        self.layer, self.first_token_only = layer, first_token_only

    def forward(self, hidden_states: Tensor, attention_mask: Tensor, *_: Any, **__: Any) -> Tensor:
        """Return (batch, length or 1, hidden) from (batch, length, hidden) and a mask of (batch, 1, length, length)."""
        attention = self.layer.attention.self
        wanted = hidden_states
        if self.first_token_only:
            wanted, attention_mask = hidden_states[:, :1], attention_mask[:, :, :1]
        context = torch.onnx.ops.attention(
            attention.query(wanted),
            attention.key(hidden_states),
            attention.value(hidden_states),
            attention_mask,
            q_num_heads=attention.num_attention_heads,
            kv_num_heads=attention.num_attention_heads,
            scale=attention.scaling,
        )[0]
        output: Any = self.layer.attention.output(context, wanted)
        return self.layer.output(self.layer.intermediate(output), output)  # type: ignore[no-any-return]
