"""A corpus: one file, several, or folders, row by row in constant memory, in whatever format each file has."""

import glob
import io
import logging
import os
import sys
import unicodedata
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Self

from care_qdrant.corpus.column_types import ColumnGuess, IdGuess, require_columns
from care_qdrant.corpus.columnar import arrow_files, is_arrow_folder
from care_qdrant.corpus.foreign import describe_foreign
from care_qdrant.corpus.formats import ENDINGS, NO_TABLES, READABLE, Format, looks_like_table, read_rows, tell_format
from care_qdrant.corpus.rejects import is_rejects_file
from care_qdrant.corpus.rows import Fields, Reject
from care_qdrant.corpus.streams import (
    HEAD_BYTES,
    STDIN,
    UTF_8,
    Unreadable,
    decompressed,
    guess_encoding,
    is_chinese_utf_8,
    open_binary,
    recoded,
)
from care_qdrant.corpus.tables import TEXTS, describe_table, guess_types, read_header
from care_qdrant.errors import InputError, needs_extra
from care_qdrant.types import Document

logger = logging.getLogger(__name__)

CorpusPath = str | Path | Sequence[str | Path]
COMPRESSIONS = (".gz", ".zst")
_EXPECTED = f"expected {READABLE}, a folder of such files, a folder that Hugging Face datasets saved, or -"
_DEFAULT_FIELDS = Fields()


