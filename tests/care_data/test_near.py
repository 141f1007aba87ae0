"""Near-duplicates through an index of grams, against all pairs."""

import random

import pytest
from care_data.near import NearTexts, grams, overlap
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize("threshold", [0.3, 0.8])
def test_the_index_finds_what_all_pairs_find(threshold: float) -> None:
    draw = random.Random(0)
    texts = ["".join(draw.choices("头痛发热怎么办", k=draw.randint(0, 14))) for _ in range(300)]
    near, added, found = NearTexts(threshold), list[str](), 0
    for number, text in enumerate(texts):
        scores = [overlap(grams(text), grams(texts[int(name)])) for name in added]
        order = sorted(range(len(added)), key=lambda at: -scores[at])
        expected = [added[at] for at in order if scores[at] >= threshold]
        assert near.find(text) == expected
        found += bool(expected)
        if number % 2:
            near.add(str(number), text)
            added.append(str(number))
    assert 10 < found < 290


@given(st.lists(st.text("？！+-=。 ", min_size=1, max_size=8), min_size=2, max_size=2, unique=True))
def test_texts_of_symbols_alone_are_compared_as_they_are(texts: list[str]) -> None:
    """Without letters and digits nothing would be left, and all of them would equal each other."""
    near = NearTexts(1.0)
    near.add("first", texts[0])
    assert near.find(texts[0]) == ["first"]
    assert bool(near.find(texts[1])) == (grams(texts[0]) == grams(texts[1]))
    assert max(map(len, texts)) > 4 or not near.find(texts[1])


def test_case_width_and_punctuation_make_no_difference() -> None:
    near = NearTexts(0.99)
    near.add("q1", "HbA1c 7.2％ 高吗？")
    assert near.find("hba1c7.2%高吗") == ["q1"]
    assert near.find("hba1c8.2%高吗") == []
