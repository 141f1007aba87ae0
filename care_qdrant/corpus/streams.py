"""Opens what a corpus is stored in: files, pipes, standard input; compressed or not; in any encoding."""

import codecs
import gzip
import io
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

from typing_extensions import override

from care_qdrant.errors import InputError, needs_extra

if TYPE_CHECKING:
    from typing_extensions import Buffer

STDIN = "-"
HEAD_BYTES = 65_536
"""Looked at to tell a format; a pipe may show less."""
UTF_8 = "utf-8"
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_GUESSES = ("gb18030", "big5", "shift_jis", "euc_kr")
"""Encodings that a text which is not UTF-8 is tried in; GB 18030 holds all of GBK and GB 2312."""


def open_binary(path: str, stack: ExitStack) -> io.BufferedReader:
    """Open a file, a pipe, or standard input for ``-``."""
    if path != STDIN:
        return cast(io.BufferedReader, stack.enter_context(Path(path).open("rb", buffering=HEAD_BYTES)))
    try:
        number = sys.stdin.fileno()
    except (OSError, ValueError):
        return io.BufferedReader(cast(io.RawIOBase, sys.stdin.buffer), HEAD_BYTES)
    # Its own object: at exit Python waits for the lock of `sys.stdin`, which a thread that reads a pipe may hold.
    return cast(io.BufferedReader, stack.enter_context(os.fdopen(number, "rb", HEAD_BYTES, closefd=False)))


def decompressed(file: io.BufferedReader, path: str, stack: ExitStack) -> io.BufferedReader:
    """Return the content of a gzip or Zstandard file, told by its name or its first bytes; any other file as it is."""
    magic = file.peek(4)[:4]
    if path.endswith(".gz") or magic.startswith(_GZIP):
        return io.BufferedReader(cast(io.RawIOBase, stack.enter_context(gzip.open(file))), HEAD_BYTES)
    if path.endswith(".zst") or magic == _ZSTD:
        return io.BufferedReader(_Zstandard(file, path), HEAD_BYTES)
    return file


def recoded(file: io.BufferedReader, encoding: str) -> io.BufferedReader:
    """Return a text as UTF-8."""
    try:
        codec = codecs.lookup(encoding)
    except LookupError as error:
        raise InputError(f"--encoding {encoding!r}: there is no such encoding; try gb18030, big5 or utf-16") from error
    if codec.name == UTF_8:
        return file
    return io.BufferedReader(_Recoded(file, encoding), HEAD_BYTES)


def guess_encoding(head: bytes) -> str | None:
    """Return the encoding that the start of a text seems to have; None where it is UTF-8 or cannot be told."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if _is_text_in(head, UTF_8):
        return None
    return next((encoding for encoding in _GUESSES if _is_text_in(head, encoding)), None)


def _is_text_in(head: bytes, encoding: str) -> bool:
    try:
        # Not final: the last character may be cut.
        text = codecs.getincrementaldecoder(encoding)().decode(head)
    except UnicodeDecodeError:
        return False
    return "\0" not in text and "\ufffd" not in text


class _Recoded(io.RawIOBase):
    """Decodes what it reads, and gives it as UTF-8."""

    def __init__(self, file: io.BufferedReader, encoding: str) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._ready = b""

    @override
    def readable(self) -> bool:
        return True

    @override
    def readinto(self, target: "Buffer") -> int:
        while not self._ready:
            raw = self._file.read1(HEAD_BYTES)
            self._ready = self._decoder.decode(raw, final=not raw).encode("utf-8")
            if not raw:
                break
        return _hand_over(self, target)


class _Zstandard(io.RawIOBase):
    """Reads frames one after the other, and notices where the last one lacks its end.

    The package's own stream reader ends without an error in the middle of a frame: a corpus that was cut off would be
    complete, and a sync would delete the rest.
    """

    def __init__(self, file: io.BufferedReader, path: str) -> None:
        with needs_extra("zstd", f"{path}: a .zst file"):
            import zstandard

        self._new_frame = zstandard.ZstdDecompressor().decompressobj
        self._file, self._frame = file, self._new_frame()
        self._is_inside = False
        self._ready = self._left = b""

    @override
    def readable(self) -> bool:
        return True

    @override
    def readinto(self, target: "Buffer") -> int:
        while not self._ready:
            raw = self._left or self._file.read1(HEAD_BYTES)
            self._left = b""
            if not raw:
                if self._is_inside:
                    raise EOFError("the Zstandard stream is cut off: its end mark is missing")
                break
            if not self._is_inside:
                self._frame = self._new_frame()
            self._ready = self._frame.decompress(raw)
            self._is_inside = not self._frame.eof
            self._left = self._frame.unused_data if self._frame.eof else b""
        return _hand_over(self, target)


def _hand_over(stream: _Recoded | _Zstandard, target: "Buffer") -> int:
    """Copy as much as fits of what is ready; return its length in bytes."""
    view = memoryview(target).cast("B")
    part = stream._ready[: len(view)]
    view[: len(part)] = part
    stream._ready = stream._ready[len(part) :]
    return len(part)


@contextmanager
def as_text(file: io.BufferedReader) -> Iterator[io.TextIOWrapper]:
    """Decode UTF-8 with its line ends as they are, without a byte order mark; the file itself stays open."""
    text = io.TextIOWrapper(file, "utf-8-sig", newline="")
    try:
        yield text
    finally:
        text.detach()
