"""Examines a collection before a vector is attached: where its texts are, and every reason to refuse."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qdrant_client import models

from care_qdrant.contracts.contract import SparseContract, VectorContract
from care_qdrant.contracts.layouts import Layout, guess_layout
from care_qdrant.contracts.payload import stored_hash
from care_qdrant.encoders.languages import SAMPLED_TEXTS, require_language
from care_qdrant.encoders.terms.analyser import find_analyser
from care_qdrant.errors import (
    CareError,
    FingerprintMismatch,
    InputError,
    SchemaMismatch,
    counted,
)
from care_qdrant.qdrant.checks import check_contract, check_sparse_contract
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.schema import CollectionSchema, datatype_of
from care_qdrant.vectors.points import (
    NOTICEABLE_FRACTION,
    expected_hash,
    other_text_field,
    require_free_key,
    stored_text,
)

SAMPLE_POINTS = 200
"""Number of points whose payloads show where the texts are."""


@dataclass(frozen=True, slots=True)
class Preflight:
    """Findings about a collection before an attach; nothing was written."""

    points: int
    layout: Layout | None
    """Layout of the payloads; None where no text was found."""
    sampled: int
    sampled_without_text: int
    texts: tuple[str, ...]
    """Texts of the sample, as the document encoder reads them."""
    has_vector: bool
    """Whether the collection has the vector already, from an earlier run."""
    problems: tuple[CareError, ...]
    """Reasons to refuse an attach; empty where there are none."""
    notices: tuple[str, ...]
    """Notices to the owner of the collection."""
    lost_contract: bool = False
    """Whether the vector has lost its contract, while the hashes in the payloads say that this model made it."""
    has_hashes: bool = False
    """Whether payloads of the sample hold a hash of the vector's text; if the vector is missing, it was deleted."""

    @property
    def is_emptied(self) -> bool:
        """Return whether an attach has nothing to do: the collection has the vector and no points at the moment."""
        return self.has_vector and not self.sampled and not self.problems

    def require_layout(self) -> Layout:
        """Return the layout of the texts; raise the first problem if there is one."""
        if self.problems or self.layout is None:
            raise self.problems[0]
        return self.layout


def examine(
    collection: Collection,
    vector_name: str,
    contract: VectorContract | SparseContract,
    text_field: str | None,
    reader: object = None,
) -> Preflight:
    """Examine a collection before an attach; ``reader`` is the tokenizer that has to read its texts."""
    schema, points, sample = collection.schema, collection.count(), collection.sample(SAMPLE_POINTS)
    payloads = [record.payload or {} for record in sample]
    has_vector = schema.has_vector(vector_name)
    layout, no_layout = _layout(payloads, text_field or schema.text_field(vector_name), collection.name)
    with_text = [] if layout is None else [each for each in payloads if layout.of_point(each).find_text(each)]
    texts = () if layout is None else tuple(stored_text(layout, payload) for payload in with_text)
    lost_contract = isinstance(contract, VectorContract) and _has_lost_contract(
        schema, vector_name, contract, layout, payloads
    )
    checks: list[Callable[[], object]] = [
        lambda: None if has_vector else require_vector_name(vector_name),
        lambda: _require_reopenable(schema, contract, payloads),
        lambda: (
            require_language(contract.model, reader, texts[:SAMPLED_TEXTS])
            if isinstance(contract, VectorContract) and not has_vector
            else None
        ),
        lambda: (
            _require_free_or_ours(schema, vector_name, contract, lost_contract=lost_contract)
            if isinstance(contract, VectorContract)
            else _require_free_or_bm25(schema, vector_name, contract)
        ),
        lambda: _require_free_keys(collection.name, sample),
        lambda: _require_room(schema, vector_name, contract, points),
    ]
    return Preflight(
        points=points,
        layout=layout,
        sampled=len(payloads),
        sampled_without_text=len(payloads) - len(texts),
        texts=texts,
        has_vector=has_vector,
        # A collection that was filled once may be filled again.
        problems=(*filter(None, map(problem_of, checks)), *(no_layout if payloads or not has_vector else ())),
        notices=(*_notices(schema, contract), *_text_notices(layout, payloads)),
        lost_contract=lost_contract,
        has_hashes=any(stored_hash(payload, vector_name) is not None for payload in payloads),
    )


