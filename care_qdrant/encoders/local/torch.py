"""An encoder on torch: the document side, and any model without an ONNX file.

The modules and the vectors are the same as in sentence-transformers, and only the way to them differs: each text is
tokenised by a copy of the model's own tokenizer that needs no lock, while another thread keeps the device busy; a
forward pass has no padding where the model allows it, and else texts of one length; memory that runs out halves the
budget of a pass; and one vector a text comes back.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from pickle import PickleError
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

import numpy as np
from tokenizers import Encoding, Tokenizer

from care_qdrant.encoders.agreement import cosines
from care_qdrant.encoders.ahead import Meter
from care_qdrant.encoders.batching import (
    ALIKE,
    Budget,
    T,
    token_batches,
    tokenised,
    tokenizer_errors,
    uncut_length,
    unread_words,
)
from care_qdrant.encoders.engine import Dtype
from care_qdrant.encoders.local.attention import without_cudnn_attention
from care_qdrant.encoders.local.packing import Packed, packed, reads_longest
from care_qdrant.encoders.local.weights import no_progress_bars as no_progress_bars
from care_qdrant.encoders.local.weights import readable_model
from care_qdrant.encoders.side import Geometry, geometry_by, static_limit
from care_qdrant.encoders.unread import UnreadWords
from care_qdrant.encoders.usable import as_encoded, encodable, require_lengths
from care_qdrant.errors import EncodingError, InputError, ModelError, counted, needs_extra
from care_qdrant.forking import ForkLock, renew_in_child
from care_qdrant.types import Vectors

if TYPE_CHECKING:
    import torch
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)

BATCH_TOKENS = 16_384
"""Padded tokens of one forward pass on a GPU; bounds memory for texts of any length."""
CPU_BATCH_TOKENS = 2_048
"""Padded tokens of one forward pass on a CPU, whose caches a larger pass leaves."""
COMPILE_AFTER = 20.0
"""Seconds of a GPU's work on documents after which the layers are compiled; that takes ten, and saves a third of what
follows."""
_LOCKS: "WeakKeyDictionary[SentenceTransformer, ForkLock]" = WeakKeyDictionary()
"""A lock for each model: the encoders of both sides may share it, and a batch without padding changes it while it
runs."""
_LOCKS_LOCK = ForkLock()
_TOLERANCE = 1e-2
"""Largest accepted distance of a vector's length from 1: bfloat16 has eight bits of precision."""
_SHORT, _LONG = "a", "a b c d e f g h i"
"""A short text, and a longer one with which it is padded."""
_MIXED = "HbA1c ÄÖ Café ﬁ 头痛"
_MOST_REPEATED = 4_096
"""Repetitions of the longer text in one that is cut off."""
_PADDING_LIMITS = {"torch.float32": 1e-5}
"""Largest distance, as 1 - cosine, between a text's vector alone and in a batch with a longer text, by dtype; 1e-2 for
types of less precision. Above it, padding takes part in the vector."""


