"""Kinds of held-out questions that a query encoder answers worst: long, short, of rare words, in another script."""

import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from care_trainer.models.tokens import TokenLists

EXAMPLES = 5
RARE_TEXTS = 3
"""Training texts that a token needs not to be rare; a token of none is unknown."""
_RARE_SHARE = 0.25
"""Share of rare tokens from which a question is one of rare words."""
_MIN_QUESTIONS = 20
_TOP = 10

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Kind:
    """Questions with something in common that find their documents clearly less often than the others."""

    name: str
    questions: int
    recall_at_10: float
    others: float
    """Recall@10 of the other questions."""


@dataclass(frozen=True, slots=True)
class Example:
    """A held-out question whose document ranks low."""

    question: str
    rank: int


def weak_kinds(
    questions: Sequence[str], ranks: npt.NDArray[np.floating], rare: npt.NDArray[np.floating], texts: Sequence[str]
) -> list[Kind]:
    """Return the kinds of questions that do worse by more than two standard errors, the worst first.

    ``rare`` is the `rare_share` of each; ``texts`` are training texts, whose script is the usual one.
    """
    lengths = np.array([len(question) for question in questions])
    main = _script("".join(texts))
    kinds = {
        "long (the longest third)": lengths > np.quantile(lengths, 2 / 3),
        "short (the shortest third)": lengths < np.quantile(lengths, 1 / 3),
        f"of rare words (a quarter of the tokens in fewer than {RARE_TEXTS} texts)": rare >= _RARE_SHARE,
        f"in another script than {main}": np.array([_script(question) not in (main, "") for question in questions]),
    }
    measured = (_kind(name, chosen, ranks <= _TOP) for name, chosen in kinds.items())
    return sorted((kind for kind in measured if kind is not None), key=lambda kind: kind.recall_at_10)


def rare_share(texts: TokenLists, questions: TokenLists, vocabulary: int) -> npt.NDArray[np.float64]:
    """Return the share of each question's tokens that fewer than `RARE_TEXTS` texts have; 1 where it has none."""
    numbers = np.repeat(np.arange(len(texts)), texts.lengths)
    having = np.bincount(np.unique(numbers * vocabulary + texts.flat) % vocabulary, minlength=vocabulary)
    is_rare = np.append(having[questions.flat] < RARE_TEXTS, False)
    sums = np.add.reduceat(is_rare, questions.starts[:-1], dtype=np.float64)
    return np.asarray(np.where(questions.lengths > 0, sums / np.maximum(questions.lengths, 1), 1.0))


def worst_examples(questions: Sequence[str], ranks: npt.NDArray[np.floating]) -> list[Example]:
    """Return the questions whose documents rank lowest, those among the first ten left out."""
    order = np.argsort(-ranks, kind="stable")[:EXAMPLES]
    return [Example(questions[row], int(ranks[row])) for row in order if ranks[row] > _TOP]


def _kind(name: str, chosen: Flags, in_top: Flags) -> Kind | None:
    if min(chosen.sum(), (~chosen).sum()) < _MIN_QUESTIONS:
        return None
    here, others = float(in_top[chosen].mean()), float(in_top[~chosen].mean())
    error = np.sqrt(here * (1 - here) / chosen.sum() + others * (1 - others) / (~chosen).sum())
    return Kind(name, int(chosen.sum()), round(here, 4), round(others, 4)) if others - here > 2 * error else None


def _script(text: str) -> str:
    """Return the script of most letters, as the names of characters begin; empty where there are none."""
    names = Counter(unicodedata.name(letter, "?").split()[0] for letter in text if letter.isalpha())
    return names.most_common(1)[0][0] if names else ""