@dataclass(frozen=True, slots=True)
class CorpusFile:
    """One file of a corpus."""

    path: str
    name: str
    """Path relative to the folder that was given, or that has all text files; the id of a text file."""

    @property
    def plain_name(self) -> str:
        """The name in lower case, without the ending of a compression."""
        name = self.name.lower()
        while name.endswith(COMPRESSIONS):
            name = name.rsplit(".", 1)[0]
        return name


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
            encoding: Encoding of text files that are not UTF-8.

        Raises:
            InputError: There is no such file.
            MissingExtra: The format of a file needs a package that is not installed.
        """
        self.files = check_corpus(path)
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
                    yield replace(row, file=file.name) if isinstance(row, Reject) and len(self.files) > 1 else row
            except _damage() as error:
                guess = guess_encoding(error.object) if isinstance(error, UnicodeDecodeError) else None
                hint = (
                    "" if guess is None else f". The part that was not read reads as {guess}: give --encoding {guess}"
                )
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
        content, form = self._open(file)
        if form in ("Parquet", "Arrow"):
            _require_package(file.path, ".parquet")
            if self._file is None or not self._file.seekable():
                raise InputError(f"{file.path}: a {form} file cannot be read from a pipe; save it first")
            self.found.append(form)
        else:
            self._look_at_text(file, content.peek(HEAD_BYTES), form)
        yield from read_rows(form, content, self.fields, name=file.name, plain_name=file.plain_name)

    def _look_at_text(self, file: CorpusFile, head: bytes, form: Format) -> None:
        """Note what a text was read as, and say what about it may be a mistake."""
        if not head:
            logger.warning("%s: is empty", file.path)
        if form == "text" and looks_like_table(head):
            logger.warning(
                "%s: is read as one document, and looks like a table: name its columns with --id-field and --text-field"
                ", or give the file the ending .tsv",
                file.path,
            )
        if _size(file.path) is None:
            columns = read_header(head, file.plain_name, self.fields).columns if form == "CSV" else []
            require_columns(self.fields.types, set(columns), file.path)
            if columns and not self.fields.types:
                logger.info(
                    "%s: columns of a pipe are text, since it can be read once: --types gives others", file.path
                )
        self.found.append(describe_table(head, file.plain_name, self.fields) if form == "CSV" else form)

    def _open(self, file: CorpusFile) -> tuple[io.BufferedReader, Format]:
        """Open a file as far as its format is known: decompressed, and as UTF-8 where it is text."""
        try:
            self._file = open_binary(file.path, self._stack)
        except OSError as error:
            raise InputError(f"{file.path}: cannot be opened ({error.strerror})") from error
        self._opened = _state(self._file)
        content = decompressed(self._file, file.path, self._stack)
        head = content.peek(HEAD_BYTES)
        if problem := describe_foreign(head, is_text=file.plain_name.endswith(TEXTS)):
            raise InputError(f"{file.path}: {problem}")
        form = tell_format(file.plain_name, head, self.fields)
        if form in ("Parquet", "Arrow"):
            return content, form
        self._require_encoding(file.path, head)
        if _is_utf_8(self.encoding) or not is_chinese_utf_8(head):  # a folder may hold both
            content = recoded(content, self.encoding)
            form = tell_format(file.plain_name, content.peek(HEAD_BYTES), self.fields)
        return content, form

    def typed_fields(self) -> Fields:
        """Read the tables of the corpus once, and return the fields with the types of their columns, guessed or given.

        A pipe is not read, since nothing can be read from it twice. Damage ends the look at a file: reading its rows
        will tell.
        """
        guesses: dict[str, ColumnGuess] = {}
        ids = IdGuess()
        columns: set[str] = set()
        for file, size in zip(self.files, self._sizes, strict=True):
            if size is None or file.plain_name.endswith(NO_TABLES):
                continue
            with suppress(*_damage()):
                content, form = self._open(file)
                if form == "CSV":
                    columns.update(read_header(content.peek(HEAD_BYTES), file.plain_name, self.fields).columns)
                    guess_types(content, file.plain_name, self.fields, guesses, ids)
            self._stack.close()
            self._file = None
        if None not in self._sizes:
            require_columns(self.fields.types, columns, ", ".join(map(str, self._paths)))
        types = {**{name: guess.type for name, guess in guesses.items()}, **self.fields.types}
        return replace(self.fields, types=types, are_ids_whole=ids.are_whole)

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
        if (guess or "").startswith("utf-") or (
            guess is not None and (has_header or wrong[0]) and sum(wrong) * 2 > len(wrong)
        ):
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
    files = _named_texts([file for each in paths for file in _files_of(str(each), is_alone=len(paths) == 1)], paths)
    lists = [file for file in files if file.path != STDIN and is_rejects_file(Path(file.path))]
    if lists and len(lists) == len(files):
        raise InputError(f"{lists[0].path}: is a list of rejected rows that an ingestion wrote, and no corpus")
    files = [file for file in files if file not in lists]
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


def typed_fields(path: CorpusPath, fields: Fields, encoding: str = UTF_8) -> Fields:
    """Return the fields with the types that the columns of a corpus's tables have; each table is read once for that."""
    with Corpus(path, fields, encoding) as corpus:
        fields = corpus.typed_fields()
    typed = {name: kind for name, kind in fields.types.items() if kind != "text"}
    if typed:
        said = ", ".join(f"{name} {kind}" for name, kind in typed.items())
        logger.info("types of columns: %s; the others are text (--types NAME=TYPE changes that)", said)
    if fields.are_ids_whole:
        logger.info("the ids are whole numbers, some with .0 behind: they are read without it")
    return fields


def _files_of(path: str, *, is_alone: bool) -> list[CorpusFile]:
    place = Path(path)
    if path == STDIN or (place.exists() and not place.is_dir()):
        return [CorpusFile(path, place.name if is_alone else place.as_posix())]
    if not place.exists() and (matches := _matches(path)):
        found = [file for match in matches for file in _files_of(match, is_alone=False)]
        return list({file.path: file for file in found}.values())
    if not place.is_dir():
        raise InputError(f"{path}: does not exist; {_EXPECTED}")
    entries = {entry.name for entry in place.iterdir()}
    if is_arrow_folder(entries):
        state = (place / "state.json").read_text(encoding="utf-8")
        return [CorpusFile(str(place / name), name) for name in arrow_files(state)]
    if "dataset_dict.json" in entries:
        splits = sorted(entry.name for entry in place.iterdir() if entry.is_dir())
        raise InputError(f"{path}: is a folder of splits; give one of them: {', '.join(f'{path}/{s}' for s in splits)}")
    found = [file for file in _walk(place)[0] if _is_known(file)]
    if not found:
        raise InputError(f"{path}: is a folder without files that can be read; {_EXPECTED}")
    return found


