"""``care verify``: check the vectors of a collection against its model records."""

import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from care_qdrant.console.groups import CONTEXT, GroupedCommand
from care_qdrant.console.options import (
    FiniteRange,
    LoadModel,
    Target,
    json_option,
    model_options,
    target_options,
    typed_model,
)
from care_qdrant.console.reports import show_report
from care_qdrant.console.text import echo
from care_qdrant.errors import counted

if TYPE_CHECKING:
    from care_qdrant.vectors.verify_report import VerifyReport
    from care_qdrant.vectors.watch import WatchReport


WATCH_GAUGES = {
    "care_watch_alarm": "1 while another model seems to have made vectors, else 0.",
    "care_watch_points": "Points of the collection.",
    "care_watch_judged": "New and rewritten points that the last check judged.",
    "care_watch_agreement": "Mean agreement of their vectors with their texts, about 0 for vectors of another model.",
    "care_watch_expected": "Mean agreement of the reference points.",
    "care_watch_recall_at_10": "Fraction of the ten exact neighbours that the graph finds.",
    "care_watch_checked_seconds": "Unix time of the last check.",
}


@click.command(
    name="verify",
    cls=GroupedCommand,
    context_settings=CONTEXT,
    groups={
        "Options": ["model", "device", "path", "url", "vector_name", "text_field", "as_json"],
        "Watching": ["watch_seconds", "state_file", "metrics_port"],
        "Engine": ["engine", "endpoints"],
    },
)
@click.argument("collection")
@click.option("--vector-name", help="Vector to check.  [default: all vectors that care made]")
@click.option("--text-field", help="Payload field with the text.  [default: the one that attach read, or guessed]")
@click.option(
    "--every",
    "watch_seconds",
    type=FiniteRange(0, min_open=True),
    metavar="SECONDS",
    help="Run until SIGTERM or Ctrl-C: every SECONDS, judge new vectors by the words of their texts. With --json, each "
    "check prints one line.  [default: verify once]",
)
@click.option(
    "--state",
    "state_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File that keeps the reference between programs. Without --every, check once.  [default: kept in memory]",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(1, 65535),
    help="Port of /metrics for Prometheus, on loopback, with --every.  [default: none]",
)
@target_options
@model_options(documents=True)
@json_option
def command(
    collection: str,
    vector_name: str | None,
    text_field: str | None,
    watch_seconds: float | None,
    state_file: Path | None,
    metrics_port: int | None,
    target: Target,
    load_model: LoadModel,
    as_json: bool,
) -> None:
    """Check the vectors that care made in COLLECTION, and write nothing.

    It counts the points with each vector, compares the hash of each text, re-encodes a sample, and searches for
    each sampled document by its first words. For vectors of another model than --model, it only counts and compares.
    If something is wrong, or the collection has no points, the exit code is 5. --json prints every count.

    With --every or --state, it watches one dense vector, written by any tool, without a model: whether the vectors of
    new points agree with their texts as those of reference points do. If those of eight points do not, another model
    made them: an alarm on stderr, or exit code 5 without --every. A key that may only read is enough.

    \b
    Example:
      care verify articles --url http://localhost:6333
      care verify articles --url http://localhost:6333 --vector-name bm25
      care verify articles --url http://localhost:6333 --every 600
    """
    from care_qdrant.console.watching import passes
    from care_qdrant.errors import NotVerified
    from care_qdrant.qdrant.collection import Collection
    from care_qdrant.vectors.verify import verify_collection
    from care_qdrant.vectors.watch import Watch

    if metrics_port is not None and watch_seconds is None:
        raise click.UsageError("--metrics-port goes with --every: give both, or neither")
    if watch_seconds is not None or state_file is not None:
        if typed_model() is not None:
            raise click.UsageError("--every and --state compare texts with vectors, without a model: leave --model out")
        watch = Watch(vector_name, text_field, state_file)

        def check(_stop: object = None) -> "WatchReport":
            with target.open() as client:
                return watch.check(Collection(client, collection))

        _watch([check()] if watch_seconds is None else passes(check, watch_seconds), metrics_port, as_json)
        return
    with target.open() as client:
        place = Collection(client, collection)
        is_bm25 = vector_name is not None and vector_name in place.resolve().schema.sparse
        model = None if is_bm25 else load_model()
        report = verify_collection(place, model, vector_name=vector_name, text_field=text_field)
    if as_json:
        show_report(report, as_json=True)
    else:
        echo("\n".join(map(_line, (report, *report.others))))
    for other in report.others:
        if not other.sampled and other.covered:
            echo(
                f"note: another model made vector {other.vector_name!r}, so no sample of it was re-encoded; give "
                f"that model with --model, and --vector-name {other.vector_name}",
                err=True,
            )
    if report.problems:
        raise NotVerified(f"collection {report.collection!r}: " + "; ".join(report.problems))
    if not as_json:
        echo(f"OK: {counted(report.points, 'point')}, {counted(1 + len(report.others), 'vector')}")


