"""The plan that `care attach --dry-run` shows: what an attach would write, what it costs, and what would be refused."""

from dataclasses import dataclass
from itertools import islice

from care_qdrant.contracts.contract import SparseContract, VectorContract
from care_qdrant.corpus.chunking import count_or_fail
from care_qdrant.encoders.terms.languages import SAMPLED_TEXTS
from care_qdrant.ingestion.settings import DocumentModel, name_of_vector
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.public import accepts_client
from care_qdrant.vectors.points import texts_of
from care_qdrant.vectors.preflight import Preflight, bm25_contract, bytes_per_point, examine, problem_of


@dataclass(frozen=True, slots=True)
class AttachPlan:
    """Plan of ``care attach`` for a collection: its work, its cost, and the reasons to refuse."""

    collection: str
    vector_name: str
    model: str
    """Model of the vector, or the BM25 analyser."""
    tool: str | None
    """Tool that wrote the payloads, as guessed; None where no text was found."""
    text_field: str | None
    sampled: int
    sampled_without_text: int
    points_to_encode: int
    """Number of points without the vector: an upper bound."""
    new_bytes: int | None
    """Bytes of their vectors, in float32 and without an index; None for BM25, where it depends on the texts."""
    new_tokens: int | None
    """Tokens that the model would read, estimated from the sample; None for BM25 and where no text was found."""
    refusals: list[str]
    """Reasons to refuse; empty where there are none."""
    notices: list[str]


@accepts_client
def plan_attach(
    collection: Collection,
    model: DocumentModel | None,
    *,
    vector_name: str | None = None,
    text_field: str | None = None,
    any_language: bool = False,
    bm25_language: str | None = None,
) -> AttachPlan:
    """Return what an attach would do; nothing is written.

    Args:
        collection: An open Qdrant and a name: the collection, or an alias of it.
        model: The model, whose weights are not read; None adds BM25.
        vector_name: None takes the model's name, or ``bm25``.
        text_field: Payload field with the text; None guesses.
        any_language: Whether to accept a model that does not read the language of the texts.
        bm25_language: Language of a new BM25 vector; None detects it in the texts.

    Raises:
        InputError: There is no such collection.
        QdrantError: Qdrant cannot be reached.
    """
    target, name = collection.whole(), name_of_vector(vector_name, model)
    contract = bm25_contract(target.schema, name, bm25_language) if model is None else model.contract()
    reader = None if model is None or any_language else model.document_tokenizer
    preflight = examine(target, name, contract, text_field, reader)
    if isinstance(contract, SparseContract) and preflight.layout is not None:
        first = islice(texts_of(target, preflight.layout), SAMPLED_TEXTS)
        contract = bm25_contract(target.schema, name, bm25_language, first)
    todo = target.count() - (target.count_with_vector(name) if target.schema.has_vector(name) else 0)
    refusals = [
        str(problem)
        for problem in (*preflight.problems, problem_of(model.require_documents) if model else None)
        if problem
    ]
    unfinished = target.schema.unfinished
    return AttachPlan(
        collection=target.name,
        vector_name=name,
        model=contract.model if isinstance(contract, VectorContract) else contract.fingerprint,
        tool=preflight.layout.tool if preflight.layout else None,
        text_field=preflight.layout.text_field if preflight.layout else None,
        sampled=preflight.sampled,
        sampled_without_text=preflight.sampled_without_text,
        points_to_encode=todo,
        new_bytes=todo * bytes_per_point(contract.params) if isinstance(contract, VectorContract) else None,
        new_tokens=None if model is None or not preflight.texts else _tokens(model, preflight, todo),
        refusals=refusals,
        notices=[*preflight.notices, *([unfinished] if unfinished else [])],
    )


def _tokens(model: DocumentModel, preflight: Preflight, points: int) -> int:
    """Return how many tokens the model would read for some points that have texts as long as the sampled ones."""
    tokenizer = model.document_tokenizer
    counts = count_or_fail(preflight.texts, tokenizer)
    read = sum(min(count, tokenizer.max_tokens) for count in counts if isinstance(count, int))
    return round(points * read / preflight.sampled)
