"""An encoder on onnxruntime and tokenizers: no torch in the process, one thread a run.

The graph holds pooling and normalisation (`model.export.onnx`), so a text is: tokenise, run, done. Queries take
one thread a call; documents may run several batches at once.
"""

import base64
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime  # type: ignore[import-untyped]
from tokenizers import Encoding, Tokenizer

from care_qdrant.encoders import MAX_CHARACTERS_PER_TOKEN
from care_qdrant.encoders.batching import read_tokenizer, tokenised, uncut_length, unread_words
from care_qdrant.encoders.side import Geometry, Side
from care_qdrant.encoders.unread import UnreadWords
from care_qdrant.encoders.usable import as_encoded, encodable, require_lengths, require_tokens
from care_qdrant.errors import EncodingError, IncompleteModel, ModelError, counted
from care_qdrant.types import Vectors

BATCH_TOKENS = 288
"""Padded tokens of one run: enough to amortise reading the weights, few enough for a layer's activations to stay in a
core's cache. A BERT of width 768 needs a tenth more time a query for 32 of 36 tokens at once than for four times 8."""
_LENGTH_STEP = 4
"""A text is always padded to the next multiple, alone or not, and shares a run only with texts of that length. Padding
to a neighbour's length would move float sums by their last bit, and int8 can turn a last bit into a level."""
_CHARACTERS_PER_TOKEN = (8, MAX_CHARACTERS_PER_TOKEN)
"""Characters of a long text that are tokenised for each token of the limit: the first number is enough for ordinary
text, the second bounds any other."""

# One MatMulInteger of eight times 255 with eight times 127, as an ONNX model; a test rebuilds it.
_PROBE = base64.b64decode(
    "CAg6xAEKLAoBchIBYSIPQ29uc3RhbnRPZlNoYXBlKhMKBXZhbHVlKgcIARACSgH/oAEECiwKAWMSAWIiD0NvbnN0YW50T2ZT"
    "aGFwZSoTCgV2YWx1ZSoHCAEQA0oBf6ABBAoYCgFhCgFiEgF5Ig1NYXRNdWxJbnRlZ2VyEgFwKhkIAhAHQgFyShABAAAAAAAA"
    "AAgAAAAAAAAAKhkIAhAHQgFjShAIAAAAAAAAABAAAAAAAAAAYhMKAXkSDgoMCAYSCAoCCAEKAggQQgQKABAN"
)
_EXACT = 255 * 127 * 8


@cache
def int8_saturates() -> bool:
    """Return whether the fast int8 kernels of this CPU clamp, by multiplying the largest values once."""
    session = onnxruntime.InferenceSession(_PROBE, providers=["CPUExecutionProvider"])
    (product,) = session.run(None, {})
    return bool((product != _EXACT).any())