class TorchEncoder:
    """One side of a model as a sentence-transformers model; bfloat16 on a GPU, float32 on a CPU.

    A table of token vectors, and a model whose input is not token ids alone, go through sentence-transformers' own
    ``encode``.

    Used by several threads: calls take turns on the device, and tokenise meanwhile. The lock belongs to the model,
    which two encoders may share, and to its tokenizer: ``encode`` sets padding and truncation there for each batch. So
    nothing reads the model's own tokenizer without the lock; lengths come from a copy that no other object refers to
    and that does not change after ``__init__``.
    """

    calls = 2
    """One on the device, and one that is being tokenised."""

    def __init__(
        self,
        model: "SentenceTransformer",
        side: Literal["query", "document"],
        *,
        prompt: str | None = None,
        max_tokens: int | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        self._model = model
        self._encode = self._model.encode_query if side == "query" else self._model.encode_document
        with _LOCKS_LOCK:
            if model not in _LOCKS:
                _LOCKS[model] = ForkLock()
                _take_any_dtype(model)
            self._lock = _LOCKS[model]
        self._reads_ids = self._reads_ids_alone()
        self._is_table = isinstance(model.tokenizer, Tokenizer)
        with self._lock:
            self.max_tokens = self._limit(max_tokens)
            self._copy = self._copy_tokenizer()
            if self._copy is not None and not self._is_table:
                require_same_tokens(model, self._copy.encode, self.max_tokens, side)
        self.prompt = prompt if prompt is not None else (self._model.prompts.get(side) or "")
        self.dim = int(self._model.get_embedding_dimension() or 0)
        self.budget = Budget(batch_tokens or (CPU_BATCH_TOKENS if self.device == "cpu" else BATCH_TOKENS))
        self.meter = Meter()
        self.alike = ALIKE if self.device == "cpu" else 0.0
        self._geometry: Geometry = "cut" if cuts_unit_vectors(model) else "unit"
        self._packed = self._without_padding()
        # Such a model gets batches of one length, so that no vector depends on the other texts.
        self._reads_padding = self._packed is None and (reads_longest(model) or self._is_changed_by_padding())
        # A query must not wait for a compilation; a batch of documents may.
        self._compiles = side == "document" and self.device != "cpu"

    @property
    def device(self) -> str:
        """The device of the weights, as torch names it."""
        return str(self._model.device)

    def report(self) -> dict[str, Any]:
        """Return the device, the kernels and the figures of the work."""
        transformer = getattr(self._model[0], "model", None)
        return {
            "engine": "torch",
            "device": self.device,
            "dtype": str(self._model.dtype).removeprefix("torch."),
            "attention": getattr(getattr(transformer, "config", None), "_attn_implementation", None),
            "batch_tokens": self.budget.tokens,
            "out_of_memory": self.budget.exceeded,
            "padding": round(self.meter.padding, 4),
        }

    def encode(self, texts: Sequence[str], *, prompt: str | None = None) -> Vectors:
        """Encode texts into unit vectors, in order: ``(len(texts), dim)`` float32."""
        texts = encodable(texts)
        vectors = self.forward(texts, prompt=prompt)
        require_lengths(vectors, texts, self._geometry, tolerance=_TOLERANCE)
        return vectors

    def forward(self, texts: Sequence[str], *, prompt: str | None = None) -> Vectors:
        """Encode texts without checking the vectors: a text that the model does not weigh gets a zero vector."""
        texts = as_encoded(texts)
        prompt = self.prompt if prompt is None else prompt
        read = self._read(texts, prompt) if self._reads_ids else None
        uncut = map(len, read) if read is not None else self._lengths(texts, prompt)
        lengths = [min(length, self.max_tokens) for length in uncut]
        vectors = np.empty((len(texts), self.dim), dtype=np.float32)
        todo = deque(self._batches(lengths))
        while todo:
            batch = todo.popleft()
            padded = lengths[batch[0]] * len(batch)
            try:
                if read is None:
                    vectors[batch] = self._stock(
                        [texts[index] for index in batch], prompt, lengths=lengths, batch=batch
                    )
                else:
                    vectors[batch] = self._forward([read[index] for index in batch])
            except _OF_A_BROKEN_MODEL as error:
                if not _is_out_of_memory(error):
                    raise EncodingError(
                        f"the encoder fails on {counted(len(batch), 'text')}, the first {texts[batch[0]][:40]!r} "
                        f"({error!r}); check the model with: care model verify"
                    ) from error
                if len(batch) == 1:
                    raise EncodingError(f"a text of {padded} tokens does not fit into the memory ({error})") from error
                self.budget.halve(padded)
                logger.warning("%s: out of memory at %d padded tokens, going on", self.device, padded)
                self._free()
                parts = self._batches([lengths[index] for index in batch])
                todo.extendleft(reversed([[batch[index] for index in part] for part in parts]))
            else:
                self.budget.fits(padded)
        return vectors

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return the uncut length of each text in tokens, special tokens and prompt included."""
        texts = as_encoded(texts)
        return self._lengths(texts, self.prompt)

    def unread(self, text: str) -> list[str]:
        """Return the words that the tokenizer does not read, where they are most of a text."""
        return [] if self._copy is None else unread_words(UnreadWords(self._copy), text, self._copy.encode)

    def _read(self, texts: Sequence[str], prompt: str) -> list[list[int]] | None:
        """Return token ids, cut; None for a tokenizer in Python."""
        return None if self._copy is None else self._tokenised(texts, prompt, lambda encoding: encoding.ids)

    def _tokenised(self, texts: Sequence[str], prompt: str, part: Callable[[Encoding], T]) -> list[T]:
        assert self._copy is not None, "checked by the callers"
        tokenizer, special = self._copy, not self._is_table
        # On a CPU one by one: `encode_batch` starts a thread for each core, and those are what a CPU encodes with.
        if self.device != "cpu":
            with suppress(ValueError), tokenizer_errors():
                prompted = [prompt + text for text in texts]
                return [part(encoding) for encoding in tokenizer.encode_batch(prompted, add_special_tokens=special)]
        return tokenised(texts, lambda text: part(tokenizer.encode(prompt + text, add_special_tokens=special)))

    def _batches(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        # Attention on a CPU is computed by length, with or without padding.
        padded = self._packed is None or self.device == "cpu"
        alike = ALIKE if padded else 0.0
        return token_batches(lengths, self.budget.tokens, alike=alike, equal=self._reads_padding)

    def _limit(self, max_tokens: int | None) -> int:
        tokenizer = self._model.tokenizer
        if self._is_table:
            return static_limit(tokenizer)
        if max_tokens is not None:
            self._model.max_seq_length = max_tokens
        return int(self._model.max_seq_length or tokenizer.model_max_length)

    def _reads_ids_alone(self) -> bool:
        """Return whether token ids and a mask are all that the modules read.

        Some tokenizers give tokens of one text several types: XLNet and Funnel have one for their first marker.
        """
        names = [type(module).__name__ for module in self._model.children()]
        pooling = next((module for module in self._model.children() if type(module).__name__ == "Pooling"), None)
        if names[:2] != ["Transformer", "Pooling"] or not getattr(pooling, "include_prompt", False):
            return False
        has_types = False
        for text in (_SHORT, " ".join(map(str, self._model.tokenizer.all_special_tokens))):
            with self._lock, suppress(KeyError, ValueError), tokenizer_errors():  # it may not know the text
                has_types |= bool(self._model.preprocess([text])["token_type_ids"].any())
        return not has_types

    def _copy_tokenizer(self) -> Tokenizer | None:
        """Return a copy of the tokenizer that cuts as the model's does; None for one in Python, which has no copy."""
        tokenizer = self._model.tokenizer
        backend = tokenizer if self._is_table else getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            return None
        copy = Tokenizer.from_str(backend.to_str())
        copy.no_padding()
        if self._is_table:
            copy.no_truncation()
        else:
            copy.enable_truncation(self.max_tokens, direction=tokenizer.truncation_side)
        return copy

    def _without_padding(self) -> Packed | None:
        if self._copy is None or not self._reads_ids or self._model.device.type not in ("cpu", "cuda"):
            return None
        with self._lock:
            return packed(self._model, lambda token_ids: self._run(self._sent(self._padded(token_ids))), self._sent)

    def _is_changed_by_padding(self) -> bool:
        """Return whether padding changes the vector of a text.

        Convolutions read the padding next to a text, FNet mixes it in, and some models count positions from its
        beginning.
        """
        if self._is_table:
            return False
        try:
            with self._lock:
                [alone], [padded, _] = (
                    self._encode(texts, prompt="", batch_size=2, show_progress_bar=False)
                    for texts in ([_SHORT], [_SHORT, _LONG])
                )
        except _OF_A_BROKEN_MODEL:  # CANINE runs no text of few characters alone
            return True
        return not 1 - cosines(alone[None], padded[None])[0] < _PADDING_LIMITS.get(str(self._model.dtype), 1e-2)

    def _forward(self, token_ids: Sequence[Sequence[int]]) -> Vectors:
        """Return the vectors of one batch; the longest comes first."""
        import torch

        lengths = [len(ids) for ids in token_ids]
        # One text has no padding, and on a GPU attention to many has a cost for each call.
        alone = len(token_ids) == 1 and self.device != "cpu"
        packed = None if alone or lengths[-1] == 0 else self._packed
        features = self._padded(token_ids) if packed is None else packed.features(token_ids)
        with self.meter.running(lengths, features["input_ids"].numel()):
            with self._lock, torch.inference_mode():
                if packed is not None and self._compiles and self.meter.busy_seconds > COMPILE_AFTER:
                    packed.compile(self._sent)
                rows = (self._run if packed is None else packed.run)(self._sent(features)).float()
                if self._geometry == "unit":
                    rows = torch.nn.functional.normalize(rows, dim=1)
                wait = _fetched(rows)
            # A GPU works in the background: the next call gives it more work while this one waits.
            return wait()

    def _padded(self, token_ids: Sequence[Sequence[int]]) -> "dict[str, torch.Tensor]":
        """Return (batch, length) tensors, padded on the tokenizer's own side; the longest text comes first."""
        import torch

        tokenizer, longest = self._model.tokenizer, len(token_ids[0])
        ids = np.full((len(token_ids), longest), tokenizer.pad_token_id or 0, dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, own in enumerate(token_ids):
            place = slice(longest - len(own), None) if tokenizer.padding_side == "left" else slice(len(own))
            ids[row, place], mask[row, place] = own, 1
        features = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
        if "token_type_ids" in tokenizer.model_input_names:
            features["token_type_ids"] = torch.zeros_like(features["input_ids"])
        return features

    def _sent(self, features: dict[str, Any]) -> dict[str, Any]:
        """Return features on the model's device; what is not a tensor stays as it is."""
        import torch

        def sent(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            is_cuda = self._model.device.type == "cuda"
            return (value.pin_memory() if is_cuda else value).to(self.device, non_blocking=is_cuda)

        return features if self.device == "cpu" else {name: sent(value) for name, value in features.items()}

    def _run(self, features: dict[str, Any]) -> "torch.Tensor":
        with without_cudnn_attention():
            vectors: torch.Tensor = self._model(features)["sentence_embedding"]
        return vectors

    def _stock(self, texts: list[str], prompt: str, *, lengths: Sequence[int], batch: Sequence[int]) -> Vectors:
        with self._lock, tokenizer_errors(), self.meter.running([lengths[index] for index in batch]):
            vectors: Vectors = self._encode(
                texts,
                prompt=prompt,
                batch_size=len(texts),
                show_progress_bar=False,
                normalize_embeddings=self._geometry == "unit",
            )
        return vectors

    def _free(self) -> None:
        import torch

        if self._model.device.type == "cuda":
            torch.cuda.empty_cache()

    def _lengths(self, texts: Sequence[str], prompt: str) -> list[int]:
        if not texts:
            return []
        if self._copy is not None:
            special = 0 if self._is_table else self._copy.num_special_tokens_to_add(False)
            return self._tokenised(texts, prompt, partial(uncut_length, special_tokens=special))
        with self._lock:
            encoded = self._model.tokenizer(
                [prompt + text for text in texts],
                padding=False,
                truncation=False,
                return_attention_mask=False,
                verbose=False,
            )
        return [len(ids) for ids in encoded["input_ids"]]


def _use_one_thread(_: object) -> None:
    """Let torch compute in one thread in a forked child, where it would wait forever for the threads of its parent."""
    import torch

    torch.set_num_threads(1)


def _fetched(rows: "torch.Tensor") -> Callable[[], Vectors]:
    """Begin to copy rows to this process, and return a function that waits for them."""
    import torch

    if not rows.is_cuda:
        vectors: Vectors = rows.cpu().numpy()
        return lambda: vectors
    copy = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True)
    copy.copy_(rows, non_blocking=True)
    done = torch.cuda.current_stream(rows.device).record_event()

    def wait() -> Vectors:
        done.synchronize()
        return copy.numpy()

    return wait


def _take_any_dtype(model: "SentenceTransformer") -> None:
    """Let dense layers take inputs of any dtype: in half precision, weighted tokens are float32 nevertheless."""
    from sentence_transformers.base.modules import Dense

    for module in model.modules():
        if isinstance(module, Dense) and _in_own_dtype not in module._forward_pre_hooks.values():
            module.register_forward_pre_hook(_in_own_dtype)


def _in_own_dtype(dense: Any, arguments: tuple[dict[str, Any], ...]) -> None:
    features, name = arguments[0], dense.module_input_name
    features[name] = features[name].to(dense.linear.weight.dtype)


def _is_out_of_memory(error: Exception) -> bool:
    import torch

    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def require_same_tokens(
    model: "SentenceTransformer", read: Callable[[str], Encoding], max_tokens: int, side: Literal["query", "document"]
) -> None:
    """Refuse a model whose texts sentence-transformers cuts into other tokens than ``read``.

    Each of its versions may add settings that do so.

    Raises:
        ModelError: Some text has other tokens.
    """
    special = " ".join(map(str, model.tokenizer.all_special_tokens))
    for text in (_SHORT, f"{special} {_MIXED}", _LONG * min(max_tokens, _MOST_REPEATED)):
        own = stock = None
        with suppress(ValueError), tokenizer_errors():  # of a text that the tokenizer does not know
            own, stock = read(text).ids, model.preprocess([text], task=side)["input_ids"][0].tolist()
        if own != stock:
            raise ModelError(
                f"sentence-transformers reads {text[:40]!r} as other tokens than the tokenizer gives; save the model "
                f"with max_seq_length = {max_tokens} and without further settings of its tokenizer"
            )


def cuts_unit_vectors(model: "SentenceTransformer") -> bool:
    """Return whether a model cuts its vectors after normalising them: they must not be normalised again."""
    return geometry_by([type(module).__name__ for module in model.children()], model.similarity_fn_name) == "cut"


def require_device(device: str) -> None:
    """Refuse a device that torch cannot use on this machine.

    Raises:
        InputError: This machine does not have the device.
    """
    import torch
    from sentence_transformers.util import get_device_name

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        there = " or ".join(dict.fromkeys([get_device_name(), "cpu"]))
        reason = str(error).partition("\n")[0]
        raise InputError(
            f"device {device!r}: torch cannot use it here ({reason}); leave it out, or name {there}"
        ) from error


def load_sentence_transformer(
    folder: str | Path, device: str | None = None, dtype: Dtype = "auto"
) -> "SentenceTransformer":
    """Load a saved sentence-transformers model for inference.

    Attention is flash-attention where that is installed and the model has it, else torch's own (SDPA). A child that is
    forked while the model exists computes in one thread.

    Args:
        folder: Folder of the model.
        device: Device, as torch names it; None takes CUDA, then MPS, then the CPU.
        dtype: Type of the weights; ``auto`` is float32 on a CPU, else bfloat16.

    Raises:
        MissingExtra: Torch or sentence-transformers are not installed.
        InputError: This machine does not have the device.
        ModelError: The folder holds no model that sentence-transformers loads.
    """
    with needs_extra("ingest", "this encoder"):
        import torch
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.util import get_device_name

    device = device or get_device_name()
    require_device(device)
    if dtype == "auto":
        dtype = "float32" if device.startswith("cpu") else "bfloat16"
    load = partial(SentenceTransformer, device=device, local_files_only=True)
    kwargs = {"dtype": getattr(torch, dtype)}
    flash = {**kwargs, "attn_implementation": "flash_attention_2"}
    has_flash = device.startswith("cuda") and dtype == "bfloat16" and find_spec("flash_attn") is not None
    with loading(folder), readable_model(folder) as native:
        if has_flash:
            try:
                return _run_once(load(str(native), model_kwargs=flash).eval())
            except (ValueError, ImportError) as error:
                logger.info("%s: without flash-attention (%s)", folder, error)
        return _run_once(load(str(native), model_kwargs=kwargs).eval())


@contextmanager
def loading(folder: str | Path) -> Iterator[None]:
    """Raise `ModelError` for what sentence-transformers raises in the block where a folder holds no whole model."""
    import torch

    try:
        with no_progress_bars(), tokenizer_errors():
            yield
    except torch.OutOfMemoryError as error:
        raise EncodingError(f"{folder}: does not fit into the memory of the device ({error})") from error
    except _OF_A_BROKEN_MODEL as error:
        raise ModelError(f"{folder}: sentence-transformers cannot run it ({error!r}); save the model again") from error


_OF_A_BROKEN_MODEL = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError),
    *(EOFError, OSError, PickleError, RuntimeError, TypeError, ValueError),
)
"""Errors of sentence-transformers and torch where the modules of a folder do not fit together, or lack a setting."""


def _run_once(model: "SentenceTransformer") -> "SentenceTransformer":
    """Return a model after encoding two texts with it: nothing else shows modules that do not fit together.

    The second one is longer, so that the padding is read as well.
    """
    _take_any_dtype(model)
    renew_in_child(model, _use_one_thread)
    if wrong := next((name for name, weights in model.named_parameters() if bool(weights.isnan().any())), None):
        raise ValueError(f"weights of {wrong} are not numbers")
    vectors, dim = model.encode_query([_SHORT, _LONG], show_progress_bar=False), model.get_embedding_dimension()
    width = vectors.shape[1]
    if width != dim:
        raise ValueError(f"its vectors have {width} dimensions, and its modules say {dim}")
    if not np.isfinite(vectors).all():
        raise ValueError("its vectors are not finite")
    return model
