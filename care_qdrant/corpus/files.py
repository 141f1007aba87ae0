"""A corpus: one file, several, or folders, row by row in constant memory, in whatever format each file has."""

import glob
import io
import logging
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Self

from care_qdrant.corpus.formats import (
    TABLES,
    TEXTS,
    Format,
    arrow_files,
    describe_table,
    is_arrow_folder,
    read_array,
    read_columns,
    read_lines,
    read_table,
    read_text,
    tell_format,
)
from care_qdrant.corpus.rows import Fields, Reject
from care_qdrant.corpus.streams import (
    HEAD_BYTES,
    STDIN,
    UTF_8,
    decompressed,
    guess_encoding,
    is_chinese_utf_8,
    open_binary,
    recoded,
)
from care_qdrant.errors import InputError, needs_extra
from care_qdrant.types import Document

logger = logging.getLogger(__name__)

CorpusPath = str | Path | Sequence[str | Path]
COMPRESSIONS = (".gz", ".zst")
_KNOWN = (".jsonl", ".ndjson", ".json", ".parquet", ".arrow", *TABLES, *TEXTS)
_EXPECTED = (
    "expected JSON lines, a JSON array, CSV or TSV, Parquet, text (.txt, .md), a folder of such files, a folder that "
    "Hugging Face datasets saved, or -"
)
_DEFAULT_FIELDS = Fields()


@dataclass(frozen=True, slots=True)
class CorpusFile:
    """One file of a corpus."""

    path: str
    name: str
    """Relative to the folder that was given; the id of a text file."""

    @property
    def plain_name(self) -> str:
        """The name in lower case, without the ending of a compression."""
        name = self.name.lower()
        return name.rsplit(".", 1)[0] if name.endswith(COMPRESSIONS) else name


class Corpus:
    """A corpus of one or more files; use it in a ``with`` block, and iterate once.

    The format of a file is told by its content. A byte order mark at its start, Windows line ends and blank lines are
    no errors. Rows that cannot be read come out as `Reject`, in their place.
    """

    def __init__(self, path: CorpusPath, fields: Fields = _DEFAULT_FIELDS, encoding: str = UTF_8) -> None:
        """Take files and folders, or standard input for ``-``; they are opened while they are iterated.

        Args:
            path: One path or several. A name with ``*`` that is no file stands for the files that it matches.
            fields: Names of the parts of a row.
            encoding: Of text files that are not UTF-8.

        Raises:
            InputError: There is no such file.
            MissingExtra: The form of a file needs a package that is not installed.
        """
        self.files = check_corpus(path)
        self._paths = [path] if isinstance(path, str | Path) else list(path)
        self.fields, self.encoding = fields, encoding
        self.found: list[str] = []
        """What each file was read as, for people; grows while the corpus is read."""
        self._stack = ExitStack()
        self._file: io.BufferedReader | None = None
        self._sizes = [_size(file.path) for file in self.files]
        self._done = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and not issubclass(kind, Exception | GeneratorExit):
            # An interrupted program may leave a thread behind that reads a pipe: closing would wait for it.
            self._stack.pop_all()
        self._stack.close()

    def __iter__(self) -> Iterator[Document | Reject]:
        """Return the rows in order."""
        for path in self._paths:
            _tell_unread(Path(path))
        for file, size in zip(self.files, self._sizes, strict=True):
            line = 0
            try:
                for row in self._rows(file):
                    line = row.line
                    yield replace(row, file=file.name) if isinstance(row, Reject) and len(self.files) > 1 else row
            except _damage() as error:
                guess = guess_encoding(error.object) if isinstance(error, UnicodeDecodeError) else None
                hint = (
                    "" if guess is None else f". The part that was not read reads as {guess}: give --encoding {guess}"
                )
                raise InputError(
                    f"{file.path}: is damaged after row {line:,} ({error}); rows before it were read{hint}"
                ) from error
            self._stack.close()
            self._file = None
            self._done += size or 0

    def _rows(self, file: CorpusFile) -> Iterator[Document | Reject]:
        self._file = open_binary(file.path, self._stack)
        content = decompressed(self._file, file.path, self._stack)
        head = content.peek(HEAD_BYTES)
        form = tell_format(file.plain_name, head, self.fields)
        if form in ("Parquet", "Arrow"):
            self.found.append(form)
            _require_package(file.path, ".parquet")
            if not self._file.seekable():
                raise InputError(f"{file.path}: a {form} file cannot be read from a pipe; save it first")
            yield from read_columns(content, form, file.name, self.fields)
            return
        self._require_encoding(file.path, head)
        converted = recoded(content, self.encoding)
        if not _is_utf_8(self.encoding) and is_chinese_utf_8(head):  # a folder may hold both
            logger.info("%s: is UTF-8, and read as such", file.path)
        else:
            content = converted
        head = content.peek(HEAD_BYTES)
        form = tell_format(file.plain_name, head, self.fields)
        table = describe_table(head, file.plain_name, self.fields) if form == "CSV" else form
        self.found.append(table)
        yield from _read(form, content, file, self.fields)

    def _require_encoding(self, path: str, head: bytes) -> None:
        """Refuse a file of which most lines are not in the given encoding, naming the one that it seems to have."""
        if not _is_utf_8(self.encoding):
            return
        guess = guess_encoding(head)
        lines = [line for line in head.splitlines() if line.strip()]
        # The header of a table may be plain English.
        has_header = len(lines) > 1 and lines[0].isascii() and not lines[0].lstrip().startswith((b"{", b"["))
        wrong = [guess_encoding(line) is not None for line in lines[has_header:]]
        # A file in which some lines are damaged is read, without those.
        if guess == "utf-16" or (guess is not None and (has_header or wrong[0]) and sum(wrong) * 2 > len(wrong)):
            name = f"{guess} (GBK)" if guess == "gb18030" else guess
            raise InputError(f"{path}: is not UTF-8; it reads as {name}: give --encoding {guess}")

    @property
    def share_read(self) -> float | None:
        """Fraction of the corpus that was read, in [0, 1]; None where its length is not known."""
        total = sum(size or 0 for size in self._sizes)
        if not total or None in self._sizes:
            return None
        return min(1.0, (self._done + (self._file.tell() if self._file else 0)) / total)