_BAD_IN_NAMES = re.compile(r'[<>:"/\\|?*\0\x1f]')
"""Characters that Qdrant accepts in no name, since names are folders on its disk."""
_LONGEST_NAME_BYTES = 200


def require_vector_name(name: str) -> None:
    """Refuse a name that servers do not accept for a vector, before the collection is marked."""
    size = len(name.encode())
    if not name or size > _LONGEST_NAME_BYTES:
        raise InputError(f"vector name {name[:40]!r} has {size} bytes; expected 1 to {_LONGEST_NAME_BYTES}")
    if (bad := _BAD_IN_NAMES.search(name)) is not None:
        raise InputError(
            f"vector name {name!r} holds {bad[0]!r}, which Qdrant does not accept in names; give another one with "
            "--vector-name"
        )
    if name in (".", ".."):
        raise InputError(f"vector name {name!r} is that of a folder, which Qdrant does not accept; give another one")


def bytes_per_point(params: models.VectorParams) -> int:
    """Return the bytes of one vector, or row of a multivector, on the server, without index and quantization."""
    return round(params.size * datatype_of(params).bytes_per_number)


def _layout(
    payloads: Sequence[Mapping[str, Any]], text_field: str | None, collection: str
) -> tuple[Layout | None, list[CareError]]:
    if not payloads:
        return None, [InputError(f"collection {collection!r} has no points yet; fill it, and then attach")]
    try:
        return guess_layout(payloads, text_field=text_field), []
    except InputError as error:
        return None, [InputError(f"collection {collection!r}: {error}, with --text-field")]


def problem_of(check: Callable[[], object]) -> CareError | None:
    """Return the error that a check raises; None if it passes."""
    try:
        check()
    except CareError as error:
        return error
    return None


def _require_reopenable(
    schema: CollectionSchema, contract: VectorContract | SparseContract, payloads: Sequence[Mapping[str, Any]]
) -> None:
    """Refuse a second dense vector in a collection that Haystack wrote without sparse vectors.

    Its ``QdrantDocumentStore`` opens a collection only if its configuration is one unnamed dense vector, or has one
    named ``text-dense``. A second dense vector turns the first case into a list, which remains one after a detach.
    """
    by_haystack = (isinstance(payload.get("meta"), Mapping) and {"id", "content"} <= {*payload} for payload in payloads)
    is_single = isinstance(schema.config.params.vectors, models.VectorParams)
    if is_single and isinstance(contract, VectorContract) and any(by_haystack):
        raise InputError(
            f"Haystack wrote collection {schema.name!r} without sparse vectors, and its QdrantDocumentStore cannot "
            "open it once it has a second dense vector, not even after care detach. Write the documents into a store "
            "with use_sparse_embeddings=True (on a server, Haystack's migrate_to_sparse_embeddings_support does it), "
            "use that store from then on, and attach to it. BM25 can be attached as it is, with --bm25"
        )


def _has_lost_contract(
    schema: CollectionSchema,
    vector_name: str,
    contract: VectorContract,
    layout: Layout | None,
    payloads: Sequence[Mapping[str, Any]],
) -> bool:
    """Return whether this model made a vector without a contract: most points have the hash of model and text."""
    params = schema.dense.get(vector_name)
    if layout is None or params is None or vector_name in schema.contracts:
        return False
    matches = [
        expected == stored_hash(payload, vector_name)
        for payload in payloads
        if (expected := expected_hash(layout, payload, vector_name, contract.fingerprint)) is not None
    ]
    is_alike = params.size == contract.dim and params.distance == contract.qdrant_distance
    return is_alike and 2 * sum(matches) > len(matches)


