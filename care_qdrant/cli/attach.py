"""``care attach``: add a model's vector to the points of a collection in use."""

import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from care_qdrant.console.groups import CONTEXT, GroupedCommand
from care_qdrant.console.logs import bars_cleared
from care_qdrant.console.options import (
    BATCHES,
    PATIENCE,
    FiniteRange,
    LoadModel,
    Target,
    any_language_option,
    batch_tokens,
    bm25_language_option,
    deletion_option,
    json_option,
    model_options,
    quantization_option,
    retries,
    settings_of,
    target_options,
)
from care_qdrant.console.reports import search_command, show_json, show_report
from care_qdrant.console.text import echo
from care_qdrant.errors import counted

if TYPE_CHECKING:
    from care_qdrant.model.care_model import CareModel
    from care_qdrant.qdrant.retry import RetryPolicy
    from care_qdrant.vectors.attach import AttachReport, AttachSettings
    from care_qdrant.vectors.attach_plan import AttachPlan
    from care_qdrant.vectors.preflight import Preflight


@click.command(
    name="attach",
    cls=GroupedCommand,
    context_settings=CONTEXT,
    environment=BATCHES | PATIENCE,
    groups={
        "Options": [
            "model",
            "bm25",
            "device",
            "endpoints",
            "path",
            "url",
            "vector_name",
            "text_field",
            "dry_run",
            "watch_seconds",
            "as_json",
        ],
        "Engine": ["engine"],
        "Deletion": ["max_delete_fraction"],
        "New vector": ["quantization", "on_disk", "any_language", "bm25_language"],
    },
)
@click.argument("collection")
@click.option("--bm25", is_flag=True, help="Add BM25, for hybrid search, instead of the model's vector.")
@click.option("--vector-name", help="Name of the vector to add.  [default: the model's name, or bm25]")
@click.option(
    "--text-field",
    help="Payload field with the text, such as body or document.body.  [default: the one used before, or guessed]",
)
@deletion_option("Largest fraction of the vectors that may be removed because their points have no text any more.")
@quantization_option
@click.option("--on-disk", is_flag=True, help="Keep the new vectors on disk.")
@any_language_option
@bm25_language_option
@click.option(
    "--dry-run", is_flag=True, help="Write nothing; show what would be done, its cost, and what would be refused."
)
@click.option(
    "--watch",
    "watch_seconds",
    metavar="SECONDS",
    type=FiniteRange(0, min_open=True),
    help="Run until SIGTERM or Ctrl-C, with a pause of SECONDS after each pass. With --json, each pass prints one "
    "line.  [default: one pass]",
)
@target_options
@model_options(documents=True)
@json_option
def command(
    collection: str,
    bm25: bool,
    vector_name: str | None,
    dry_run: bool,
    watch_seconds: float | None,
    target: Target,
    load_model: LoadModel,
    as_json: bool,
    **options: Any,
) -> None:
    """Add a vector of the model to every point of COLLECTION, made from the text in its payload.

    The collection stays in use. Other vectors and payloads are not changed, except for the key _care, which holds the
    hash of each text. Run the command again after an interruption or from cron: it encodes only new and changed texts.
    `care detach` removes the vector and the key. For hybrid search, run it once with the model and once with --bm25.
    With --dry-run the exit code is 2 where the command would be refused.

    \b
    Example:
      care attach articles --url http://localhost:6333 --dry-run
      care attach articles --url http://localhost:6333
      care attach articles --url http://localhost:6333 --bm25
      care attach articles --url http://localhost:6333 --watch 60
    """
    from care_qdrant.progress import points_bar
    from care_qdrant.qdrant.collection import Collection
    from care_qdrant.vectors.attach import AttachSettings, attach_vector

    if dry_run and watch_seconds is not None:
        raise click.UsageError("--dry-run does not go with --watch: leave one out")
    settings = settings_of(AttachSettings, options, batch_tokens=batch_tokens())
    policy = retries()
    model = None if bm25 else load_model()
    if dry_run:
        _plan(target, collection, model, settings, vector_name, as_json)
        return
    attach: Callable[..., AttachReport] = partial(
        attach_vector, model=model, vector_name=vector_name, settings=settings
    )
    if watch_seconds is not None:
        _watch(target, collection, model, attach, policy, watch_seconds, as_json)
        return
    with target.open() as client, points_bar(collection) as show:
        report = attach(Collection(client, collection, policy), on_preflight=_tell, on_progress=show)
    show_report(report, as_json=as_json)
    if not (as_json or bm25):
        echo(f"next: {search_command(collection, target)}")
    _warn(report, model)
    if not report.points:
        echo("the collection has no points at the moment, so there was nothing to do", err=True)
    if report.covered + report.without_text < report.points:
        echo("points were added or changed meanwhile: run the same command again", err=True)


