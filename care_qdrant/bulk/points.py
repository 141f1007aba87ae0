"""Plans a job over a live collection: texts without a current vector become units, and their parts become vectors.

Only the planner reads the collection, and writes the texts of each unit into the job: workers need no database, and
concurrent writes change no unit. A loader writes the vector of a point only if its text is still the part's, so a job
of any age does no harm; points that were added or edited since are left to `care attach` or to another plan.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from care_qdrant.bulk.job import MANIFEST, Job, Manifest
from care_qdrant.bulk.slices import Plan, list_slices
from care_qdrant.bulk.units import require_same
from care_qdrant.contracts.layouts import Layout
from care_qdrant.encoders import TokenCounter
from care_qdrant.errors import InputError, UnusableText
from care_qdrant.qdrant.collection import Collection
from care_qdrant.vectors.points import stored_text
from care_qdrant.vectors.preflight import examine

SAMPLED = 1_024
"""Number of points whose texts are sampled to estimate tokens."""


def plan_points(
    target: Collection,
    job: Job,
    draft: Manifest,
    counter: TokenCounter,
    *,
    text_field: str | None = None,
    on_progress: Callable[[int], None] = lambda _: None,
) -> Manifest:
    """Write the texts of the points that lack the model's vector into a job; planning again adds what is new.

    Args:
        target: The collection.
        job: The folder of the job, new or of an earlier plan.
        draft: The manifest without its units.
        counter: The tokenizer of the document encoder, for estimates.
        text_field: Payload field with the text; None takes the one of the earlier plan, or guesses.
        on_progress: Called with the number of points that were read.
    """
    former = job.manifest() if job.read(MANIFEST) is not None else None
    field = text_field or (former.text_field if former is not None else None)
    preflight = examine(target, draft.vector_name, draft.contract, field)
    layout = preflight.require_layout()
    draft = replace(draft, collection=target.name, text_field=layout.text_field, overflow="truncate")
    if former is not None:
        require_same(former, draft, job.url, sparse=False)
    plan = Plan(job, draft, layout, _tokens_per_character(target, layout, counter))
    new = list_slices(plan, target, preflight.points, on_progress)
    units = former.units if former is not None else ()
    if not units and not new:
        raise InputError(
            f"collection {target.name!r}: every point with a text has vector {draft.vector_name!r} of it, so there is "
            "nothing to do"
        )
    manifest = replace(draft, units=(*units, *new))
    job.write_manifest(manifest)
    plan.forget_slices()
    return manifest


def _tokens_per_character(target: Collection, layout: Layout, counter: TokenCounter) -> float:
    """Return the tokens per character of the texts of sampled points, those left out that the model cannot read."""
    payloads = [record.payload or {} for record in target.sample(SAMPLED)]
    tokens = characters = 0
    for payload in payloads:
        if layout.of_point(payload).find_text(payload):
            with suppress(UnusableText):  # which its worker rejects
                text = stored_text(layout, payload)
                tokens += counter.count_tokens([text])[0]
                characters += len(text)
    return tokens / max(1, characters)
