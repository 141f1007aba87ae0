"""`switch_collection`: attach, compare, and switch the readers of a collection; `undo_switch` and `retire_vector`.

Nothing but the collection remembers the stage: a vector that is missing or incomplete is written, one that readers do
not search is compared, and the active one is kept complete. So the same call resumes after any interruption.
"""

import logging
import time
from calendar import timegm
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

from qdrant_client import models

from care_qdrant.contracts.active import Active, SearchedVector, active_metadata, parse_active
from care_qdrant.contracts.contract import VectorContract
from care_qdrant.contracts.layouts import guess_layout
from care_qdrant.errors import InputError, NotSwitched, counted
from care_qdrant.ingestion.settings import DocumentModel
from care_qdrant.progress import OnProgress
from care_qdrant.qdrant.checks import check_contract, require_learned_from, require_vector
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.point_equality import vectors_of
from care_qdrant.qdrant.public import accepts_client
from care_qdrant.qdrant.schema import CollectionSchema, now_noted
from care_qdrant.search.judged import KnownLabels
from care_qdrant.search.resolve import CHECK_SECONDS
from care_qdrant.switch.compare import (
    Comparison,
    Kind,
    QueryModel,
    compare_models,
    make_questions,
    read_questions,
    sample_payloads,
)
from care_qdrant.vectors.attach import AttachReport, AttachSettings, attach_vector
from care_qdrant.vectors.attach_plan import AttachPlan, plan_attach
from care_qdrant.vectors.detach import DetachReport, remove_vector
from care_qdrant.vectors.verify_counts import count_points
from care_qdrant.vectors.verify_report import VerifyReport

logger = logging.getLogger(__name__)

MAX_LACKING = 0.005
"""Largest fraction of the points of the old vector that may lack the new one: those that are being written now."""
GRACE_SECONDS = 2 * CHECK_SECONDS
"""Time after a switch in which the vector before stays: readers check every half minute."""
_SETTLE_SECONDS = 1.0
"""Time after which a run reads back the active vector that it wrote: two that write at once see which one stays."""
_PASSES = 3
"""Most times that points are looked for which other programs have written meanwhile."""

Stage = Literal["backfill", "compare", "switch", "watch"]


class NewModel(DocumentModel, QueryModel, Protocol):
    """The part of `CareModel` that a switch uses."""


@dataclass(frozen=True, slots=True)
class SwitchState:
    """The vectors of a switch, as the collection shows them."""

    stage: Stage
    """First stage that is not done."""
    before: SearchedVector | None
    """Vector that readers search before the switch, and the model of their queries; None once it was retired."""
    to: SearchedVector
    """Vector of the new model."""
    is_learned: bool = False
    """Whether the new model makes queries alone, for a vector of another model from which it was learned."""


@dataclass(frozen=True, slots=True)
class SwitchPlan:
    """The plan of a switch, by `plan_switch`: its stage, the new vector and any objection."""

    state: SwitchState
    attach: AttachPlan | None
    """Plan of the new vector; None where the new model searches a vector that is there."""
    refusal: str | None = None
    """Why the models could not be compared; None where they can be, and where nothing is left to compare."""


@dataclass(frozen=True, slots=True)
class SwitchReport:
    """The result of `switch_collection`: the state at its end, and the comparison that it followed."""

    collection: str
    state: SwitchState
    """State at its end."""
    attached: AttachReport | None
    comparison: Comparison | None
    """None where the new model was active already, and where the old one is not known."""
    lacking: int
    """Points with the vector before and without the new one."""


@accepts_client
def plan_switch(
    collection: Collection,
    model: NewModel,
    old: QueryModel | None = None,
    *,
    vector_name: str | None = None,
    questions: str | Path | None = None,
    accept: str | None = None,
) -> SwitchPlan:
    """Return what a switch would do; nothing is written.

    Args:
        collection: An open Qdrant and a name: the collection, or an alias of it.
        model: The new model.
        old: The model that readers use now.
        vector_name: Vector that readers search now, where neither the collection nor ``old`` shows it.
        questions: File of judged questions, which is read.
        accept: Reason to switch although the models could not be compared.

    Raises:
        InputError: There is no such collection, it does not show which vector readers search, or the file holds no
            questions.
    """
    target = collection.whole()
    state = find_state(target.schema, model.contract(), None if old is None else old.contract(), vector_name)
    _warn_of_earlier_vector(target.schema, state)
    field = _text_field(target.schema, state)
    plan = None if state.is_learned else plan_attach(target, model, vector_name=state.to.vector, text_field=field)
    if state.stage == "watch" or state.before is None:
        return SwitchPlan(state, plan)
    old, judged = _references(target, state, old, questions)
    refusal = _why_incomparable(target.schema, state, old, judged) if accept is None else None
    return SwitchPlan(state, plan, refusal)


