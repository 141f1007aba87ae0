"""Lists a corpus into units: reads every row once, and writes the manifest.

A worker has to reach the rows of its unit without reading those of the others, else a file of n units is read n times
from its start. In plain JSON lines a range of bytes is enough. Of any other file that has several units the planner
copies the rows into the job, compressed, whatever its format is.
"""

import hashlib
import io
import json
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path, PurePath, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, cast

import fsspec  # type: ignore[import-untyped]
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from care_qdrant.bulk.job import MANIFEST, ROWS, Job, Manifest, Unit
from care_qdrant.contracts.contract import SparseContract
from care_qdrant.contracts.payload import payload_hash
from care_qdrant.corpus.files import (
    Corpus,
    CorpusFile,
    check_corpus,
    choose_files,
    log_unread,
    name_files,
    root_of,
    tell_unread,
    typed_fields,
)
from care_qdrant.corpus.formats import COMPRESSIONS, READABLE, Format, format_of, read_lines
from care_qdrant.corpus.rows import Fields, Reject
from care_qdrant.corpus.streams import HEAD_BYTES, UTF_8
from care_qdrant.encoders import TokenCounter
from care_qdrant.encoders.languages import SAMPLED_TEXTS, require_language
from care_qdrant.errors import FingerprintMismatch, InputError
from care_qdrant.ingestion.rows import inputs_of
from care_qdrant.ingestion.seen import OTHER_CONTENT, Seen
from care_qdrant.types import Chunk, Document, embedded_text

SAMPLE = 32
"""Distance of the documents that are tokenised for the estimates: each 32nd one is."""
AVERAGED = 4_096
"""Documents of which the mean length of BM25 is taken, as in direct ingestion."""

Row = Document | Reject


def plan(
    corpus: Sequence[str],
    job: Job,
    draft: Manifest,
    counter: TokenCounter,
    *,
    sparse: bool,
    any_language: bool = False,
    on_progress: Callable[[int], None] = lambda _: None,
) -> Manifest:
    """Cut a corpus into units and write the manifest; a corpus that has grown gets more units and keeps its own.

    Raises:
        InputError: The corpus cannot be read, or the model does not read its language and ``any_language`` is not set.
    """
    former = job.manifest() if job.read(MANIFEST) is not None else None
    draft = replace(draft, fields=_typed(corpus, draft, former))
    if former is not None:
        require_same(former, draft, job.url, sparse=sparse)
    planner = _Planner(job, draft, counter, former, on_progress)
    with planner.seen:
        # Known files first: what a new one repeats of them is left out of the new one.
        files = sorted(corpus_files(corpus), key=lambda file: file.name not in planner.former)
        units = [unit for file in files for unit in planner.units(file)]
    if not units:
        raise InputError(f"{', '.join(corpus)}: no document is in the corpus, so no job was made")
    if not any_language:
        require_language(draft.model_name, counter, planner.texts[:SAMPLED_TEXTS])
    new = SparseContract.of_texts(planner.texts) if sparse and former is None else None
    terms = new or (former.sparse if sparse and former is not None else None)
    if terms is not None:
        draft = replace(draft, average_length=terms.average_length, lead=terms.lead, analyser=terms.fingerprint)
    # Units of files that this corpus does not name stay: the job is of both.
    known = {unit.name for unit in units}
    others = [] if former is None else [unit for unit in former.units if unit.name not in known]
    inputs = {*inputs_of(corpus), *(former.inputs if former is not None else ())}
    manifest = replace(draft, units=(*others, *units), rejected=planner.rejected, inputs=tuple(sorted(inputs)))
    job.write_manifest(manifest)
    return manifest


@dataclass(frozen=True, slots=True)
class PlanReport:
    """A planned job, for people."""

    job: str
    units: int
    documents: int
    tokens: int
    """Tokens to encode, estimated from each 32nd document."""
    rejected: int
    vector_bytes: int
    """Bytes of the vectors in all parts, for as many chunks as there are documents."""
    model: str
    fingerprint: str

    @classmethod
    def of(cls, manifest: Manifest, job: Job) -> "PlanReport":
        """Describe a job."""
        documents = sum(unit.documents for unit in manifest.units)
        return cls(
            job=job.url,
            units=len(manifest.units),
            documents=documents,
            tokens=manifest.tokens,
            rejected=manifest.rejected,
            vector_bytes=documents * manifest.vector_bytes,
            model=manifest.model_name,
            fingerprint=manifest.fingerprint,
        )


