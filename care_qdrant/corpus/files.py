"""A corpus: one file, several, or folders, row by row in constant memory, in the formats that their names say."""

import glob
import io
import logging
import os
import sys
import unicodedata
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import takewhile
from pathlib import Path, PurePath
from typing import NamedTuple, Self

from care_qdrant.corpus.column_types import ColumnGuess, IdGuess, require_columns
from care_qdrant.corpus.columnar import arrow_files, is_arrow_folder
from care_qdrant.corpus.formats import COLUMNAR, COMPRESSIONS, ENDINGS, READABLE, Format, format_of, read_rows
from care_qdrant.corpus.rejects import is_rejects_name
from care_qdrant.corpus.rows import Fields, Reject
from care_qdrant.corpus.streams import (
    HEAD_BYTES,
    STDIN,
    UTF_8,
    Unreadable,
    decompressed,
    is_chinese_utf_8,
    is_utf_8,
    open_binary,
    recoded,
    wide_encoding,
)
from care_qdrant.corpus.tables import describe_table, guess_types, read_header
from care_qdrant.errors import InputError, needs_extra
from care_qdrant.types import Document

logger = logging.getLogger(__name__)

CorpusPath = str | Path | Sequence[str | Path]
_EXPECTED = f"expected {READABLE}, a folder of such files, a folder that Hugging Face datasets saved, or -"
_DEFAULT_FIELDS = Fields()
_ADVICE = (
    "Give its encoding with --encoding: gb18030 for GBK and GB 2312, big5, shift_jis, euc_kr, cp1252; nothing tells "
    "them apart for sure, so read some documents afterwards"
)


@dataclass(frozen=True, slots=True)
class CorpusFile:
    """One file of a corpus."""

    path: str
    name: str
    """Path below the folder, glob or URL prefix that was given, or that holds all that were given: the identity of the
    file in ids of texts, rejected rows, units of bulk jobs and messages."""
    form: Format


