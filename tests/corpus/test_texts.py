import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from care_qdrant.corpus.files import Corpus
from care_qdrant.corpus.rows import Reject
from care_qdrant.types import Document

FRONT = "---\ntitle: 大写\ndept: 内科\n---\n多吃水果。\n"


def read(path: Path) -> list[Document | Reject]:
    with Corpus(path) as corpus:
        return list(corpus)


@pytest.mark.parametrize("name", ["README.MD", "a.Markdown", "note.md.gz", "NOTE.MD.GZ"])
def test_front_matter_is_read_whatever_the_case_and_compression(tmp_path: Path, name: str) -> None:
    content = FRONT.encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.lower().endswith(".gz") else content)
    [row] = read(tmp_path)
    assert row == Document(name, "多吃水果。\n", "大写", {"dept": "内科"})


@pytest.mark.parametrize(
    ("text", "title", "rest"),
    [
        ("# 高血压\n\n少盐。", "高血压", "少盐。"),
        ("# 高血压 # \r\r \t\n  少盐。", "高血压", "  少盐。"),
        ("\r\n # 高血压 ##\r\n少盐。", "高血压", "少盐。"),
        ("# C#\nA language.", "C#", "A language."),
        ("#\nThe first paragraph.\n", "", "#\nThe first paragraph.\n"),
        ("# #\nText.", "", "# #\nText."),
        (f"# a{' ' * 1_000_000}b #\nText.", f"a{' ' * 1_000_000}b", "Text."),
        ("\r\n" * 10_000 + "text", "", "\r\n" * 10_000 + "text"),
        ("#标签 不是标题\n", "", "#标签 不是标题\n"),
        ("# 只有标题\n", "", "# 只有标题\n"),
        ("    # code\ntext", "", "    # code\ntext"),
        ("---\ntitle:\n---\n# 发烧\n多喝水。", "发烧", "多喝水。"),
        ("---\ntitle: '  '\n---\n# 发烧\n多喝水。", "发烧", "多喝水。"),
        ("---\ntitle: 2024\n---\n# 发烧\n多喝水。", "2024", "# 发烧\n多喝水。"),
        ("---\ntitle: 007\n---\n多喝水。", "007", "多喝水。"),
        ("---\ntitle: true\n---\n多喝水。", "true", "多喝水。"),
        ("+++\ntitle = '发烧'\n+++\n多喝水。", "发烧", "多喝水。"),
    ],
)
def test_the_title_is_from_the_front_matter_or_the_first_heading(
    tmp_path: Path, text: str, title: str, rest: str
) -> None:
    (tmp_path / "a.md").write_text(text, encoding="utf-8", newline="")
    [row] = read(tmp_path)
    assert row == Document("a.md", rest, title)


def test_a_bad_note_is_rejected_by_name_and_the_others_are_read(tmp_path: Path) -> None:
    (tmp_path / "deep.md").write_text(f"---\na: {'[' * 3_000}\n---\n多喝水。", encoding="utf-8")
    (tmp_path / "list.md").write_text("---\ntitle: [甲, 乙]\n---\n多喝水。", encoding="utf-8")
    (tmp_path / "ok.md").write_text("# 好\n多喝水。", encoding="utf-8")
    (tmp_path / "twice.md").write_text("---\ndept: 内科\ndept: 外科\n---\n多喝水。", encoding="utf-8")
    deep, titles, ok, twice = read(tmp_path)
    assert isinstance(deep, Reject) and deep.id == "deep.md" and "deeper than 32 levels" in deep.reason
    assert isinstance(titles, Reject) and titles.reason == "its front matter has a list as title; expected a text"
    assert ok == Document("ok.md", "多喝水。", "好")
    assert isinstance(twice, Reject) and twice.reason == "its front matter has the key 'dept' twice"


@given(text=st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("#-+ \n\r\t:[]{}'\"&*!"), max_size=60))
def test_a_note_is_one_row(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("note") / "a.md"
    path.write_bytes(text.encode())
    assert len(read(path)) == 1
