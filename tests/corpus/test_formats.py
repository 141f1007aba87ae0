"""Every form in which people have a corpus, told by its name."""

import array
import csv
import fcntl
import gzip
import io
import json
import os
import termios
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import fsspec  # type: ignore[import-untyped]
import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from care_qdrant.bulk.units import corpus_files
from care_qdrant.cli.ingest import command
from care_qdrant.corpus.endings import COMPRESSIONS, ENDINGS, FORMATS, Format, format_of
from care_qdrant.corpus.files import Corpus, corpus_name
from care_qdrant.corpus.rows import HASH_ID, Fields, Reject, hash_id
from care_qdrant.errors import InputError
from care_qdrant.types import Document

ROWS = [
    {"id": "1", "text": "二甲双胍, 500 mg", "dept": "内科"},
    {"id": "2", "text": '他说："头痛"\n三天', "dept": "神经科"},
    {"id": "3", "text": "无症状", "dept": ""},
]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)


def read(
    path: Path | str | list[Path], fields: Fields | None = None, encoding: str = "utf-8"
) -> list[Document | Reject]:
    with Corpus(path, fields or Fields(), encoding) as corpus:
        return list(corpus)


def texts(rows: list[Document | Reject]) -> dict[str, str]:
    return {row.id: row.text for row in rows if isinstance(row, Document)}


def table(delimiter: str = ",") -> str:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, ["id", "text", "dept"], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(ROWS)
    return buffer.getvalue()


EXPECTED = {row["id"]: row["text"] for row in ROWS}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", table()),
        ("a.tsv", table("\t")),
        ("a.csv", table(";")),
        ("a.TAB", table("\t")),
        ("a.json", json.dumps(ROWS, ensure_ascii=False)),
        ("a.JSON", json.dumps(ROWS, ensure_ascii=False, indent=1)),
        ("a.json", LINES),
        ("a.ndjson", LINES),
        ("a.csv", "sep=;\r\n" + table(";")),
        ("a.json", "\n".join(json.dumps(row, indent=2) for row in ROWS)),
    ],
)
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_name_says_the_format(tmp_path: Path, name: str, content: str, mark: str) -> None:
    (tmp_path / name).write_text(mark + content, encoding="utf-8", newline="")
    with Corpus(tmp_path / name) as corpus:
        rows = list(corpus)
        assert corpus.share_read == 1
    assert texts(rows) == EXPECTED
    assert len(rows) == 3


def test_files_with_byte_order_marks_may_be_put_together(tmp_path: Path) -> None:
    marked = "".join(f"\ufeff{line}\n" for line in LINES.splitlines())
    (tmp_path / "a.jsonl").write_text(marked, encoding="utf-8")
    assert texts(read(tmp_path / "a.jsonl")) == EXPECTED