def _require_free_or_ours(
    schema: CollectionSchema, vector_name: str, contract: VectorContract, *, lost_contract: bool
) -> None:
    if vector_name in schema.sparse:
        raise SchemaMismatch(f"{vector_name!r} is a sparse vector of collection {schema.name!r}; use another name")
    if vector_name in schema.dense:
        if not lost_contract:
            check_contract(schema, vector_name, contract)
        if schema.searches_only(vector_name, contract.fingerprint):
            raise FingerprintMismatch(
                f"query encoder {contract.model!r} was learned from vector {vector_name!r} of collection "
                f"{schema.name!r} and does not make it: the model that made it adds what is missing"
            )
        return
    begun = schema.contracts.get(vector_name)
    if begun is not None and begun.fingerprint != contract.fingerprint:
        raise FingerprintMismatch(
            f"the metadata of collection {schema.name!r} name {vector_name!r} as a vector of another model "
            f"({begun.fingerprint[:12]}); remove the entry: care detach {schema.name} --vector-name {vector_name}"
        )


def bm25_contract(
    schema: CollectionSchema, vector_name: str, language: str | None, texts: Iterable[str] = ()
) -> SparseContract:
    """Return the contract of an existing BM25 vector of a language (None for any), or of a new one for some texts."""
    contract = schema.contracts.get(vector_name)
    analyser = find_analyser(contract.fingerprint) if isinstance(contract, SparseContract) else None
    if isinstance(contract, SparseContract) and analyser is not None and language in (None, analyser.language):
        return contract
    return SparseContract.of_texts(texts, language)


def _require_free_or_bm25(schema: CollectionSchema, vector_name: str, contract: SparseContract) -> None:
    if vector_name in schema.dense:
        raise SchemaMismatch(f"{vector_name!r} is a dense vector of collection {schema.name!r}; use another name")
    if vector_name in schema.sparse:
        check_sparse_contract(schema, vector_name, contract.analyser.language)


def _require_free_keys(collection: str, sample: Sequence[models.Record]) -> None:
    for record in sample:
        require_free_key(collection, record.payload or {}, record.id)


def _require_room(
    schema: CollectionSchema, vector_name: str, contract: VectorContract | SparseContract, points: int
) -> None:
    """Refuse an attach that strict mode would stop midway: at these limits, a server writes no more vectors."""
    limits = schema.strict_mode
    if limits is None:
        return
    where = f"strict mode of collection {schema.name!r} allows"
    if limits.max_points_count is not None and points >= limits.max_points_count:
        raise InputError(
            f"{where} {counted(limits.max_points_count, 'point')}, and it has {points:,}: the server takes no vectors "
            "any more. Have its operator raise max_points_count"
        )
    if not isinstance(contract, VectorContract):
        return
    needed = points * sum(map(bytes_per_point, {**schema.dense, vector_name: contract.params}.values()))
    most = limits.max_collection_vector_size_bytes
    if most is not None and needed > most:
        raise InputError(
            f"{where} {most / 1e6:,.1f} MB of vectors, and with {vector_name!r} there would be about "
            f"{needed / 1e6:,.1f} MB. Have its operator raise max_collection_vector_size_bytes"
        )


def _notices(schema: CollectionSchema, contract: VectorContract | SparseContract) -> Iterator[str]:
    record = schema.version_record
    if record is not None and not record.withdrawn:
        yield (
            f"care publish made this collection from {record.source!r}, and the next version will not have what is "
            f"added here: attach to {record.source!r}, and publish it"
        )
    if isinstance(contract, VectorContract) and schema.dense.keys() == {""}:
        yield (
            "the collection has an unnamed vector, which unnamed searches continue to use; but its configuration will "
            "list two vectors, and programs that read config.params.vectors.size will fail. LlamaIndex's own "
            "QdrantVectorStore searches the unnamed one regardless of dense_vector_name=: read the new one with "
            "CareVectorStore"
        )


def _text_notices(layout: Layout | None, payloads: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if layout is None:
        return
    others = [field for payload in payloads if (field := other_text_field(layout, payload)) is not None]
    if others and len(others) >= NOTICEABLE_FRACTION * len(payloads):
        fields = ", ".join(f"{field!r} ({count})" for field, count in Counter(others).most_common(3))
        yield (
            f"{counted(len(others), 'sampled point', 'have', of=len(payloads))} no text under {layout.text_field!r} "
            f"and one under {fields}: they would get no vector. Put all texts under one field; for a vector that does "
            "not exist yet, name the field of most texts with --text-field; or attach another vector for the others: "
            "--vector-name NAME --text-field FIELD"
        )
