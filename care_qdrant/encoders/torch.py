"""An encoder on torch, through sentence-transformers: the document side, and any model without an ONNX file."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from tokenizers import Tokenizer

from care_qdrant.encoders.batching import token_batches
from care_qdrant.encoders.tokens import uncut_length
from care_qdrant.encoders.usable import require_lengths
from care_qdrant.encoders.weights import readable_model
from care_qdrant.errors import needs_extra
from care_qdrant.model.card import Geometry, static_limit
from care_qdrant.types import Vectors

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

BATCH_TOKENS = 16_384
"""Padded tokens of one forward pass; bounds memory whatever the lengths are."""
_TOLERANCE = 1e-2
"""Of a vector's length: bfloat16 has eight bits of precision."""


class TorchEncoder:
    """One side of a pair as a sentence-transformers model; bfloat16 on a GPU, float32 on a CPU.

    The tokenizer of a static encoder, a table of token vectors, is one of ``tokenizers``, and cuts by itself.

    Calls from several threads wait for each other: the device is one.
    """

    def __init__(
        self,
        model: "SentenceTransformer",
        side: Literal["query", "document"],
        *,
        prompt: str | None = None,
        max_tokens: int | None = None,
        batch_tokens: int = BATCH_TOKENS,
    ) -> None:
        """Set up a loaded model for one role.

        Args:
            model: As `load_sentence_transformer` returns it.
            side: Which of its two roles it plays here.
            prompt: Put before each text; None takes the model's own.
            max_tokens: Longest input; None takes the model's own limit.
            batch_tokens: Padded tokens of one forward pass.
        """
        self._model = model
        self._encode = self._model.encode_query if side == "query" else self._model.encode_document
        self.max_tokens = self._limit(max_tokens)
        self.prompt = prompt if prompt is not None else (self._model.prompts.get(side) or "")
        self.dim = int(self._model.get_embedding_dimension() or 0)
        self.batch_tokens = batch_tokens
        self._geometry: Geometry = "cut" if cuts_unit_vectors(model) else "unit"
        self._lock = threading.Lock()

    @property
    def device(self) -> str:
        """Where the weights are, as torch names it."""
        return str(self._model.device)

    def encode(self, texts: Sequence[str], *, prompt: str | None = None) -> Vectors:
        """Encode texts into unit vectors, in order: ``(len(texts), dim)`` float32.

        Raises:
            EncodingError: A text has no token that the model reads, or the model gave a vector of another length.
        """
        prompt = self.prompt if prompt is None else prompt
        vectors = np.empty((len(texts), self.dim), dtype=np.float32)
        lengths = [min(length, self.max_tokens) for length in self._lengths(texts, prompt)]
        with self._lock:
            for batch in token_batches(lengths, self.batch_tokens):
                vectors[batch] = self._encode(
                    [texts[index] for index in batch],
                    prompt=prompt,
                    batch_size=len(batch),
                    show_progress_bar=False,
                    normalize_embeddings=self._geometry == "unit",
                )
        require_lengths(vectors, texts, self._geometry, tolerance=_TOLERANCE)
        return vectors

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return the uncut length of each text in tokens, special tokens and prompt included."""
        return self._lengths(texts, self.prompt)

    def _limit(self, max_tokens: int | None) -> int:
        tokenizer = self._model.tokenizer
        if isinstance(tokenizer, Tokenizer):
            return static_limit(tokenizer)
        if max_tokens is not None:
            self._model.max_seq_length = max_tokens
        return int(self._model.max_seq_length or tokenizer.model_max_length)

    def _lengths(self, texts: Sequence[str], prompt: str) -> list[int]:
        if not texts:
            return []
        if isinstance(self._model.tokenizer, Tokenizer):
            encode = partial(self._model.tokenizer.encode, add_special_tokens=False)
            return [uncut_length(encode(prompt + text), special_tokens=0) for text in texts]
        encoded = self._model.tokenizer(
            [prompt + text for text in texts],
            padding=False,
            truncation=False,
            return_attention_mask=False,
            verbose=False,
        )
        return [len(ids) for ids in encoded["input_ids"]]


def cuts_unit_vectors(model: "SentenceTransformer") -> bool:
    """Return whether a model has a linear layer after its normalisation: its vectors are to stay as they are."""
    kinds = [type(module).__name__ for module in model.children()]
    return "Normalize" in kinds and "Dense" in kinds[kinds.index("Normalize") :]


def load_sentence_transformer(folder: Path, device: str | None = None) -> "SentenceTransformer":
    """Load a saved sentence-transformers model for inference.

    Args:
        folder: Where it is.
        device: As torch names it; None takes CUDA, then MPS, then the CPU.

    Raises:
        MissingExtra: Torch or sentence-transformers are not installed.
    """
    with needs_extra("ingest", "this encoder"):
        import torch
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.util import get_device_name

    device = device or get_device_name()
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    with no_progress_bars(), readable_model(folder) as native:
        model = SentenceTransformer(str(native), device=device, local_files_only=True, model_kwargs={"dtype": dtype})
    return model.eval()


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Let transformers draw nothing: bars are for whoever runs the program to draw."""
    from transformers.utils import logging

    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # untyped in transformers
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]  # as above
