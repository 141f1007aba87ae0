"""Lists a corpus into units: reads every row once, and writes the manifest.

The planner copies the rows of each unit into the job, compressed. So a worker reads only its own rows, needs no access
to the corpus, and encodes what was planned, regardless of the format of the corpus and of later changes to it.
"""

import hashlib
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path, PurePath, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

import fsspec  # type: ignore[import-untyped]
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from care_qdrant.bulk.job import MANIFEST, ROWS, Job, Manifest, Unit, storage_errors
from care_qdrant.contracts.contract import SparseContract
from care_qdrant.contracts.payload import payload_hash
from care_qdrant.corpus.endings import READABLE, Format, format_of
from care_qdrant.corpus.files import (
    OWN_FOLDERS,
    Corpus,
    CorpusFile,
    check_corpus,
    choose_files,
    log_unread,
    name_files,
    own_folders,
    root_of,
    tell_unread,
    typed_fields,
)
from care_qdrant.corpus.rows import Fields, Reject
from care_qdrant.encoders import TokenCounter
from care_qdrant.encoders.languages import SAMPLED_TEXTS, require_language
from care_qdrant.errors import FingerprintMismatch, InputError, UnusableText
from care_qdrant.ingestion.rows import inputs_of
from care_qdrant.ingestion.seen import OTHER_CONTENT, Seen
from care_qdrant.types import Chunk, Document, embedded_text

SAMPLE = 32
"""Interval between documents that are tokenised for the estimates: every 32nd one is."""
AVERAGED = 4_096
"""Number of first documents from which the mean length of BM25 is computed, as in direct ingestion."""

Row = Document | Reject
PlannedUnit = tuple[Unit, list[Row] | None]
"""A unit and the rows to write into the job; None where an earlier plan has written them."""


def plan(
    corpus: Sequence[str],
    job: Job,
    draft: Manifest,
    counter: TokenCounter,
    *,
    sparse: bool,
    form: Format | None = None,
    any_language: bool = False,
    on_progress: Callable[[int], None] = lambda _: None,
) -> Manifest:
    """Cut a corpus into units and write the manifest; a corpus that has grown gets more units and keeps its own.

    ``form`` is the format of standard input and of files whose names have no known ending.

    Raises:
        InputError: The corpus cannot be read, or the model does not read its language and ``any_language`` is not set.
    """
    corpus = [_without_file_scheme(given) for given in corpus]
    former = job.manifest() if job.read(MANIFEST) is not None else None
    draft = replace(draft, fields=_typed(corpus, draft, former, form))
    if former is not None:
        require_same(former, draft, job.url, sparse=sparse)
    planner = _Planner(draft, counter, former, on_progress)
    with planner.seen:
        planner.note_planned(job)
        planned: Iterator[PlannedUnit] = chain.from_iterable(map(planner.units, corpus_files(corpus, form)))
        if not any_language:
            planned = planner.require_language(planned)
        units = []
        for unit, rows in planned:
            if rows is not None:
                write_unit(job, unit, rows)
            units.append(unit)
    if not units:
        raise InputError(f"{', '.join(corpus)}: no document is in the corpus, so no job was made")
    new = SparseContract.of_texts(planner.texts) if sparse and former is None else None
    terms = new or (former.sparse if sparse and former is not None else None)
    if terms is not None:
        draft = replace(draft, average_length=terms.average_length, lead=terms.lead, analyser=terms.fingerprint)
    # Units of files that this corpus does not name stay in the job.
    known = {unit.name for unit in units}
    others = [] if former is None else [unit for unit in former.units if unit.name not in known]
    inputs = {*inputs_of(corpus), *(former.inputs if former is not None else ())}
    manifest = replace(draft, units=(*others, *units), inputs=tuple(sorted(inputs)))
    job.write_manifest(manifest)
    return manifest


def _without_file_scheme(given: str) -> str:
    """Return a URL of a local file or folder as a path: fsspec lists a folder without what it may not read in it."""
    scheme, separator, path = given.partition("://")
    return path if separator and scheme in ("file", "local") else given


@dataclass(frozen=True, slots=True)
class PlanReport:
    """Report of a planned job."""

    job: str
    units: int
    documents: int
    tokens: int
    """Tokens to encode, estimated from every 32nd document."""
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
            vector_bytes=documents * manifest.dim * (2 if manifest.datatype == "float16" else 4),
            model=manifest.model_name,
            fingerprint=manifest.fingerprint,
        )