@accepts_client
def switch_collection(
    collection: Collection,
    model: NewModel,
    old: QueryModel | None = None,
    *,
    vector_name: str | None = None,
    questions: str | Path | None = None,
    accept: str | None = None,
    on_stage: Callable[[Stage, SwitchState], None] = lambda _stage, _state: None,
    on_compared: Callable[[Comparison], None] = lambda _: None,
    on_progress: OnProgress = lambda _done, _total: None,
) -> SwitchReport:
    """Add the vector of a new model, compare it with the one that readers search, and switch readers if it passes.

    Args:
        collection: An open Qdrant and a name: the collection, or an alias of it.
        model: The new model. One that `care learn` has made searches the vector that it was learned from.
        old: The model that readers use now. Where it does not make the queries of the searched vector, it counts as
            None, and only ``questions`` with that model's vectors can be compared.
        vector_name: Vector that readers search now, where neither the collection nor ``old`` shows it.
        questions: JSON lines with ``text`` and ``relevant``, a list of ids; None makes questions of the collection.
        accept: Reason to switch although the comparison does not pass; it is kept in the record.
        on_stage: Called at the beginning of each stage.
        on_compared: Called before the verdict has an effect.
        on_progress: Called while points are written, and while questions are searched.

    Raises:
        NotSwitched: The comparison refuses the new model or cannot tell, points would be lost, or another run switched
            meanwhile. Readers stay where they are, and the new vector stays, too.
        InputError: The collection does not exist, or does not show which vector readers search; or attach refuses.
        ContractError: Another model makes a vector of that name.
        QdrantError: Qdrant refused or could not be reached; the same call goes on.
    """
    target = collection.whole()
    state = find_state(target.schema, model.contract(), None if old is None else old.contract(), vector_name)
    _warn_of_earlier_vector(target.schema, state)
    known, before, attached = parse_active(target.schema.metadata), state.before, None
    if not state.is_learned:
        on_stage("watch" if state.stage == "watch" else "backfill", state)
    if state.stage == "watch" or before is None:
        attached, lacking = (None, 0) if state.is_learned else _attach(target, model, state, on_progress)
        return SwitchReport(target.name, state, attached, None, lacking)
    old, judged = _references(target, state, old, questions)
    if accept is None and (refusal := _why_incomparable(target.schema, state, old, judged)) is not None:
        raise NotSwitched(f"{refusal}. Nothing was written; --accept REASON switches readers without the verdict")
    if state.is_learned:
        require_learned_from(target, state.to.vector, model.encode_query)
    else:
        attached, _ = _attach(target, model, state, on_progress)
    check_contract(target.refresh(), state.to.vector, model.contract())
    on_stage("compare", state)
    comparison = _compare(target, state, model, old, judged, on_progress)
    if comparison is not None:
        on_compared(comparison)
        if accept is None:
            _require_pass(target.name, comparison)
    on_stage("switch", state)
    lacking = _lacking(target, before, state.to) if state.is_learned else _attach(target, model, state, on_progress)[1]
    covered = target.count_with_vector(before.vector)
    if accept is None and lacking > MAX_LACKING * covered:
        raise NotSwitched(
            f"collection {target.name!r}: {counted(lacking, 'point', 'have', of=covered)} vector {before.vector!r} and "
            f"not {state.to.vector!r}, and would no longer be found: {state.to.model} makes no vector of their text, "
            "or other programs write faster than this one. Readers stay where they are; --accept REASON switches them"
        )
    if not target.refresh().has_vector(state.to.vector):
        raise NotSwitched(f"vector {state.to.vector!r} of collection {target.name!r} was removed meanwhile")
    active = Active(state.to, now_noted(), before, evidence=_evidence(comparison, accept))
    _write_active(target, "switching its readers", known, active)
    _warn_of_source(target.schema)
    return SwitchReport(target.name, replace(state, stage="watch"), attached, comparison, lacking)


