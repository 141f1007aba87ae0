"""Near-copies among texts, by MinHash of their character 4-grams (Broder, 1997), in bands.

A text that was edited a little has nearly the same vector. One that is held out measures nothing where the other is
trained on.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

MIN_ALIKE = 0.6
"""Jaccard similarity of the 4-grams, as estimated by the hashes, from which one text is a near-copy of another."""
_BANDS, _ROWS = 16, 4
"""Texts of similarity 0.6 share a band with probability 0.89, of 0.7 with 0.99, of 0.3 with 0.12."""
_GRAM = 4
_CHARACTERS = 1_000
"""Highest number of letters and digits of a text to read."""
_TEXTS, _PAIRS = 4_096, 65_536
"""Compared at once."""

Rows = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint32]


def near_copies(texts: Sequence[str], rows: Rows) -> npt.NDArray[np.bool_]:
    """Return which texts are near-copies of a text of ``rows``, (texts,); of two in ``rows``, the second one is."""
    hashes = np.concatenate(list(_hashes(texts)))
    places = np.full(len(texts), len(rows))
    places[rows] = np.arange(len(rows))
    is_copy = np.zeros(len(texts), dtype=np.bool_)
    for start in range(0, _BANDS * _ROWS, _ROWS):
        keys = np.ascontiguousarray(hashes[:, start : start + _ROWS]).view(f"V{4 * _ROWS}").ravel()
        _, keys = np.unique(keys, return_inverse=True)
        order = rows[np.argsort(keys[rows], kind="stable")]
        others = np.flatnonzero(~is_copy & np.isin(keys, keys[rows]))
        first, last = (np.searchsorted(keys[order], keys[others], side) for side in ("left", "right"))
        ends = np.cumsum(last - first)
        for begin in range(0, int(ends[-1]) if len(ends) else 0, _PAIRS):
            numbers = np.arange(begin, min(begin + _PAIRS, ends[-1]))
            at = np.searchsorted(ends, numbers, "right")
            mine, other = order[last[at] - (ends[at] - numbers)], others[at]
            mine, other = (part[places[mine] < places[other]] for part in (mine, other))
            is_copy[other[(hashes[mine] == hashes[other]).mean(axis=1) >= MIN_ALIKE]] = True
    return is_copy


def _hashes(texts: Sequence[str]) -> Iterator[Hashes]:
    """Yield the least hash of the 4-grams of each text by each hash function, (texts, hashes), some texts at a time."""
    factors = np.random.default_rng(0).integers(2**63, size=_GRAM + _BANDS * _ROWS, dtype=np.uint64) * 2 + 1
    for start in range(0, len(texts), _TEXTS):
        letters = [_letters(text) for text in texts[start : start + _TEXTS]]
        points = np.frombuffer("".join(letters).encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        grams = sum(points[at : len(points) - _GRAM + 1 + at] * factors[at] for at in range(_GRAM))
        grams = np.append(grams ^ (grams >> np.uint64(29)), np.zeros(_GRAM - 1, np.uint64))
        lengths = np.array([len(text) for text in letters])
        ends = np.cumsum(lengths)
        left = np.repeat(ends, lengths) - np.arange(len(points))
        grams = grams[left >= _GRAM]  # those that begin in one text and end in the next are none
        begins = np.append(0, np.cumsum(lengths - _GRAM + 1)[:-1])
        least = [np.minimum.reduceat((grams * factor) >> np.uint64(32), begins) for factor in factors[_GRAM:]]
        yield np.stack(least, axis=1).astype(np.uint32)


def _letters(text: str) -> str:
    """Return the letters and digits of a text, at least one gram of them."""
    kept = re.sub(r"[\W_]+", "", unicodedata.normalize("NFKC", text[: 2 * _CHARACTERS]).lower())
    return kept[:_CHARACTERS].ljust(_GRAM, "\0")
