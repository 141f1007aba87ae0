import gzip
import io
import json
import os
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from care_qdrant.corpus.files import Corpus, corpus_name, typed_fields
from care_qdrant.corpus.formats import MAX_LINE_BYTES, numbered_lines
from care_qdrant.corpus.rejects import RejectsFile, is_rejects_name, rejects_path
from care_qdrant.corpus.rows import Fields, Reject
from care_qdrant.errors import InputError, MissingExtra
from care_qdrant.types import Document

LINES = b'{"id": "1", "text": "\xe4\xb8\x80"}\n{"id": "2", "text": "two"}\n'


def read(path: Path) -> list[Document | Reject]:
    with Corpus(path) as rows:
        return list(rows)


def ids(rows: list[Document | Reject]) -> list[str]:
    return [row.id for row in rows if isinstance(row, Document)]


def test_byte_order_mark_windows_line_ends_and_blank_lines_are_no_errors(tmp_path: Path) -> None:
    windows = b"\xef\xbb\xbf" + LINES.replace(b"\n", b"\r\n\r\n")
    (tmp_path / "windows.jsonl").write_bytes(windows)
    rows = read(tmp_path / "windows.jsonl")
    assert ids(rows) == ["1", "2"]
    assert [row.line for row in rows] == [1, 3]


def test_a_line_of_more_than_5_mb_is_skipped_and_the_next_one_read(tmp_path: Path) -> None:
    long = b'{"id": "long", "text": "' + b"x" * MAX_LINE_BYTES + b'"}\n'
    (tmp_path / "long.jsonl").write_bytes(LINES + long + LINES.replace(b'"1"', b'"3"'))
    rows = read(tmp_path / "long.jsonl")
    assert rows[2] == Reject(3, "is longer than 5,000,000 bytes")
    assert [row.line for row in rows] == [1, 2, 3, 4, 5]
    assert isinstance(rows[3], Document)


def test_parquet(tmp_path: Path) -> None:
    table = pyarrow.table(
        {
            "doc": ["1", "2", "3"],
            "text": ["一", "二", None],
            "day": [date(2020, 1, 2), None, None],
            "tags": [["a"], None, None],
        }
    )
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    with Corpus(tmp_path / "a.parquet", Fields(id="doc")) as corpus:
        first, second, third = corpus
    assert isinstance(first, Document)
    assert first.metadata == {"day": "2020-01-02", "tags": ["a"]}
    assert isinstance(second, Document)
    assert second.metadata == {}
    assert third == Reject(3, "document has no 'text' (keys: doc)", "3")


def test_a_corpus_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing\.jsonl: does not exist"):
        Corpus(tmp_path / "nothing.jsonl")
    with pytest.raises(InputError, match="holds no file that can be read"):
        Corpus(tmp_path)


@pytest.mark.parametrize(("module", "name"), [("zstandard", "a.jsonl.zst"), ("pyarrow.parquet", "a.parquet")])
def test_a_missing_package_is_named_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, name: str
) -> None:
    (tmp_path / name).write_bytes(LINES)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=r"pip install '\.\[(zstd|parquet)\]'"):
        Corpus(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("cut.jsonl.gz", gzip.compress(LINES * 100, mtime=0)[:-10]),
        ("none.jsonl.gz", LINES),
        ("none.jsonl.zst", LINES),
        ("none.parquet", LINES),
    ],
)
def test_a_damaged_file_is_an_error_after_the_rows_before_it(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match="is damaged after row"):
        read(tmp_path / name)


def test_rejects_go_to_a_file_that_the_run_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = rejects_path("corpus")
    with RejectsFile(path) as rejects:
        assert not path.exists()
        rejects.write(Reject(3, "is empty", "\ud800"))
    assert path.name == "corpus.rejects.jsonl"
    assert json.loads(path.read_text()) == {"line": 3, "id": "\\ud800", "reason": "is empty"}
    assert rejects_path("corpus").name == "corpus.rejects-2.jsonl"
    assert rejects_path("a/b", (2, 4)).name == "a-b.rejects-2-of-4.jsonl"
    assert is_rejects_name("corpus.rejects-2.jsonl") and is_rejects_name("a-b.rejects-2-of-4-3.jsonl")


@pytest.mark.parametrize(
    "content", ["my notes\n", '{"line": 4, "id": "mine", "text": "x"}\n', '{"line": 3, "reason": "x"}\n']
)
def test_no_file_that_is_there_is_touched(tmp_path: Path, content: str) -> None:
    (tmp_path / "mine.jsonl").write_text(content)
    with pytest.raises(InputError, match=r"mine\.jsonl: exists, and no file is written over.*--rejects"):
        RejectsFile(tmp_path / "mine.jsonl")
    late = RejectsFile(tmp_path / "late.jsonl")
    (tmp_path / "late.jsonl").write_text(content)
    with late, pytest.raises(InputError, match="cannot be written"):
        late.write(Reject(1, "is empty"))
    assert (tmp_path / "mine.jsonl").read_text() == (tmp_path / "late.jsonl").read_text() == content
    (tmp_path / "empty").touch()
    with RejectsFile(tmp_path / "empty"):
        pass
    assert (tmp_path / "empty").exists()
    os.mkfifo(tmp_path / "pipe")
    with RejectsFile(tmp_path / "pipe"):
        pass
    assert (tmp_path / "pipe").is_fifo()