@accepts_client
def undo_switch(collection: Collection) -> Active:
    """Return readers to the vector before the last switch, in one write; done again, they go forth again.

    A warning is logged where points were written meanwhile without that vector.

    Raises:
        InputError: The collection was not switched, or the vector before is gone.
        NotSwitched: Another run switched meanwhile.
    """
    target = collection.whole()
    active, before = _last_switch(target)
    if before.vector not in target.schema.dense:
        raise InputError(f"vector {before.vector!r} of collection {target.name!r} is gone: nothing to return to")
    if lacking := _lacking(target, active.now, before):
        logger.warning(
            "collection %r: %s been written without vector %r, and searches do not find them until care attach adds it",
            *(target.name, counted(lacking, "point", "have"), before.vector),
        )
    back = replace(active, now=before, since=now_noted(), before=active.now, is_rolled_back=not active.is_rolled_back)
    _write_active(target, "switching its readers back", active, back)
    _warn_of_source(target.schema)
    return back


@accepts_client
def retire_vector(collection: Collection, *, grace_seconds: float = GRACE_SECONDS) -> DetachReport | None:
    """Remove the vector that readers searched before the last switch, or that they left by a rollback.

    Args:
        collection: An open Qdrant and a name: the collection, or an alias of it.
        grace_seconds: Time since the switch before which it is refused.

    Returns:
        The report; None where no vector is removed, since readers search the same one, or it was gone already.

    Raises:
        InputError: The collection was not switched, readers may not have followed yet, the vector that they search is
            gone, points lack that, have one of a former text or have no other one, or another tool wrote the vector.
        NotSwitched: Another run switched meanwhile.
    """
    target = collection.whole()
    active, before = _last_switch(target)
    try:
        since = timegm(time.strptime(active.since, "%Y-%m-%dT%H:%M:%SZ"))
    except ValueError:
        raise InputError(
            f"collection {target.name!r} was switched at {active.since!r}, a time that this version does not read: "
            f"care switch {target.name} --roll-back, twice, writes it again"
        ) from None
    left = grace_seconds - (time.time() - since)
    if left > 0:
        raise InputError(
            f"collection {target.name!r} was switched at {active.since}, and readers look every {CHECK_SECONDS:g} "
            f"seconds: run the same command again in {left:.0f} s"
        )
    if active.now.vector not in target.schema.dense:
        raise InputError(
            f"vector {active.now.vector!r} of collection {target.name!r} is gone, so readers search the one before, "
            f"and it stays. First switch them: care switch {target.name} --roll-back or --to MODEL"
        )
    name, report = before.vector, None
    if name != active.now.vector and (name in target.schema.contracts or name in target.schema.dense):
        _require_none_lacking(target, active, before)
        if outdated := _outdated(target, active.now.vector):
            raise InputError(
                f"collection {target.name!r}: {counted(outdated, 'point', 'have')} a new text, and vector "
                f"{active.now.vector!r} of the former one. First run care switch {target.name} --to MODEL once more"
            )
        report = remove_vector(target, name, lambda: _require_none_lacking(target, active, before))
    _write_active(target, "noting that a vector was retired", active, replace(active, before=None))
    return report


def _require_none_lacking(target: Collection, active: Active, before: SearchedVector) -> None:
    """Refuse to retire a vector while points have it and not the one that readers search."""
    if lacking := _lacking(target, before, active.now):
        raise InputError(
            f"collection {target.name!r}: {counted(lacking, 'point', 'have')} vector {before.vector!r} and not "
            f"{active.now.vector!r}, and no reader would find them without it. Add that with {active.now.model}, "
            f"for example by care switch {target.name} --to MODEL, or delete them"
        )


def _write_active(target: Collection, what: str, known: Active | None, active: Active) -> None:
    """Write the record of the active vector, unless another run writes it, before or at the same moment.

    Qdrant has no write under a condition on metadata: the record is read before, and read back once all runs that have
    read it before this write have written theirs.
    """
    if parse_active(target.refresh().metadata) == known:
        target.update(what, metadata=active_metadata(active))
        time.sleep(_SETTLE_SECONDS)
        if parse_active(target.refresh().metadata) == active:
            return
    raise NotSwitched(f"another run switched readers of collection {target.name!r} meanwhile: see care status")


def _warn_of_source(schema: CollectionSchema) -> None:
    """Warn that the next version of a published collection has the active vector of its source."""
    if (record := schema.version_record) is not None and not record.withdrawn:
        logger.warning(
            "care publish made collection %r of %r, and readers of the next version search what %r names: switch that, "
            "too",
            *(schema.name, record.source, record.source),
        )


def _warn_of_earlier_vector(schema: CollectionSchema, state: SwitchState) -> None:
    """Warn that this switch forgets the vector before the last one, which is then never retired."""
    active = schema.active
    if state.stage == "watch" or active is None or active.before is None or active.before.vector not in schema.dense:
        return
    if active.before.vector not in (state.to.vector, active.now.vector):
        logger.warning(
            "collection %r: vector %r, which readers searched before %r, stays for good if this switch comes first; if "
            "nothing needs it, care switch %s --retire removes it now",
            *(schema.name, active.before.vector, active.now.vector, schema.name),
        )