class Corpus:
    """A corpus of one or more files; use it in a ``with`` block, and iterate once.

    The name of a file says its format. A byte order mark at its start, Windows line ends and blank lines are no errors.
    Rows that cannot be read come out as `Reject`, in their place.
    """

    def __init__(
        self,
        path: CorpusPath,
        fields: Fields = _DEFAULT_FIELDS,
        encoding: str = UTF_8,
        form: Format | None = None,
    ) -> None:
        """Take files and folders, or standard input for ``-``; they are opened while they are iterated.

        Args:
            path: One path or several. A name with ``*`` that is no file stands for the files that it matches.
            fields: Names of the parts of a row.
            encoding: Encoding of text files that are not UTF-8.
            form: Format of standard input and of files whose names have no known ending; None takes JSON lines for
                standard input, and refuses such files.

        Raises:
            InputError: There is no such file, or no format is known for it.
            MissingExtra: The format of a file needs a package that is not installed.
        """
        self.files = check_corpus(path, form)
        self._paths = [path] if isinstance(path, str | Path) else list(path)
        self.fields, self.encoding = fields, encoding
        self.found: list[str] = []
        """Formats that the files were read as, for people; grows while the corpus is read."""
        self.changed: list[str] = []
        """Files that were written to while they were read; grows while the corpus is read."""
        self._stack = ExitStack()
        self._file: io.BufferedReader | None = None
        self._opened: tuple[int, int] | None = None
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
                    yield replace(row, file=file.name) if len(self.files) > 1 else row
            except _damage() as error:
                hint = f". {_ADVICE}" if isinstance(error, UnicodeError) else ""
                raise InputError(
                    f"{file.path}: is damaged after row {line:,} ({error}); rows before it were read{hint}"
                ) from error
            if size is not None and self._file is not None and _state(self._file) != self._opened:
                self.changed.append(file.path)
                logger.warning(
                    "%s: was written to while it was read, so rows may be missing: run the same command again",
                    file.path,
                )
            self._stack.close()
            self._file = None
            self._done += size or 0

    def _rows(self, file: CorpusFile) -> Iterator[Document | Reject]:
        content = self._open(file)
        if file.form in COLUMNAR:
            _require_package(file.path, ".parquet")
            if self._file is None or not self._file.seekable():
                raise InputError(f"{file.path}: a {file.form} file cannot be read from a pipe; save it first")
            self.found.append(file.form)
        else:
            self._look_at_text(file, content.peek(HEAD_BYTES))
        yield from read_rows(file.form, content, self.fields, name=file.name)

    def _look_at_text(self, file: CorpusFile, head: bytes) -> None:
        """Note what a text was read as, and say what about it may be a mistake."""
        if not head:
            logger.warning("%s: is empty", file.path)
        if _size(file.path) is None:
            columns = read_header(head, file.form, self.fields).columns if file.form in ("csv", "tsv") else []
            require_columns(self.fields.types, set(columns), file.path)
            if columns and not self.fields.types:
                logger.info(
                    "%s: columns of a pipe are text, since it can be read once: --types gives others", file.path
                )
        self.found.append(describe_table(head, file.form, self.fields) if file.form in ("csv", "tsv") else file.form)

    def _open(self, file: CorpusFile) -> io.BufferedReader:
        """Open a file: decompressed, and as UTF-8 where it is text."""
        try:
            self._file = open_binary(file.path, self._stack)
        except OSError as error:
            raise InputError(f"{file.path}: cannot be opened ({error.strerror})") from error
        self._opened = _state(self._file)
        content = decompressed(self._file, file.path, self._stack)
        if file.form in COLUMNAR:
            return content
        head = content.peek(HEAD_BYTES)
        self._require_encoding(file.path, head)
        if _is_utf_8(self.encoding) or not is_chinese_utf_8(head):  # a folder may hold both
            content = recoded(content, self.encoding)
        return content

    def typed_fields(self) -> Fields:
        """Read the tables of the corpus once, and return the fields with the types of their columns, guessed or given.

        A pipe is not read, since nothing can be read from it twice. Damage ends the look at a file: reading its rows
        will tell.
        """
        guesses: dict[str, ColumnGuess] = {}
        ids = IdGuess()
        columns: set[str] = set()
        for file, size in zip(self.files, self._sizes, strict=True):
            if size is None or file.form not in ("csv", "tsv"):
                continue
            with suppress(*_damage()):
                content = self._open(file)
                columns.update(read_header(content.peek(HEAD_BYTES), file.form, self.fields).columns)
                guess_types(content, file.form, file.path, self.fields, guesses, ids)
            self._stack.close()
            self._file = None
        if None not in self._sizes:
            require_columns(self.fields.types, columns, ", ".join(map(str, self._paths)))
        types = {**{name: guess.type for name, guess in guesses.items()}, **self.fields.types}
        return replace(self.fields, types=types, are_ids_whole=ids.are_whole)

    def _require_encoding(self, path: str, head: bytes) -> None:
        """Refuse a file of which most lines are not UTF-8, where no other encoding was given."""
        if not _is_utf_8(self.encoding):
            return
        if (wide := wide_encoding(head)) is not None:
            raise InputError(f"{path}: is not UTF-8; it reads as {wide}: give --encoding {wide}")
        lines = [line for line in head.splitlines() if line.strip()]
        # The header of a table may be plain English.
        has_header = len(lines) > 1 and lines[0].isascii() and not lines[0].lstrip().startswith((b"{", b"["))
        wrong = [not is_utf_8(line) for line in lines[has_header:]]
        # A file in which some lines are damaged is read, without those.
        if wrong and (has_header or wrong[0]) and sum(wrong) * 2 > len(wrong):
            raise InputError(f"{path}: is not UTF-8. {_ADVICE}")

    @property
    def share_read(self) -> float | None:
        """Fraction of the corpus that was read, in [0, 1]; None where its length is not known."""
        total = sum(size or 0 for size in self._sizes)
        if not total or None in self._sizes:
            return None
        return min(1.0, (self._done + (self._file.tell() if self._file else 0)) / total)


def check_corpus(path: CorpusPath, form: Format | None = None) -> list[CorpusFile]:
    """Return the files of a corpus, and refuse one that cannot be read before anything else is touched."""
    paths = [path] if isinstance(path, str | Path) else list(path)
    found = {place: file for each in paths for place, file in _files_of(str(each), form).items()}
    files = _named(found, [str(each) for each in paths])
    for file in files:
        for ending in (".zst", ".parquet", ".arrow"):
            if file.path.endswith(ending):
                _require_package(file.path, ending)
    return files


