"""Random sequences of ingestions, compared with a reference of a few lines: stored points, refusals and counts."""

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from qdrant_client import QdrantClient

from care_qdrant.contracts.metadata import INPUTS, RUN
from care_qdrant.corpus.chunking import cut_documents
from care_qdrant.errors import InputError
from care_qdrant.ingestion import rows as reading
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.settings import IngestReport, IngestSettings
from care_qdrant.qdrant.collection import Collection
from care_qdrant.types import Document
from tests.tiny import HashModel

MODEL = HashModel(max_tokens=12)
FOLDER, FILES = "folder", ("a.jsonl", "b.jsonl")
COUNTS = ("documents", "chunks", "encoded", "updated", "unchanged", "duplicates", "deleted", "first_deleted")
Points = dict[tuple[str, int], tuple[str, int, int]]
"""Text, number of chunks of the document, and a value of its metadata, by document and number of the chunk."""


@dataclass(frozen=True)
class Step:
    """One run over the files: their rows, and the options."""

    contents: dict[str, list[tuple[int, int, int]]]
    """Number, length and metadata of each row, by file."""
    given: tuple[str, ...]
    sync: bool
    other_files: bool
    fraction: float
    limit: int | None
    interrupted_after: int | None

    @property
    def files(self) -> list[str]:
        """Files that are read, in order."""
        return [name for name in FILES if FOLDER in self.given or name in self.given]

    def rows(self) -> list[Document]:
        """Rows that are read: ids of two files differ."""
        rows = [
            Document(
                f"{name[0]}{number}", f"{name[0]}{number}" + "。".join("痰湿证"[:length] * length), metadata={"n": n}
            )
            for name in self.files
            for number, length, n in self.contents[name]
        ]
        return rows[: self.limit]


ROWS = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9), st.integers(0, 1)), min_size=1, max_size=6)
STEPS = st.builds(
    Step,
    contents=st.fixed_dictionaries(dict.fromkeys(FILES, ROWS)),
    given=st.sampled_from([(FOLDER,), FILES, FILES[:1], FILES[1:]]),
    sync=st.booleans(),
    other_files=st.booleans(),
    fraction=st.sampled_from([0.2, 1.0]),
    limit=st.sampled_from([None, None, 3]),
    interrupted_after=st.sampled_from([None, None, 1, 2]),
).map(lambda step: replace(step, sync=False) if step.limit else step)


@dataclass
class Reference:
    """The collection as it should be."""

    points: Points = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    has_note: bool = False

    def run(self, step: Step) -> tuple[dict[str, object], bool]:
        """Return the counts of a run, and whether its sync is refused; change the points as it does."""
        first: dict[str, Document] = {}
        duplicates = rejected = 0
        for row in step.rows():
            same = first.setdefault(row.id, row) == row
            duplicates += same and first[row.id] is not row
            rejected += not same
        cut = list(cut_documents(list(first.values()), MODEL.document_tokenizer, "split"))
        new: Points = {
            (chunk.document.id, chunk.number): (chunk.text, chunk.total, chunk.document.metadata["n"])
            for chunks in cut
            if isinstance(chunks, list)
            for chunk in chunks
        }
        encoded = sum(key not in self.points or self.points[key][0] != new[key][0] for key in new)
        unchanged = sum(self.points.get(key) == new[key] for key in new)
        surplus = {key for key in self.points.keys() - new.keys() if key[0] in first}
        missing = self.points.keys() - new.keys() - surplus
        self.points = {key: value for key, value in self.points.items() if key not in surplus} | new
        unread = [each for each in self.inputs if not (FOLDER in step.given or each in step.given)]
        is_refused = step.sync and bool(
            rejected or (unread and missing and not step.other_files) or len(missing) > step.fraction * len(self.points)
        )
        deleted: set[tuple[str, int]] = set()
        if step.sync and not is_refused:
            deleted, self.inputs = missing, []
            self.points = {key: value for key, value in self.points.items() if key not in missing}
        self.inputs = list(dict.fromkeys([*self.inputs, *step.given]))
        counts = {
            "documents": len(first),
            "chunks": len(new),
            "encoded": encoded,
            "updated": len(new) - encoded - unchanged,
            "unchanged": unchanged,
            "duplicates": duplicates,
            "deleted": len(surplus) + len(deleted),
            "first_deleted": {document for document, _ in deleted},
        }
        return counts, is_refused


