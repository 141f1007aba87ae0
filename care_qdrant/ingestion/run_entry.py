"""Ensures that a run writes into the collection that it checked, and that an interrupted run leaves an entry.

A collection can be deleted and recreated under the same name while a run is writing; the vectors of the run would then
be under the contract of another model. So the contract and the identity of the collection are checked before every
window and at the end. Each run that writes keeps an entry in the collection's metadata until it has finished: a later
run that finds an entry knows that chunks may be left behind to which no document leads. An entry is removed by its own
run, by a whole run of the same corpus, or by a sync, after which no other corpus is stored.
"""

import logging
import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from care_qdrant.contracts.metadata import IDENTITY, INPUTS, RUN, RUN_MET
from care_qdrant.corpus.files import present_files
from care_qdrant.corpus.streams import STDIN
from care_qdrant.errors import CareError, FingerprintMismatch, Rejected
from care_qdrant.ingestion.rows import BEGINNING, FROM_PROGRAM
from care_qdrant.ingestion.settings import IngestSettings
from care_qdrant.qdrant.checks import check_contract, check_sparse_contract
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.create import SPARSE_VECTOR_NAME, PointVectors
from care_qdrant.qdrant.retry import is_collection_gone, is_forbidden
from care_qdrant.qdrant.schema import CollectionSchema, now_noted

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class RunEntry:
    """The entry of one run in a collection's metadata, and its checks of the collection."""

    collection: Collection
    vectors: PointVectors
    settings: IngestSettings
    inputs: Sequence[str] = ()
    """Files and folders that were given to the run."""
    files: Sequence[str] = ()
    """Files that the run reads."""
    holds: Callable[[str], bool] = lambda _: False
    """Return whether the run has read a document, by its id."""
    has_synced: bool = False
    """Whether the run has deleted what is not in its corpus."""
    identity: str | None = None
    """Identity of the collection when the run first checked it; None for a collection that carries none."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    has_begun: bool = False
    cannot_note: bool = False
    """Whether the key may not change the collection's metadata."""
    may_have_surplus: bool = False
    """Whether another run was interrupted, or writes at the same time: chunks of either may be left behind."""

    def check(self) -> None:
        """Check that the collection is still the one that the run started with: one request."""
        schema = self.collection.refresh()
        if self._is_another(schema):
            raise FingerprintMismatch(
                f"collection {schema.name!r} was deleted and recreated while this run wrote to it; what was written "
                "before is gone. Run the same command again"
            )
        check_contract(schema, self.vectors.vector_name, self.vectors.dense)
        if self.vectors.sparse is not None:
            check_sparse_contract(schema, SPARSE_VECTOR_NAME)
        self.identity = IDENTITY.find(schema.metadata)
        if self.has_begun and RUN.find(schema.metadata, self.id) is None:  # a run that has ended meanwhile removed it
            self.may_have_surplus, self.has_begun = True, False
        if _other_runs(schema, self.id) or RUN_MET.find(schema.metadata, self.id):
            self.may_have_surplus = True

    def is_lost(self) -> bool:
        """Return whether the collection is gone, or another one has its name now; False if Qdrant does not answer."""
        try:
            return self._is_another(self.collection.refresh())
        except CareError as error:
            return is_collection_gone(error)

    def _is_another(self, schema: CollectionSchema) -> bool:
        """Return whether another collection has the name now; one that was made just before `begin` loses the entry."""
        if self.identity is None or IDENTITY.find(schema.metadata) == self.identity:
            return False
        if RUN.find(schema.metadata, self.id) is not None:
            self.collection.update("removing the note of the run", metadata=RUN.change(None, self.id))
        return True

    def begin(self) -> None:
        """Write the entry of this run into the collection's metadata, before its first write.

        A key that may only write points cannot do that: a run with such a key always looks for chunks left behind.
        """
        if self.has_begun or self.cannot_note:
            return
        entry = {"started": now_noted(), **self._place, INPUTS.name: [*self.inputs]}
        try:
            metadata = RUN.change(entry, self.id) | self._recorded() | self.vectors.stand_in_metadata()
            self.collection.update("noting the run", metadata=metadata)
        except Rejected as error:
            if not is_forbidden(error) or self.vectors.stand_in is not None:  # nothing would mark its vectors
                raise
            self.collection.delete([str(uuid.uuid4())])  # tests the permission to write without writing
            self.cannot_note = self.may_have_surplus = True
            logger.warning(
                "collection %r: this key may write points and not metadata, so the run is not noted. If it is killed, "
                "the next run with such a key finds what it leaves behind; one with a key for all does not",
                self.collection.name,
            )
        else:
            self.has_begun = True

    def end(self) -> None:
        """Remove this run's entry, and the entries of interrupted runs whose work it has done."""
        self.check()
        others = _other_runs(self.collection.schema, self.id)
        settled = [run for run, entry in others.items() if self._covers(entry)]
        gone = [*([self.id] if self.has_begun else ()), *settled]
        metadata = self._recorded(has_ended=True)
        for run in gone:
            metadata |= RUN.change(None, run) | RUN_MET.change(None, run)
        for run in others.keys() - settled if self.has_begun else ():
            metadata |= RUN_MET.change(True, run)
        for run in RUN_MET.all(self.collection.schema.metadata).keys() - others.keys():  # it ended at the same moment
            metadata |= RUN_MET.change(None, run)
        if not metadata or self.cannot_note:
            return
        try:
            self.collection.update("noting the end of the run", metadata=metadata)
        except Rejected as error:
            if gone or not is_forbidden(error):  # such a key cannot keep the record of files either
                raise

    def other_inputs(self) -> list[str]:
        """Return the files and folders whose documents are stored, but which this run does not read."""
        return [path for path in self._stored_inputs() if not self._reads(path)]

    def _stored_inputs(self) -> list[str]:
        """Return the files whose documents are stored, in the shards of the key if there is one."""
        stored = INPUTS.all(self.collection.schema.metadata)
        return sorted(path for subject, path in stored.items() if subject == self._subject(path))

    def _subject(self, path: str) -> str:
        """Return the subject of an input's entry: each has its own, so that two runs lose none of each other's."""
        key = self.collection.shard_key
        return path if key is None else f"{key}:{path}"

    def _recorded(self, *, has_ended: bool = False) -> dict[str, Any]:
        """Return the update of the record of files whose documents are stored; empty where it is current."""
        own, before = set(self.inputs), dict.fromkeys(self._stored_inputs() if self.inputs else ())
        is_alone = self.has_synced and self.settings.shard.of == 1
        after = [*({} if is_alone else before) | dict.fromkeys(self.inputs)]
        if has_ended:  # before, nobody knows which documents the run holds
            after = [path for path in after if path in own or not (_is_unnamed(path) and self._reads(path))]
            for name in (STDIN, FROM_PROGRAM):  # several corpora become one entry: each batch would leave its own
                if len(same := [path for path in after if path.partition(BEGINNING)[0] == name]) > 1:
                    after = [*(path for path in after if path not in same), name]
        changes = dict.fromkeys(before.keys() - {*after}) | {path: path for path in after if path not in before}
        return {INPUTS.of(self._subject(path)): entry for path, entry in changes.items()}

    def _reads(self, given: str) -> bool:
        """Return whether this run also reads a path that was given to another run.

        It was given the same path; or a folder that holds it, and reads all its files: a folder is read without hidden
        and linked files, and without files that only --format makes readable. What a pipe or a program passes is the
        same corpus if it holds the document with which that began.
        """
        name, _, first = given.partition(BEGINNING)
        if _is_unnamed(given):
            own = [path for path in self.inputs if first and path.startswith(name + BEGINNING)]
            # Its own first document may be of another shard, or rejected.
            return given in own or (bool(own) and self.holds(first))
        if given in self.inputs:
            return True
        is_held = any(Path(own) in Path(given).parents for own in self.inputs)
        return is_held and present_files(given) <= {os.path.abspath(file) for file in self.files}  # noqa: PTH100

    @property
    def _place(self) -> dict[str, Any]:
        """Shard of the corpus that this run writes, and the key of the collection's shards."""
        key = self.collection.shard_key
        return {"shard": self.settings.shard.name} | ({} if key is None else {"shard_key": key})

    def _covers(self, run: dict[str, Any]) -> bool:
        """Return whether this run has finished the work of another one."""
        own = self._place
        if run.get("shard_key") != own.get("shard_key") or own["shard"] not in ("1/1", run.get("shard")):
            return False
        is_same = all(map(self._reads, run.get(INPUTS.name) or ()))
        return self.settings.limit is None and (self.has_synced or is_same)


def _is_unnamed(given: str) -> bool:
    """Return whether an input is a pipe or a program."""
    return given.partition(BEGINNING)[0] in (STDIN, FROM_PROGRAM)


def _other_runs(schema: CollectionSchema, own: str) -> dict[str, Any]:
    return {run: entry for run, entry in RUN.all(schema.metadata).items() if run != own and isinstance(entry, dict)}