def corpus_files(corpus: Sequence[str], form: Format | None) -> list[CorpusFile]:
    """Return the files of a corpus; for a URL, the files that fsspec lists under it. ``form`` is as for `plan`.

    In a folder, files whose names say no format are left out. A pattern in a URL names each file.
    """
    formats: dict[str, Format] = {}
    roots: list[str | Path] = []
    for given in corpus:
        if "://" not in given:
            formats |= {file.path: file.form for file in check_corpus(given, form)}
            roots.append(root_of(given))
            continue
        with storage_errors(given):
            system, root = fsspec.core.url_to_fs(given)
            is_pattern = "*" in root
            listed = (system.glob if is_pattern else system.find)(root, detail=True)
        paths = sorted(listed)
        if not paths:
            raise InputError(f"{given}: does not exist")
        if odd := [path for path in paths if re.search(r"/\.?/", path.rpartition("://")[2])]:
            raise InputError(f"{given}: the name of {odd[0]} has a folder without a name; rename it")
        is_file = paths == [root]
        place = PurePosixPath(root.partition("*")[0].rpartition("/")[0] if is_pattern or is_file else root)
        files = {PurePosixPath(path).relative_to(place): listed[path].get("type") for path in paths}
        own = own_folders(files)
        names = [str(file) for file, kind in files.items() if kind != "directory" and own.isdisjoint(file.parents)]
        if is_file and (known := format_of(names[0]) or form) is not None:  # also a hidden file, which is named here
            chosen, unread = {names[0]: known}, dict[str, list[str]]()
        else:
            chosen, unread = choose_files(names, form if is_pattern else None)
        log_unread(given, {**unread, OWN_FOLDERS: sorted(map(str, own))})
        if not chosen:
            raise InputError(f"{given}: holds nothing that can be read ({paths[0]}); expected {READABLE}")
        formats |= {system.unstrip_protocol(str(place / name)): known for name, known in chosen.items()}
        roots.append(system.unstrip_protocol(str(place)))
    tell_unread([given for given in corpus if "://" not in given])
    return name_files(formats, roots)


def _typed(corpus: Sequence[str], draft: Manifest, former: Manifest | None, form: Format | None) -> Fields:
    """Return the fields with the types of tables' columns, which a job keeps so that its rows stay the same.

    Tables in object storage are not read for their types: their columns are text unless a type is given.
    """
    if former is not None:
        types = draft.fields.types or former.fields.types
        return replace(draft.fields, types=types, are_ids_whole=former.fields.are_ids_whole)
    local = [path for path in corpus if "://" not in path]
    return typed_fields(local, draft.fields, draft.encoding, form) if local else draft.fields


def write_unit(job: Job, unit: Unit, rows: Sequence[Row]) -> None:
    """Write the rows of a unit into the job, where a worker reads them without the corpus."""
    documents = [row if isinstance(row, Document) else Document(row.id, "", line=row.line) for row in rows]
    columns: dict[str, tuple[list[Any], Any]] = {
        "id": ([document.id for document in documents], pa.string()),
        "text": ([document.text for document in documents], pa.string()),
        "title": ([document.title for document in documents], pa.string()),
        "metadata": ([json.dumps(dict(document.metadata), ensure_ascii=False) for document in documents], pa.string()),
        "line": ([document.line for document in documents], pa.int64()),
        "reason": ([row.reason if isinstance(row, Reject) else None for row in rows], pa.string()),
    }
    table = pa.table({name: pa.array(values, type=kind) for name, (values, kind) in columns.items()})
    file = io.BytesIO()
    pq.write_table(table, file, compression="zstd")
    job.write(f"{ROWS}/{unit.name}.parquet", file.getvalue())


def read_unit(job: Job, unit: Unit) -> Iterator[Row]:
    """Return the rows of a unit: its documents, and the rows that are rejected."""
    name = f"{ROWS}/{unit.name}.parquet"
    content = job.read(name)
    if content is None:
        raise InputError(f"{job.url}/{name}: no longer exists; plan again into a new folder")
    for row in pq.read_table(io.BytesIO(content)).to_pylist():
        if row["reason"] is not None:
            yield Reject(row["line"], row["reason"], row["id"])
        else:
            yield Document(row["id"], row["text"], row["title"], json.loads(row["metadata"]), row["line"])