def _last_switch(collection: Collection) -> tuple[Active, SearchedVector]:
    """Return the record of the last switch, and the vector before it."""
    active = parse_active(collection.schema.metadata)
    if active is None:
        raise InputError(f"collection {collection.name!r} was never switched: care switch {collection.name} --to MODEL")
    if active.before is None:
        raise InputError(f"collection {collection.name!r}: the vector before the last switch was retired already")
    return active, active.before


def find_state(
    schema: CollectionSchema, new: VectorContract, old: VectorContract | None, vector_name: str | None = None
) -> SwitchState:
    """Return the vectors of a switch to a model, and the first stage that is not done.

    Raises:
        InputError: The collection does not show which vector readers search, or it has only that of the new model.
    """
    active = schema.active
    if active is not None and active.now.fingerprint == new.fingerprint:
        is_learned = schema.searches_only(active.now.vector, new.fingerprint)
        return SwitchState("watch", active.before, active.now, is_learned)
    made = sorted(schema.all_made_by(new.fingerprint), key=schema.is_beside)
    if active is not None and active.before is not None and active.before.vector in made:
        made = [active.before.vector]  # rolled back from it
    to = SearchedVector(made[0] if made else _free_name(schema, new), new.model, new.fingerprint)
    before = active.now if active is not None else _searched(schema, to, old, vector_name)
    if vector_name not in (None, before.vector):
        raise InputError(f"readers of collection {schema.name!r} search vector {before.vector!r}, not {vector_name!r}")
    is_whole = bool(made) and not schema.is_being_added(to.vector)
    is_learned = before.vector == to.vector or schema.searches_only(to.vector, new.fingerprint)
    return SwitchState("compare" if is_whole else "backfill", before, to, is_learned)


def _searched(
    schema: CollectionSchema, to: SearchedVector, old: VectorContract | None, vector_name: str | None
) -> SearchedVector:
    """Return the vector that readers search in a collection that was not switched yet."""
    if old is not None and old.fingerprint != to.fingerprint:
        for name in sorted(schema.all_made_by(old.fingerprint), key=schema.is_beside):
            if vector_name in (None, name):
                return SearchedVector(name, old.model, old.fingerprint)
    is_learned = to.vector in schema.learned_by(to.fingerprint or "")
    single = [name for name, params in schema.dense.items() if params.multivector_config is None]
    names = [to.vector] if is_learned else [name for name in single if name != to.vector]
    if vector_name is not None:
        require_vector(schema, vector_name)
        names = [name for name in names if name == vector_name]
    if not names:
        raise InputError(
            f"collection {schema.name!r} has no dense vector of another model than {to.model}, from which readers "
            "could be switched"
        )
    if len(names) > 1:
        there = ", ".join(repr(name) if name else "(unnamed)" for name in sorted(names))
        raise InputError(
            f"collection {schema.name!r} has the vectors {there}, and nothing says which one readers search; give the "
            "model that they use now with --model, or the vector with --vector-name ('' is the unnamed one)"
        )
    made = schema.contracts.get(names[0])
    if isinstance(made, VectorContract):
        return SearchedVector(names[0], made.model, made.fingerprint)
    return SearchedVector(names[0])


def _free_name(schema: CollectionSchema, new: VectorContract) -> str:
    """Return the name of the new vector: the model's, or with a part of its fingerprint where another has that name."""
    begun = schema.contracts.get(new.model)
    is_taken = schema.has_vector(new.model) if begun is None else begun.fingerprint != new.fingerprint
    return f"{new.model}-{new.fingerprint[:8]}" if is_taken else new.model


def _attach(
    target: Collection, model: NewModel, state: SwitchState, on_progress: OnProgress
) -> tuple[AttachReport, int]:
    """Write the new vector until other programs have left nothing behind; return the points that still lack it."""
    settings = AttachSettings(text_field=_text_field(target.schema, state))
    for number in range(_PASSES):
        report = attach_vector(target, model, vector_name=state.to.vector, settings=settings, on_progress=on_progress)
        lacking = 0 if state.before is None else _lacking(target, state.before, state.to)
        if not lacking or not report.encoded or number + 1 == _PASSES:
            break
    return report, lacking


def _text_field(schema: CollectionSchema, state: SwitchState) -> str | None:
    """Return the recorded payload field of the texts: a new vector is made of the field of the one before."""
    known = state.to if state.before is None or state.to.vector in schema.contracts else state.before
    return schema.text_field(known.vector)