def corpus_files(corpus: Sequence[str]) -> list[CorpusFile]:
    """Return the files of a corpus; those of a URL are the ones that fsspec lists under it."""
    found: dict[str, Format] = {}
    roots: list[str | Path] = []
    for given in corpus:
        if "://" not in given:
            found |= {file.path: file.form for file in check_corpus(given)}
            roots.append(root_of(given))
            continue
        system, root = fsspec.core.url_to_fs(given)
        paths = sorted(system.glob(root) if "*" in root else system.find(root))
        if not paths:
            raise InputError(f"{given}: does not exist")
        place = PurePosixPath(root.partition("*")[0].rpartition("/")[0] if "*" in root or paths == [root] else root)
        chosen, unread = choose_files(str(PurePosixPath(path).relative_to(place)) for path in paths)
        if not chosen:
            raise InputError(f"{given}: holds nothing that can be read ({paths[0]}); expected {READABLE}")
        log_unread(given, unread)
        found |= {system.unstrip_protocol(str(place / name)): form for name, form in chosen.items()}
        roots.append(system.unstrip_protocol(str(place)))
    tell_unread([given for given in corpus if "://" not in given])
    return name_files(found, roots)


def _typed(corpus: Sequence[str], draft: Manifest, former: Manifest | None) -> Fields:
    """Return the fields with the types of tables' columns, which a job keeps: its rows are what they were.

    Tables in object storage are not read for that: their columns are text where no type is given.
    """
    if former is not None:
        types = draft.fields.types or former.fields.types
        return replace(draft.fields, types=types, are_ids_whole=former.fields.are_ids_whole)
    local = [path for path in corpus if "://" not in path]
    return typed_fields(local, draft.fields, draft.encoding) if local else draft.fields


def unit_rows(job: Job, manifest: Manifest, unit: Unit) -> Iterator[Row]:
    """Return the rows of a unit, without those that earlier rows repeat."""
    digest = hashlib.sha256()
    repeated, conflicting = frozenset(unit.repeated), frozenset(unit.conflicting)
    for row in copied_rows(job, unit) if unit.copied else _read(unit, manifest):
        digest.update(row_hash(row))
        if isinstance(row, Document) and row.line in conflicting:
            yield Reject.of(row, OTHER_CONTENT)
        elif row.line not in repeated:
            yield row
    if digest.hexdigest() != unit.hash:
        raise InputError(
            f"{unit.label}: rows {unit.first:,} to {unit.last:,} are not the ones that were planned: the file was "
            "changed. Plan what it is now into a new folder; its parts of equal rows can be copied there"
        )


def copy_rows(job: Job, unit: Unit, rows: Sequence[Row]) -> Unit:
    """Write the rows of a unit into the job, and return the unit that is read from there."""
    documents = [row if isinstance(row, Document) else Document(row.id, "", line=row.line) for row in rows]
    columns: dict[str, tuple[list[Any], Any]] = {
        "id": ([each.id for each in documents], pa.string()),
        "text": ([each.text for each in documents], pa.string()),
        "title": ([each.title for each in documents], pa.string()),
        "metadata": ([json.dumps(dict(each.metadata), ensure_ascii=False) for each in documents], pa.string()),
        "line": ([each.line for each in documents], pa.int64()),
        "reason": ([row.reason if isinstance(row, Reject) else None for row in rows], pa.string()),
    }
    table = pa.table({name: pa.array(values, type=kind) for name, (values, kind) in columns.items()})
    file = io.BytesIO()
    pq.write_table(table, file, compression="zstd")
    name = f"{ROWS}/{unit.name}.parquet"
    job.write(name, file.getvalue())
    return replace(unit, file=name, copied=True)