def check_corpus(path: CorpusPath) -> list[CorpusFile]:
    """Return the files of a corpus, and refuse one that cannot be read before anything else is touched."""
    paths = [path] if isinstance(path, str | Path) else list(path)
    files = [file for each in paths for file in _files_of(str(each), is_alone=len(paths) == 1)]
    for file in files:
        for ending in (".zst", ".parquet", ".arrow"):
            if file.path.endswith(ending):
                _require_package(file.path, ending)
    return files


def corpus_name(path: CorpusPath) -> str:
    """Return the name of one file or folder without its extensions: ``data/corpus.jsonl.gz`` is ``corpus``."""
    paths = [path] if isinstance(path, str | Path) else list(path)
    if len(paths) != 1 or str(paths[0]) == STDIN or Path(paths[0]).is_fifo() or glob.has_magic(str(paths[0])):
        raise InputError(f"{', '.join(map(str, paths))}: has no name of its own: give --collection")
    return Path(paths[0]).absolute().name.split(".")[0]


def _files_of(path: str, *, is_alone: bool) -> list[CorpusFile]:
    place = Path(path)
    if path == STDIN or (place.exists() and not place.is_dir()):
        return [CorpusFile(path, place.name if is_alone else place.as_posix())]
    if not place.exists() and (matches := _matches(path)):
        return [file for match in matches for file in _files_of(match, is_alone=False)]
    if not place.is_dir():
        raise InputError(f"{path}: does not exist; {_EXPECTED}")
    entries = {entry.name for entry in place.iterdir()}
    if is_arrow_folder(entries):
        state = (place / "state.json").read_text(encoding="utf-8")
        return [CorpusFile(str(place / name), name) for name in arrow_files(state)]
    if "dataset_dict.json" in entries:
        splits = sorted(entry.name for entry in place.iterdir() if entry.is_dir())
        raise InputError(f"{path}: is a folder of splits; give one of them: {', '.join(f'{path}/{s}' for s in splits)}")
    files = sorted(file for file in place.rglob("*") if file.is_file())
    found = [CorpusFile(str(file), file.relative_to(place).as_posix()) for file in files]
    found = [file for file in found if _is_known(file)]
    if not found:
        raise InputError(f"{path}: is a folder without files that can be read; {_EXPECTED}")
    return found


def _tell_unread(folder: Path) -> None:
    """Log which files of a folder are of no kind that is read, and what reads them."""
    if not folder.is_dir() or is_arrow_folder({entry.name for entry in folder.iterdir()}):
        return
    names = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
    files = [file for file in (CorpusFile(name, name) for name in names) if not _is_known(file) and not _is_own(file)]
    if files:
        logger.warning(
            "%s: not read: %d, as %s: %s. LlamaIndex's SimpleDirectoryReader makes text of PDF and Word files",
            folder,
            len(files),
            ", ".join(file.name for file in files[:3]),
            _EXPECTED,
        )


def _is_utf_8(encoding: str) -> bool:
    return encoding.lower() in (UTF_8, "utf8")


def _matches(pattern: str) -> list[str]:
    if not glob.has_magic(pattern):
        return []
    anchor = Path(pattern).anchor
    return sorted(str(path) for path in Path(anchor).glob(str(Path(pattern).relative_to(anchor))))


def _is_known(file: CorpusFile) -> bool:
    return file.plain_name.endswith(_KNOWN) and not _is_own(file)


def _is_own(file: CorpusFile) -> bool:
    """Return whether a file is hidden, or one into which an ingestion has written rejected rows."""
    return any(part.startswith(".") for part in Path(file.name).parts) or ".rejects" in file.name


def _read(form: Format, content: io.BufferedReader, file: CorpusFile, fields: Fields) -> Iterator[Document | Reject]:
    if form == "JSON array":
        return read_array(content, fields)
    if form == "CSV":
        return read_table(content, file.plain_name, fields)
    if form == "text":
        return read_text(content, file.name, fields)
    return read_lines(content, fields)


def _size(path: str) -> int | None:
    """Return the length of a file in bytes; None for a pipe."""
    return Path(path).stat().st_size if path != STDIN and Path(path).is_file() else None


def _require_package(path: str, ending: str) -> None:
    extra, module = ("zstd", "zstandard") if ending == ".zst" else ("parquet", "pyarrow.parquet")
    with needs_extra(extra, f"{path}: a {ending} file"):
        import_module(module)


def _damage() -> tuple[type[Exception], ...]:
    """Return what the readers raise for a file that is cut off or not what its name says."""
    import csv

    kinds: list[type[Exception]] = [EOFError, OSError, zlib.error, UnicodeDecodeError, csv.Error]
    if "zstandard" in sys.modules:
        kinds.append(sys.modules["zstandard"].ZstdError)
    if "pyarrow" in sys.modules:
        kinds.append(sys.modules["pyarrow"].ArrowException)
    return tuple(kinds)
