"""The collections of a service: which of them are served, by which models, and what each can be asked."""

import asyncio
import logging
import math
import time
from collections.abc import Mapping, Sequence
from functools import partial

from care_qdrant.contracts.contract import SparseContract
from care_qdrant.encoders.terms.analyser import find_analyser
from care_qdrant.errors import CareError, ContractError, InputError
from care_qdrant.qdrant.collection import only_name
from care_qdrant.search.overview import overview
from care_qdrant.serve.backend import Backend, View
from care_qdrant.serve.keys import Key
from care_qdrant.serve.models import ServedModel, ServedModels
from care_qdrant.serve.refusal import Refusal, reason_of
from care_qdrant.serve.schemas import Collections, CollectionState

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 30.0
"""Time after which a service without --collection may look again which collections there are."""
_EXAMPLES = 3
"""Example questions of a collection that the page offers."""


class Catalogue:
    """Finds the collections that the models can search, where none were configured."""

    def __init__(self, backend: Backend, models: ServedModels) -> None:
        """Set up; the first request looks."""
        self._backend, self._models, self._settings = backend, models, backend.settings
        self._searchable: tuple[str, ...] | None = None
        """Collections that were found, for a service without configured ones; None before the first look."""
        self._looked = -math.inf
        self._unserved: Mapping[str, str] = {}
        """Found collections that no model can search, with the reason."""

    async def served(self, name: str | None, key: Key) -> View:
        """Return the collection that a request means, as its key may read it.

        Args:
            name: The name in the request; None for the first configured one, or the only one.
            key: The key of the client; no collection that it may not search is named to it.
        """
        is_visible = partial(key.may, "search")
        names: Sequence[str] = self._searchable or ()
        if name is None or name not in names:  # the only one may be another by now
            names = await self._names()
        names = list(filter(is_visible, names))
        if name is None and len(names) > 1 and not self._settings.collections:
            raise Refusal(404, "unknown_collection", f"several collections are served ({', '.join(names)}); name one")
        if names and name in (None, *names):
            return View(name or names[0], key.mandatory)
        unserved = self._unserved_for(key)
        if name is not None and name in unserved:
            raise Refusal(404, "unknown_collection", f"collection {name!r} is not served: {unserved[name]}")
        reasons = "; ".join(f"{unable!r} cannot be searched: {reason}" for unable, reason in unserved.items())
        known = ", ".join(names) or reasons or "none; start the service with --collection"
        problem = "no collection is served here" if name is None else f"collection {name!r} is not served here"
        raise Refusal(404, "unknown_collection", f"{problem}; served: {known}")

    async def states(self, key: Key) -> Collections:
        """Return what each collection that a key may search can be asked."""
        views = [View(name, key.mandatory) for name in await self._names() if key.may("search", name)]
        with self._backend.admitted():
            states = await asyncio.gather(*(self._backend.run(partial(self._state, view)) for view in views))
        for name, reason in self._unserved_for(key).items():
            states.append(CollectionState(name=name, models=[], sparse=False, problem=reason))
        return Collections(collections=states, labels=self._settings.record is not None)

    def _unserved_for(self, key: Key) -> Mapping[str, str]:
        """Return why collections that a key may search are not served; a restricted key learns nothing of points."""
        known = {name: reason for name, reason in self._unserved.items() if key.may("search", name)}
        return known if key.mandatory is None else dict.fromkeys(known, "no model of this service can search it")

    async def _names(self) -> Sequence[str]:
        """Return the collections that are served: those that were configured, or all that a model can search.

        Look again some time after the last look, since collections may have been made and deleted.
        """
        if self._settings.collections or self._settings.open_qdrant is None:
            return self._settings.collections
        if not self._searchable or time.monotonic() - self._looked > _LOOK_SECONDS:
            self._looked = time.monotonic()  # requests in the meantime use the former list
            try:
                await self._backend.run(self._look)
            except CareError as error:
                self._looked = -math.inf
                if isinstance(error, InputError):
                    raise Refusal(404, "unknown_collection", str(error)) from error
                raise
        return self._searchable or ()

    def _look(self) -> None:
        """Find the collections, and which of them a model can search; a single one is served without that check."""
        there = self._backend.names()
        if len(there) < 2:
            self._searchable, self._unserved = (only_name(there, "this service"),), {}
        else:
            unserved = {}
            for name in there:
                able, reasons = self._searchers(View(name, None))
                if not able:
                    unserved[name] = reasons[0]
            for name in unserved.keys() - self._unserved.keys():
                logger.warning("collection %r is not served: %s", name, unserved[name])
            self._searchable = tuple(name for name in there if name not in unserved)
            self._unserved = unserved

    def _searchers(self, view: View) -> tuple[list[ServedModel], list[str]]:
        """Return the models that can search a collection, and why the others cannot: by the checks of a search."""
        able: list[ServedModel] = []
        reasons: list[str] = []
        for served in self._models:
            try:
                # A new retriever: the retrievers of searches keep their last check for half a minute.
                self._backend.new_retriever(view, served.model, "dense").resolved  # noqa: B018
            except (InputError, ContractError) as error:
                reasons.append(reason_of(error))
            else:
                able.append(served)
        return able, reasons

    def _state(self, view: View) -> CollectionState:
        name = view.collection
        try:
            collection = self._backend.collection(view).resolve()
            contracts, holds = collection.schema.contracts.values(), overview(collection)
            able, reasons = self._searchers(view)
            if able:  # the page asks the first one
                chosen = self._backend.chosen_model(view, self._models)
                able.sort(key=lambda served: served is not chosen)
        except CareError as error:
            return CollectionState(name=name, models=[], sparse=False, problem=reason_of(error))
        examples = self._settings.examples
        sparse = any(
            isinstance(contract, SparseContract) and find_analyser(contract.fingerprint) is not None
            for contract in contracts
        )
        return CollectionState(
            name=name,
            models=[f"{served.name}@{served.fingerprint[:12]}" for served in able],
            sparse=sparse,
            problem=None if able else reasons[0],
            unfinished=collection.schema.unfinished,
            points=holds.points,
            questions=list(examples) or [question.text for question in holds.questions[:_EXAMPLES]],
            glosses=dict(examples),
            keys={key: list(values) for key, values in holds.keys.items()},
        )
