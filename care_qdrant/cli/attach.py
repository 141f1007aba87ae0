"""``care attach``: add a model's vector beside those that a collection has."""

import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import click

from care_qdrant.console.groups import CONTEXT, GroupedCommand
from care_qdrant.console.logs import bars_cleared
from care_qdrant.console.options import (
    LoadModel,
    Target,
    batch_tokens,
    bm25_option,
    deletion_option,
    model_options,
    quantization_option,
    retries,
    settings_of,
    target_options,
)
from care_qdrant.console.reports import search_command, show_report

if TYPE_CHECKING:
    from care_qdrant.qdrant.retry import RetryPolicy
    from care_qdrant.vectors.attach import AttachReport
    from care_qdrant.vectors.copy_plan import CopyPlan
    from care_qdrant.vectors.preflight import Preflight


@click.command(
    name="attach",
    cls=GroupedCommand,
    context_settings=CONTEXT,
    groups={
        "Options": ["model", "engine_words", "path", "url", "sparse", "vector_name", "text_field", "watch_seconds"],
        "Deletion": ["max_delete_fraction"],
        "New vector": ["quantization", "on_disk"],
        "Copy behind an alias, for servers before 1.18": ["via", "alias"],
    },
)
@click.argument("collection")
@bm25_option("BM25 of the texts, for hybrid search, instead of the model's vector; needs no model.  [default: off]")
@click.option("--vector-name", help="Name of the vector to add.  [default: the model's name, or bm25]")
@click.option(
    "--text-field",
    help="Payload field with the text, as body or document.body.  [default: the one used before, or guessed]",
)
@deletion_option("Largest fraction of the vectors that may be removed because their points have no text any more.")
@quantization_option(
    "Quantization of the new vector: a copy of 1/4 (int8) to 1/32 (binary) of its size is searched first."
)
@click.option("--on-disk", is_flag=True, help="Keep the new vectors on disk.")
@click.option(
    "--watch",
    "watch_seconds",
    type=click.FloatRange(0),
    help="Run until SIGTERM or Ctrl-C, waiting this many seconds after each pass.  [default: one pass]",
)
@click.option(
    "--via",
    type=click.Choice(["in-place", "copy"]),
    default="in-place",
    show_default=True,
    help="Where to add the vector: in the collection, or in a copy of it behind an alias.",
)
@click.option(
    "--as", "alias", help="Alias to switch to the copy, with --via copy.  [default: COLLECTION, where it is an alias]"
)
@target_options
@model_options(documents=True)
def command(
    collection: str,
    sparse: bool,
    vector_name: str | None,
    watch_seconds: float | None,
    via: Literal["in-place", "copy"],
    alias: str | None,
    target: Target,
    load_model: LoadModel,
    **options: Any,
) -> None:
    """Add to every point of COLLECTION a vector of the model, made of the text in its payload.

    The collection stays in use. Its other vectors and its payloads are not changed, except for one key _care with the
    hash of each text. Run it again after an interruption, or from cron: it encodes what is new or has changed, and
    nothing else; --watch does so until SIGTERM or Ctrl-C. care detach removes everything again. The report on stdout is
    a summary on a terminal and one line of JSON in a pipe, with --watch one for each pass. With --sparse bm25 the
    vector is BM25 instead of the model's: run both for hybrid search.

    \b
    Example:
      care doctor articles --url http://localhost:6333
      care attach articles --url http://localhost:6333
      care attach articles --url http://localhost:6333 --sparse bm25
      care attach articles --url http://localhost:6333 --watch 60
      care attach articles --url http://localhost:6333 --via copy --as articles-live
    """
    from care_qdrant.progress import points_bar
    from care_qdrant.qdrant.collection import Collection
    from care_qdrant.vectors.attach import AttachSettings, attach_vector
    from care_qdrant.versions.attach_by_copy import attach_by_copy

    if via == "copy" and watch_seconds is not None:
        raise click.UsageError(
            "--watch follows a collection that has the vector: give it the alias, without --via copy"
        )
    if alias is not None and via != "copy":
        raise click.UsageError("--as names the alias of a copy: give --via copy, too")
    if via == "copy" and sparse:
        raise click.UsageError("--sparse adds BM25 to a collection itself: leave out --via copy")
    settings = settings_of(AttachSettings, options, batch_tokens=batch_tokens())
    policy = retries()
    model = None if sparse else load_model()
    given: dict[str, Any] = {"model": model, "vector_name": vector_name, "settings": settings}
    attach: Callable[..., Any] = partial(attach_vector, **given)
    if watch_seconds is not None:
        _watch(target, collection, attach, policy, watch_seconds)
        return
    if via == "copy":
        attach = partial(attach_by_copy, **given, alias=alias, on_plan=_tell_plan)
    with target.open() as client, points_bar(collection) as show:
        report = attach(Collection(client, collection, policy), on_preflight=_tell, on_progress=show)
    show_report(report)
    attached: AttachReport = report.attached if via == "copy" else report
    if sys.stdout.isatty() and not sparse:
        click.echo(f"next: {search_command(alias or collection, target)}")
    _warn(attached)
    if not attached.points:
        click.echo("the collection has no points at the moment, so there was nothing to do", err=True)
    if attached.covered + attached.without_text < attached.points:
        click.echo("points were added or changed meanwhile: run the same command again", err=True)


def _watch(
    target: Target, collection: str, attach: Callable[..., "AttachReport"], policy: "RetryPolicy", seconds: float
) -> None:
    """Attach again and again, until a signal."""
    from care_qdrant.console.watching import passes
    from care_qdrant.qdrant.collection import Collection
    from care_qdrant.vectors.attach import WATCHING

    # The next pass goes on, and a signal must not wait for minutes.
    policy = replace(policy, attempts=WATCHING.attempts)

    def run_pass(stop: threading.Event) -> "AttachReport":
        with target.open() as client:
            return attach(Collection(client, collection, policy), stop=stop)

    for report in passes(run_pass, seconds):
        show_report(report)
        _warn(report)


def _warn(report: "AttachReport") -> None:
    from care_qdrant.vectors.points import other_field_warning, unreadable_warning

    others = other_field_warning(report.points, report.in_other_field, report.text_field)
    for warning in filter(None, (others, unreadable_warning(report.unreadable))):
        click.echo(f"warning: {warning}", err=True)


def _tell(preflight: "Preflight") -> None:
    with bars_cleared():
        if preflight.layout is not None:
            click.echo(f"{preflight.layout.tool} payloads: {preflight.layout.evidence}", err=True)
        for notice in preflight.notices:
            click.echo(f"note: {notice}", err=True)


def _tell_plan(plan: "CopyPlan") -> None:
    with bars_cleared():
        for line in plan.lines():
            click.echo(f"plan: {line}", err=True)
