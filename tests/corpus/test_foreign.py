"""Files that are no corpus, under the name of one."""

import bz2
import gzip
import io
import lzma
import sqlite3
import tarfile
import zipfile
from pathlib import Path

import pytest

from care_qdrant.corpus.files import Corpus
from care_qdrant.errors import InputError

LINES = b'{"id": "1", "text": "one"}\n'


def archive(name: str = "a.jsonl") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr(name, LINES)
    return buffer.getvalue()


def tar() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as file:
        entry = tarfile.TarInfo("a.jsonl")
        entry.size = len(LINES)
        file.addfile(entry, io.BytesIO(LINES))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("a.jsonl", archive(), "is a ZIP archive: unpack it"),
        ("a.csv", archive("xl/workbook.xml"), r"is an Office file \(\.xlsx, \.docx\): save the sheet as CSV UTF-8"),
        ("a.jsonl.bz2", bz2.compress(LINES), "is compressed with bzip2: decompress it"),
        ("a.jsonl", lzma.compress(LINES), "is compressed with xz: decompress it"),
        ("a.tar.gz", tar(), "is a tar archive: unpack it"),
        ("a.jsonl.gz", gzip.compress(gzip.compress(gzip.compress(LINES))), "is compressed more than twice"),
        ("a.txt", b"%PDF-1.7\n", "is a PDF file"),
        ("a.txt", rb"{\rtf1\ansi text}", r"is a rich text file \(\.rtf\): save it as plain text"),
        ("a.json", b"\n<!DOCTYPE html><html>", "is an HTML page: give its text"),
        ("a.csv", b"\xd0\xcf\x11\xe0\xa1\xb1", "is an old Office file"),
    ],
)
def test_a_file_of_another_kind_is_named_with_what_to_do(tmp_path: Path, name: str, content: bytes, what: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=what), Corpus(tmp_path / name) as corpus:
        list(corpus)


def test_a_database_is_named(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "a.jsonl") as database:
        database.execute("create table rows (id)")
    database.close()
    with pytest.raises(InputError, match="is an SQLite database"), Corpus(tmp_path / "a.jsonl") as corpus:
        list(corpus)


def test_a_text_may_be_about_markup(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("<html> is the root of a page.")
    (tmp_path / "b.txt").write_text("BZh is how bzip2 files begin.")
    with Corpus(tmp_path) as corpus:
        assert len(list(corpus)) == 2
