"""Resolves a name to the collection and the vectors that may be searched, and checks them again when due.

Requests go to the resolved name and not to an alias, so a query never meets the vectors of another model because the
alias was switched after the check.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import Any, TypeVar

from care_qdrant.contracts.active import SearchedVector
from care_qdrant.contracts.metadata import SHARE
from care_qdrant.errors import EncodingError, FingerprintMismatch, QdrantError, Rejected
from care_qdrant.qdrant.checks import require_learned_from
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.measurements import Measurement
from care_qdrant.qdrant.retry import RetryPolicy, is_not_found
from care_qdrant.qdrant.schema import CollectionSchema
from care_qdrant.search.conditions import Keys
from care_qdrant.search.fusion import DEFAULT_ALPHA
from care_qdrant.search.resolved import (
    ResolvedCollection,
    StoreConfig,
    choose_layout,
    learned_contract,
    resolve_vectors,
)
from care_qdrant.search.share import measured_alpha

logger = logging.getLogger(__name__)

T = TypeVar("T")
CHECK_SECONDS = 30.0
"""Time that a check of the contract holds."""
# An alias may be switched to vectors of another model at any time.
_WATCH_SECONDS = 1.0
"""Time after which a search by several models looks for the active vector while ``care switch`` can be rolled back."""


class CollectionResolver:
    """Keeps the collection that a name stands for, and checks it again after ``check_seconds``.

    A check costs two requests: the aliases, and the schema of the collection behind the name. Between a switch and the
    removal of the vector before, a search by several models also reads the schema every second: it follows a rollback.
    """

    def __init__(self, collection: Collection, config: StoreConfig, *, check_seconds: float = CHECK_SECONDS) -> None:
        """Set up; nothing is read. The collection may be an alias."""
        self.config = config
        self.resolved: ResolvedCollection | None = None
        """Result of the last check; None before the first one."""
        self._named, self._check_seconds = collection, check_seconds
        self._keys: tuple[Collection, Keys] | None = None
        self._told: SearchedVector | None = None
        self._looked_at = 0.0
        self._measured: dict[str, dict[str, Any]] = {}
        """Measurements of this process, by collections: not all programs may write it into the metadata."""

    def forget(self) -> None:
        """Check again at the next use."""
        self.resolved = None

    def resolve(self) -> ResolvedCollection:
        """Return the collection, checked now or less than ``check_seconds`` ago."""
        now, resolved = time.monotonic(), self.resolved
        if resolved is None or now - resolved.checked_at >= self._check_seconds or self._is_switched(resolved, now):
            collection, schema = self._read()
            before = resolved if resolved is not None and resolved.name == collection.name else None
            resolved = resolve_vectors(collection, schema, self.config, checked_at=now, before=before)
            if resolved.vector_name is not None and learned_contract(schema, resolved.vector_name, resolved.config):
                self._require_learned(collection, resolved.vector_name, resolved.config)
            resolved = replace(resolved, find_alpha=self._find_alpha(resolved))
        if self.config.sample_points and not resolved.is_sampled:
            resolved = self._sample(resolved)
        self.resolved = resolved
        return resolved

    def _require_learned(self, collection: Collection, vector_name: str, config: StoreConfig) -> None:
        """Refuse a learned query encoder by samples of all points; a reader of some of them is told no counts."""
        try:
            require_learned_from(collection.unrestricted(), vector_name, config.encode)
        except (FingerprintMismatch, EncodingError) as error:  # the latter may quote a text
            if collection.mandatory is None:
                raise
            logger.error("%s", error)
            raise FingerprintMismatch(
                f"vector {vector_name!r} of collection {collection.name!r} no longer fits the query encoder that was "
                "learned from it; the log has the reason"
            ) from None

    def _is_switched(self, resolved: ResolvedCollection, now: float) -> bool:
        """Return whether a collection whose switch can be rolled back was switched since its check, as far as known."""
        active = resolved.schema.active
        if not self.config.others or active is None or active.before is None:
            return False
        if now - max(self._looked_at, resolved.checked_at) < _WATCH_SECONDS:
            return False
        self._looked_at = now + CHECK_SECONDS  # no other thread looks meanwhile; none does soon after a failure
        look = Collection(self._named.client, resolved.name, RetryPolicy(attempts=1))
        try:
            is_switched = look.schema.active != active
        except QdrantError:  # the vectors of the last check still fit together, and the search itself may be answered
            return False
        self._looked_at = now
        return is_switched

    def _log_switch(self, resolved: ResolvedCollection) -> None:
        """Log once that the collection was switched to a model that this reader does not have."""
        active, config = resolved.schema.active, resolved.config
        if active is None or active.now == self._told or config.vector_name is not None:
            return
        if config.expected not in (None, active.now.fingerprint):
            self._told = active.now
            logger.warning(
                "collection %r was switched to vector %r by %s, and this search is by another model: it goes on "
                "with vector %r while that is there",
                *(resolved.name, active.now.vector, active.now.model, resolved.vector_name),
            )

    def _find_alpha(self, resolved: ResolvedCollection) -> Callable[[], float]:
        """Return the function that returns the share of the dense score; where it is to be measured, at its first call.

        Where it cannot be told, it is tried again after the next check.
        """
        config, collection, schema, constants = resolved.config, resolved.collection, resolved.schema, resolved.bm25
        encode, terms, expected = config.encode, config.terms, config.expected
        vector_name, sparse_name = resolved.vector_name, resolved.sparse_vector_name
        if config.alpha is not None or encode is None or terms is None or constants is None:
            return resolved.find_alpha
        if vector_name is None or sparse_name is None or expected is None:  # no model that a share could be kept for
            return resolved.find_alpha
        learned = learned_contract(schema, vector_name, config)
        if learned is not None and learned.alpha is not None:
            return resolved.find_alpha
        analyser = constants.analyser
        share = Measurement(SHARE, expected[:16], {"vector": vector_name, "sparse": sparse_name})

        @cache
        def find_alpha() -> float:
            for metadata in schema.metadata, self._measured.get(resolved.name, {}):
                if (known := share.find(metadata, schema.points, lambda entry: float(entry["alpha"]))) is not None:
                    return known
            alpha = measured_alpha(collection, vector_name, sparse_name, encode, lambda text: terms(text, analyser))
            if alpha is None:
                return DEFAULT_ALPHA
            points = collection.sibling(collection.name).schema.points  # this program may have written some meanwhile
            self._measured[resolved.name] = change = share.change({"alpha": repr(alpha)}, points)
            if schema.unfinished is None:
                share.keep(collection, change)
            return alpha

        return find_alpha

    def keys(self, resolved: ResolvedCollection) -> Keys:
        """Return the keys in the payloads of a collection that this object resolved: one request after each check."""
        known, keys = self._keys or (None, Keys(is_sampled=False))
        if known is not resolved.collection or not keys.is_sampled:
            keys = Keys.of(resolved.collection)
            self._keys = resolved.collection, keys
        return keys

    def use(self, work: Callable[[ResolvedCollection], T]) -> T:
        """Return the result of work on the collection; done again where it has become another one since the check.

        That happens when an alias is switched and the collection behind it is dropped, and when a collection is made
        again, or loses a vector: what is there now is checked first.
        """
        resolved = self.resolve()
        self._log_switch(resolved)
        try:
            return work(resolved)
        except Rejected:
            self.forget()
            current = self.resolve()
            if current.searched == resolved.searched:
                raise
        return work(current)

    def _read(self) -> tuple[Collection, CollectionSchema]:
        """Return the collection behind the name, which an alias may change at any time, and its schema."""
        missing = None
        while True:
            behind = self._named.aliases()
            name = self._named.name
            # The messages of the checks name what the user named.
            collection = self._named.sibling(behind.get(name, name), known_as=name)
            if collection.name == missing:
                self._named.resolve()  # says what there is, unless it has come in the meantime
            try:
                return collection, collection.refresh()
            except Rejected as error:
                if not is_not_found(error):
                    raise
                missing = collection.name

    def _sample(self, resolved: ResolvedCollection) -> ResolvedCollection:
        limit = min(self.config.sample_points, resolved.limits.page)
        # A server that finds even this page too large sends it in several.
        records = list(chain.from_iterable(resolved.collection.scroll("reading a sample", limit=limit)))
        payloads = [record.payload for record in records if record.payload]
        layout = choose_layout(payloads, self.config.text_field, resolved.text_field)
        return replace(resolved, layout=layout, is_sampled=bool(records))
