"""The start of a table's training: what the built-in query encoder knows of the tokens.

The built-in model has read questions as well as texts, so its vectors relate words that a collection has with words
that only its users have. They lead into the space of the stored vectors by a linear map, which ridge regression of the
vectors on the texts gives in closed form. They are the start where the built-in model reads the texts.
"""

import json
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from care_qdrant.encoders import Encoder
from care_qdrant.encoders.unread import UnreadWords
from care_qdrant.errors import EncodingError
from care_qdrant.model.hub import BUILT_IN, find_folder
from care_qdrant.types import Vectors
from care_trainer.learn import table as tables
from care_trainer.models.tokens import TokenLists, rarity

_SAMPLE = 1_000
_MAX_TOKENS = 64
"""Tokens of a text that tell its language."""
_BATCH = 64
_MIN_READ = 0.5
"""Fraction of the texts from which the built-in model counts as one of their language."""
_LENGTH = 0.5
"""Mean length of the token vectors that training starts from; longer ones are harder to move."""
_PENALTY = 30.0
"""Penalty of the ridge regression: it weighs as much as so many texts."""


def built_in_reads(texts: Sequence[str]) -> bool:
    """Return whether the tokenizer of the built-in query encoder reads most of the first texts."""
    sample = [text for text in texts[:_SAMPLE] if any(map(str.isalnum, text))]
    tokenizer = built_in_tokenizer(_MAX_TOKENS)
    unread = UnreadWords(tokenizer)
    read = sum(not unread(text, tokenizer.encode(text)) for text in sample)
    return bool(sample) and read >= _MIN_READ * len(sample)


def built_in_tokenizer(max_tokens: int) -> Tokenizer:
    """Return the tokenizer of the built-in query encoder, without padding and markers."""
    file = find_folder(BUILT_IN) / "query" / "tokenizer.json"
    tokenizer = Tokenizer.from_str(json.dumps({**json.loads(file.read_text("utf-8")), "post_processor": None}))
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_tokens)
    return tokenizer


def mapped_start(known: Vectors, tokens: TokenLists, vectors: npt.NDArray[np.floating]) -> Vectors:
    """Return an encoder's vectors of tokens, mapped into the space of stored vectors, (tokens, width)."""
    # Vectors of some encoders lie in a narrow cone: what tokens share would drown what tells them apart.
    is_known = np.any(known, axis=1, keepdims=True)
    known = np.where(is_known, known - known[is_known[:, 0]].mean(axis=0), 0)
    known = known * rarity(tokens.counts(len(known))).astype(np.float32)[:, None]
    texts = tables.encode(known, tokens)
    centred = vectors - vectors.mean(axis=0)
    mapping = np.linalg.solve(texts.T @ texts + _PENALTY * np.eye(texts.shape[1]), texts.T @ centred)
    return scaled(known @ mapping)


def scaled(start: npt.NDArray[np.floating]) -> Vectors:
    """Return token vectors of the mean length that training starts from, (tokens, width)."""
    return np.asarray(start * (_LENGTH / max(np.linalg.norm(start, axis=1).mean(), 1e-9)), dtype=np.float32)


def token_vectors(tokenizer: Tokenizer, encoder: Encoder) -> Vectors:
    """Return the vector of each token as a query, (tokens, dim); zero for what the encoder gives no vector."""
    words = [
        (word, number) for token, number in tokenizer.get_vocab().items() if (word := token.removeprefix("▁")).isalnum()
    ]
    words.sort(key=lambda word: len(word[0]))  # so that no batch pads much
    vectors = np.zeros((tokenizer.get_vocab_size(), encoder.dim), dtype=np.float32)
    for start in range(0, len(words), _BATCH):
        batch = words[start : start + _BATCH]
        vectors[[number for _, number in batch]] = _encode_words(encoder, [token for token, _ in batch])
    return vectors


def _encode_words(encoder: Encoder, words: list[str]) -> Vectors:
    """Return the vector of each word, (words, dim); zero for those that the encoder does not weigh."""
    try:
        return encoder.encode(words)
    except EncodingError:
        if len(words) == 1:
            return np.zeros((1, encoder.dim), dtype=np.float32)
        half = len(words) // 2
        return np.concatenate([_encode_words(encoder, words[:half]), _encode_words(encoder, words[half:])])
