"""``care verify``: check the vectors of a collection against its model records."""

from typing import TYPE_CHECKING

import click

from care_qdrant.console.groups import CONTEXT, GroupedCommand
from care_qdrant.console.options import LoadModel, Target, json_option, model_options, target_options
from care_qdrant.console.reports import show_report
from care_qdrant.console.text import echo
from care_qdrant.errors import counted

if TYPE_CHECKING:
    from care_qdrant.vectors.verify_report import VerifyReport


@click.command(
    name="verify",
    cls=GroupedCommand,
    context_settings=CONTEXT,
    groups={
        "Options": ["model", "device", "path", "url", "vector_name", "text_field", "as_json"],
        "Engine": ["engine", "endpoints"],
    },
)
@click.argument("collection")
@click.option("--vector-name", help="Vector to check.  [default: all vectors that care made]")
@click.option("--text-field", help="Payload field with the text.  [default: the one that attach read, or guessed]")
@target_options
@model_options(documents=True)
@json_option
def command(
    collection: str,
    vector_name: str | None,
    text_field: str | None,
    target: Target,
    load_model: LoadModel,
    as_json: bool,
) -> None:
    """Check the vectors that care made in COLLECTION, and write nothing.

    It counts the points with each vector, compares the hash of each text, re-encodes a sample, and searches for
    each sampled document by its first words. For vectors of another model than --model, it only counts and compares.
    If something is wrong, or the collection has no points, the exit code is 5. --json prints every count.

    \b
    Example:
      care verify articles --url http://localhost:6333
      care verify articles --url http://localhost:6333 --vector-name bm25
    """
    from care_qdrant.errors import NotVerified
    from care_qdrant.qdrant.collection import Collection
    from care_qdrant.vectors.verify import verify_collection

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