def copied_rows(job: Job, unit: Unit) -> Iterator[Row]:
    """Return the rows of a unit that were copied into the job."""
    content = job.read(unit.file)
    if content is None:
        raise InputError(f"{job.url}/{unit.file}: is not there any more; plan again into a new folder")
    for row in pq.read_table(io.BytesIO(content)).to_pylist():
        if row["reason"] is not None:
            yield Reject(row["line"], row["reason"], row["id"])
        else:
            yield Document(row["id"], row["text"], row["title"], json.loads(row["metadata"]), row["line"])


def require_same(former: Manifest, draft: Manifest, url: str, *, sparse: bool) -> None:
    """Refuse to plan into the job of another model, or with other settings."""
    if former.fingerprint != draft.fingerprint:
        raise FingerprintMismatch(
            f"{url}: is a job of model {former.model_name!r} ({former.fingerprint[:12]}), and this is "
            f"{draft.model_name!r} ({draft.fingerprint[:12]}): plan into another folder"
        )
    settled = ("collection", "text_field", "vector_name", "fields", "encoding", "overflow", "datatype")
    wrong = [name for name in settled if getattr(former, name) != getattr(draft, name)]
    wrong += ["sparse"] if sparse != (former.average_length is not None) else []
    if wrong:
        raise InputError(
            f"{url}: is a job with another {' and '.join(wrong)}: give the same again, or plan into another folder"
        )


class _Planner:
    """Reads one file after the other."""

    def __init__(
        self,
        job: Job,
        manifest: Manifest,
        counter: TokenCounter,
        former: Manifest | None,
        on_progress: Callable[[int], None],
    ) -> None:
        self.seen = Seen()
        self.texts: list[str] = []
        self.rejected = self._rows = self._characters = self._tokens = 0
        self._job, self._manifest, self._counter, self._on_progress = job, manifest, counter, on_progress
        self.former: dict[str, list[Unit]] = {}
        for unit in former.units if former is not None else ():
            self.former.setdefault(unit.label, []).append(unit)

    def units(self, file: CorpusFile) -> Iterator[Unit]:
        """Return the units of a file: those that were planned before, with the rows that they had, then new ones."""
        self._offsets = _Offsets(file.path) if self._is_plain(file) else None
        self._is_copied = False
        rows, first = rows_of(file, self._manifest), 1
        for was in self.former.get(file.name, []):
            unit = self._unit(file, was.first, list(_until(rows, was.last)), was.last)
            if unit.hash != was.hash:
                raise InputError(
                    f"{file.path}: rows {was.first:,} to {was.last:,} were changed since they were planned: plan into "
                    "another folder"
                )
            yield was if was.copied else replace(was, file=unit.file, bytes=unit.bytes)
            first = was.last + 1
        taken = self._take(rows)
        while taken:
            following = self._take(rows)
            self._is_copied = self._offsets is None and (first > 1 or bool(following))
            unit = self._unit(file, first, taken, taken[-1].line)
            yield unit
            first, taken = unit.last + 1, following

    def _take(self, rows: Iterator[Row]) -> list[Row]:
        return list(islice(rows, self._manifest.unit_rows))

    def _unit(self, file: CorpusFile, first: int, rows: Sequence[Row], last: int) -> Unit:
        digest = hashlib.sha256()
        repeated: list[int] = []
        conflicting: list[int] = []
        documents = characters = 0
        for row in rows:
            digest.update(row_hash(row))
            if isinstance(row, Reject):
                self.rejected += 1
                continue
            text = embedded_text(row.title, row.text)
            if len(self.texts) < AVERAGED:
                self.texts.append(text)
            verdict = self.seen.add(row)
            if verdict != "new":
                self.rejected += verdict == "other"
                (conflicting if verdict == "other" else repeated).append(row.line)
                continue
            if documents % SAMPLE == 0:
                self._tokens += self._counter.count_tokens([text])[0]
                self._characters += len(text)
            documents += 1
            characters += len(text)
        self._rows += len(rows)
        self._on_progress(self._rows)
        tokens = round(characters * self._tokens / self._characters) if self._characters else 0
        content = digest.hexdigest()
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", PurePath(file.name).name)[:40]
        # Equal files of two folders are two units.
        name = f"{stem}-{first:010d}-{hashlib.sha256(f'{file.name} {content}'.encode()).hexdigest()[:12]}"
        unit = Unit(
            name,
            file.path,
            file.name,
            first,
            last,
            documents,
            tokens,
            content,
            repeated=tuple(repeated),
            conflicting=tuple(conflicting),
        )
        if self._is_copied:
            return copy_rows(self._job, unit, rows)
        return replace(unit, bytes=self._offsets.range(first, last)) if self._offsets is not None else unit

    def _is_plain(self, file: CorpusFile) -> bool:
        """Return whether rows can be read from the middle of a file: JSON lines that are not compressed."""
        if self._manifest.encoding.lower() not in (UTF_8, "utf8") or file.name.lower().endswith(COMPRESSIONS):
            return False
        with _there(file.path), fsspec.open(file.path, "rb") as raw:
            head = raw.read(HEAD_BYTES)
        compressed = head.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd"))
        return not compressed and file.form == "jsonl"