def test_compressed_content_needs_no_ending(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(gzip.compress(table().encode()))
    (tmp_path / "b.jsonl").write_bytes(zstandard.compress(LINES.encode()))
    assert texts(read(tmp_path / "a.csv")) == texts(read(tmp_path / "b.jsonl")) == EXPECTED


@given(
    rows=st.lists(st.text("发烧ab ", min_size=1, max_size=30), min_size=1, max_size=30),
    ending=st.sampled_from([*COMPRESSIONS]),
    cut=st.floats(0, 1, exclude_max=True),
    is_repeated=st.booleans(),
)
def test_a_compressed_file_that_is_cut_off_anywhere_is_damaged(
    rows: list[str], ending: str, cut: float, is_repeated: bool
) -> None:
    """Otherwise a sync would delete the documents behind the cut; a full disk leaves a file without a byte."""
    lines = [json.dumps({"id": str(number), "text": f"{text}."}).encode() for number, text in enumerate(rows)]
    compress = gzip.compress if ending == ".gz" else zstandard.compress
    part = compress(b"\n".join([*lines, b""]))
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"a.jsonl{ending}"
        path.write_bytes(part * (1 + is_repeated))
        assert len(read(path)) == len(rows) * (1 + is_repeated)
        kept = max(int(cut * len(part)), int(is_repeated))  # at the end of a part nothing is cut off
        path.write_bytes(part * is_repeated + part[:kept])
        with pytest.raises(InputError, match="is damaged after row"):
            read(path)


def test_a_small_file_of_large_content_does_not_fill_the_memory(tmp_path: Path) -> None:
    row, blanks = b'{"id": "1", "text": "x"}\n', b" " * 1_000_000 + b"\n"
    (tmp_path / "a.jsonl.zst").write_bytes(zstandard.compress(row + blanks * 200))
    tracemalloc.start()
    try:
        with Corpus(tmp_path / "a.jsonl.zst") as corpus:
            next(iter(corpus))
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()


def test_a_json_array_streams_and_says_where_it_is_cut_off(tmp_path: Path) -> None:
    many = [{"id": str(number), "text": "字" * (number % 3_000 + 1)} for number in range(500)]
    content = json.dumps([*many, 7, {"id": "x", "text": "y", "id ": 1}], ensure_ascii=False)
    (tmp_path / "a.json").write_text(content, encoding="utf-8")
    rows = read(tmp_path / "a.json")
    assert len(rows) == 502
    assert rows[500] == Reject(501, "is a JSON number; expected an object with 'id' and 'text'")
    assert [row.line for row in rows] == list(range(1, 503))
    (tmp_path / "a.json").write_text(content[:-30], encoding="utf-8")
    with pytest.raises(InputError, match=r"damaged after row 50\d .*array is cut off"):
        read(tmp_path / "a.json")


def test_a_table_with_another_number_of_cells_is_a_rejected_row(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,text\n1,一\n2,二,三\n\n3,三\n", encoding="utf-8")
    rows = read(tmp_path / "a.csv")
    assert texts(rows) == {"1": "一", "3": "三"}
    assert rows[1] == Reject(3, "has 3 cells; the header has 2")
    (tmp_path / "a.csv").write_text("id,text,text\n1,一,二\n", encoding="utf-8")
    with pytest.raises(InputError, match="column 'text' occurs twice"):
        read(tmp_path / "a.csv")


def test_a_table_without_a_column_is_refused_in_its_own_words(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("key,body\n1,一\n", encoding="utf-8")
    with pytest.raises(
        InputError,
        match=r"a\.csv: has no column 'text' and 'id' \(columns: key, body\); give --text-field NAME and "
        r"--id-field NAME \(or :hash\); --title-field NAME where one is a title",
    ):
        read(tmp_path / "a.csv")
    with pytest.raises(InputError, match=r"has no column 'id' .*--id-field NAME \(or :hash\)"):
        read(tmp_path / "a.csv", Fields(text="body"))
    assert len(read(tmp_path / "a.csv", Fields(id=HASH_ID, text="body"))) == 1
    pyarrow.parquet.write_table(pyarrow.table({"key": ["1"], "text": ["一"]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"has no column 'id' \(columns: key, text\)"):
        read(tmp_path / "a.parquet")


def test_a_folder_holds_documents_and_corpora(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "guide.md").write_text("# 高血压指南\n\n少盐。\n", encoding="utf-8")
    (folder / "note.txt").write_text("随访一次。", encoding="utf-8")
    (folder / "rows.jsonl").write_text(LINES + "broken\n", encoding="utf-8")
    (folder / "rows.jsonl.rejects.jsonl").write_text('{"line": 4, "reason": "is not JSON"}\n')
    (folder / ".hidden.txt").write_text("no")
    (folder / "picture.png").write_bytes(b"\x89PNG")
    rows = read(folder)
    assert texts(rows) == {"note.txt": "随访一次。", "sub/guide.md": "少盐。\n", **EXPECTED}
    [guide] = [row for row in rows if isinstance(row, Document) and row.id == "sub/guide.md"]
    assert guide.title == "高血压指南"
    [reject] = [row for row in rows if isinstance(row, Reject)]
    assert (reject.file, reject.line) == ("rows.jsonl", 4)
    assert corpus_name(folder) == "docs"
    assert len(read([folder / "note.txt", folder / "rows.jsonl"])) == 5


def test_the_yaml_in_front_of_markdown_is_metadata(tmp_path: Path) -> None:
    front = "---\ntitle: 心梗急救\ndept: 心内科\ndate: 2024-01-02\ntags: [急诊, 心脏]\n---\n"
    (tmp_path / "a.md").write_text(front + "# 标题\n\n拨打120。\n---\n等待。\n", encoding="utf-8")
    (tmp_path / "b.md").write_text("---\ndept: 内科\n---\n# 高血压\n\n少盐。\n", encoding="utf-8")
    (tmp_path / "c.md").write_text("---\n一条线\n---\n正文。\n", encoding="utf-8")
    (tmp_path / "d.md").write_text("---\ntitle: [\n---\n正文。\n", encoding="utf-8")
    (tmp_path / "e.txt").write_text(front, encoding="utf-8")
    a, b, c, d, e = read(tmp_path)
    assert (a.title, a.text) == ("心梗急救", "# 标题\n\n拨打120。\n---\n等待。\n")
    assert a.metadata == {"dept": "心内科", "date": "2024-01-02", "tags": ["急诊", "心脏"]}
    assert (b.title, b.text, b.metadata) == ("高血压", "少盐。\n", {"dept": "内科"})
    assert (c.text, c.metadata) == ("---\n一条线\n---\n正文。\n", {})
    assert (d.id, d.reason.startswith("its front matter is not YAML: while parsing")) == ("d.md", True)
    assert e.text == front


def test_a_folder_without_anything_to_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"x")
    with pytest.raises(InputError, match=r"holds no file that can be read; expected \.jsonl, "):
        Corpus(tmp_path)


@pytest.mark.parametrize("as_splits", [False, True])
def test_a_folder_that_datasets_saved_is_refused_with_advice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, as_splits: bool
) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    whole = datasets.Dataset.from_list(ROWS)
    saved = tmp_path / "all" / "saved"
    (datasets.DatasetDict(train=whole) if as_splits else whole).save_to_disk(str(saved))
    folder = saved / "train" if as_splits else saved
    names = sorted(file.name for file in saved.rglob("*") if file.is_file())
    for place in (saved, folder, *folder.glob("*.arrow")):
        with pytest.raises(InputError, match=r"expected .*load_from_disk\(FOLDER\)\.to_parquet\(FILE\)"):
            Corpus(place)
    datasets.load_from_disk(str(folder)).to_parquet(str(folder / "rows.parquet"))
    for path in (saved, saved.parent):
        caplog.clear()
        assert texts(found := read(str(path))) == EXPECTED and len(found) == len(EXPECTED)
        [said] = caplog.messages
        assert "to_parquet(FILE)" in said and all(name in said for name in names)


def test_a_table_with_an_english_header_in_another_encoding_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("id,text\n1,头痛三天\n2,咳嗽\n".encode("gbk"))
    with pytest.raises(InputError, match=r"is not UTF-8\. Give its encoding with --encoding: gb18030"):
        read(tmp_path / "a.csv")
    assert set(texts(read(tmp_path / "a.csv", encoding="gb18030")).values()) == {"头痛三天", "咳嗽"}


def test_another_encoding_behind_a_long_english_part_is_a_rejected_row(tmp_path: Path) -> None:
    rows = "".join(f"{number},no headache\n" for number in range(9000))
    (tmp_path / "a.csv").write_bytes(f"id,text\n{rows}x,头痛三天\n".encode("gbk"))
    *_, last = read(tmp_path / "a.csv")
    assert isinstance(last, Reject)
    assert last.reason.startswith("is not UTF-8: byte 0x")


ALPHABETS = {
    "cp1252": "Fièvreoùé ",
    "cp1251": "Температуа ",
    "koi8_r": "Температуа ",
    "gb18030": "食堂供应饺子。陆鹿",
    "big5": "頭痛三天。",
    "shift_jis": "頭痛がひどいﾃｨｱ。",
    "euc_kr": "두통이심하다 ",
    "utf-16": "Fièvre 头痛三天",
    "utf-16-le": "Fever 头痛",
    "utf-32": "Fièvre 头痛",
}


@pytest.mark.parametrize("encoding", ALPHABETS)
@given(data=st.data())
def test_a_folder_may_hold_files_in_two_encodings(encoding: str, data: st.DataObject) -> None:
    """UTF-8 decodes in many other encodings without an error, into garbage, whatever English text stands before it."""
    others = ["Température élevée, très fiévreux, à côté, gêné", "Температура тела", "食堂供应饺子", "Plain text"]
    english = data.draw(st.booleans()) * ("No headache. " * 6_000)
    theirs = english + "".join(data.draw(st.permutations(ALPHABETS[encoding])))
    ours = english + data.draw(st.sampled_from(others))
    with TemporaryDirectory() as folder:
        (Path(folder) / "a.txt").write_bytes(theirs.encode(encoding))
        (Path(folder) / "b.txt").write_text(ours, encoding="utf-8")
        assert texts(read(Path(folder), encoding=encoding)) == {"a.txt": theirs, "b.txt": ours}


def test_files_of_a_folder_that_are_not_read_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "note.txt").write_text("随访一次。", encoding="utf-8")
    for name in ("guide.pdf", "report.docx", ".hidden.pdf"):
        (tmp_path / name).write_bytes(b"%PDF")
    (tmp_path / "corpus.rejects.jsonl").write_text('{"line": 4, "reason": "is not JSON"}\n')
    read(tmp_path)
    foreign, rejects = caplog.messages
    assert "not read: guide.pdf, report.docx" in foreign and "SimpleDirectoryReader" in foreign
    assert "not read: corpus.rejects.jsonl: lists of rejected rows" in rejects


@pytest.mark.parametrize("form", [None, "jsonl"])
@pytest.mark.parametrize("is_pattern", [False, True])
def test_a_url_names_the_files_that_a_path_names(tmp_path: Path, form: Format | None, is_pattern: bool) -> None:
    for name in ("a.jsonl", "part-0", "README", "guide.pdf", "sub/b.md", "[c].md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"id": "1", "text": "x"}', encoding="utf-8")
    fsspec.filesystem("memory").put(str(tmp_path), str(tmp_path), recursive=True)

    def names(*given: str | Path) -> list[str]:
        return [file.name for file in corpus_files([*map(str, given)], form)]

    # A shell makes a path of each file of a pattern, and leaves out none.
    shell = (path for path in tmp_path.iterdir() if path.is_file() and (form or format_of(path.name)))
    by_path = names(*shell) if is_pattern else names(tmp_path)
    assert names(f"memory://{tmp_path}{'/*' if is_pattern else ''}") == sorted(by_path)


@pytest.mark.parametrize("scheme", ["", "memory://"])
def test_columns_that_only_folders_hold_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, scheme: str
) -> None:
    for folder in ("year=2023", "year=2024/month=1", "a = b/.x=1"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.jsonl").write_text('{"id": "1", "text": "x"}', encoding="utf-8")
    fsspec.filesystem("memory").put(str(tmp_path), str(tmp_path), recursive=True)
    corpus_files([f"{scheme}{tmp_path}"], None)
    assert "not read: month=1, year=2023, year=2024: values in the names of folders, as Hive writes them" in caplog.text


@pytest.mark.parametrize(
    ("encoding", "named"),
    [
        ("gbk", None),
        ("big5", None),
        ("shift_jis", None),
        ("utf-16", "utf-16"),
        ("utf-16-le", "utf-16-le"),
        ("utf-16-be", "utf-16-be"),
        ("utf-32", "utf-32"),
    ],
)
def test_another_encoding_is_read_when_it_is_given(tmp_path: Path, encoding: str, named: str | None) -> None:
    """Only UTF-16 and UTF-32 are told by their bytes; a Big5 text is also one of GB 18030, with other characters."""
    text = "".join(json.dumps({"id": str(n), "text": "頭痛三天"}, ensure_ascii=False) + "\n" for n in range(20))
    (tmp_path / "a.jsonl").write_bytes(text.encode(encoding))
    said = "Give its encoding" if named is None else f"it reads as {named}: give --encoding {named}"
    with pytest.raises(InputError, match=f"is not UTF-8.*{said}"):
        read(tmp_path / "a.jsonl")
    assert set(texts(read(tmp_path / "a.jsonl", encoding=encoding)).values()) == {"頭痛三天"}
    for wrong in (
        "klingon",
        "hex",
        "rot13",
        "utf-7",
        "unicode_escape",
        "raw_unicode_escape",
        "undefined",
        "punycode",
        "idna",
    ):
        with pytest.raises(InputError, match="unknown text encoding"):
            read(tmp_path / "a.jsonl", encoding=wrong)


def test_ids_of_mongodb_and_none_at_all(tmp_path: Path) -> None:
    rows = [{"_id": "m1", "text": "一"}, {"id": "1", "_id": 2, "text": "二"}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = read(tmp_path / "a.jsonl")
    assert texts(found) == {"m1": "一", "1": "二"}
    (tmp_path / "b.jsonl").write_text('{"text": "一"}\n{"text": "一", "title": "题"}\n{"body": 1}\n')
    found = read(tmp_path / "b.jsonl", Fields(id=HASH_ID))
    assert texts(found) == {hash_id("", "一"): "一", hash_id("题", "一"): "一"}
    for field in ("text", "title"):
        with pytest.raises(InputError, match="give it as --id-field"):
            Fields(id=HASH_ID, **{field: HASH_ID})
    assert found[2] == Reject(3, "document has no 'text' (keys: body)")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"id": "1", "id": "2", "text": "x"}', "has the key 'id' twice"),
        ('{"id": "1", "text": "x", "metadata": {"a": 1, "a": 2}}', "'metadata' has the key 'a' twice"),
        ('{"id": "1", "text": "x", "more": [{"b": {"a": 1, "a": 1}}]}', "'b' has the key 'a' twice"),
    ],
)
def test_a_key_that_is_there_twice_is_a_rejected_row(tmp_path: Path, line: str, reason: str) -> None:
    (tmp_path / "a.jsonl").write_text(line)
    [reject] = read(tmp_path / "a.jsonl")
    assert isinstance(reject, Reject)
    assert reject.reason == reason


@pytest.mark.parametrize(
    ("name", "form", "given_form"), [("a", "jsonl", "jsonl"), ("a", "json", "json"), ("a.json", "json", None)]
)
@pytest.mark.parametrize("compress", [gzip.compress, bytes])
def test_a_pipe_is_read_however_slowly_it_is_written(
    tmp_path: Path, compress: Callable[[bytes], bytes], name: str, form: Format, given_form: Format | None
) -> None:
    pipe = tmp_path / name
    os.mkfifo(pipe)
    rows = [json.loads(line) for line in LINES.splitlines() if line]
    content = LINES if form == "jsonl" else "\n".join(json.dumps(row, indent=1) for row in rows)

    def write() -> None:
        unread = array.array("i", [0])
        with pipe.open("wb", buffering=0) as file:
            for byte in compress(content.encode()):
                file.write(bytes([byte]))
                unread[0] = 1
                while unread[0]:
                    fcntl.ioctl(file, termios.FIONREAD, unread)

    writer = threading.Thread(target=write)
    writer.start()
    with Corpus(pipe, form=given_form) as corpus:
        assert texts(list(corpus)) == EXPECTED
        assert corpus.share_read is None
    writer.join()
    with pytest.raises(InputError, match="give --collection"):
        corpus_name(pipe)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        *[
            (f"a{ending}", form)
            for ending, form in (*ENDINGS.items(), ("", None), (".pdf", None), (".jsonl.bz2", None))
        ],
        ("dir.csv/README.MD", "md"),
        ("b.JsonL.GZ", "jsonl"),
        ("c.csv.zst", "csv"),
        ("jsonl", None),
    ],
)
def test_the_ending_decides(name: str, form: Format | None) -> None:
    assert format_of(name) == form


