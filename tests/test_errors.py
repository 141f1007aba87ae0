"""Messages say a number of things as a person would."""

import pytest

from care_qdrant.errors import counted


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (counted(0, "point", "are"), "0 points are"),
        (counted(1, "point", "are"), "1 point is"),
        (counted(1200, "point", "have"), "1,200 points have"),
        (counted(1, "text", "wait"), "1 text waits"),
        (counted(1, "query"), "1 query"),
        (counted(2, "query"), "2 queries"),
        (counted(2, "key"), "2 keys"),
        (counted(3, "search"), "3 searches"),
        (counted(2, "process"), "2 processes"),
        (counted(1, "point", "have", of=3), "1 of 3 points has"),
        (counted(2, "point", "have", of=3), "2 of 3 points have"),
        (counted(1, "point", "have", of=1), "1 of 1 point has"),
    ],
)
def test_a_number_agrees_with_its_noun_and_its_verb(said: str, expected: str) -> None:
    assert said == expected