def _named_texts(files: list[CorpusFile], paths: Sequence[str | Path]) -> list[CorpusFile]:
    """Name each text after its place below the folder that was given, however it was given: the name is its id.

    Text files without their folder are named below the deepest folder that has all of them, those that a pattern
    matched below the folder in front of its first wildcard. In NFC, since file systems differ in that.
    """
    folders = [root for path in paths if (root := _root(str(path))) is not None]
    texts = [file for file in files if file.path != STDIN and file.plain_name.endswith(TEXTS)]
    places = {file.path: _absolute(file.path) for file in texts}
    alone = [place.parent for place in places.values() if not any(place.is_relative_to(root) for root in folders)]
    roots = sorted(folders, key=lambda root: len(root.parts))  # of folders in each other, the outer one
    roots += [Path(os.path.commonpath(alone))] if alone else []
    named = []
    for file in files:
        name = file.name
        if file.path in places:
            place = places[file.path]
            name = place.relative_to(next(root for root in roots if place.is_relative_to(root))).as_posix()
        # Bytes of a name that are no UTF-8, as another system wrote them, can be neither an id nor part of a report.
        name = unicodedata.normalize("NFC", os.fsencode(name).decode(UTF_8, "backslashreplace"))
        named.append(replace(file, name=name))
    return named


def _root(path: str) -> Path | None:
    """Return the folder below which the files of a path are named; None for one file."""
    place = Path(path)
    if not place.exists() and glob.has_magic(path):
        parts = list(takewhile(lambda part: not glob.has_magic(part), place.parts))
        return _absolute(Path(*parts))
    return _absolute(path) if path != STDIN and place.is_dir() else None


def _absolute(path: str | Path) -> Path:
    """Return an absolute path without ``..``; links stay what they are called."""
    return Path(os.path.normpath(Path(path).absolute()))


def _walk(folder: Path) -> tuple[list[CorpusFile], list[str]]:
    """Return the files below a folder, and the names of what is there and is neither file nor folder.

    A link to a folder is not followed: a link to the newest of several would make each document twice.
    """

    def refuse(error: OSError) -> None:
        raise InputError(f"{error.filename}: cannot be read ({error.strerror}); its documents would be missing")

    files: list[Path] = []
    others: list[Path] = []
    for parent, folders, names in os.walk(folder, onerror=refuse):
        others += [Path(parent, name) for name in folders if Path(parent, name).is_symlink()]
        for name in names:
            (files if Path(parent, name).is_file() else others).append(Path(parent, name))
    found = [CorpusFile(str(file), file.relative_to(folder).as_posix()) for file in sorted(files)]
    return found, sorted(other.relative_to(folder).as_posix() for other in others)


def _tell_unread(folder: Path) -> None:
    """Log what of a folder is not read, and why."""
    if not folder.is_dir() or is_arrow_folder({entry.name for entry in folder.iterdir()}):
        return
    files, others = _walk(folder)
    hidden = [file.name for file in files if _is_hidden(file) and file.plain_name.endswith(ENDINGS)]
    foreign = [file.name for file in files if not _is_hidden(file) and not _is_known(file)]
    foreign = [name for name in foreign if not is_rejects_file(folder / name)]
    advice = f"{_EXPECTED}. LlamaIndex's SimpleDirectoryReader makes text of PDF and Word files"
    reasons = (
        (foreign, advice),
        (others, "links to folders, broken links, pipes: give what is behind them as a path of its own"),
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


def _is_known(file: CorpusFile) -> bool:
    return file.plain_name.endswith(ENDINGS) and not _is_hidden(file)


def _is_hidden(file: CorpusFile) -> bool:
    return any(part.startswith(".") for part in Path(file.name).parts)


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
    kinds: list[type[Exception]] = [EOFError, OSError, zlib.error, UnicodeDecodeError, Unreadable]
    if "zstandard" in sys.modules:
        kinds.append(sys.modules["zstandard"].ZstdError)
    if "pyarrow" in sys.modules:
        kinds.append(sys.modules["pyarrow"].ArrowException)
    return tuple(kinds)
