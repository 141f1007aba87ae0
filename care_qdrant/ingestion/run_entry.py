"""Watches that a run writes into the collection that it checked, and that an interrupted run leaves a trace.

A collection can be deleted and made again under the same name while a run is writing; the vectors of the run would then
stand under the contract of another model. So the contract and the identity of the collection are checked before every
window and at the end. Each run that writes keeps an entry in the collection's metadata until it has finished: a later
run that finds an entry knows that chunks may be left behind which no document leads to.
"""

import logging
import uuid
from dataclasses import dataclass, field
from typing import Any

from care_qdrant.errors import CareError, FingerprintMismatch, Rejected
from care_qdrant.ingestion.settings import IngestSettings
from care_qdrant.qdrant.checks import check_contract, check_sparse_contract
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.create import SPARSE_VECTOR_NAME, PointVectors
from care_qdrant.qdrant.retry import is_collection_gone, is_forbidden
from care_qdrant.qdrant.schema import IDENTITY_KEY, RUN_PREFIX, CollectionSchema, now_noted

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class RunEntry:
    """The checks of one run."""

    collection: Collection
    vectors: PointVectors
    settings: IngestSettings
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
        if _other_runs(schema, self.key):
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
        entry = {"started": now_noted(), **self._place}
        try:
            metadata = {self.key: entry, **self.vectors.stand_in_metadata()}
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
        """Remove the trace, and those of interrupted runs of the same shard after the whole corpus was read."""
        self.check()
        own = [self.key] if self.has_begun else []
        others = _other_runs(self.collection.schema, self.key) if self.settings.limit is None else {}
        settled = [key for key, run in others.items() if self._covers(run)]
        if own or settled:
            self.collection.update("noting the end of the run", metadata=dict.fromkeys([*own, *settled]))

    @property
    def _place(self) -> dict[str, Any]:
        """Part of the corpus that this run writes, and the key of the shards."""
        key, shard = self.collection.shard_key, self.settings.shard
        return {"shard": f"{shard.number}/{shard.of}"} | ({} if key is None else {"shard_key": key})

    def _covers(self, run: dict[str, Any]) -> bool:
        """Return whether this run has finished what another one had begun."""
        own = self._place
        return run.get("shard_key") == own.get("shard_key") and own["shard"] in ("1/1", run.get("shard"))


def _other_runs(schema: CollectionSchema, own: str) -> dict[str, Any]:
    return {
        key: run
        for key, run in schema.metadata.items()
        if key.startswith(RUN_PREFIX) and key != own and isinstance(run, dict)
    }
