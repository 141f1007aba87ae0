"""A live collection as the source of a job: its texts without a right vector become units, and parts become vectors.

The planner alone reads the collection, and writes the texts of each unit into the job: workers need no database, and
what others write meanwhile changes no unit. A loader writes the vector of a point only where its text is still that of
the part, so a job of any age does no harm; what was added or edited since is left to `care attach` or to another plan.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from care_qdrant.bulk.job import MANIFEST, Job, Manifest, Unit
from care_qdrant.bulk.units import SAMPLE, copied_rows, copy_rows, require_same, row_hash
from care_qdrant.encoders import TokenCounter
from care_qdrant.errors import InputError
from care_qdrant.ingestion.seen import Seen
from care_qdrant.qdrant.collection import Collection
from care_qdrant.types import Document
from care_qdrant.vectors.points import Characters, PointReader, PointTask, PointWindow, stored_text
from care_qdrant.vectors.preflight import examine

SAMPLED = 1_024
"""Points whose texts stand for those of all, in a forecast."""


def plan_points(
    target: Collection,
    job: Job,
    draft: Manifest,
    counter: TokenCounter,
    *,
    text_field: str | None = None,
    on_progress: Callable[[int], None] = lambda _: None,
) -> Manifest:
    """Write the texts of the points that lack the model's vector into a job; planning again adds what is new."""
    former = job.manifest() if job.read(MANIFEST) is not None else None
    field = text_field or (former.text_field if former is not None else None)
    preflight = examine(target, draft.vector_name, draft.contract, field)
    layout = preflight.require_layout()
    draft = replace(draft, collection=target.name, text_field=layout.text_field, overflow="truncate")
    if former is not None:
        require_same(former, draft, job.url, sparse=False)
    units = list(former.units) if former is not None else []
    with Seen() as planned:
        for unit in units:
            for row in copied_rows(job, unit):
                if isinstance(row, Document):
                    planned.add(_planned(row.id, row.text))
        new: list[Unit] = []
        windows = PointReader(layout, draft.vector_name, draft.fingerprint, Characters()).windows(target)
        for key, tasks in _batches(windows, planned, draft.unit_rows, on_progress):
            new.append(_write(job, target.name, tasks, key, counter))
    if not units and not new:
        raise InputError(
            f"collection {target.name!r}: every point with a text has vector {draft.vector_name!r} of it, so there is "
            "nothing to do"
        )
    manifest = replace(draft, units=(*units, *new))
    job.write_manifest(manifest)
    return manifest


def sampled_texts(target: Collection, draft: Manifest, text_field: str | None) -> tuple[int, list[Document]]:
    """Return about how many points lack the model's vector, and the texts of some points."""
    layout = examine(target, draft.vector_name, draft.contract, text_field).require_layout()
    payloads = [record.payload or {} for record in target.sample(SAMPLED)]
    texts = [stored_text(layout, payload) for payload in payloads if layout.of_point(payload).find_text(payload)]
    has_vector = draft.vector_name in target.schema.dense
    lacking = target.count() - (target.count_with_vector(draft.vector_name) if has_vector else 0)
    return lacking * len(texts) // len(payloads), [Document(str(n), text, line=n) for n, text in enumerate(texts, 1)]


def _planned(point: str, text: str) -> Document:
    return Document(f"{point} {hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}", "")


def _batches(
    windows: Iterator[PointWindow], planned: Seen, size: int, on_progress: Callable[[int], None]
) -> Iterator[tuple[object, list[PointTask]]]:
    """Return the texts that no earlier unit has, in lists of one shard key each."""
    read = 0
    for key, group in groupby(windows, key=lambda window: window.place.shard_key):
        waiting: list[PointTask] = []
        for window in group:
            read += window.read
            on_progress(read)
            waiting += [t for t in window.encode if planned.add(_planned(json.dumps(t.id), t.text)) == "new"]
            while len(waiting) >= size:
                yield key, waiting[:size]
                waiting = waiting[size:]
        if waiting:
            yield key, waiting


def _write(job: Job, collection: str, tasks: Sequence[PointTask], key: object, counter: TokenCounter) -> Unit:
    metadata = {} if key is None else {"shard_key": key}
    documents = [Document(json.dumps(t.id), t.text, metadata=metadata, line=n) for n, t in enumerate(tasks, 1)]
    digest = hashlib.sha256()
    for document in documents:
        digest.update(row_hash(document))
    sample = [task.text for task in tasks[::SAMPLE]]
    share = sum(counter.count_tokens(sample)) / max(1, sum(map(len, sample)))
    name = f"points-{tasks[0].id}-{digest.hexdigest()[:12]}"
    unit = Unit(
        name=name,
        file="",
        label=collection,
        first=1,
        last=len(tasks),
        documents=len(tasks),
        tokens=round(share * sum(len(task.text) for task in tasks)),
        hash=digest.hexdigest(),
    )
    return copy_rows(job, unit, documents)
