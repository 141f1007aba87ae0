"""A batch without padding: its texts are one row of tokens, and each attends within itself.

Causal attention takes half the work without a mask, and on a GPU a mask keeps torch off its fastest kernel. Where one
token becomes the vector, the feed-forward of the last layer, which reads no other token, is computed for that one
alone. In a long run on a GPU torch compiles the other layers: what a layer computes between its matrix products takes
as long as those, since each step of it reads and writes all tokens.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from inspect import signature
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from torch import Tensor

logger = logging.getLogger(__name__)

_NAME = "care_packed"
_FULL = "full_attention"
_OFFSET_POSITIONS = ("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert")
"""Models that count positions from the padding token's number on."""
_BEYOND_PRODUCTS = ("sliding_window", "softcap", "position_bias", "s_aux")
_PROBES = ((9, 5, 5, 7, 9, 6, 8, 8, 5, 7, 6), (5, 7, 6, 9, 8, 7), (6, 8))
"""Texts of token numbers that every vocabulary has, the longest first."""
_LARGEST_ROUNDING = 1e-2
"""Largest distance, as 1 - cosine, between two computations of one text in half precision."""


class Packed:
    """A transformer and its pooling over texts that are one row; nothing else may use the model while `run` does."""

    def __init__(self, model: "SentenceTransformer") -> None:
        self._model = cast(Any, model)
        self._transformer = self._model[0].model
        config = self._transformer.config
        self._padding = int(config.pad_token_id) if config.model_type in _OFFSET_POSITIONS else None
        self._pooling = self._model[1].pooling_mode
        self._compiled: Mapping[Any, Callable[..., Any]] | None = None

    @property
    def is_compiled(self) -> bool:
        """Whether compiled layers are used."""
        return bool(self._compiled)

    def features(self, token_ids: Sequence[Sequence[int]]) -> dict[str, Any]:
        """Return the input of `run` for texts of at least one token each; on a CPU, put texts of one length together.

        It includes the length of the longest text, so that `run` need not read it from a GPU.
        """
        import torch

        ends = np.cumsum([0, *map(len, token_ids)])
        positions = np.concatenate([self._positions(np.asarray(ids)) for ids in token_ids])
        rows = {"input_ids": np.concatenate([np.asarray(ids) for ids in token_ids]), "position_ids": positions}
        if "token_type_ids" in self._model.tokenizer.model_input_names:
            rows["token_type_ids"] = np.zeros_like(positions)
        bounds = torch.from_numpy(ends.astype(np.int32))
        features: dict[str, Any] = {name: torch.from_numpy(row)[None] for name, row in rows.items()}
        longest = max(map(len, token_ids))
        bounded = {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": longest, "max_length_k": longest}
        return {**features, **bounded}

    def _positions(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the position of each token of a text: a text may hold the padding token, which RoBERTa passes over."""
        if self._padding is None:
            return np.arange(len(ids))
        counts = ids != self._padding
        return np.asarray(np.cumsum(counts) * counts + self._padding)

    def run(self, features: dict[str, Any]) -> "Tensor":
        """Return the vectors of the texts, (texts, dim)."""
        import torch

        try:
            return self._run(dict(features))  # a copy, to which the modules add their output
        except Exception as error:
            if not self._compiled or isinstance(error, torch.OutOfMemoryError):
                raise
            logger.warning("%s: continues without compiled layers (%s)", type(self._transformer).__name__, error)
            self._compiled = {}
            return self._run(features)

    def _run(self, features: dict[str, Any]) -> "Tensor":
        bounds = features["cu_seq_lens_q"]
        tokens = {"cls": bounds[:-1], "lasttoken": bounds[1:] - 1}.get(self._pooling)
        with self._attention(), _last_feed_forward_of(self._transformer, tokens), ExitStack() as stack:
            for layer, forward in (self._compiled or {}).items():
                stack.enter_context(_method(layer, "forward", forward))
            vectors: Tensor = self._model(features)["sentence_embedding"]
        return vectors

    def compile(self, sent: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Compile the layers, once: about ten seconds on a GPU, for a model of any size.

        The layers stay as they are without a compiler, or if the vectors would change.
        """
        import torch

        if self._compiled is not None:
            return
        self._compiled = {}
        began, name = time.perf_counter(), type(self._transformer).__name__

        features = self.features(_PROBES)

        def vectors() -> "Tensor":
            return self._run(sent(dict(features))).float()

        try:
            with torch.inference_mode():
                before = vectors()
                layers = _layers(self._transformer)[:-1]  # the last one computes less in each batch
                self._compiled = {layer: torch.compile(layer.forward, dynamic=True) for layer in layers}
                if (apart := _apart(vectors(), before)) > _LARGEST_ROUNDING:
                    raise ValueError(f"vectors are {apart:.4f} apart")
        except Exception as error:  # a compiler may fail in any way, and the layers work without it
            self._compiled = {}
            logger.info("%s: not compiled (%s)", name, error)
        else:
            logger.info("%s: %d layers compiled in %.0f s", name, len(layers), time.perf_counter() - began)

    @contextmanager
    def _attention(self) -> Iterator[None]:
        config = self._transformer.config
        before = config._attn_implementation
        config._attn_implementation = _NAME
        try:
            yield
        finally:
            config._attn_implementation = before


def reads_longest(model: "SentenceTransformer") -> bool:
    """Return whether the rotary positions of all texts of a batch depend on the length of its longest one."""
    return any("longrope" in str(getattr(module, "rope_type", "")) for module in model.modules())


def packed(
    model: "SentenceTransformer",
    padded: Callable[[Sequence[Sequence[int]]], "Tensor"],
    sent: Callable[[dict[str, Any]], dict[str, Any]],
) -> Packed | None:
    """Return an encoder without padding, or None if its vectors differ from the vectors of padded batches.

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
    if {*layers} != {_FULL} or not is_compatible() or reads_longest(model):
        return None
    AttentionInterface.register(_NAME, partial(_attend, at_once=_flash_attention()))
    # No pooling is refused by name: one that does not support several texts in a row gives other vectors here.
    try:
        with torch.inference_mode():
            candidate = Packed(model)
            own, expected = candidate.run(sent(candidate.features(_PROBES))).float(), padded(_PROBES).float()
            limit = 1e-6 if model.dtype == torch.float32 else _rough_limit(padded, expected)
    except Exception as error:  # an architecture may fail in any way here, and is then encoded with padding
        logger.info("%s: encoded with padding (%s)", type(transformer).__name__, error)
        return None
    return candidate if _apart(own, expected) < limit else None


def _rough_limit(padded: Callable[[Sequence[Sequence[int]]], "Tensor"], expected: "Tensor") -> float:
    """Return how far apart vectors may be in half precision: a text alone differs from itself in a batch."""
    import torch

    alone = torch.cat([padded([probe]).float() for probe in _PROBES])
    return min(_LARGEST_ROUNDING, max(1e-3, 4 * _apart(alone, expected)))


def _apart(own: "Tensor", expected: "Tensor") -> float:
    import torch

    return float(1 - torch.nn.functional.cosine_similarity(own, expected, dim=1).min())


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
    at_once: "Callable[..., Tensor] | None",
    **others: Any,
) -> "tuple[Tensor, None]":
    """Attend within each text: (1, heads, tokens, width) to (1, tokens, heads, width); on a GPU to all at once."""
    import torch

    if attention_mask is not None or any(others.get(name) is not None for name in _BEYOND_PRODUCTS):
        raise ValueError("attention that is more than a product of queries and keys")
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if query.is_cuda:
        if at_once is None:
            raise ValueError("this torch has no attention to texts of several lengths")
        sides = (side[0].transpose(0, 1) for side in (query, key, value))
        window = (-1, 0 if causal else -1)
        bounds = (cu_seq_lens_q, cu_seq_lens_q, max_length_q, max_length_q)
        return at_once(*sides, *bounds, scale=scaling, window_size=window)[None], None
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


def _flash_attention() -> "Callable[..., Tensor] | None":
    """Return torch's flash attention, which reads texts of any lengths in one kernel, where torch has it."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    # torch 2.11 shares keys among heads without being asked to
    asks = "enable_gqa" in signature(varlen_attn).parameters
    return cast("Callable[..., Tensor]", partial(varlen_attn, enable_gqa=True) if asks else varlen_attn)


def _layers(transformer: Any) -> Sequence[Any]:
    return getattr(transformer, "layers", None) or getattr(getattr(transformer, "encoder", None), "layer", None) or ()


@contextmanager
def _last_feed_forward_of(transformer: Any, tokens: "Tensor | None") -> Iterator[None]:
    """Compute the feed-forward of the last layer for these tokens alone; the others' rows are zero."""
    layers = _layers(transformer)
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

    with _method(holder, name, of_tokens):
        yield


@contextmanager
def _method(holder: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Let an object use another function in place of a method of its class."""
    setattr(holder, name, function)
    try:
        yield
    finally:
        delattr(holder, name)