def _line(report: "VerifyReport") -> str:
    """Return the summary line of one vector, without the faults that it does not have."""
    counts = {
        "without it": report.without_vector,
        "of an earlier text": report.outdated,
        "of a text that is gone": report.text_gone,
        "by a learned encoder that stands in": report.stand_ins,
        "by another program": report.written_by_others,
        "whose text is in another field": report.in_other_field,
    }
    parts = [counted(report.covered, "point", "have") + " it"]
    parts += [f"{count:,} {what}" for what, count in counts.items() if count]
    if report.lowest_cosine is not None:
        parts.append(f"{report.sampled} re-encoded: lowest cosine {report.lowest_cosine:.4f}")
    if report.known_items is not None:
        parts.append(f"searching by their opening words found {report.known_items:.0%}")
    if report.recall_at_10 is not None:
        parts.append(f"the graph finds {report.recall_at_10:.1%} of the exact nearest ten")
    if report.rescoring is not None:
        parts.append(
            f"quantised: {report.rescoring.overlap_at_10:.1%} of the nearest ten with oversampling "
            f"{report.rescoring.oversampling:g}"
        )
    return f"{report.vector_name or 'the unnamed vector'}: {', '.join(parts)}"


def _watch(reports: "Iterable[WatchReport]", metrics_port: int | None, as_json: bool) -> None:
    """Show what checks find: a single one, whose alarm is an error, or those of a loop."""
    from care_qdrant.errors import NotVerified

    export = None if metrics_port is None else _exporter(metrics_port)
    for report in reports:
        if as_json:
            show_report(report, as_json=True)
        else:
            agreement, recall = report.agreement, report.recall_at_10
            judged = "" if agreement is None else f", agreement with their texts {agreement:.1f}"
            nearest = "" if recall is None else f"; the graph finds {recall:.1%} of the nearest ten"
            echo(
                f"{counted(report.points, 'point')}: {report.new:,} new, {report.rewritten:,} rewritten; "
                f"{report.judged:,} judged{judged} (reference points {report.expected:.1f}){nearest}"
            )
        if export is not None:
            export(report)
        if report.alarm:
            alarm = (
                f"vector {report.vector_name!r} of collection {report.collection!r}: the vectors of "
                f"{counted(len(report.suspects), 'point')} (such as {report.suspects[0]!r}) do not belong to their "
                "texts, so another model has made them, or their texts are others: write them again with the first "
                "model. If it was changed on purpose, for all points, begin with a new --state"
            )
            if isinstance(reports, list):
                raise NotVerified(alarm)
            echo(f"alarm: {alarm}", err=True)


def _exporter(port: int) -> "Callable[[WatchReport], None]":
    """Start a server of /metrics on loopback, and return the function that shows it a report."""
    from care_qdrant.errors import InputError, needs_extra

    with needs_extra("serve", "--metrics-port"):
        from prometheus_client import CollectorRegistry, Gauge, start_http_server
    registry, labels = CollectorRegistry(), ("collection", "vector")
    gauges = {name: Gauge(name, what, labels, registry=registry) for name, what in WATCH_GAUGES.items()}
    try:
        start_http_server(port, addr="127.0.0.1", registry=registry)
    except OSError as error:
        raise InputError(f"--metrics-port {port}: {error.strerror}; give another one") from error

    def export(report: "WatchReport") -> None:
        for name, gauge in gauges.items():
            value = getattr(report, name.removeprefix("care_watch_"), time.time())
            gauge.labels(report.collection, report.vector_name).set(math.nan if value is None else value)

    return export