def test_the_help_names_every_format_and_compression() -> None:
    words = str(command.help).replace(",", " ").split()
    assert {f".{form}" for form in FORMATS} | {*COMPRESSIONS} <= {word.rstrip(";.") for word in words}


def test_a_file_without_a_known_ending_needs_its_format(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In a folder, or matched by a pattern, it is left out with a warning that names it."""
    (tmp_path / "rows.data").write_text(LINES, encoding="utf-8")
    with pytest.raises(InputError, match=r"rows\.data: its name says no format.* PDF and Word files.*\. .*--format"):
        read(tmp_path / "rows.data")
    with Corpus(tmp_path / "rows.data", form="jsonl") as corpus:
        assert texts(list(corpus)) == EXPECTED
    (tmp_path / "note.txt").write_text('[{"a note": "that begins like JSON"}', encoding="utf-8")
    assert list(texts(read(tmp_path))) == ["note.txt"]
    assert sum("rows.data" in message for message in caplog.messages) == 1


def test_a_file_has_one_name_wherever_the_run_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("a", "b", "b/deep"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "README.md").write_text(f"# {folder}\n\ntext {folder}", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    both = ["a/README.md", "b/README.md", "b/deep/README.md"]
    assert [*texts(read(["a", "b"]))] == [*texts(read([tmp_path / "a", "b"]))] == [*texts(read("."))] == both
    assert [*texts(read("b"))] == ["README.md", "deep/README.md"]


def test_folders_of_our_own_are_no_corpus(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "rows.jsonl").write_text('{"line": 1, "id": "mine", "text": "头痛"}\n', encoding="utf-8")
    for folder, files in (("qdrant", ("meta.json", "collection/")), ("job", ("care-rows/",))):
        for name in files:
            path = tmp_path / folder / name
            path.mkdir(parents=True) if name.endswith("/") else (path.parent.mkdir(), path.write_text("{}"))
    shell = sorted(tmp_path.iterdir())
    for path in (tmp_path, shell):
        assert list(texts(read(path))) == ["mine"]
    said = " ".join(caplog.messages)
    assert said.count("not read: job, qdrant: folders of an embedded database") == 1
    assert said.count("not read: .: folders of an embedded database") == 2
    with pytest.raises(InputError, match="no corpus"):
        read(tmp_path / "job")


@pytest.mark.parametrize("encoding", ["gbk", "cp936", "gb18030"])
def test_the_euro_sign_of_windows_is_read(tmp_path: Path, encoding: str) -> None:
    """Windows writes 0x80 for it in code page 936, which Python's codecs of that name refuse."""
    (tmp_path / "a.txt").write_bytes("挂号费".encode("gbk") + b"\x80\x805")
    assert [row.text for row in read(tmp_path / "a.txt", encoding=encoding)] == ["挂号费€€5"]
    (tmp_path / "a.txt").write_bytes("挂号费".encode("gbk") + b"\xff")
    with pytest.raises(InputError, match="is damaged after row 0"):
        read(tmp_path / "a.txt", encoding=encoding)