def _plan(
    target: Target,
    collection: str,
    model: "CareModel | None",
    settings: "AttachSettings",
    vector_name: str | None,
    as_json: bool,
) -> None:
    """Show what the command would do, and end with the exit code of a refusal."""
    from care_qdrant.errors import InputError
    from care_qdrant.qdrant.collection import Collection
    from care_qdrant.vectors.attach_plan import plan_attach

    with target.open() as client:
        plan = plan_attach(
            Collection(client, collection, retries()),
            model,
            vector_name=vector_name,
            text_field=settings.text_field,
            any_language=settings.any_language,
            bm25_language=settings.bm25_language,
        )
    if as_json:
        show_json(asdict(plan))
    else:
        echo("\n".join(plan_lines(plan)))
    if plan.refusals:
        sys.exit(InputError.exit_code)


def plan_lines(plan: "AttachPlan", price: float | None = None) -> Iterator[str]:
    """Return the plan of an attach as lines, with the cost at a price of a million tokens."""
    if plan.tool is not None:
        yield f"texts: payloads of {plan.tool}, field {plan.text_field!r}"
    if plan.sampled_without_text:
        lacking = counted(plan.sampled_without_text, "sampled point", "have", of=plan.sampled)
        yield f"{lacking} no text and would get no vector"
    if plan.refusals:
        yield f"care attach {plan.collection} would be refused:"
        yield from (f"  - {refusal}" for refusal in plan.refusals)
    else:
        size = "" if plan.new_bytes is None else f": {plan.new_bytes / 1e6:,.1f} MB"
        if plan.new_tokens is not None:
            size += f", about {plan.new_tokens:,} tokens"
            size += "" if price is None else f" for {price * plan.new_tokens / 1e6:,.2f}"
        yield (
            f"care attach {plan.collection} would add vector {plan.vector_name!r} of {plan.model} to at most "
            f"{counted(plan.points_to_encode, 'point')}{size}"
        )
    yield from (f"note: {notice}" for notice in plan.notices)


def _watch(
    target: Target,
    collection: str,
    model: "CareModel | None",
    attach: Callable[..., "AttachReport"],
    policy: "RetryPolicy",
    seconds: float,
    as_json: bool,
) -> None:
    """Attach again and again, until a signal."""
    from care_qdrant.console.watching import passes
    from care_qdrant.qdrant.collection import Collection
    from care_qdrant.vectors.attach import WATCHING

    # The next pass retries, and a signal must not wait for minutes.
    policy = replace(policy, attempts=WATCHING.attempts)

    def run_pass(stop: threading.Event) -> "AttachReport":
        with target.open() as client:
            return attach(Collection(client, collection, policy), stop=stop)

    for report in passes(run_pass, seconds):
        show_report(report, as_json=as_json)
        _warn(report, model)


def _warn(report: "AttachReport", model: "CareModel | None") -> None:
    from care_qdrant.vectors.points import other_field_warning, unreadable_warning

    others = other_field_warning(report.points, report.in_other_field, report.text_field)
    cut = None
    if model is not None and report.truncated:
        cut = (
            f"{report.truncated:,} of {report.encoded:,} texts are longer than the "
            f"{model.document_tokenizer.max_tokens:,} tokens that the encoder reads; the rest of them is only found by "
            "BM25 (care attach --bm25). care ingest cuts texts into chunks that the encoder reads whole"
        )
    for warning in filter(None, (others, unreadable_warning(report.unreadable), cut)):
        echo(f"warning: {warning}", err=True)


def _tell(preflight: "Preflight") -> None:
    with bars_cleared():
        if preflight.layout is not None:
            echo(f"{preflight.layout.tool} payloads: {preflight.layout.evidence}", err=True)
        for notice in preflight.notices:
            echo(f"note: {notice}", err=True)