def _lacking(target: Collection, present: SearchedVector, missing: SearchedVector) -> int:
    """Return the number of points that have one vector and not another one."""
    if present.vector not in target.refresh().dense:
        return 0
    has, lacks = (models.HasVectorCondition(has_vector=searched.vector) for searched in (present, missing))
    if target.limits.conditions > 1:
        return target.count(models.Filter(must=[has], must_not=[lacks]))
    without, name = models.Filter(must_not=[lacks]), present.vector
    pages = target.scroll("looking for other vectors", where=without, payload=False, vectors=[name])
    return sum(name in vectors_of(record) for page in pages for record in page)


def _outdated(target: Collection, name: str) -> int:
    """Return the number of points whose vector was made of another text than they have now; all payloads are read."""
    made, payloads = target.schema.contracts.get(name), sample_payloads(target)
    if not isinstance(made, VectorContract) or not payloads:
        return 0
    report = VerifyReport(target.name, name, made.fingerprint, name in target.schema.attached)
    layout = guess_layout(payloads, text_field=target.schema.text_field(name))
    count_points(target, report, layout, [made.fingerprint], 0)
    return report.outdated


def _references(
    target: Collection, state: SwitchState, old: QueryModel | None, questions: str | Path | None
) -> tuple[QueryModel | None, KnownLabels | None]:
    """Return the model of the vector before, if it was given, and the judged questions."""
    assert state.before is not None, "a switch has a vector before"
    known = old if old is not None and old.contract().fingerprint == state.before.fingerprint else None
    if questions is None:
        return known, None
    field = _text_field(target.schema, state)
    return known, read_questions(target, Path(questions), state.before.vector, text_field=field)


def _why_incomparable(
    schema: CollectionSchema, state: SwitchState, old: QueryModel | None, judged: KnownLabels | None
) -> str | None:
    """Return why a switch could not be judged, before anything is written; None where it can be."""
    assert state.before is not None, "a switch has a vector before"
    learned = {contract.fingerprint: contract.model for contract in schema.learned.values()}
    taught = [learned[side.fingerprint] for side in (state.before, state.to) if side.fingerprint in learned]
    if judged is None and taught:
        reason = (
            f"{taught[0]} was learned from the questions that could be made of it, and finds them better than real "
            "ones. Give judged questions with --questions"
        )
    elif old is None and (judged is None or judged.questions.vectors is None):
        reason = (
            f"{state.before.model} makes the queries of vector {state.before.vector!r}, and it was not given. Give it "
            "with --model, or its vectors with --questions"
        )
    else:
        return None
    return f"collection {schema.name!r} cannot be compared: {reason}"


def _compare(
    target: Collection,
    state: SwitchState,
    model: QueryModel,
    old: QueryModel | None,
    judged: KnownLabels | None,
    on_progress: OnProgress,
) -> Comparison | None:
    """Compare the models; None where neither the old one nor its query vectors are known."""
    assert state.before is not None, "a switch has a vector before"
    before, after = state.before.vector, state.to.vector
    if old is None and (judged is None or judged.questions.vectors is None):
        return None
    kind: Kind = "made of the collection" if judged is None else "judged"
    labels = judged or make_questions(target, [before, after], text_field=_text_field(target.schema, state))
    return compare_models(target, labels, kind, [(before, old), (after, model)], on_progress)


def _require_pass(collection: str, comparison: Comparison) -> None:
    stay = "Readers stay where they are; --accept REASON switches them"
    if comparison.verdict == "refuse":
        raise NotSwitched(f"collection {collection!r}: the new model is worse. {stay}")
    if comparison.needed is not None:
        raise NotSwitched(
            f"collection {collection!r}: {counted(comparison.questions, 'question')} about "
            f"{counted(comparison.documents, 'document')} cannot tell whether the new model is as good; about "
            f"{comparison.needed:,} would, each about another one. {stay}"
        )


def _evidence(comparison: Comparison | None, accept: str | None) -> dict[str, str]:
    """Return what the record says of the comparison, as text: a server may change the last bit of a number."""
    evidence = {} if accept is None else {"accepted": accept}
    if comparison is None:
        return evidence
    difference = comparison.difference
    return evidence | {
        "verdict": comparison.verdict,
        "questions": f"{comparison.questions} {comparison.kind}, about {counted(comparison.documents, 'document')}",
        "ndcg_at_10_difference": f"{difference.mean:+.4f} ({difference.low:+.4f} to {difference.high:+.4f})",
    }
