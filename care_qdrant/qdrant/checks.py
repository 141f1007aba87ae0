"""Checks that a vector was made by the model that is about to use it, or that its query encoder was learned from it.

All but `require_learned_from` look at a schema that was read before.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from qdrant_client import models

from care_qdrant.contracts.contract import Contract, SparseContract, VectorContract
from care_qdrant.contracts.learned import LearnedContract, agreement, probe_ids, probe_texts, probe_vectors, signs
from care_qdrant.encoders.terms.analyser import find_analyser
from care_qdrant.encoders.usable import encode_usable
from care_qdrant.errors import FingerprintMismatch, InputError, SchemaMismatch, next_command
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.schema import CollectionSchema
from care_qdrant.types import Vectors

_log = logging.getLogger(__name__)

_MAX_CHANGED_SIGNS = 0.1
"""Fraction of a vector's signs that may have changed; a vector with more changes counts as rewritten."""
_MIN_AGREEMENT = 2.0
"""Least agreement of a rewritten vector with its text, in standard deviations; below, another model made it."""
_MAX_FOREIGN = 0.2
"""Largest fraction of the sampled vectors that another model may have made; above, the encoder is refused."""
_MAX_UNKNOWN = 0.5
"""Largest fraction of the sampled vectors that may be rewritten where no encoder compares them with their texts."""


def require_vector(schema: CollectionSchema, vector_name: str) -> None:
    """Refuse a dense vector that the collection does not have."""
    if vector_name in schema.sparse:
        raise SchemaMismatch(f"{vector_name!r} is a sparse vector of collection {schema.name!r}; name a dense one")
    if vector_name not in schema.dense:
        raise InputError(
            f"collection {schema.name!r} has no vector {vector_name!r} (it has: {_names(schema.dense)}); "
            f"{_makers(schema)}add it, " + next_command(f"care attach {schema.name} --vector-name {vector_name}")
        )


def check_contract(schema: CollectionSchema, vector_name: str, expected: VectorContract) -> None:
    """Refuse to use a named vector that is not the one ``expected`` describes."""
    require_vector(schema, vector_name)
    collection = schema.name
    learned = schema.learned.get(vector_name)
    if learned is not None and learned.fingerprint == expected.fingerprint:
        check_learned(schema, vector_name, learned)
        return
    if learned is not None and learned.model == expected.model:
        raise FingerprintMismatch(
            f"vector {vector_name!r} of collection {collection!r} is searched by the learned {learned.model} "
            f"({learned.fingerprint[:12]}), not by the one of fingerprint {expected.fingerprint[:12]}. Give that one "
            f"with --model. {_again(schema)}"
        )
    params = schema.dense[vector_name]
    if params.size != expected.dim or params.distance != expected.qdrant_distance:
        raise SchemaMismatch(
            f"vector {vector_name!r} of collection {collection!r} is {params.size}-dimensional with "
            f"{params.distance.value} distance; model {expected.model!r} needs {expected.dim} dimensions and "
            f"{expected.distance}. Add it as a second vector under another name, "
            + next_command(f"care attach {collection} --vector-name {_free_name(schema, expected)}")
        )
    contract = schema.contracts.get(vector_name)
    if contract is None:
        raise FingerprintMismatch(
            f"vector {vector_name!r} of collection {collection!r} carries no fingerprint: another tool wrote it, and "
            f"its space is unknown. Add model {expected.model!r} as a second vector under another name, "
            + next_command(f"care attach {collection} --vector-name {_free_name(schema, expected)}")
        )
    if contract.fingerprint != expected.fingerprint:
        raise FingerprintMismatch(
            f"vector {vector_name!r} of collection {collection!r} was made by {_maker(contract)} "
            f"({contract.fingerprint[:12]}), not by {expected.model} ({expected.fingerprint[:12]}). "
            "Give the model that made it with --model, or add this one as a second vector, "
            + next_command(f"care attach {collection} --vector-name {expected.model}-{expected.fingerprint[:8]}")
        )


def check_sparse_contract(schema: CollectionSchema, vector_name: str, language: str | None = None) -> SparseContract:
    """Return the constants of a BM25 vector; refuse an analyser that is unknown or of another language."""
    where = f"sparse vector {vector_name!r} of collection {schema.name!r}"
    if vector_name in schema.dense:
        raise SchemaMismatch(f"{vector_name!r} is a dense vector of collection {schema.name!r}; name a sparse one")
    if vector_name not in schema.sparse:
        raise InputError(
            f"collection {schema.name!r} has no sparse vector {vector_name!r} (it has: {_names(schema.sparse)}); "
            "add it, " + next_command(f"care attach {schema.name} --bm25", model=False)
        )
    if schema.sparse[vector_name].modifier != models.Modifier.IDF:
        raise SchemaMismatch(f"{where} was created without the IDF modifier that BM25 needs; ingest into a new one")
    contract = schema.contracts.get(vector_name)
    analyser = None if not isinstance(contract, SparseContract) else find_analyser(contract.fingerprint)
    if not isinstance(contract, SparseContract) or analyser is None:
        made_by = contract.fingerprint if contract is not None else "an unknown tool"
        raise FingerprintMismatch(
            f"{where} was cut into terms by {made_by}, which this version cannot do: its terms would not match ours. "
            "Ingest the corpus again into a new collection."
        )
    if language not in (None, analyser.language):
        raise FingerprintMismatch(
            f"{where} was cut into terms by {analyser.name}, for --bm25-language {analyser.language}, and not for "
            f"{language}. Leave the option out, or recompute BM25: care detach {schema.name} --vector-name "
            f"{vector_name}, and then care attach {schema.name} --bm25 --bm25-language {language}"
        )
    return contract


