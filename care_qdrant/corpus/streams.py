"""Opens what a corpus is stored in: files, pipes, standard input; compressed or not; in any encoding."""

import codecs
import gzip
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from typing_extensions import override

from care_qdrant.corpus.endings import compression_of
from care_qdrant.errors import InputError, needs_extra

if TYPE_CHECKING:
    from typing_extensions import Buffer

STDIN = "-"
HEAD_BYTES = 65_536
"""Looked at to tell a format; fewer only where a file has no more."""
MAX_LINE_BYTES = 5_000_000
"""Longest line or row that is read."""
UTF_8 = "utf-8"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_LAYERS = 2
_PIECE_BYTES = 1_024
"""Bytes of a Zstandard file that are decompressed at once: they may become 32 MiB."""
_SAMPLE = b'{"id": "a+b\\u0041.xn--mnchen-3ya"}'
"""Bytes that every encoding of a corpus reads as ASCII, except encodings of two or four bytes per character."""
_MORE_THAN_CHANCE = 8
"""Least number of characters of two bytes that show UTF-8 where such pairs are characters of another encoding, too."""


class Unreadable(Exception):
    """The rest of a file cannot be read; the message says where and why."""


def open_binary(path: str, stack: ExitStack) -> io.BufferedReader:
    """Open a file, a pipe, or standard input for ``-``."""
    if path != STDIN:
        opened = stack.enter_context(Path(path).open("rb", buffering=HEAD_BYTES))  # noqa: SIM115  # the stack closes it
        file = cast(io.BufferedReader, opened)
        return file if file.seekable() else _gathered(file)
    try:
        number = sys.stdin.fileno()
    except (OSError, ValueError):
        return io.BufferedReader(cast(io.RawIOBase, sys.stdin.buffer), HEAD_BYTES)
    # Its own object: at exit Python waits for the lock of `sys.stdin`, which a thread that reads a pipe may hold.
    pipe = stack.enter_context(os.fdopen(number, "rb", HEAD_BYTES, closefd=False))
    return _gathered(cast(io.BufferedReader, pipe))


def _gathered(file: io.BufferedIOBase) -> io.BufferedReader:
    """Return a pipe or a decompressor, which hands over any small part, as a file that shows a whole head."""
    return io.BufferedReader(_Chunks(iter(partial(file.read1, HEAD_BYTES), b"")), HEAD_BYTES)


def decompressed(file: io.BufferedReader, path: str, stack: ExitStack) -> io.BufferedReader:
    """Return the content of a gzip or Zstandard file, told by its name or its first bytes; any other file as it is.

    A server that compresses what it sends makes a second layer around a compressed file.
    """
    for layer in range(_LAYERS):
        magic = file.peek(4)[:4]
        named = None if layer else compression_of(path)
        if named is not None and not magic:
            raise EOFError(f"a {named} file is never empty: its beginning is missing, too")
        if magic.startswith(_GZIP) or named == ".gz":
            file = _gathered(stack.enter_context(gzip.GzipFile(fileobj=file, mode="rb")))
        elif magic == _ZSTD or named == ".zst":
            file = io.BufferedReader(_Chunks(_zstandard(file, path)), HEAD_BYTES)
    return file


def seekable(file: io.BufferedReader, stack: ExitStack) -> io.BufferedReader:
    """Return the content of a pipe or a compressed file as a temporary file, which can be read in any order."""
    copy = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  # the stack closes it
    shutil.copyfileobj(file, copy)
    copy.seek(0)
    return cast(io.BufferedReader, copy)


def recoded(file: io.BufferedReader, encoding: str) -> io.BufferedReader:
    """Return a text as UTF-8; one that is UTF-8 already stays as it is, since a folder may hold both."""
    try:
        codec = codecs.lookup(encoding)
        # By name the codecs of Python also make text of hexadecimal digits, of escapes, UTF-7 and internet names.
        is_wide = codec.name.startswith(("utf-16", "utf-32"))
        is_text = is_wide or _SAMPLE.decode(encoding) == _SAMPLE.decode()
    except (LookupError, ValueError):
        is_text = False
    if not is_text:
        raise InputError(f"--encoding {encoding!r}: unknown text encoding; try gb18030, big5 or utf-16")
    return file if codec.name == UTF_8 else io.BufferedReader(_Chunks(_utf_8(file, encoding, is_wide)), HEAD_BYTES)


def _is_utf_8_all_the_same(head: bytes, encoding: str, is_wide: bool) -> bool:
    """Return whether a part of a text is UTF-8, and by no chance in the encoding that was given."""
    if is_wide or not is_utf_8(head):
        return is_wide and b"\0" not in head and is_utf_8(head)
    has_one_byte_a_character = len(head.decode(encoding, "ignore")) == len(head)
    longer = sum(character > "\x7f" for character in head.decode(UTF_8, "ignore"))
    # GBK and others have pairs of bytes that are also a character of UTF-8; not one after the other.
    return longer >= (1 if has_one_byte_a_character else _MORE_THAN_CHANCE) or is_chinese_utf_8(head)


