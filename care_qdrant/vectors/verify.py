"""Verifies that the vectors of a collection were made from the current texts by a model whose queries find them."""

from care_qdrant.contracts.contract import SparseContract, VectorContract
from care_qdrant.encoders.agreement import LEAST_HALF_PRECISION
from care_qdrant.encoders.terms import bm25
from care_qdrant.errors import ContractError, InputError, counted, next_command
from care_qdrant.model.care_model import CareModel
from care_qdrant.qdrant.checks import check_contract, check_sparse_contract
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.public import accepts_client
from care_qdrant.qdrant.schema import CollectionSchema
from care_qdrant.search.resolved import find_bm25
from care_qdrant.vectors.points import other_field_warning, unreadable_warning
from care_qdrant.vectors.preflight import examine
from care_qdrant.vectors.verify_counts import count_points
from care_qdrant.vectors.verify_report import VerifyReport, VerifySettings
from care_qdrant.vectors.verify_sample import TwoSidedModel, check_sample, is_learned


@accepts_client
def verify_collection(
    collection: Collection,
    model: TwoSidedModel | None,
    *,
    vector_name: str | None = None,
    text_field: str | None = None,
    settings: VerifySettings | None = None,
) -> VerifyReport:
    """Verify the vectors of a collection by counts, hashes, and a sample that is re-encoded; nothing is written.

    Args:
        collection: An open Qdrant and a name: the collection, or an alias of it.
        model: The model that should have made the vectors; None for BM25.
        vector_name: Name of one vector. None verifies the one that the model made, and then all others that this
            package made: BM25 in the same way, vectors of other models without encoding a sample. Without a model, it
            verifies BM25 only.
        text_field: Payload field with the text; None takes the one that attach used, or guesses.
        settings: Limits within which a vector counts as correct.

    Raises:
        ContractError: Another model made the vectors.
        InputError: There is no such collection or vector, or no text in its payloads.
    """
    settings, target = settings or VerifySettings(), collection.whole()
    schema = target.schema
    if model is None:
        name = find_bm25(schema) or bm25.VECTOR_NAME if vector_name is None else vector_name
        report = _verify(target, name, check_sparse_contract(schema, name), None, text_field, settings)
    else:
        contract = model.contract()
        name = _vector_of(schema, model.name, contract) if vector_name is None else vector_name
        check_contract(schema, name, contract)
        report = _verify(target, name, contract, model, text_field, settings)
    if model is not None and vector_name is None:
        others = (other for other in schema.contracts if other != name and schema.has_vector(other))
        report.others = [_verify_other(target, other, model, settings) for other in others]
        report.problems += [
            f"vector {other.vector_name!r}: {problem}" for other in report.others for problem in other.problems
        ]
    verified = [name] if vector_name is not None else [name, *schema.contracts]
    warnings = (schema.unfinished_of(vector) for vector in verified)
    report.problems += dict.fromkeys(warning for warning in warnings if warning is not None)
    return report


def _vector_of(schema: CollectionSchema, model: str, contract: VectorContract) -> str:
    """Return the vector of a model that searches use by default."""
    made = schema.all_made_by(contract.fingerprint)
    return next((name for name in made if not schema.is_beside(name)), model)


def _verify_other(collection: Collection, name: str, model: TwoSidedModel, settings: VerifySettings) -> VerifyReport:
    """Verify a vector other than the model's, as far as possible; a refusal becomes a problem of the report."""
    contract = collection.schema.contracts[name]
    report = VerifyReport(collection.name, name, contract.fingerprint, name in collection.schema.attached)
    try:
        if isinstance(contract, VectorContract):
            is_same = contract.fingerprint == model.contract().fingerprint
            check_contract(collection.schema, name, contract)
            return _verify(collection, name, contract, model if is_same else None, None, settings)
        return _verify(collection, name, check_sparse_contract(collection.schema, name), None, None, settings)
    except (ContractError, InputError) as error:
        report.problems.append(str(error))
        return report


