"""Watches that a run writes into the collection that it checked, and that an interrupted run leaves a trace.

A collection can be deleted and made again under the same name while a run is writing; the vectors of the run would then
stand under the contract of another model. So the contract and the identity of the collection are checked before every
window and at the end. Each run that writes keeps an entry in the collection's metadata until it has finished: a later
run that finds an entry knows that chunks may be left behind which no document leads to. An entry goes with its own run,
with a whole run of the same corpus, or with a sync, after which there is no other corpus.
"""

import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from care_qdrant.errors import CareError, FingerprintMismatch, Rejected
from care_qdrant.ingestion.settings import IngestSettings
from care_qdrant.qdrant.checks import check_contract, check_sparse_contract
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.create import SPARSE_VECTOR_NAME, PointVectors
from care_qdrant.qdrant.retry import is_collection_gone, is_forbidden
from care_qdrant.qdrant.schema import IDENTITY_KEY, INPUTS_KEY, MET_PREFIX, RUN_PREFIX, CollectionSchema, now_noted

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class RunEntry:
    """The checks of one run."""

    collection: Collection
    vectors: PointVectors
    settings: IngestSettings
    inputs: Sequence[str] = ()
    """Files and folders that the run reads."""
    has_synced: bool = False
    """Whether the run has deleted what is not in its corpus."""
    identity: str | None = None
    """Identity of the collection when the run first checked it; None for a collection that carries none."""
    key: str = field(default_factory=lambda: f"{RUN_PREFIX}{uuid.uuid4().hex}")
    has_begun: bool = False
    cannot_note: bool = False
    """Whether the key has no right to change the collection's metadata."""
    may_have_surplus: bool = False
    """Whether another run was interrupted, or writes at the same time: chunks of either may be left behind."""

    def check(self) -> None:
        """Check that the collection is still the one that the run started with: one request."""
        schema = self.collection.refresh()
        check_contract(schema, self.vectors.vector_name, self.vectors.dense)
        if self.vectors.sparse is not None:
            check_sparse_contract(schema, SPARSE_VECTOR_NAME)
        identity = schema.metadata.get(IDENTITY_KEY)
        if self.identity is not None and identity != self.identity:
            raise FingerprintMismatch(
                f"collection {schema.name!r} was deleted and made again while this run wrote to it; what was written "
                "before is gone. Run the same command again"
            )
        self.identity = identity
        if self.has_begun and self.key not in schema.metadata:  # a run that has ended meanwhile removed it
            self.may_have_surplus, self.has_begun = True, False
        if _other_runs(schema, self.key) or _met(self.key) in schema.metadata:
            self.may_have_surplus = True

    def is_lost(self) -> bool:
        """Return whether the collection is gone, or another one has its name now; False where nobody answers."""
        try:
            schema = self.collection.refresh()
        except CareError as error:
            return is_collection_gone(error)
        return self.identity is not None and schema.metadata.get(IDENTITY_KEY) != self.identity

    def begin(self) -> None:
        """Leave the trace of this run in the collection's metadata, before its first write.

        A key for the points of one collection may not do that: a run with it looks for chunks left behind in any case.
        """
        if self.has_begun or self.cannot_note:
            return
        entry = {"started": now_noted(), **self._place, INPUTS_KEY: [*self.inputs]}
        try:
            metadata = {self.key: entry, **self._recorded(), **self.vectors.stand_in_metadata()}
            self.collection.update("noting the run", metadata=metadata)
        except Rejected as error:
            if not is_forbidden(error) or self.vectors.stand_in is not None:  # nothing would tell of its vectors
                raise
            self.collection.delete([str(uuid.uuid4())])  # whether it may write, asked without writing
            self.cannot_note = self.may_have_surplus = True
            logger.warning(
                "collection %r: this key may write points and not metadata, so the run is not noted. If it is killed, "
                "the next run with such a key finds what it leaves behind; one with a key for all does not",
                self.collection.name,
            )
        else:
            self.has_begun = True

    def end(self) -> None:
        """Remove the trace, and those of interrupted runs whose work this one has done."""
        self.check()
        others = _other_runs(self.collection.schema, self.key)
        settled = [key for key, run in others.items() if self._covers(run)]
        gone = [*([self.key] if self.has_begun else ()), *settled]
        metadata: dict[str, Any] = dict.fromkeys([*gone, *map(_met, gone)]) | self._recorded()
        if self.has_begun:
            metadata |= {_met(key): True for key in others.keys() - settled}
        if not metadata or self.cannot_note:
            return
        try:
            self.collection.update("noting the end of the run", metadata=metadata)
        except Rejected as error:
            if gone or not is_forbidden(error):  # such a key cannot keep the record of files either
                raise

    def other_inputs(self) -> list[str]:
        """Return the files and folders whose documents are stored, and which this run does not read."""
        stored = self.collection.schema.metadata.get(self._inputs_key)
        return [each for each in stored if not self._reads(each)] if isinstance(stored, list) else []

    @property
    def _inputs_key(self) -> str:
        """Metadata key of the files whose documents are stored, in the shards of the key where there is one."""
        key = self.collection.shard_key
        return INPUTS_KEY if key is None else f"{INPUTS_KEY}:{key}"

    def _recorded(self) -> dict[str, Any]:
        """Return the change of the record of the files whose documents are stored; empty where it is right."""
        stored = self.collection.schema.metadata.get(self._inputs_key)
        before = stored if isinstance(stored, list) else []
        is_alone = self.has_synced and self.settings.shard.of == 1
        after = [*({} if is_alone else dict.fromkeys(before)) | dict.fromkeys(self.inputs)]
        return {} if before == after or not self.inputs else {self._inputs_key: after}

    def _reads(self, given: str) -> bool:
        """Return whether this run reads a file or a folder that was given to another one."""
        return any(given == own or Path(own) in Path(given).parents or Path(given).match(own) for own in self.inputs)

    @property
    def _place(self) -> dict[str, Any]:
        """Part of the corpus that this run writes, and the key of the shards."""
        key, shard = self.collection.shard_key, self.settings.shard
        return {"shard": f"{shard.number}/{shard.of}"} | ({} if key is None else {"shard_key": key})

    def _covers(self, run: dict[str, Any]) -> bool:
        """Return whether this run has finished what another one had begun."""
        own = self._place
        if run.get("shard_key") != own.get("shard_key") or own["shard"] not in ("1/1", run.get("shard")):
            return False
        return self.settings.limit is None and (self.has_synced or all(map(self._reads, run.get(INPUTS_KEY) or ())))


def _met(key: str) -> str:
    """Return the metadata key that tells a run of another one that has ended meanwhile."""
    return f"{MET_PREFIX}{key.removeprefix(RUN_PREFIX)}"


def _other_runs(schema: CollectionSchema, own: str) -> dict[str, Any]:
    return {
        key: run
        for key, run in schema.metadata.items()
        if key.startswith(RUN_PREFIX) and key != own and isinstance(run, dict)
    }
