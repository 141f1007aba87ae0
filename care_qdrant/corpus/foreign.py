"""Files that are no corpus, told by their first bytes: what each of them is, and what makes a corpus of it."""

from care_qdrant.corpus.streams import BYTE_ORDER_MARK

_UNPACK = "unpack it, and give the files or the folder that it holds"
_SHEET = "save the sheet as CSV UTF-8, and give that"
_DECOMPRESS = "decompress it, or compress it with gzip or zstd instead"
_SIGNATURES: tuple[tuple[bytes, str, str], ...] = (
    (b"PK\x03\x04", "a ZIP archive", _UNPACK),
    (b"PK\x05\x06", "an empty ZIP archive", _UNPACK),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", _UNPACK),
    (b"Rar!\x1a\x07", "a RAR archive", _UNPACK),
    (b"BZh", "compressed with bzip2", _DECOMPRESS),
    (b"\xfd7zXZ\x00", "compressed with xz", _DECOMPRESS),
    (b"\x04\x22\x4d\x18", "compressed with LZ4", _DECOMPRESS),
    (b"\x1f\x8b", "compressed more than twice", "decompress it once"),
    (b"\x28\xb5\x2f\xfd", "compressed more than twice", "decompress it once"),
    (b"%PDF-", "a PDF file", "LlamaIndex's SimpleDirectoryReader makes text of it"),
    (b"\xd0\xcf\x11\xe0", "an old Office file (.xls, .doc)", f"{_SHEET}; of a document, its text"),
    (b"{\\rtf", "a rich text file (.rtf)", "save it as plain text, and give that"),
    (b"SQLite format 3\x00", "an SQLite database", "export the table as CSV, and give that"),
    (b"\x89HDF", "an HDF5 file", "export its rows as JSON lines or Parquet"),
    (b"\x93NUMPY", "a NumPy array", "export its rows as JSON lines or Parquet"),
    (b"Obj\x01", "an Avro file", "export its rows as JSON lines or Parquet"),
    (b"ORC", "an ORC file", "export its rows as JSON lines or Parquet"),
    (b"\x89PNG", "a picture", "give the text that it shows"),
    (b"\xff\xd8\xff", "a picture", "give the text that it shows"),
)
_MARKUP = ((b"<!doctype html", "an HTML page"), (b"<html", "an HTML page"), (b"<?xml", "an XML file"))
_TAR_MARK = slice(257, 262)


def describe_foreign(head: bytes, *, is_text: bool) -> str | None:
    """Return what a file is and what to do with it; None for one that may be a corpus.

    Args:
        head: Its first bytes, decompressed.
        is_text: Whether its name says that any text is welcome in it, so that markup is no sign of another format.
    """
    if head[_TAR_MARK] == b"ustar":
        return f"is a tar archive: {_UNPACK}"
    if head.startswith(b"PK\x03\x04") and any(part in head for part in (b"xl/", b"[Content_Types].xml", b"word/")):
        return f"is an Office file (.xlsx, .docx): {_SHEET}; of a document, its text"
    for signature, what, advice in _SIGNATURES:
        if head.startswith(signature) and not (signature == b"BZh" and not head[3:4].isdigit()):
            return f"is {what}: {advice}"
    start = head[:64].removeprefix(BYTE_ORDER_MARK).lstrip().lower()
    for mark, what in _MARKUP:
        if start.startswith(mark) and not is_text:
            return f"is {what}: give its text, or its rows as JSON lines or CSV"
    return None