def require_same(former: Manifest, draft: Manifest, url: str, *, sparse: bool) -> None:
    """Refuse to plan into a job of another model or with other settings."""
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
    """Plans the units of files, one file after the other."""

    def __init__(
        self,
        manifest: Manifest,
        counter: TokenCounter,
        former: Manifest | None,
        on_progress: Callable[[int], None],
    ) -> None:
        self.seen = Seen()
        self.texts: list[str] = []
        self._rows = self._characters = self._tokens = 0
        self._named = Counter[str]()
        self._manifest, self._counter, self._on_progress = manifest, counter, on_progress
        self.former: dict[str, list[Unit]] = {}
        for unit in former.units if former is not None else ():
            self.former.setdefault(unit.label, []).append(unit)

    def note_planned(self, job: Job) -> None:
        """Note the documents of all earlier units, which stay: rows that are new since then repeat or contradict them.

        Otherwise a row that was added to the first file would be planned beside one of the second that has its id.
        """
        for row in chain.from_iterable(read_unit(job, unit) for unit in chain.from_iterable(self.former.values())):
            if isinstance(row, Document):
                self.seen.add(row)
                if len(self.texts) < AVERAGED:
                    self.texts.append(embedded_text(row.title, row.text))

    def require_language(self, planned: Iterator[PlannedUnit]) -> Iterator[PlannedUnit]:
        """Return the units again, after refusing a model that does not read the language of the first texts."""
        first: list[PlannedUnit] = []
        while len(self.texts) < SAMPLED_TEXTS and (unit := next(planned, None)) is not None:
            first.append(unit)
        require_language(self._manifest.model_name, self._counter, self.texts[:SAMPLED_TEXTS])
        return chain(first, planned)

    def units(self, file: CorpusFile) -> Iterator[PlannedUnit]:
        """Yield the units of a file: first units of an earlier plan, then new ones with the rows to write."""
        rows, first = rows_of(file, self._manifest), 1
        self._named[file.name] += 1
        for was in self.former.get(file.name, []):
            taken = list(_until(rows, was.last))
            if hash_rows(taken) != was.hash:
                raise InputError(
                    f"{file.path}: rows {was.first:,} to {was.last:,} were changed since they were planned: plan into "
                    "another folder"
                )
            self._note_read(taken)
            yield was, None
            first = was.last + 1
        while taken := list(islice(rows, self._manifest.unit_rows)):
            unit, own = self._unit(file, first, taken, taken[-1].line)
            yield unit, own
            first = unit.last + 1

    def _unit(self, file: CorpusFile, first: int, rows: Sequence[Row], last: int) -> tuple[Unit, list[Row]]:
        """Return the unit of some rows, and its rows without repetitions of earlier ones."""
        own: list[Row] = []
        documents = characters = 0
        for row in rows:
            if isinstance(row, Reject):
                own.append(row)
                continue
            text = embedded_text(row.title, row.text)
            if len(self.texts) < AVERAGED:
                self.texts.append(text)
            verdict = self.seen.add(row)
            if verdict == "other":
                own.append(Reject.of(row, OTHER_CONTENT))
            if verdict != "new":
                continue
            own.append(row)
            if documents % SAMPLE == 0:
                with suppress(UnusableText):  # which its worker rejects
                    self._tokens += self._counter.count_tokens([text])[0]
                    self._characters += len(text)
            documents += 1
            characters += len(text)
        self._note_read(rows)
        tokens = round(characters * self._tokens / self._characters) if self._characters else 0
        content = hash_rows(rows)
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", PurePath(file.name).name)[:40]
        # Equal files of two folders are two units, and so are those of one name: é is one character or two.
        digest = hashlib.sha256(f"{file.name} {self._named[file.name]} {content}".encode()).hexdigest()
        name = f"{stem}-{first:010d}-{digest[:12]}"
        return Unit(name, file.name, first, last, documents, len(own) - documents, tokens, content), own

    def _note_read(self, rows: Sequence[Row]) -> None:
        self._rows += len(rows)
        self._on_progress(self._rows)


def _until(rows: Iterator[Row], last: int) -> Iterator[Row]:
    """Yield the rows up to a line, at which a row ends unless the file was changed."""
    for row in rows:
        yield row
        if row.line >= last:
            return


def rows_of(file: CorpusFile, manifest: Manifest) -> Generator[Row, None, None]:
    """Yield all rows of a file; a file in object storage is copied first."""
    with TemporaryDirectory(prefix="care-bulk-") as folder:
        path = file.path
        if "://" in path:
            path = str(Path(folder) / PurePath(path).name)
            system, remote = fsspec.core.url_to_fs(file.path)
            system.get_file(remote, path)
        with Corpus(path, manifest.fields, manifest.encoding, file.form) as rows:
            rows.files = [replace(file, path=path)]
            yield from rows


def hash_rows(rows: Sequence[Row]) -> str:
    """Return the SHA-256 of the rows of a unit."""
    digest = hashlib.sha256()
    for row in rows:
        if isinstance(row, Reject):
            digest.update(f"rejected {row.line} {row.reason}\n".encode())
        else:
            digest.update(f"{row.line} {payload_hash(Chunk(row, row.text))}\n".encode())
    return digest.hexdigest()