def wide_encoding(head: bytes) -> str | None:
    """Return UTF-16 or UTF-32 where the start of a text shows one of them; None elsewhere."""
    if head.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "utf-32"
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    # Rows begin with ASCII, a brace or the name of a column: half of a unit of UTF-16 is then zero.
    first, second = head[:4:2], head[1:4:2]
    if all(first) and second and not any(second):
        return "utf-16-le"
    if all(second) and first and not any(first):
        return "utf-16-be"
    return None


def is_chinese_utf_8(head: bytes) -> bool:
    """Return whether the start of a text is UTF-8 and holds characters of three bytes, as Chinese ones: no chance."""
    return is_utf_8(head) and any(character > "\u07ff" for character in head.decode("utf-8", "ignore"))


def is_utf_8(head: bytes) -> bool:
    """Return whether the start of a text is UTF-8; its last character may be cut."""
    try:
        codecs.getincrementaldecoder(UTF_8)().decode(head)
    except UnicodeDecodeError:
        return False
    return True


def _euro(error: UnicodeError) -> tuple[str, int]:
    """Decode the byte 0x80 as Windows does in its code page 936, which Python takes for GBK; raise any other error."""
    if isinstance(error, UnicodeDecodeError) and error.object[error.start] == _EURO_BYTE:
        return "€", error.start + 1
    raise error


_EURO, _EURO_BYTE, _GBK = "care_qdrant.euro", 0x80, ("gbk", "gb18030")
codecs.register_error(_EURO, _euro)


class _Chunks(io.RawIOBase):
    """Chunks of bytes, of any length, as a file whose reads are full until its end."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._ready = chunks, memoryview(b"")
        self._error: Exception | None = None

    @override
    def readable(self) -> bool:
        return True

    @override
    def readinto(self, target: "Buffer") -> int:
        view, done = memoryview(target).cast("B"), 0
        while done < len(view):
            if not self._ready:
                try:
                    self._ready = memoryview(next(self._chunks))
                except StopIteration:
                    break
                except Exception as error:  # raised behind what was read before it
                    self._error = error
                    break
            part = self._ready[: len(view) - done]
            view[done : done + len(part)] = part
            done, self._ready = done + len(part), self._ready[len(part) :]
        if not done and self._error is not None:
            raise self._error
        return done


def _utf_8(file: io.BufferedReader, encoding: str, is_wide: bool) -> Iterator[bytes]:
    """Decode what is read, and return it as UTF-8; where it is UTF-8 from the first character on, as it is."""
    is_gbk = codecs.lookup(encoding).name in _GBK
    decoder = codecs.getincrementaldecoder(encoding)(_EURO if is_gbk else "strict")
    is_open = True
    while raw := file.read1(HEAD_BYTES):
        if is_open and (is_wide or not raw.isascii()):
            is_open = False
            if _is_utf_8_all_the_same(raw + file.peek(HEAD_BYTES), encoding, is_wide):
                yield raw
                yield from iter(partial(file.read1, HEAD_BYTES), b"")
                return
        yield decoder.decode(raw).encode()
    # The decoder of GB 18030 drops what follows a handled error at the very end.
    rest = decoder.getstate()[0].decode(encoding, _EURO) if is_gbk else decoder.decode(b"", final=True)
    yield rest.encode()


def _zstandard(file: io.BufferedReader, path: str) -> Iterator[bytes]:
    """Decompress one frame after the other, and notice where the last one lacks its end.

    The package's own stream reader ends without an error in the middle of a frame: a corpus that was cut off would be
    complete, and a sync would delete the rest.
    """
    with needs_extra("zstd", f"{path}: a .zst file"):
        import zstandard

    new_frame = zstandard.ZstdDecompressor().decompressobj
    frame = None
    while raw := file.read1(_PIECE_BYTES):
        while raw:
            frame = frame or new_frame()
            yield frame.decompress(raw)
            raw, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
    if frame is not None:
        raise EOFError("the Zstandard stream is cut off: its end mark is missing")


@contextmanager
def as_text(file: io.BufferedReader, errors: str = "strict", line_end: str = "") -> Iterator[io.TextIOWrapper]:
    """Decode UTF-8 as it is, without a byte order mark, in lines that end only so; the file itself stays open."""
    text = io.TextIOWrapper(file, "utf-8-sig", errors, newline=line_end)
    try:
        yield text
    finally:
        text.detach()
