"""A corpus: one file, several, or folders, row by row in constant memory, in the formats that their names say."""

import io
import logging
import os
import posixpath
import sys
import unicodedata
import zlib
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import islice
from pathlib import Path, PurePath, PurePosixPath
from typing import NoReturn, Self

from care_qdrant.corpus.column_types import ColumnGuess, IdGuess, require_columns
from care_qdrant.corpus.endings import COMPRESSIONS, ENDINGS, READABLE, Format, compression_of, format_of
from care_qdrant.corpus.formats import read_rows
from care_qdrant.corpus.rejects import is_rejects_name
from care_qdrant.corpus.rows import Fields, Reject
from care_qdrant.corpus.streams import (
    HEAD_BYTES,
    STDIN,
    UTF_8,
    Unreadable,
    decompressed,
    is_utf_8,
    open_binary,
    recoded,
    seekable,
    wide_encoding,
)
from care_qdrant.corpus.tables import describe_table, guess_types, read_header
from care_qdrant.errors import InputError, counted, needs_extra
from care_qdrant.types import Document

logger = logging.getLogger(__name__)

CorpusPath = str | Path | Sequence[str | Path]
_EXPECTED = f"expected {READABLE}, a folder of such files, or -"
_DEFAULT_FIELDS = Fields()
FIRST_ROWS = 100
"""Number of rows of a file that are looked at before anything is written."""
MOST_NAMED = 50
"""Largest number of files that a message about what is not read names."""
_FOREIGN = (
    f"{_EXPECTED}. LlamaIndex's SimpleDirectoryReader makes text of PDF and Word files, and "
    "load_from_disk(FOLDER).to_parquet(FILE) of Hugging Face datasets makes Parquet of a folder that it saved"
)
_REJECTS = "lists of rejected rows: give a file itself to read it"
_HIDDEN = "hidden files: give a file itself to read it"
_PARTITIONS = "values in the names of folders, as Hive writes them: the files need a column of their own for them"
_NO_FILES = "links to folders, broken links, pipes: give what is behind them as a path of its own"
OWN_FOLDERS = "folders of an embedded database, a model or a bulk job"
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

    The name of a file says its format. A byte order mark at its start, Windows line ends and blank lines are accepted.
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
            path: One path or several.
            fields: Names of the parts of a row.
            encoding: Encoding of text files that are not UTF-8.
            form: Format of standard input and of files whose names have no known ending; None takes JSON lines for
                standard input, and refuses such files.

        Raises:
            InputError: There is no such file, or no format is known for it.
            MissingExtra: The format of a file needs a package that is not installed.
        """
        self.files = check_corpus(path, form)
        self._form = form
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
        tell_unread(self._paths)
        for file, size in zip(self.files, self._sizes, strict=True):
            line = 0
            try:
                for row in self._rows(file):
                    line = row.line
                    yield replace(row, file=file.name) if len(self.files) > 1 else row
            except _damage() as error:
                hint = f". {_ADVICE}" if isinstance(error, UnicodeError) else ""
                raise InputError(
                    f"{file.path}: is damaged after row {line:,} ({error}). Repair it and run the same command "
                    f"again{hint}"
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
        if file.form == "parquet":
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
        if file.form == "parquet":
            return content if content is self._file and content.seekable() else seekable(content, self._stack)
        head = content.peek(HEAD_BYTES)
        self._require_encoding(file.path, head)
        return recoded(content, self.encoding)

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
        for name, guess in guesses.items():
            if guess.odd and guess.but_for_odd != "text":
                message = "column %r is text, so no filter orders its values: %r is in some cells; left empty, it is %s"
                logger.warning(message, name, guess.odd, guess.but_for_odd)
        types = {**{name: guess.type for name, guess in guesses.items()}, **self.fields.types}
        return replace(self.fields, types=types, are_ids_whole=ids.are_whole)

    def _require_encoding(self, path: str, head: bytes) -> None:
        """Refuse a file most of whose lines are not UTF-8, if no other encoding was given."""
        if self.encoding.lower() not in (UTF_8, "utf8"):
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

    def require_beginnings(self) -> None:
        """Look at the beginning of each of several files, and refuse the corpus with all that is wrong with them.

        A pipe is not looked at. One row or text that is rejected is not wrong, since it is listed.

        Raises:
            InputError: Files are damaged, are in another encoding, lack columns, or have no row that is a document.
        """
        problems = []
        for file, size in zip(self.files, self._sizes, strict=True):
            if size is None or len(self.files) == 1:
                continue
            first: list[Document | Reject] = []
            try:
                content = self._open(file)
                if file.form not in ("md", "txt"):
                    first.extend(islice(read_rows(file.form, content, self.fields, name=file.path), FIRST_ROWS))
                if len(first) > 1 and (problem := all_rejected(first)) is not None:
                    problems.append(f"{file.path}: {problem}")
            except _damage() as error:
                problems.append(f"{file.path}: is damaged after row {len(first):,} ({error})")
            except InputError as error:
                problems.append(str(error))
            finally:
                self._stack.close()
                self._file = None
        if len(problems) == 1:
            raise InputError(f"{problems[0]}. Nothing was written")
        if problems:
            listed = "\n".join(f"- {problem}" for problem in problems)
            raise InputError(
                f"{len(problems):,} of {len(self.files):,} files cannot be read, so nothing was written:\n{listed}\n"
                "Where fields have several names, give them in order: --text-field body,text; give the other files "
                "alone to leave these out"
            )

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
    formats = {place: known for name in paths for place, known in _files_of(str(name), form).items()}
    if not formats:
        raise InputError(f"{', '.join(map(str, paths))}: no corpus ({OWN_FOLDERS})")
    files = name_files(formats, [root_of(name) for name in paths if str(name) != STDIN])
    for file in files:
        if compression_of(file.path) == ".zst":
            _require_package(file.path, ".zst", "zstd", "zstandard")
        if file.form == "parquet":
            _require_package(file.path, ".parquet", "parquet", "pyarrow.parquet")
    return files


def all_rejected(first: Sequence[Document | Reject]) -> str | None:
    """Return the commonest reason if none of the first rows is a document; None if one is, or without rows."""
    reasons = Counter(row.reason for row in first if isinstance(row, Reject))
    if not first or reasons.total() < len(first):
        return None
    ((reason, count),) = reasons.most_common(1)
    return f"not one of the first {counted(len(first), 'row')} can be ingested; {count:,} of them: {reason}"


def corpus_name(path: CorpusPath) -> str:
    """Return the name of one file or folder without the endings of formats: ``data/corpus.jsonl.gz`` is ``corpus``."""
    paths = [path] if isinstance(path, str | Path) else list(path)
    if len(paths) != 1 or str(paths[0]) == STDIN or Path(paths[0]).is_fifo():
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
        corpus.require_beginnings()
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
        return {path: format_of(path) or form or "jsonl"}
    if place.exists() and not place.is_dir():
        known = format_of(path) or form
        if known is None:
            raise InputError(
                f"{path}: its name says no format that is read; {_FOREIGN}. For text or rows, give --format"
            )
        return {path: known}
    if not place.is_dir():
        raise InputError(f"{path}: does not exist; {_EXPECTED}. A pattern is for the shell to expand, without quotes")
    files, unread = _listed(path)
    if not (files or unread[OWN_FOLDERS]):
        raise InputError(f"{path}: holds no file that can be read; {_FOREIGN}")
    return files


def present_files(path: str) -> set[str]:
    """Return the absolute paths of the files that a path stands for now; none where nothing can be read there."""
    try:
        files = [path] if Path(path).is_file() else [*_files_of(path, None)]
    except InputError:
        files = []
    return {str(_absolute(file)) for file in files}


def name_files(formats: Mapping[str, Format], roots: Sequence[str | Path]) -> list[CorpusFile]:
    """Name each file by its place below the deepest folder that holds all roots; one that is there twice counts once.

    Args:
        formats: Paths or URLs of files, with their formats.
        roots: Folders below which the files of each given path are.

    Returns:
        The files, with names in NFC, since file systems differ in that.
    """
    root = posixpath.commonpath([_place(folder) for folder in roots]) if roots else ""
    files: dict[str, CorpusFile] = {}
    for path, form in formats.items():
        name = path if path == STDIN else PurePosixPath(_place(path)).relative_to(root).as_posix()
        # A name from another system may not be UTF-8, and then can be neither an id nor part of a report.
        name = unicodedata.normalize("NFC", os.fsencode(name).decode(UTF_8, "backslashreplace"))
        files.setdefault(_place(path), CorpusFile(path, name, form))
    return list(files.values())


def _place(path: str | Path) -> str:
    """Return a path or URL in one form: ``file:/data/a.md``, ``s3:/bucket/a.md``."""
    return str(PurePosixPath(path if "://" in str(path) else f"file:{_absolute(path).as_posix()}"))


def root_of(path: str | Path) -> Path:
    """Return the folder below which the files of a path are named."""
    return _absolute(path) if Path(path).is_dir() else _absolute(path).parent


def _absolute(path: str | Path) -> Path:
    """Return an absolute path without ``..``; links stay what they are called."""
    return Path(os.path.normpath(Path(path).absolute()))


def _listed(folder: str) -> tuple[dict[str, Format], dict[str, list[str]]]:
    """Return the files of a folder that are read, with their formats, and what is not read, by the reason.

    The files are paths, and the others names below the folder. A link to a folder is not followed: a link to the newest
    of several would make each document twice.
    """
    paths: dict[str, str] = {}
    others: list[str] = []
    own: list[str] = []
    for parent, folders, names in os.walk(folder, onerror=_refuse):
        place, below = Path(parent), Path(parent).relative_to(folder)
        if is_own({*folders, *names}):
            own.append(below.as_posix())
            folders.clear()
            continue
        others += [(below / link).as_posix() for link in folders if (place / link).is_symlink()]
        files = {(below / file).as_posix(): place / file for file in names}
        others += [name for name, file in files.items() if not file.is_file()]
        paths |= {name: str(file) for name, file in files.items() if file.is_file()}
    chosen, unread = choose_files(paths)
    unread |= {_NO_FILES: others, OWN_FOLDERS: own}
    return {paths[name]: chosen[name] for name in sorted(chosen)}, {why: sorted(names) for why, names in unread.items()}


_OWN = ({"meta.json", "collection"}, {"care.json", "modules.json"}, {"care-rows"})
"""Names that a folder of an embedded database, a model or a bulk job holds."""


def is_own(names: Set[str]) -> bool:
    """Return whether a folder that holds these names is not part of a corpus: its JSON would be read as rows."""
    return any(marks <= names for marks in _OWN)


def own_folders(files: Iterable[PurePosixPath]) -> set[PurePosixPath]:
    """Return the folders of these files that are not part of a corpus (`is_own`)."""
    entries: dict[PurePosixPath, set[str]] = defaultdict(set)
    for file in files:
        for folder in file.parents:
            entries[folder].add(file.relative_to(folder).parts[0])
    return {folder for folder, names in entries.items() if is_own(names)}


def choose_files(names: Iterable[str], form: Format | None = None) -> tuple[dict[str, Format], dict[str, list[str]]]:
    """Return the files of a folder that are read, with their formats, and the others by the reason.

    Args:
        names: Paths below the folder.
        form: Format of files whose names say none; None leaves them out.
    """
    chosen: dict[str, Format] = {}
    unread: dict[str, list[str]] = {_FOREIGN: [], _REJECTS: [], _HIDDEN: []}
    names = list(names)
    saved = {PurePath(name).parent for name in names if name.endswith(".arrow")}
    for name in names:
        known = None if _is_of_datasets(PurePath(name), saved) else format_of(name) or form
        if _is_hidden(name):
            unread[_HIDDEN] += [] if known is None else [name]
        elif is_rejects_name(PurePath(name).name):
            unread[_REJECTS].append(name)
        elif known is None:
            unread[_FOREIGN].append(name)
        else:
            chosen[name] = known
    folders = {part for name in chosen for part in PurePath(name).parts[:-1]}
    unread[_PARTITIONS] = sorted(folder for folder in folders if "=" in folder)
    return chosen, unread


def _is_of_datasets(name: PurePath, saved: Container[PurePath]) -> bool:
    """Return whether a file describes what Hugging Face ``datasets`` saved; ``saved`` are the folders of its data."""
    is_description = name.name in ("state.json", "dataset_info.json") and name.parent in saved
    return is_description or name.name == "dataset_dict.json"


def tell_unread(paths: Sequence[str | Path]) -> None:
    """Log what of folders is not read, and why."""
    for path in map(str, paths):
        if Path(path).is_dir():
            log_unread(path, _listed(path)[1])


def log_unread(place: str, unread: Mapping[str, Sequence[str]]) -> None:
    """Log the files that are not read, each by its name."""
    for reason, names in unread.items():
        if names:
            more = f" and {len(names) - MOST_NAMED:,} more" if len(names) > MOST_NAMED else ""
            logger.warning("%s: not read: %s%s: %s", place, ", ".join(names[:MOST_NAMED]), more, reason)


def _refuse(error: OSError) -> NoReturn:
    raise InputError(f"{error.filename}: cannot be read ({error.strerror}); its documents would be missing")


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in PurePath(name).parts)


def _size(path: str) -> int | None:
    """Return the length of a file in bytes; None for a pipe."""
    return Path(path).stat().st_size if path != STDIN and Path(path).is_file() else None


def _state(file: io.BufferedReader) -> tuple[int, int] | None:
    """Return what a write to a file alters, its length and time; None for an object without a file descriptor.

    A file that another one replaced under its name is not altered: its rows are read as they were.
    """
    try:
        status = os.fstat(file.fileno())
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def _require_package(path: str, ending: str, extra: str, module: str) -> None:
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