def stored_points(collection: Collection) -> Points:
    payloads = [record.payload or {} for page in collection.scroll() for record in page]
    return {
        (each["doc_id"], each["_care"]["chunk"]): (each["text"], each["_care"].get("chunks", 1), each["n"])
        for each in payloads
    }


def counts_of(report: IngestReport) -> dict[str, object]:
    return {name: getattr(report, name) for name in COUNTS}


def check(steps: Sequence[Step], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "WINDOW_TEXTS", 2)
    reference = Reference()
    with TemporaryDirectory() as folder, closing(QdrantClient(":memory:")) as client:
        collection = Collection(client, "corpus")
        for step in steps:
            _check_step(step, reference, collection, Path(folder))


def _check_step(step: Step, reference: Reference, collection: Collection, top: Path) -> None:
    root = top / FOLDER
    root.mkdir(exist_ok=True)
    for name in FILES:
        whole = replace(step, given=(name,), limit=None).rows()
        lines = [json.dumps({"id": row.id, "text": row.text, **row.metadata}) for row in whole]
        (root / name).write_text("\n".join(lines) + "\n")
    paths = {FOLDER: root} | {name: root / name for name in FILES}
    options = IngestSettings(
        sync=step.sync,
        sync_other_files=step.other_files,
        max_delete_fraction=step.fraction,
        limit=step.limit,
    )

    def run(
        options: IngestSettings, on_progress: Callable[[object], None] = lambda _: None
    ) -> tuple[IngestReport, str | None]:
        stopped: list[IngestReport] = []
        rejects = reading.Reading(rejects=top / f"rejects-{len(list(top.iterdir()))}")
        try:
            given = [paths[each] for each in step.given]
            report = ingest(
                given,
                MODEL,
                collection,
                settings=options,
                reading=rejects,
                on_progress=on_progress,
                on_stopped=stopped.append,
            )
        except InputError as error:
            return stopped[0], str(error)
        return report, None

    dry, dry_refusal = run(replace(options, dry_run=True))
    if step.interrupted_after is not None:
        shown = 0

        def interrupt(_: object) -> None:
            nonlocal shown
            shown += 1
            if shown == step.interrupted_after:
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            run(options, interrupt)
        if not collection.exists():
            return
        reference.points = stored_points(collection)
        by_path = {str(path): name for name, path in paths.items()}
        reference.inputs = [by_path[each] for each in INPUTS.all(collection.refresh().metadata)]
        reference.has_note = any(key.startswith(RUN.of("")) for key in collection.schema.metadata)
        return
    was_noted = reference.has_note
    expected, is_refused = reference.run(step)
    report, refusal = run(options)
    found = counts_of(report)
    assert set(report.first_deleted) <= expected.pop("first_deleted")  # type: ignore[operator]
    found.pop("first_deleted")
    assert (refusal is not None) == is_refused
    assert found == expected
    assert stored_points(collection) == reference.points
    assert report.points == (len(reference.points) if refusal is None else report.chunks)
    if not was_noted:
        assert not any(key.startswith(RUN.of("")) for key in collection.refresh().metadata)
    reference.has_note = any(key.startswith(RUN.of("")) for key in collection.refresh().metadata)
    assert (dry_refusal is not None) == (refusal is not None)
    assert {**counts_of(dry), "first_deleted": 0} == {**found, "first_deleted": 0}
    assert sorted(dry.first_deleted) == sorted(report.first_deleted)
    again, _ = run(replace(options, dry_run=True))
    assert (again.encoded, again.updated, again.deleted) == (0, 0, 0)


SETTINGS = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    phases=[Phase.generate],  # shrinking takes minutes, and the steps are few
)


@given(st.lists(STEPS, min_size=2, max_size=5))
@settings(SETTINGS, max_examples=10, derandomize=True)
def test_a_sequence_of_runs_is_that_of_the_reference(monkeypatch: pytest.MonkeyPatch, steps: list[Step]) -> None:
    check(steps, monkeypatch)


@pytest.mark.slow
@pytest.mark.timeout(900)
@given(st.lists(STEPS, min_size=3, max_size=10))
@settings(SETTINGS, max_examples=100)
def test_longer_sequences_are_those_of_the_reference(monkeypatch: pytest.MonkeyPatch, steps: list[Step]) -> None:
    check(steps, monkeypatch)