def _until(rows: Iterator[Row], last: int) -> Iterator[Row]:
    """Return the rows up to a line, which is that of a row unless the file was changed."""
    for row in rows:
        yield row
        if row.line >= last:
            return


class _Offsets:
    """The first bytes of lines, found by counting line ends ahead of the rows that are read."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._line, self._offset = 1, 0

    def range(self, first: int, last: int) -> tuple[int, int]:
        """Return the first byte of a line and the byte after another; asked for in ascending order."""
        return self._start(first), self._start(last + 1)

    def _start(self, line: int) -> int:
        with fsspec.open(self._path, "rb") as file:
            file.seek(self._offset)
            while self._line < line and (block := file.read(1 << 20)):
                at = -1
                while self._line < line and (found := block.find(b"\n", at + 1)) >= 0:
                    at, self._line = found, self._line + 1
                if self._line < line:
                    self._offset += len(block)
                else:
                    self._offset += at + 1
        return self._offset


def _read(unit: Unit, manifest: Manifest) -> Iterator[Row]:
    if unit.bytes is None:
        with closing(rows_of(_file_of(unit), manifest)) as rows:
            for row in rows:
                if row.line > unit.last:
                    return
                if row.line >= unit.first:
                    yield row
        return
    system, path = fsspec.core.url_to_fs(unit.file)
    start, end = unit.bytes
    with _there(unit.file):
        lines = io.BytesIO(system.cat_file(path, start=start, end=end))
    for row in read_lines(cast(io.BufferedReader, lines), manifest.fields):
        yield replace(row, line=row.line + unit.first - 1)


@contextmanager
def _there(path: str) -> Iterator[None]:
    """Say of a file that has gone since it was listed or planned what to do."""
    try:
        yield
    except FileNotFoundError as error:
        raise InputError(f"{path}: is not there any more; plan where the corpus is now into the same folder") from error


def rows_of(file: CorpusFile, manifest: Manifest) -> Generator[Row, None, None]:
    """Return all rows of a file; one in object storage is copied first."""
    with TemporaryDirectory(prefix="care-bulk-") as folder:
        path = file.path
        if "://" in path:
            path = str(Path(folder) / PurePath(path).name)
            system, remote = fsspec.core.url_to_fs(file.path)
            with _there(file.path):
                system.get_file(remote, path)
        with Corpus(path, manifest.fields, manifest.encoding, file.form) as rows:
            rows.files = [replace(file, path=path)]
            yield from rows


def _file_of(unit: Unit) -> CorpusFile:
    """Return the file of a unit, whose name says its format."""
    form = format_of(unit.label)
    if form is None:
        raise InputError(f"{unit.file}: has no ending that says a format; plan again with this version")
    return CorpusFile(unit.file, unit.label, form)


def row_hash(row: Row) -> bytes:
    """Return what the hash of a unit is made of."""
    if isinstance(row, Reject):
        return f"rejected {row.line} {row.reason}\n".encode()
    return f"{row.line} {payload_hash(Chunk(row, row.text))}\n".encode()