def test_rows_that_look_like_rejected_ones_are_rows(tmp_path: Path) -> None:
    """In a folder a list of rejected rows is known by its name; named itself, it is read as any other file."""
    (tmp_path / "mine.jsonl").write_text('{"line": 1, "id": "1", "text": "one"}\n')
    (tmp_path / "corpus.rejects.jsonl").write_text('{"line": 7, "id": "2", "text": "two"}\n')
    (tmp_path / "study.rejects.csv").write_text("id,text\n3,three\n")
    assert ids(read(tmp_path)) == ["1", "3"]
    assert ids(read(tmp_path / "corpus.rejects.jsonl")) == ["2"]


def text_files(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"正文，{name}。", encoding="utf-8")


def test_a_text_has_one_id_however_its_path_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text_files(tmp_path / "docs", "a.md", "b.md", "sub/c.md")
    monkeypatch.chdir(tmp_path)
    everything = {"a.md", "b.md", "sub/c.md"}
    (tmp_path / "again").symlink_to("docs")
    given: list[tuple[list[str], set[str]]] = [
        (["docs"], everything),
        (["./docs/"], everything),
        (["docs/../docs"], everything),
        ([str(tmp_path / "docs")], everything),
        (["again"], everything),
        (["docs/a.md", "docs/b.md", "docs/sub/c.md"], everything),
        ([str(tmp_path / "docs/a.md"), "docs/../docs/sub/c.md"], {"a.md", "sub/c.md"}),
        (["docs", "docs/sub/c.md"], everything),
        (["docs/sub", "docs"], everything),
        (["docs/a.md"], {"a.md"}),
        (["docs/sub/c.md", "docs"], everything),
    ]
    for paths, expected in given:
        with Corpus(paths) as corpus:
            assert set(ids(list(corpus))) == expected, paths


def test_texts_of_two_folders_keep_both_names(tmp_path: Path) -> None:
    text_files(tmp_path, "x/a.md", "y/a.md")
    with Corpus([tmp_path / "x/a.md", tmp_path / "y/a.md"]) as corpus:
        assert ids(list(corpus)) == ["x/a.md", "y/a.md"]


def test_a_name_in_another_unicode_form_or_encoding_is_one_id(tmp_path: Path) -> None:
    text_files(tmp_path / "mac", "re\u0301sume\u0301.md")
    text_files(tmp_path / "linux", "r\u00e9sum\u00e9.md")
    text_files(tmp_path / "odd", "two\nlines.md")
    (tmp_path / "odd" / os.fsdecode("病历.txt".encode("gbk"))).write_text("三天。", encoding="utf-8")
    assert ids(read(tmp_path / "mac")) == ids(read(tmp_path / "linux")) == ["r\u00e9sum\u00e9.md"]
    assert ids(read(tmp_path / "odd")) == ["two\nlines.md", r"\xb2\xa1\xc0\xfa.txt"]


def test_what_of_a_folder_is_not_read_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text_files(tmp_path, "docs/a.md", "docs/.hidden.md", "docs/.git/b.txt", "v2/b.md")
    (tmp_path / "docs" / "latest").symlink_to("../v2")
    (tmp_path / "docs" / "b.md").symlink_to("../v2/b.md")
    (tmp_path / "docs" / "gone.md").symlink_to("nowhere")
    os.mkfifo(tmp_path / "docs" / "pipe.jsonl")
    (tmp_path / "docs" / "empty.jsonl").touch()
    assert ids(read(tmp_path / "docs")) == ["a.md", "b.md"]
    said = " ".join(caplog.messages)
    assert "not read: gone.md, latest, pipe.jsonl" in said
    assert "not read: .git/b.txt, .hidden.md" in said
    assert "empty.jsonl: is empty" in said


