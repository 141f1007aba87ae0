"""A batch without padding: its texts are one row of tokens, and each attends within itself.

Causal attention takes half the work without a mask, and on a GPU a mask keeps torch off its fastest kernel. Where one
token becomes the vector, the feed-forward of the last layer, which reads no other token, is computed for that one
alone.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from inspect import signature
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

import numpy as np

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from torch import Tensor

logger = logging.getLogger(__name__)

_NAME = "care_packed"
_FULL = "full_attention"
_OFFSET_POSITIONS = ("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert")
"""Models that count positions from the padding token's number on."""
_BEYOND_PRODUCTS = ("sliding_window", "softcap", "position_bias", "s_aux")
_PROBES = ((5, 7, 6, 9, 8, 7), (6, 8), (9, 5, 5, 7, 9, 6, 8, 8, 5, 7, 6))
"""Token numbers that every vocabulary has."""


class Packed:
    """A transformer and its pooling over texts that are one row; nothing else may use the model while `run` does."""

    def __init__(self, model: "SentenceTransformer") -> None:
        self._model = cast(Any, model)
        self._transformer = self._model[0].model
        config = self._transformer.config
        self._first_position = int(config.pad_token_id) + 1 if config.model_type in _OFFSET_POSITIONS else 0
        self._pooling = self._model[1].pooling_mode

    def features(self, token_ids: Sequence[Sequence[int]]) -> dict[str, Any]:
        """Return what `run` reads of texts of at least one token each; on a CPU those of one length are best together.

        Beside the tensors there is the length of the longest text, which a GPU need not be asked for.
        """
        import torch

        ends = np.cumsum([0, *map(len, token_ids)])
        positions = np.concatenate([np.arange(len(ids)) for ids in token_ids]) + self._first_position
        rows = {"input_ids": np.concatenate([np.asarray(ids) for ids in token_ids]), "position_ids": positions}
        if "token_type_ids" in self._model.tokenizer.model_input_names:
            rows["token_type_ids"] = np.zeros_like(positions)
        bounds = torch.from_numpy(ends.astype(np.int32))
        features: dict[str, Any] = {name: torch.from_numpy(row)[None] for name, row in rows.items()}
        longest = max(map(len, token_ids))
        bounded = {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": longest, "max_length_k": longest}
        return {**features, **bounded}

    def run(self, features: dict[str, Any]) -> "Tensor":
        """Return the vectors of the texts, (texts, dim)."""
        bounds = features["cu_seq_lens_q"]
        tokens = {"cls": bounds[:-1], "lasttoken": bounds[1:] - 1}.get(self._pooling)
        with self._attention(), _last_feed_forward_of(self._transformer, tokens):
            vectors: Tensor = self._model(features)["sentence_embedding"]
        return vectors

    @contextmanager
    def _attention(self) -> Iterator[None]:
        config = self._transformer.config
        before = config._attn_implementation
        config._attn_implementation = _NAME
        try:
            yield
        finally:
            config._attn_implementation = before


def packed(
    model: "SentenceTransformer",
    padded: Callable[[Sequence[Sequence[int]]], "Tensor"],
    sent: Callable[[dict[str, Any]], dict[str, Any]],
) -> Packed | None:
    """Return how to encode without padding, or None where that does not give the vectors that padded batches give.

    Args:
        model: Begins with a transformer and its pooling.
        padded: Encodes token ids as a padded batch, the longest first.
        sent: Moves features to the model's device.
    """
    import torch
    from transformers import AttentionInterface

    transformer = cast(Any, model[0]).model
    layers = getattr(transformer.config, "layer_types", None) or [_FULL]
    is_compatible: Callable[[], bool] = getattr(transformer, "is_backend_compatible", lambda: False)
    if {*layers} != {_FULL} or not is_compatible():
        return None
    AttentionInterface.register(_NAME, _attend)
    # No way of pooling is asked for by name: one that does not know of several texts in a row gives other vectors here.
    probes = sorted(_PROBES, key=len, reverse=True)
    try:
        with torch.inference_mode():
            found = Packed(model)
            own, wanted = found.run(sent(found.features(probes))).float(), padded(probes).float()
            limit = 1e-6 if model.dtype == torch.float32 else _rough_limit(padded, probes, wanted)
    except Exception as error:  # an architecture may fail in any way here, and encodes with padding all the same
        logger.info("%s: encoded with padding (%s)", type(transformer).__name__, error)
        return None
    return found if _apart(own, wanted) < limit else None


def _rough_limit(
    padded: Callable[[Sequence[Sequence[int]]], "Tensor"], probes: Sequence[Sequence[int]], wanted: "Tensor"
) -> float:
    """Return how far vectors may be apart in half precision, where a text alone differs from itself beside others."""
    import torch

    alone = torch.cat([padded([probe]).float() for probe in probes])
    return min(1e-2, max(1e-3, 4 * _apart(alone, wanted)))


def _apart(own: "Tensor", wanted: "Tensor") -> float:
    import torch

    return float(1 - torch.nn.functional.cosine_similarity(own, wanted, dim=1).min())


def _attend(
    module: Any,
    query: "Tensor",
    key: "Tensor",
    value: "Tensor",
    attention_mask: "Tensor | None",
    *,
    scaling: float | None = None,
    is_causal: bool | None = None,
    cu_seq_lens_q: "Tensor",
    max_length_q: int,
    **others: Any,
) -> "tuple[Tensor, None]":
    """Attend within each text: (1, heads, tokens, width) to (1, tokens, heads, width)."""
    import torch

    if attention_mask is not None or any(others.get(name) is not None for name in _BEYOND_PRODUCTS):
        raise ValueError("attention that is more than a product of queries and keys")
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if query.is_cuda:
        return _attend_at_once(query, key, value, cu_seq_lens_q, max_length_q, causal=causal, scaling=scaling), None
    out = query.new_empty(query.shape[2], query.shape[1], value.shape[-1])
    at = 0
    for length, run in groupby(cu_seq_lens_q.diff().tolist()):
        texts = len(list(run))
        rows = slice(at, at + texts * length)
        queries, keys, values = (
            side[0, :, rows].reshape(-1, texts, length, side.shape[-1]).transpose(0, 1) for side in (query, key, value)
        )
        attended = torch.nn.functional.scaled_dot_product_attention(
            queries,
            keys,
            values,
            scale=scaling,
            is_causal=causal and length > 1,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        out[rows] = attended.transpose(1, 2).flatten(0, 1)
        at = rows.stop
    return out[None], None


def _attend_at_once(
    query: "Tensor",
    key: "Tensor",
    value: "Tensor",
    bounds: "Tensor",
    longest: int,
    *,
    causal: bool,
    scaling: float | None,
) -> "Tensor":
    """Attend within each text by torch's own flash attention, which reads texts of any lengths in one kernel."""
    from torch.nn.attention.varlen import varlen_attn

    queries, keys, values = (side[0].transpose(0, 1) for side in (query, key, value))
    options: dict[str, Any] = {"scale": scaling, "window_size": (-1, 0 if causal else -1)}
    if "enable_gqa" in _parameters(varlen_attn):  # torch 2.11 shares keys without being asked to
        options["enable_gqa"] = query.shape[1] != key.shape[1]
    attended = cast("Tensor", varlen_attn(queries, keys, values, bounds, bounds, longest, longest, **options))
    return attended[None]


@cache
def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(signature(function).parameters)


@contextmanager
def _last_feed_forward_of(transformer: Any, tokens: "Tensor | None") -> Iterator[None]:
    """Compute the feed-forward of the last layer for these tokens alone; the others' rows are zero."""
    layers = getattr(transformer, "layers", None) or getattr(getattr(transformer, "encoder", None), "layer", None)
    last = layers[-1] if layers else None
    is_bert = hasattr(last, "feed_forward_chunk")
    holder, name = (last, "feed_forward_chunk") if is_bert else (getattr(last, "mlp", None), "forward")
    if tokens is None or holder is None or name in vars(holder):
        yield
        return
    whole = getattr(holder, name)

    def of_tokens(hidden: "Tensor") -> "Tensor":
        out = hidden.new_zeros(hidden.shape)
        out[:, tokens] = whole(hidden[:, tokens])
        return out

    setattr(holder, name, of_tokens)
    try:
        yield
    finally:
        delattr(holder, name)
