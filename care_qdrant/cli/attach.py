"""``care attach``: a model's vector beside those that a collection has."""

import json
import signal
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Literal

import click

from care_qdrant.cli.options import Target, model_options, target_options

if TYPE_CHECKING:
    from care_qdrant.attach.attach import AttachReport, AttachSettings
    from care_qdrant.attach.copy_plan import CopyPlan
    from care_qdrant.attach.preflight import Preflight
    from care_qdrant.model import CareModel


@click.command(name="attach")
@click.argument("collection")
@click.option("--vector-name", help="Under which name.  [default: the model's name]")
@click.option("--text-field", help="Where a payload has the text, as body or document.body.  [default: guessed]")
@click.option(
    "--quantization",
    type=click.Choice(["int8", "binary", "none"]),
    default="none",
    show_default=True,
    help="Of the new vector: search a smaller copy of it first.",
)
@click.option("--on-disk", is_flag=True, help="Keep the new vectors on disk.")
@click.option("--points-per-second", type=click.FloatRange(0, min_open=True), help="Write no faster than this.")
@click.option("--batch-tokens", type=click.IntRange(1), default=16_384, show_default=True, help="Of one batch.")
@click.option(
    "--watch", "watch_seconds", type=click.FloatRange(0), help="Go on for ever, this many seconds after each pass."
)
@click.option(
    "--via",
    type=click.Choice(["in-place", "copy"]),
    default="in-place",
    show_default=True,
    help="Add the vector to the collection; or, for servers before 1.18, to a copy behind an alias.",
)
@click.option(
    "--as", "alias", help="With --via copy: the alias to switch.  [default: COLLECTION, where it is an alias]"
)
@target_options
@model_options
def command(
    collection: str,
    vector_name: str | None,
    text_field: str | None,
    quantization: str,
    on_disk: bool,
    points_per_second: float | None,
    batch_tokens: int,
    watch_seconds: float | None,
    via: Literal["in-place", "copy"],
    alias: str | None,
    target: Target,
    load_model: "Callable[[], CareModel]",
) -> None:
    """Give every point of COLLECTION a vector of the model, made of the text in its payload.

    The collection stays in use. Its other vectors and its payloads are not touched, but for one key _care with the hash
    of each text. Run it again after an interruption, or from cron: it encodes what is new or has changed, and nothing
    else; --watch does so until SIGTERM or Ctrl-C. care detach takes everything away again. The report is one line of
    JSON on stdout, with --watch one for each pass.

    \b
    Example:
      care doctor articles --url http://localhost:6333
      care attach articles --url http://localhost:6333
      care attach articles --url http://localhost:6333 --watch 60
      care attach articles --url http://localhost:6333 --via copy --as articles-live
    """
    from care_qdrant.attach.attach import AttachSettings

    if via == "copy" and watch_seconds is not None:
        raise click.UsageError(
            "--watch follows a collection that has the vector: give it the alias, without --via copy"
        )
    if alias is not None and via != "copy":
        raise click.UsageError("--as names the alias of a copy: give --via copy, too")
    settings = AttachSettings(
        text_field=text_field,
        quantization=None if quantization == "none" else quantization,
        on_disk=on_disk,
        points_per_second=points_per_second,
        batch_tokens=batch_tokens,
    )
    model = load_model()
    if watch_seconds is not None:
        _watch(target, collection, model, vector_name, settings, watch_seconds)
    elif via == "copy":
        _attach_by_copy(target, collection, model, alias, vector_name, settings)
    else:
        report = _attach(target, collection, model, vector_name, settings)
        click.echo(json.dumps(asdict(report), ensure_ascii=False))
        if report.covered + report.without_text < report.points:
            click.echo("points were added or changed meanwhile: run the same command again", err=True)


def _attach(
    target: Target, collection: str, model: "CareModel", vector_name: str | None, settings: "AttachSettings"
) -> "AttachReport":
    from care_qdrant.attach.attach import attach
    from care_qdrant.progress import points_bar

    with target.open() as client, points_bar(collection) as show:
        return attach(
            client,
            collection,
            model,
            vector_name=vector_name,
            settings=settings,
            on_preflight=_tell,
            on_progress=show,
        )


def _attach_by_copy(
    target: Target,
    collection: str,
    model: "CareModel",
    alias: str | None,
    vector_name: str | None,
    settings: "AttachSettings",
) -> None:
    from care_qdrant.attach.by_copy import attach_by_copy
    from care_qdrant.progress import points_bar

    with target.open() as client, points_bar(collection) as show:
        report = attach_by_copy(
            client,
            collection,
            model,
            alias,
            vector_name=vector_name,
            settings=settings,
            on_plan=_tell_plan,
            on_preflight=_tell,
            on_progress=show,
        )
    click.echo(json.dumps(asdict(report), ensure_ascii=False))


def _watch(
    target: Target,
    collection: str,
    model: "CareModel",
    vector_name: str | None,
    settings: "AttachSettings",
    seconds: float,
) -> None:
    """Attach again and again; the first signal ends it after the batch under way, a second one at once."""
    from care_qdrant.attach.attach import attach
    from care_qdrant.attach.watch import WATCHING, FailedPass, watch

    stop = threading.Event()

    def end(number: int, _frame: object) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)

    def run_pass() -> "AttachReport":
        with target.open() as client:
            return attach(
                client, collection, model, vector_name=vector_name, settings=settings, retries=WATCHING, stop=stop
            )

    for done in watch(run_pass, seconds, stop):
        if isinstance(done, FailedPass):
            click.echo(f"this pass failed, the next one goes on from there: {done.error}", err=True)
        else:
            click.echo(json.dumps(asdict(done), ensure_ascii=False))


def _tell(preflight: "Preflight") -> None:
    if preflight.layout is not None:
        click.echo(f"{preflight.layout.tool} payloads: {preflight.layout.evidence}", err=True)
    for notice in preflight.notices:
        click.echo(f"note: {notice}", err=True)


def _tell_plan(plan: "CopyPlan") -> None:
    for line in plan.lines():
        click.echo(f"plan: {line}", err=True)