class OnnxEncoder:
    """An encoder on the CPU.

    Used by several threads, and after a fork: the session runs any number of calls side by side, the tokenizer's flags
    are set once, in ``__init__``, and no call changes either.

    A run uses one thread only: two cores serve two queries at once, and a batch never stalls on a busy core.
    A text's vector does not depend on the texts that it is encoded with.
    """

    def __init__(
        self,
        folder: Path,
        onnx_file: str,
        side: Side,
        dim: int,
        *,
        workers: int = 1,
        geometry: Geometry = "unit",
    ) -> None:
        """Load an encoder.

        Args:
            folder: Folder of its side, with the ``tokenizer.json``.
            onnx_file: Path of the graph, relative to the folder.
            side: How it reads a text.
            dim: Length of its vectors.
            workers: Runs side by side in one call of `encode`.
            geometry: Whether its vectors have length 1.

        Raises:
            ModelError: A file is missing or cannot be read, or the graph gives vectors of another length.
        """
        self.dim, self.max_tokens, self.prompt = dim, side.max_tokens, side.prompt
        self._workers, self._geometry = workers, geometry
        self._tokenizer = _load_tokenizer(folder, side.max_tokens)
        self._has_special_tokens = side.special_tokens
        self._unread = UnreadWords(self._tokenizer)
        self._special_tokens = self._tokenizer.num_special_tokens_to_add(False) if side.special_tokens else 0
        self._session = _load_session(folder / onnx_file, dim)

    def encode(self, texts: Sequence[str], *, prompt: str | None = None) -> Vectors:
        """Encode texts into unit vectors, in order: ``(len(texts), dim)`` float32. None is the model's own prompt."""
        texts = encodable(texts)
        token_ids = tokenised(texts, lambda text: self._read(text, prompt).ids)
        require_tokens(texts, [place for place, ids in enumerate(token_ids) if not ids])
        vectors = np.empty((len(texts), self.dim), dtype=np.float32)

        def run(batch: tuple[int, list[int]]) -> None:
            length, indices = batch
            try:
                (vectors[indices],) = self._session.run(None, _pad([token_ids[index] for index in indices], length))
            except Exception as error:  # onnxruntime's own exceptions share no public base
                raise EncodingError(
                    f"the ONNX graph fails on {counted(len(indices), 'text')}, the first {texts[indices[0]][:40]!r} "
                    f"({error}); check the model with: care model verify"
                ) from error

        batches = list(self._batches(token_ids))
        if self._workers > 1 and len(batches) > 1:
            with ThreadPoolExecutor(min(self._workers, len(batches)), "encoder") as pool:
                list(pool.map(run, batches))
        else:
            for batch in batches:
                run(batch)
        require_lengths(vectors, texts, self._geometry)
        return vectors

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return the uncut length of each text in tokens, special tokens and prompt included."""
        return tokenised(
            as_encoded(texts), lambda text: uncut_length(self._tokenize(self.prompt + text), self._special_tokens)
        )

    def unread(self, text: str) -> list[str]:
        """Return the words that the tokenizer does not read, where they are most of a text."""
        return unread_words(self._unread, text, lambda text: self._read(text, ""))

    def _read(self, text: str, prompt: str | None) -> Encoding:
        """Tokenise as much of a text as the encoder can read."""
        text = (self.prompt if prompt is None else prompt) + text
        for characters in _CHARACTERS_PER_TOKEN:
            limit = characters * self.max_tokens
            if len(text) <= limit:
                break
            cut = self._tokenize(text[:limit])
            # The cut may change the tokens next to it; if some are left over, it is far from the tokens that count.
            if (
                uncut_length(cut, self._special_tokens) >= 2 * self.max_tokens
                or characters == _CHARACTERS_PER_TOKEN[-1]
            ):
                return cut
        return self._tokenize(text)

    def _tokenize(self, text: str) -> Encoding:
        # One by one: `encode_batch` starts a thread pool, which a later fork would find dead.
        return self._tokenizer.encode(text, add_special_tokens=self._has_special_tokens)

    def _batches(self, token_ids: Sequence[Sequence[int]]) -> Iterator[tuple[int, list[int]]]:
        """Yield a padded length and the indices of texts that have it."""
        by_length: dict[int, list[int]] = defaultdict(list)
        for index, ids in enumerate(token_ids):
            by_length[min(-len(ids) // _LENGTH_STEP * -_LENGTH_STEP, self.max_tokens)].append(index)
        for length, indices in by_length.items():
            size = max(1, BATCH_TOKENS // length)
            yield from ((length, indices[start : start + size]) for start in range(0, len(indices), size))


def _load_tokenizer(folder: Path, max_tokens: int) -> Tokenizer:
    tokenizer = read_tokenizer(folder)
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_tokens)  # from the right, as every encoder that was exported
    return tokenizer


def session_options(threads: int, *, exact_kernels: bool) -> onnxruntime.SessionOptions:
    """Return the options of a session."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # A spinning pool burns a core between queries and stalls up to 34 times on a contended machine.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if exact_kernels:
        options.add_session_config_entry("session.x64quantprecision", "1")
    else:
        # The higher levels fuse Add + LayerNormalization and Add + Gelu into kernels that are several times slower.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    return options


def _load_session(path: Path, dim: int) -> onnxruntime.InferenceSession:
    if not path.is_file():
        raise IncompleteModel(f"{path} is missing; export the encoder again")
    options = session_options(1, exact_kernels=int8_saturates())
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own exceptions share no public base
        raise ModelError(f"{path}: onnxruntime {onnxruntime.__version__} cannot load it ({error})") from error
    width = session.get_outputs()[0].shape[-1]
    if width != dim:
        raise ModelError(f"{path}: gives {width} dimensions, the model's card says {dim}; export it again")
    return session


def _pad(token_ids: Sequence[Sequence[int]], length: int) -> dict[str, npt.NDArray[np.int64]]:
    """Return (batch, length) arrays, padded on the right; masked positions never reach a vector."""
    shape = (len(token_ids), length)
    input_ids, attention_mask = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    for row, ids in enumerate(token_ids):
        input_ids[row, : len(ids)] = ids
        attention_mask[row, : len(ids)] = 1
    return {"input_ids": input_ids, "attention_mask": attention_mask}


def usable_cores() -> int:
    """Return the number of cores that this process may use: no more than ``OMP_NUM_THREADS``, where that is set."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, int(limit)) if limit.isdecimal() and int(limit) > 0 else cores
