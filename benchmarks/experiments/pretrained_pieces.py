"""Pieces of the included query tokenizer: its encoder's, without what no text has, and with frequent runs of them.

A table of token vectors cannot tell an order, so that 血压 (blood pressure) as one piece carries what 血 and 压 cannot.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from care_trainer.models.tokens import TokenLists, tokenize
from tokenizers import Tokenizer

RUN_LENGTHS = range(2, 5)
"""Pieces of a run, all of Han characters or all of Latin letters of one word."""
MAX_HAN = 4
MIN_RUNS, MIN_INFORMATION, MIN_USES = 20, 2.0, 15
"""Occurrences and mutual information (nats) from which a run is tried, and uses in the texts from which it is kept."""
MIN_OCCURRENCES = 3
"""Occurrences of a piece below which it is left out. Single Han characters stay: the encoder knows them."""
ROUNDS = (1.4, 1.1, 1.0)
"""Runs that each round of segmentation keeps, as a multiple of how many there is room for."""


def query_pieces(tokenizer: Tokenizer, texts: Sequence[str], size: int) -> Tokenizer:
    """Return a Unigram tokenizer with at most ``size`` pieces, chosen for some texts."""
    content = json.loads(tokenizer.to_str())
    vocabulary = content["model"]["vocab"]
    unknown = vocabulary[content["model"]["unk_id"]][0]
    tokens = tokenize(tokenizer, texts)
    counts = tokens.counts(len(vocabulary))
    kept = [entry for entry, count in zip(vocabulary, counts, strict=True) if _stays(entry[0], int(count), unknown)]
    runs = _runs([piece for piece, _ in vocabulary], tokens, counts)
    room = size - len(kept)
    chosen = dict(runs[: 2 * room])
    for share in ROUNDS:
        uses = _uses(_with(content, kept, chosen, len(tokens.flat), unknown), texts, chosen)
        used = [(piece, count) for piece, count in uses.most_common(int(share * room)) if count >= MIN_USES]
        chosen = {piece: chosen[piece] for piece, _ in used}
    return _with(content, kept, chosen, len(tokens.flat), unknown)


def _stays(piece: str, count: int, unknown: str) -> bool:
    return count >= MIN_OCCURRENCES or piece in (unknown, "▁") or piece.startswith("<") or _is_han(piece, limit=1)


def _is_han(piece: str, limit: int = MAX_HAN) -> bool:
    letters = piece.removeprefix("▁")
    return 0 < len(letters) <= limit and all("\u4e00" <= letter <= "\u9fff" for letter in letters)


def _is_latin(piece: str) -> bool:
    return (letters := piece.removeprefix("▁")).isascii() and letters.isalpha()


def _runs(pieces: Sequence[str], tokens: TokenLists, counts: Sequence[int]) -> list[tuple[str, int]]:
    """Return runs of pieces with their counts, the most useful first: count times mutual information."""
    total, known = len(tokens.flat), set(pieces)
    ranked = []
    for run, count in Counter(_every_run(pieces, tokens)).items():
        word = "".join(pieces[number] for number in run)
        if count < MIN_RUNS or word in known or not (_is_han(word) or _is_latin(word)):
            continue
        information = math.log(count / total) - sum(math.log(counts[number] / total) for number in run)
        if information >= MIN_INFORMATION:
            ranked.append((count * information / (len(run) - 1), word, count))
    best: dict[str, int] = {}
    for _, word, count in sorted(ranked, reverse=True):
        best.setdefault(word, count)
    return list(best.items())


def _every_run(pieces: Sequence[str], tokens: TokenLists) -> Iterator[tuple[int, ...]]:
    script = np.array([1 if _is_han(piece) else 2 if _is_latin(piece) else 0 for piece in pieces])
    begins = np.array([piece.startswith("▁") for piece in pieces])
    for start, end in zip(tokens.starts[:-1], tokens.starts[1:], strict=True):
        text = tokens.flat[start:end].tolist()
        for first, number in enumerate(text):
            for last in range(first + 1, min(first + RUN_LENGTHS.stop - 1, len(text))):
                if begins[text[last]] or not script[number] or script[text[last]] != script[number]:
                    break
                yield tuple(text[first : last + 1])


def _with(content: dict[str, Any], kept: Sequence[Any], chosen: dict[str, int], total: int, unknown: str) -> Tokenizer:
    """Return the tokenizer with some of its pieces and runs, which weigh what their counts say."""
    vocabulary = [*kept, *([piece, math.log(count / total)] for piece, count in chosen.items())]
    place = next(place for place, (piece, _) in enumerate(vocabulary) if piece == unknown)
    return Tokenizer.from_str(
        json.dumps({**content, "model": {**content["model"], "vocab": vocabulary, "unk_id": place}})
    )


def _uses(tokenizer: Tokenizer, texts: Sequence[str], chosen: dict[str, int]) -> Counter[str]:
    counts = tokenize(tokenizer, texts).counts(tokenizer.get_vocab_size())
    return Counter({piece: int(counts[tokenizer.token_to_id(piece)]) for piece in chosen})