def corpus_name(path: CorpusPath) -> str:
    """Return the name of one file or folder without the endings of formats: ``data/corpus.jsonl.gz`` is ``corpus``."""
    paths = [path] if isinstance(path, str | Path) else list(path)
    if len(paths) != 1 or str(paths[0]) == STDIN or Path(paths[0]).is_fifo() or glob.has_magic(str(paths[0])):
        raise InputError(f"{', '.join(map(str, paths))}: has no name of its own: give --collection")
    name = _absolute(paths[0]).name
    for endings in (COMPRESSIONS, ENDINGS):
        while (ending := Path(name).suffix).lower() in endings:
            name = name.removesuffix(ending)
    if not name or name != os.fsencode(name).decode(UTF_8, "replace"):
        raise InputError(f"{paths[0]}: has no name that a collection can have: give --collection")
    return name


def typed_fields(path: CorpusPath, fields: Fields, encoding: str = UTF_8, form: Format | None = None) -> Fields:
    """Return the fields with the types that the columns of a corpus's tables have; each table is read once for that."""
    with Corpus(path, fields, encoding, form) as corpus:
        fields = corpus.typed_fields()
    typed = {name: kind for name, kind in fields.types.items() if kind != "text"}
    if typed:
        said = ", ".join(f"{name} {kind}" for name, kind in typed.items())
        logger.info("types of columns: %s; the others are text (--types NAME=TYPE changes that)", said)
    if fields.are_ids_whole:
        logger.info("the ids are whole numbers, some with .0 behind: they are read without it")
    return fields


def _files_of(path: str, form: Format | None) -> dict[str, Format]:
    """Return the files of one path with their formats, in order; the keys are paths."""
    place = Path(path)
    if path == STDIN or place.is_fifo():
        return {path: form or "jsonl"}
    if place.exists() and not place.is_dir():
        known = format_of(path) or form
        if known is None:
            raise InputError(f"{path}: its name has no ending that says a format; give --format, or a name with one")
        return {path: known}
    if not place.exists() and (matches := _matches(path)):
        return {file: known for match in matches for file, known in _matched(match, form).items()}
    if not place.is_dir():
        raise InputError(f"{path}: does not exist; {_EXPECTED}")
    entries = {entry.name for entry in place.iterdir()}
    if is_arrow_folder(entries):
        state = (place / "state.json").read_text(encoding="utf-8")
        return {str(place / name): "arrow" for name in arrow_files(state)}
    if "dataset_dict.json" in entries:
        splits = sorted(entry.name for entry in place.iterdir() if entry.is_dir())
        raise InputError(f"{path}: is a folder of splits; give one of them: {', '.join(f'{path}/{s}' for s in splits)}")
    files = _walk(place).files
    found = {str(place / name): known for name in files if (known := _format_in_folder(name)) is not None}
    if not found:
        raise InputError(f"{path}: is a folder without files that can be read; {_EXPECTED}")
    return found


def _matched(path: str, form: Format | None) -> dict[str, Format]:
    """Return what a pattern has matched: a file whose name says no format is left out, with a warning."""
    if Path(path).is_file() and format_of(path) is None and form is None:
        logger.warning("%s: not read, since its name has no ending that says a format; give --format", path)
        return {}
    return _files_of(path, form)


def _named(found: Mapping[str, Format], paths: Sequence[str]) -> list[CorpusFile]:
    """Name each file by its place below the folder that was given, or below the deepest one that holds all given.

    In NFC, since file systems differ in that.
    """
    roots = [_root(path) for path in paths if path != STDIN]
    root = Path(os.path.commonpath(roots)) if roots else Path()
    files = []
    for path, form in found.items():
        name = path if path == STDIN else _absolute(path).relative_to(root).as_posix()
        # Bytes of a name that are no UTF-8, as another system wrote them, can be neither an id nor part of a report.
        name = unicodedata.normalize("NFC", os.fsencode(name).decode(UTF_8, "backslashreplace"))
        files.append(CorpusFile(path, name, form))
    return files


def _root(path: str) -> Path:
    """Return the folder below which the files of a path are named."""
    place = Path(path)
    if not place.exists() and glob.has_magic(path):
        parts = list(takewhile(lambda part: not glob.has_magic(part), place.parts))
        return _absolute(Path(*parts))
    return _absolute(path) if place.is_dir() else _absolute(path).parent


def _absolute(path: str | Path) -> Path:
    """Return an absolute path without ``..``; links stay what they are called."""
    return Path(os.path.normpath(Path(path).absolute()))


