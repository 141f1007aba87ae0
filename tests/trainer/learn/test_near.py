"""Near-copies of held-out documents are not trained on, so that the figures are those of other texts."""

import random
from pathlib import Path

import numpy as np
import pytest
from care_trainer.learn import near
from care_trainer.learn.near import near_copies
from care_trainer.learn.reading import Pairs, Sample
from care_trainer.learn.settings import LearnSettings
from care_trainer.learn.split import Split
from care_trainer.learn.training import train

from care_qdrant.contracts.layouts import CARE_LAYOUT
from tests.trainer.learn.collections import word_texts

GROUPS, COPIES, DIM = 200, 3, 32
SETTINGS = LearnSettings(vocabulary=3_000, batch=64, epochs=30, learning_rate=2e-2)


def random_word(generator: random.Random) -> str:
    return "".join(generator.choices("abcdefghijklmnopqrstuvwxyz", k=6))


def edited_copies(sentences: int, seed: int = 0) -> list[str]:
    """Texts of words that no other text has, each text in three copies, in each of which another word was replaced."""
    generator, texts = random.Random(seed), list[str]()
    for _ in range(GROUPS):
        words = [random_word(generator) for _ in range(6 * sentences)]
        for at in generator.sample(range(len(words)), COPIES):
            own = [*words[:at], random_word(generator), *words[at + 1 :]]
            texts.append("".join(" ".join(own[start : start + 6]) + ". " for start in range(0, len(own), 6)))
    return texts


def test_edited_copies_are_found_and_other_texts_are_not() -> None:
    texts = [*edited_copies(5), *word_texts(100), "", "。", "a"]
    rows = np.array([0, 1, 300, len(texts) - 3])
    found = np.flatnonzero(near_copies(texts, rows)).tolist()
    assert found == [1, 2, 301, 302, len(texts) - 2]  # of a text without letters, the other one


def test_as_many_texts_as_are_read_at_once_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    texts, rows = edited_copies(5), np.arange(0, 600, 7)
    expected = near_copies(texts, rows)
    monkeypatch.setattr(near, "_TEXTS", 17)
    monkeypatch.setattr(near, "_PAIRS", 3)
    assert (near_copies(texts, rows) == expected).all() and expected.any()


def pairs_of(texts: list[str]) -> Pairs:
    """Return pairs whose vectors can be known by heart alone: random ones, which copies nearly share."""
    generator = np.random.default_rng(0)
    vectors = np.repeat(generator.normal(size=(GROUPS, DIM)), COPIES, axis=0)
    vectors += 0.05 * generator.normal(size=vectors.shape)
    unit = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    ids = list(range(len(texts)))
    return Pairs(
        ids,
        [""] * len(ids),
        texts,
        unit,
        None,
        CARE_LAYOUT,
        Sample(len(ids), len(ids), 0, 0, 0, CARE_LAYOUT.text_field),
        ids,
    )


@pytest.mark.timeout(400)
def test_what_is_known_by_heart_alone_is_no_quality(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every text is there in three slightly edited copies: figures were too good where copies were trained on."""
    pairs = pairs_of(edited_copies(5))

    def recall(name: str) -> tuple[float, Split]:
        split = Split.of(pairs, SETTINGS, None)
        trained = train(split, None, SETTINGS, "here", None, tmp_path / name, lambda _done, _total: None)
        return split.score(trained.student.questions).recall_at_10, split

    honest, split = recall("apart")
    assert len(split.copies) + len(split.held) == COPIES * len(split.held)
    assert not {row // COPIES for row in split.train} & {row // COPIES for row in split.held}
    assert sorted([*split.train, *split.held, *split.copies]) == list(range(len(pairs.texts)))
    monkeypatch.setattr(near, "MIN_ALIKE", 1.1)
    by_heart, _ = recall("together")
    assert by_heart > 0.9 and honest < 0.3


def test_where_most_texts_are_copies_of_one_they_are_trained_on() -> None:
    base = edited_copies(5)[0].split()
    texts = [" ".join([*base[:at], f"word{at}", *base[at + 1 :]]) + f" {n}" for n, at in enumerate([3, 9, 20] * GROUPS)]
    split = Split.of(pairs_of(texts), SETTINGS, None)
    assert split.has_copies_in_training and len(split.held) == 1 and len(split.train) > len(texts) / 2
