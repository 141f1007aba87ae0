"""Reads corpora: JSON lines (plain, gzip, Zstandard, standard input) and Parquet, row by row in constant memory."""

import datetime
import gzip
import io
import json
import sys
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Self, cast

from care_qdrant.corpus.rows import Fields, Reject, Row, parse_line, parse_values
from care_qdrant.errors import InputError, needs_extra

MAX_LINE_BYTES = 5_000_000
STDIN = "-"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_PARQUET_ROWS = 1_024
_DEFAULT_FIELDS = Fields()


class Corpus:
    """A corpus file; use it in a ``with`` block, and iterate once.

    A byte order mark at the start of the file, Windows line ends and blank lines are no errors. Rows that cannot be
    read come out as `Reject`, in their place.
    """

    def __init__(self, path: str | Path, fields: Fields = _DEFAULT_FIELDS) -> None:
        """Take a file, or standard input for ``-``; it is opened by the ``with`` block.

        Raises:
            InputError: There is no such file.
            MissingExtra: Its form needs a package that is not installed.
        """
        check_corpus(path)
        self.path, self.fields = str(path), fields
        self._stack = ExitStack()
        self._file: IO[bytes] = io.BytesIO()
        self._size = 0

    def __enter__(self) -> Self:
        if self.path == STDIN:
            self._file = sys.stdin.buffer
        else:
            self._file = self._stack.enter_context(Path(self.path).open("rb"))
            self._size = Path(self.path).stat().st_size
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __iter__(self) -> Iterator[Row | Reject]:
        """Return the rows in order.

        Raises:
            InputError: The file is damaged; the rows before the damage were given.
        """
        line = 0
        try:
            for row in self._rows():
                line = row.line
                yield row
        except _damage() as error:
            raise InputError(
                f"{self.path}: is damaged after row {line:,} ({error}); rows before it were read"
            ) from error

    def _rows(self) -> Iterator[Row | Reject]:
        if self.path.endswith(".parquet"):
            yield from _read_parquet(self._file, self.fields)
            return
        for number, raw in _numbered_lines(self._decompressed()):
            if isinstance(raw, Reject):
                yield raw
            elif raw.strip():
                yield parse_line(raw, number, self.fields)

    @property
    def share_read(self) -> float | None:
        """Fraction of the file that was read, in [0, 1]; None where its length is not known."""
        return min(1.0, self._file.tell() / self._size) if self._size else None

    def _decompressed(self) -> IO[bytes]:
        if self.path.endswith(".gz"):
            return cast(IO[bytes], self._stack.enter_context(gzip.open(self._file)))
        if self.path.endswith(".zst"):
            import zstandard

            reader = zstandard.ZstdDecompressor().stream_reader(self._file, read_across_frames=True)
            return cast(IO[bytes], self._stack.enter_context(io.BufferedReader(cast(io.RawIOBase, reader))))
        return self._file


class RejectsFile:
    """Writes rejected rows beside the corpus; there is no file where no row was rejected."""

    def __init__(self, path: Path) -> None:
        """Forget the rejects of an earlier run."""
        self.path = path
        self.path.unlink(missing_ok=True)
        self._file: IO[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, reject: Reject) -> None:
        """Append one row as JSON: ``line``, ``id`` where there is one, ``reason``."""
        if self._file is None:
            self._file = self.path.open("w", encoding="utf-8")
        named = {"id": reject.id} if reject.id else {}
        row = {"line": reject.line, **named, "reason": reject.reason}
        # ASCII, since a rejected id may hold what UTF-8 cannot.
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()


def check_corpus(path: str | Path) -> None:
    """Refuse a corpus that cannot be read, before anything else is touched.

    Raises:
        InputError: There is no such file.
        MissingExtra: Its form needs a package that is not installed.
    """
    if str(path) != STDIN and not Path(path).is_file():
        found = "is a folder" if Path(path).is_dir() else "does not exist"
        raise InputError(f"{path}: {found}; expected JSON lines (.jsonl, .jsonl.gz, .jsonl.zst), Parquet, or -")
    for ending, extra, module in ((".zst", "zstd", "zstandard"), (".parquet", "parquet", "pyarrow.parquet")):
        if str(path).endswith(ending):
            with needs_extra(extra, f"{path}: a {ending} file"):
                import_module(module)


def corpus_name(path: str | Path) -> str:
    """Return the file's name without its extensions: ``data/corpus.jsonl.gz`` is ``corpus``."""
    return Path(path).name.split(".")[0]


def rejects_path(path: str | Path) -> Path:
    """Return where the rejected rows of a corpus go: ``corpus.jsonl.rejects.jsonl`` beside it."""
    return Path("stdin.rejects.jsonl") if str(path) == STDIN else Path(f"{path}.rejects.jsonl")


def _damage() -> tuple[type[Exception], ...]:
    """Return what the readers raise for a file that is cut off or not what its name says."""
    kinds: list[type[Exception]] = [EOFError, OSError, zlib.error]
    if "zstandard" in sys.modules:
        kinds.append(sys.modules["zstandard"].ZstdError)
    if "pyarrow" in sys.modules:
        kinds.append(sys.modules["pyarrow"].ArrowException)
    return tuple(kinds)


def _numbered_lines(file: IO[bytes]) -> Iterator[tuple[int, bytes | Reject]]:
    """Return the lines with their numbers; never more than `MAX_LINE_BYTES` are in memory."""
    number = 0
    while raw := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if number == 1:
            raw = raw.removeprefix(BYTE_ORDER_MARK)
        if len(raw) > MAX_LINE_BYTES:
            _skip_line(file, raw)
            yield number, Reject(number, f"is longer than {MAX_LINE_BYTES:,} bytes")
        else:
            yield number, raw


def _skip_line(file: IO[bytes], raw: bytes) -> None:
    while raw and not raw.endswith(b"\n"):
        raw = file.readline(MAX_LINE_BYTES)


def _read_parquet(file: IO[bytes], fields: Fields) -> Iterator[Row | Reject]:
    import pyarrow.parquet  # type: ignore[import-untyped]

    number = 0
    for batch in pyarrow.parquet.ParquetFile(file).iter_batches(batch_size=_PARQUET_ROWS):
        for values in batch.to_pylist():
            number += 1
            present = {key: _json_value(value) for key, value in values.items() if value is not None}
            yield parse_values(present, number, fields)


def _json_value(value: Any) -> Any:
    """Write dates as ISO 8601, the one common type of Parquet that JSON lacks and that Qdrant can filter."""
    return value.isoformat() if isinstance(value, datetime.date | datetime.time) else value
