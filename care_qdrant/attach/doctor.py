"""Looks at a collection of any origin, and says what attaching a model to it would do, cost and meet."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from qdrant_client import QdrantClient

from care_qdrant.attach.copy_plan import plan_copy
from care_qdrant.attach.preflight import Preflight, examine
from care_qdrant.attach.stored_texts import read_payloads, stored_text
from care_qdrant.errors import InputError, ServerTooOld
from care_qdrant.ingestion.settings import DocumentModel
from care_qdrant.store.connection import is_embedded
from care_qdrant.store.contracts import VectorContract
from care_qdrant.store.inventory import CollectionSummary, describe
from care_qdrant.store.retry import Collection, RetryPolicy
from care_qdrant.store.schema import aliases, resolve

SHOWN_TEXTS = 3
SHOWN_CHARACTERS = 60
TIMED_TEXTS = 32
BYTES_PER_NUMBER = 4


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What a collection is, and what ``care attach`` would do with it."""

    summary: CollectionSummary
    server_version: str
    """``embedded`` for a folder."""
    strict_mode: dict[str, Any]
    """Limits that the operator has set; empty for none."""
    tool: str | None
    """Who wrote the payloads, as guessed; None where no text was found."""
    text_field: str | None
    evidence: str | None
    texts: list[str]
    """A few, cut."""
    sampled: int
    sampled_without_text: int
    vector_name: str
    model: str
    points_to_encode: int
    """At most: those without the vector."""
    new_bytes: int
    """Of their vectors, in float32 and without an index."""
    seconds: float | None
    """Of encoding them at the speed of a sample on this machine; None where it was not timed."""
    refusals: list[str]
    """Empty where nothing stands in the way."""
    copy_plan: list[str]
    """What ``care attach --via copy`` would do instead, where the server is too old to add a vector."""
    notices: list[str]


def diagnose(
    client: QdrantClient,
    collection: str,
    model: DocumentModel,
    *,
    vector_name: str | None = None,
    text_field: str | None = None,
    timed: bool = False,
    retries: RetryPolicy | None = None,
) -> Diagnosis:
    """Examine a collection; nothing is written.

    Args:
        client: An open Qdrant.
        collection: Name or alias.
        model: That would be attached; its weights are read only to time it.
        vector_name: None takes the model's name.
        text_field: Where in a payload the text is; None guesses.
        timed: Encode a few texts and say how long all would take.
        retries: How patient to be with a server.

    Raises:
        InputError: there is no such collection.
        QdrantError: Qdrant cannot be reached.
    """
    alias = Collection(client, collection, retries)
    link = Collection(client, alias.call("looking it up", lambda: resolve(client, collection)), retries)
    name, contract = vector_name or model.name, model.contract()
    preflight = examine(link, name, contract, text_field)
    summary = link.call("describing it", lambda: describe(client, link.collection))
    covered = next((vector.points for vector in summary.vectors if vector.name == name), 0)
    texts = _texts(link, preflight)
    todo = summary.points - covered
    return Diagnosis(
        summary=summary,
        server_version=link.call("asking its version", lambda: _version(client)),
        strict_mode=link.call("reading its limits", lambda: _strict_mode(link)),
        tool=preflight.layout.tool if preflight.layout else None,
        text_field=preflight.layout.text_field if preflight.layout else None,
        evidence=preflight.layout.evidence if preflight.layout else None,
        texts=[text[:SHOWN_CHARACTERS] for text in texts[:SHOWN_TEXTS]],
        sampled=preflight.sampled,
        sampled_without_text=preflight.sampled_without_text,
        vector_name=name,
        model=contract.model,
        points_to_encode=todo,
        new_bytes=todo * contract.dim * BYTES_PER_NUMBER,
        seconds=todo * _seconds_per_text(texts, model) if timed and texts else None,
        refusals=[str(problem) for problem in preflight.problems],
        notices=list(preflight.notices),
        copy_plan=_copy_plan(link, name, contract) if _is_too_old(preflight) else [],
    )


def _is_too_old(preflight: Preflight) -> bool:
    return any(isinstance(problem, ServerTooOld) for problem in preflight.problems)


def _copy_plan(link: Collection, vector_name: str, contract: VectorContract) -> list[str]:
    """Say what a copy behind the alias that leads here, or behind a new one, would be."""
    leading = link.call("reading the aliases", lambda: aliases(link.client))
    alias = next((name for name, behind in leading.items() if behind == link.collection), f"{link.collection}-live")
    try:
        return list(plan_copy(link, alias, vector_name, contract).lines())
    except InputError as error:
        return [f"refused: {error}"]


def _texts(link: Collection, preflight: Preflight) -> list[str]:
    """Give the texts of the first points that have one."""
    layout = preflight.layout
    if layout is None:
        return []
    payloads = (record.payload or {} for record in next(iter(read_payloads(link))))
    return [stored_text(layout, payload) for payload in payloads if layout.find_text(payload)][:TIMED_TEXTS]


def _seconds_per_text(texts: list[str], model: DocumentModel) -> float:
    encode: Callable[[list[str]], Any] = model.document_encoder.encode
    encode(texts[:1])
    start = time.perf_counter()
    encode(texts)
    return (time.perf_counter() - start) / len(texts)


def _version(client: QdrantClient) -> str:
    return "embedded" if is_embedded(client) else client.info().version


def _strict_mode(link: Collection) -> dict[str, Any]:
    strict = link.client.get_collection(link.collection).config.strict_mode_config
    return {} if strict is None or not strict.enabled else strict.model_dump(exclude_none=True)
