"""Questions in traditional characters are told from those in simplified ones, and so are texts in neither."""

import pytest

from care_qdrant.search.script import script_note, script_of
from care_qdrant.types import Hit


@pytest.mark.parametrize(
    ("texts", "script"),
    [
        (["糖尿病人能吃西瓜嗎"], "traditional"),
        (["糖尿病人能吃西瓜吗"], "simplified"),
        (["高血壓患者應當限制食鹽"], "traditional"),
        (["高血压患者应当限制食盐"], "simplified"),
        (["糖尿病", "HbA1c 6.5%", "Can diabetics eat watermelon?", ""], None),
        (["高血压患者应当限制食盐，不是食鹽"], "simplified"),
        ([], None),
    ],
)
def test_the_script_is_that_of_most_characters(texts: list[str], script: str | None) -> None:
    assert script_of(texts) == script


@pytest.mark.parametrize(
    ("query", "answers", "said"),
    [
        ("糖尿病人能吃西瓜嗎", ["高血压患者应当限制食盐"], "OpenCC (t2s)"),
        ("糖尿病人能吃西瓜吗", ["高血壓患者應當限制食鹽"], "OpenCC (s2t)"),
        ("糖尿病人能吃西瓜嗎", ["高血壓患者應當限制食鹽"], None),
        ("watermelon", ["高血压患者应当限制食盐"], None),
        ("糖尿病人能吃西瓜嗎", ["watermelon"], None),
        ("糖尿病人能吃西瓜嗎", [], None),
    ],
)
def test_only_a_question_in_the_other_script_is_told_of(query: str, answers: list[str], said: str | None) -> None:
    note = script_note(query, [Hit("d", 1.0, "p", text) for text in answers])
    assert (note is None) == (said is None)
    assert note is None or (said is not None and said in note)