def test_a_folder_that_cannot_be_listed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync would delete its documents. Root lists every folder, so the system's answer is raised here."""
    text_files(tmp_path / "docs", "a.md", "secret/b.md")
    scandir = os.scandir

    def refused(folder: str) -> Iterator[os.DirEntry[str]]:
        if str(folder).endswith("secret"):
            raise PermissionError(13, "Permission denied", str(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(
        InputError, match=r"secret: cannot be read \(Permission denied\); its documents would be missing"
    ):
        Corpus(tmp_path / "docs")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("data/corpus.jsonl.gz", "corpus"),
        ("reports.2023.jsonl", "reports.2023"),
        ("reports.2024.CSV.zst", "reports.2024"),
        ("a.jsonl.gz.gz", "a"),
        ("guidelines.v2", "guidelines.v2"),
        ("part-0.snappy.parquet", "part-0.snappy"),
        ("docs/", "docs"),
        (".jsonl", ".jsonl"),
        ("data/../docs/sub/..", "docs"),
    ],
)
def test_only_the_endings_of_formats_come_off_a_name(path: str, name: str) -> None:
    assert corpus_name(path) == name


@settings(max_examples=50)
@given(st.binary(max_size=300))
def test_any_bytes_are_rows_or_rejects(content: bytes) -> None:
    lines = list(numbered_lines(io.BufferedReader(io.BytesIO(content))))
    assert b"".join(raw for _, raw in lines if isinstance(raw, bytes)) == content.removeprefix(b"\xef\xbb\xbf")
    assert [number for number, _ in lines] == list(range(1, len(lines) + 1))


def test_a_folder_names_what_it_is_read_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("a.jsonl", ".hidden.jsonl", "c.rejects.jsonl", "sub/b.jsonl"):
        (tmp_path / name).write_text(json.dumps({"id": name, "text": "发烧"}), encoding="utf-8")
    others = [f"sub/{number}.pdf" for number in range(9)]
    for name in others:
        (tmp_path / name).write_bytes(b"%PDF")
    with Corpus(tmp_path) as corpus:
        assert [row.id for row in corpus if isinstance(row, Document)] == ["a.jsonl", "sub/b.jsonl"]
    assert all(name in caplog.text for name in ("c.rejects.jsonl", *others))


def test_a_pattern_that_the_shell_did_not_expand_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(LINES)
    with pytest.raises(InputError, match="A pattern is for the shell to expand, without quotes"):
        Corpus(tmp_path / "*.jsonl")


def write_mixed(folder: Path) -> Path:
    """Write files whose texts are in fields of other names, and two that cannot be read at all."""
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"id": "a1", "text": "一"}\n{"id": "a2", "text": "二"}\n', encoding="utf-8")
    (folder / "b.csv").write_text("id,body\nb1,三\nb2,\n", encoding="utf-8")
    (folder / "c.jsonl").write_text('{"id": "c1", "body": {"main": "四"}}\n{"id": "c2"}\n', encoding="utf-8")
    (folder / "d.md").write_text("五", encoding="utf-8")
    (folder / "e.md").write_text(" ", encoding="utf-8")
    table = pyarrow.table({"id": ["f1"], "abstract": ["六"], "body": pyarrow.array([None], pyarrow.string())})
    pyarrow.parquet.write_table(table, folder / "f.parquet")
    (folder / "g.csv").write_bytes("id,body\ng1,头痛的原因\ng2,怎么办呢\n".encode("gb18030"))
    (folder / "h.jsonl.gz").write_bytes(b"\x1f\x8b cut")
    return folder


def test_all_that_is_wrong_with_a_folder_is_said_at_once(tmp_path: Path) -> None:
    folder = write_mixed(tmp_path / "mixed")
    with pytest.raises(InputError, match="5 of 8 files cannot be read, so nothing was written") as raised:
        typed_fields(folder, Fields())
    wrong = {
        "b.csv": "has no column 'text'",
        "c.jsonl": "not one of the first 2 rows",
        "f.parquet": "has no column 'text'",
        "g.csv": "is not UTF-8",
        "h.jsonl.gz": "is damaged",
    }
    listed = [line for line in str(raised.value).splitlines() if line.startswith("- ")]
    for line, (name, reason) in zip(listed, wrong.items(), strict=True):
        assert f"{name}: {reason}" in line


def test_each_row_has_its_text_in_the_first_field_that_is_not_empty(tmp_path: Path) -> None:
    folder = write_mixed(tmp_path / "mixed")
    for name in ("g.csv", "h.jsonl.gz"):
        (folder / name).unlink()
    with Corpus(folder, typed_fields(folder, Fields(text="body.main,body,abstract,text"))) as corpus:
        rows = list(corpus)
    texts = {row.id: row.text for row in rows if isinstance(row, Document)}
    assert texts == {"a1": "一", "a2": "二", "b1": "三", "c1": "四", "d.md": "五", "f1": "六"}
    rejected = [(row.file, row.line) for row in rows if isinstance(row, Reject)]
    assert rejected == [("b.csv", 3), ("c.jsonl", 2), ("e.md", 1)]


def test_the_name_of_a_field_may_have_a_comma(tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text('id,"Text, English"\n1,seven\n', encoding="utf-8")
    with Corpus(tmp_path / "one.csv", Fields(text="Text, English")) as corpus:
        assert [row.text for row in corpus if isinstance(row, Document)] == ["seven"]