def check_learned(schema: CollectionSchema, vector_name: str, learned: LearnedContract) -> None:
    """Refuse a learned query encoder if the schema shows that the vectors it was learned from were replaced."""
    params = schema.dense[vector_name]
    where = f"vector {vector_name!r} of collection {schema.name!r}"
    if (params.size, params.distance.value) != (learned.dim, learned.distance):
        raise SchemaMismatch(
            f"{where} is {params.size}-dimensional with {params.distance.value} distance; query encoder "
            f"{learned.model!r} was learned from {learned.dim} dimensions and {learned.distance}. {_again(schema)}"
        )
    contract = schema.contracts.get(vector_name)
    documents = None if contract is None else contract.fingerprint
    if documents != learned.documents:
        raise FingerprintMismatch(
            f"{where} holds vectors of another model since query encoder {learned.model!r} was learned from it "
            f"({(documents or 'unknown')[:12]}, then {(learned.documents or 'unknown')[:12]}). {_again(schema)}"
        )


def require_learned_from(
    collection: Collection, vector_name: str, encode: Callable[[Sequence[str]], Vectors] | None = None
) -> None:
    """Refuse a learned query encoder if another model made too many of the stored vectors, and warn if it made any.

    Sampled vectors that were not rewritten cost one request. Otherwise a second one reads the texts, and ``encode``,
    the query encoder that was learned, compares each text with its vector; without it, most vectors must be unchanged.
    """
    learned = collection.schema.learned.get(vector_name)
    if learned is None:
        return
    ids = probe_ids(learned)
    records = collection.retrieve(ids, "reading sampled vectors", payload=False, vectors=[vector_name])
    stored = probe_vectors(records.values(), vector_name)
    foreign = {point_id for point_id, vector in stored.items() if _is_changed(learned.probes[point_id], vector)}
    if foreign and encode is not None:
        records = collection.retrieve(ids, "reading sampled texts", vectors=[])
        foreign -= _agreeing(probe_texts(records.values(), learned), stored, encode)
    limit = _MAX_UNKNOWN if encode is None else _MAX_FOREIGN
    what = "are other vectors than before" if encode is None else "do not belong to their texts"
    finding = (
        f"vector {vector_name!r} of collection {collection.schema.name!r}: of {len(learned.probes)} sampled vectors "
        f"{len(stored)} are left and {len(foreign)} {what}, so another model has made them since query encoder "
        f"{learned.model!r} was learned. "
    )
    if not stored or len(foreign) > limit * len(stored):
        raise FingerprintMismatch(finding + _again(collection.schema))
    if foreign and encode is not None:
        _log.warning("%sQueries do not find those documents; encode them again with the first model", finding)


def _agreeing(
    texts: Mapping[str, str], stored: Mapping[str, Vectors], encode: Callable[[Sequence[str]], Vectors]
) -> set[str]:
    """Return the points whose vectors belong to their texts, by the learned query encoder."""
    known = [point_id for point_id in stored if texts.get(point_id, "").strip()]
    rows = encode_usable(encode, [texts[point_id] for point_id in known])
    made = {point_id: row for point_id, row in zip(known, rows, strict=True) if row is not None}
    if len(made) < 3:  # nothing to stand out among
        return set()
    values = agreement(np.stack([*made.values()]), np.stack([stored[point_id] for point_id in made]))
    return {point_id for point_id, value in zip(made, values, strict=True) if value >= _MIN_AGREEMENT}


def _free_name(schema: CollectionSchema, expected: VectorContract) -> str:
    """Return a name for the vector of a model that no vector of the collection has."""
    return f"{expected.model}-{expected.fingerprint[:8]}" if schema.has_vector(expected.model) else expected.model


def _maker(contract: Contract) -> str:
    if isinstance(contract, VectorContract):
        return contract.model
    return "a sparse encoder" if isinstance(contract, SparseContract) else "something this version cannot read"


def _makers(schema: CollectionSchema) -> str:
    """Return the advice to use a model whose vectors the collection has; empty where no record names such a model."""
    made = [
        f"{name!r} was made by {contract.model} ({contract.fingerprint[:12]})"
        for name, contract in schema.contracts.items()
        if isinstance(contract, VectorContract)
    ]
    learned = [
        f"{repr(name) if name else 'the unnamed vector'} is searched by the learned {encoder.model} "
        f"({encoder.fingerprint[:12]})"
        for name, encoder in schema.learned.items()
        if name in schema.dense
    ]
    known = ", ".join(sorted(made) + sorted(learned))
    return f"{known}: give that model with --model, or " if known else ""


def _names(vectors: Iterable[str]) -> str:
    return ", ".join("(unnamed)" if name == "" else name for name in sorted(vectors)) or "none"


def _is_changed(before: str, vector: Vectors) -> bool:
    now = np.frombuffer(bytes.fromhex(signs(vector)), np.uint8)
    then = np.frombuffer(bytes.fromhex(before), np.uint8)[: len(now)]  # earlier versions kept all signs
    return now.shape != then.shape or int(np.bitwise_count(now ^ then).sum()) > _MAX_CHANGED_SIGNS * 8 * len(now)


def _again(schema: CollectionSchema) -> str:
    return "Learn it again, " + next_command(f"care learn {schema.name}", model=False)