class _Walk(NamedTuple):
    """Paths of the files below a folder, relative to it, sorted."""

    files: list[str]
    others: list[str]
    """Paths that are neither files nor folders, and links to folders."""
    own: list[str]
    """Folders that this package or Qdrant writes: embedded databases, models, bulk jobs."""


def _walk(folder: Path) -> _Walk:
    """List a folder.

    A link to a folder is not followed: a link to the newest of several would make each document twice.
    """

    def refuse(error: OSError) -> None:
        raise InputError(f"{error.filename}: cannot be read ({error.strerror}); its documents would be missing")

    found = _Walk([], [], [])
    for parent, folders, names in os.walk(folder, onerror=refuse):
        place = Path(parent)
        found.others.extend(_below(place / name, folder) for name in folders if (place / name).is_symlink())
        own = [name for name in folders if _is_own(place / name)]
        found.own.extend(_below(place / name, folder) for name in own)
        folders[:] = [name for name in folders if name not in own]
        for name in names:
            (found.files if (place / name).is_file() else found.others).append(_below(place / name, folder))
    return _Walk(*map(sorted, found))


def _below(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()


_OWN = (("meta.json", "collection"), ("care.json", "modules.json"), ("manifest.json", "receipts"))
"""Names that a folder of an embedded database, a model or a bulk job holds."""


def _is_own(folder: Path) -> bool:
    """Return whether a folder is not part of a corpus: its JSON would be read as rows."""
    return any(all((folder / name).exists() for name in names) for names in _OWN)


def _format_in_folder(name: str) -> Format | None:
    """Return the format of a file in a folder; None where it is not read."""
    return None if _is_hidden(name) or is_rejects_name(PurePath(name).name) else format_of(name)


def _tell_unread(folder: Path) -> None:
    """Log what of a folder is not read, and why."""
    if not folder.is_dir() or is_arrow_folder({entry.name for entry in folder.iterdir()}):
        return
    found = _walk(folder)
    hidden = [name for name in found.files if _is_hidden(name) and format_of(name) is not None]
    rejects = [name for name in found.files if not _is_hidden(name) and is_rejects_name(PurePath(name).name)]
    foreign = [name for name in found.files if not _is_hidden(name) and format_of(name) is None]
    advice = f"{_EXPECTED}. LlamaIndex's SimpleDirectoryReader makes text of PDF and Word files"
    reasons = (
        (foreign, advice),
        (found.others, "links to folders, broken links, pipes: give what is behind them as a path of its own"),
        (found.own, "folders of an embedded database, a model or a bulk job"),
        (rejects, "lists of rejected rows: give a file itself to read it"),
        (hidden, "hidden files: give a file itself to read it"),
    )
    for names, reason in reasons:
        if names:
            shown = ", ".join(names[:3])
            logger.warning("%s: not read: %d, as %s: %s", folder, len(names), shown, reason)


def _is_utf_8(encoding: str) -> bool:
    return encoding.lower() in (UTF_8, "utf8")


def _matches(pattern: str) -> list[str]:
    if not glob.has_magic(pattern):
        return []
    anchor = Path(pattern).anchor
    return sorted(str(path) for path in Path(anchor).glob(str(Path(pattern).relative_to(anchor))))


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in PurePath(name).parts)


def _size(path: str) -> int | None:
    """Return the length of a file in bytes; None for a pipe."""
    return Path(path).stat().st_size if path != STDIN and Path(path).is_file() else None


def _state(file: io.BufferedReader) -> tuple[int, int] | None:
    """Return what a write to a file alters, its length and time; None for an object that is no file of the system.

    A file that another one replaced under its name is not altered: its rows are read as they were.
    """
    try:
        found = os.fstat(file.fileno())
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def _require_package(path: str, ending: str) -> None:
    extra, module = ("zstd", "zstandard") if ending == ".zst" else ("parquet", "pyarrow.parquet")
    with needs_extra(extra, f"{path}: a {ending} file"):
        import_module(module)


def _damage() -> tuple[type[Exception], ...]:
    """Return what the readers raise for a file that is cut off or not what its name says."""
    kinds: list[type[Exception]] = [EOFError, OSError, zlib.error, UnicodeError, Unreadable]
    if "zstandard" in sys.modules:
        kinds.append(sys.modules["zstandard"].ZstdError)
    if "pyarrow" in sys.modules:
        kinds.append(sys.modules["pyarrow"].ArrowException)
    return tuple(kinds)