def _verify(
    target: Collection,
    name: str,
    contract: VectorContract | SparseContract,
    model: TwoSidedModel | None,
    text_field: str | None,
    settings: VerifySettings,
) -> VerifyReport:
    """Verify one vector, whose contract was checked; without its model, no sample is encoded."""
    report = VerifyReport(target.name, name, contract.fingerprint, name in target.schema.attached)
    preflight = examine(target, name, contract, text_field)
    if preflight.is_emptied:
        report.problems.append("the collection has no points, so nothing was checked")
        return report
    if preflight.layout is None:
        raise preflight.problems[0]
    makers, counter = _makers(target.schema, name, contract), None
    if model is not None and not is_learned(model):
        counter = model.document_tokenizer
    sample = count_points(target, report, preflight.layout, makers, settings.sample, counter)
    if warning := other_field_warning(report.points, report.in_other_field, preflight.layout.text_field):
        report.problems.append(warning)
    if warning := unreadable_warning(report.unreadable):
        report.problems.append(warning)
    check_sample(target, report, model, contract, preflight.layout, sample)
    least_cosine = _rounding(model) if settings.least_cosine is None else settings.least_cosine
    report.problems += _problems(report, least_cosine, settings.least_known, _finishing(report, contract, model))
    if report.stand_ins and model is not None and not is_learned(model):
        report.problems.append(
            f"{counted(report.stand_ins, 'point', 'have')} a vector of a learned query encoder that stood in for this "
            "model: ingest their documents again, without --stand-in"
        )
    return report


def _rounding(model: TwoSidedModel | None) -> float:
    """Return the least cosine expected between a model's vectors of one text on two machines or by two engines."""
    card = model.card if isinstance(model, CareModel) else None
    return LEAST_HALF_PRECISION if card is None else card.least_document_cosine


def _makers(schema: CollectionSchema, name: str, contract: VectorContract | SparseContract) -> list[str]:
    """Return the makers in a vector's hashes: its model, and the model from which that was learned, if any."""
    made = schema.contracts.get(name) if name in schema.learned_by(contract.fingerprint) else None
    return [contract.constants, *([made.constants] if isinstance(made, VectorContract) else [])]


def _finishing(report: VerifyReport, contract: VectorContract | SparseContract, model: TwoSidedModel | None) -> str:
    """Return the command that adds the missing vectors, with the model that made the others."""
    words = f"care attach {report.collection} --vector-name {report.vector_name}"
    if isinstance(contract, VectorContract) and model is None:
        return f"{next_command(words, model=False)}, and with --model {contract.model!r}, which made the others"
    return next_command(words, model=model is not None)


def _problems(report: VerifyReport, least_cosine: float, least_known: float, finishing: str) -> list[str]:
    problems, without_hash = [], report.without_hash if report.is_attached else 0
    if report.without_vector or report.outdated or report.text_gone:
        nameless = f", {without_hash} one that does not say of which text it was made" if without_hash else ""
        problems.append(
            f"{counted(report.without_vector - without_hash, 'point', 'have')} no vector{nameless}, {report.outdated} "
            f"one of an earlier text and {report.text_gone} one of a text that is gone; finish, {finishing}"
        )
    if report.written_by_others:
        problems.append(
            f"{counted(report.written_by_others, 'point', 'have')} the vector and no text, and searches find such "
            "points: a program that is not of this package wrote it. Delete the vector there, or write the text"
        )
    if report.lowest_cosine is not None and not report.lowest_cosine >= least_cosine:
        problems.append(
            f"a stored vector has cosine {report.lowest_cosine:.4f} to the re-encoded one (at least "
            f"{least_cosine:.4g} expected): it was altered, or made by another model or another build of it"
        )
    if report.known_items is not None and not report.known_items >= least_known:
        problems.append(
            f"only {report.known_items:.0%} of the sample were found by their own opening (at least "
            f"{least_known:.0%} expected): the query encoder does not fit the vectors"
        )
    return problems
