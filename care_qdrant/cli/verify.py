"""``care verify``: check that the vectors of a collection are what its contract says."""

import sys
from dataclasses import replace

import click

from care_qdrant.console.groups import CONTEXT, GroupedCommand
from care_qdrant.console.options import LoadModel, Target, model_options, target_options
from care_qdrant.console.reports import show_report


@click.command(
    name="verify",
    cls=GroupedCommand,
    context_settings=CONTEXT,
    groups={"Options": ["model", "engine_words", "path", "url", "vector_name", "text_field"]},
)
@click.argument("collection")
@click.option("--vector-name", help="The only vector to check, by the model or BM25.  [default: all that care made]")
@click.option("--text-field", help="Payload field with the text.  [default: where attach read it, or guessed]")
@target_options
@model_options(documents=True)
def command(
    collection: str,
    vector_name: str | None,
    text_field: str | None,
    target: Target,
    load_model: LoadModel,
) -> None:
    """Check the vectors that care made in COLLECTION, and write nothing.

    It counts the points that have each vector, compares the hash of each text, encodes a sample again, and searches
    for each sampled document by its own opening; of vectors that another model than --model made, it counts and
    compares alone. The report is JSON in a pipe; anything wrong gives exit code 5, and so does a collection without
    points, of which nothing can be checked.

    \b
    Example:
      care verify articles --url http://localhost:6333
      care verify articles --url http://localhost:6333 --vector-name bm25
    """
    from care_qdrant.errors import NotVerified
    from care_qdrant.qdrant.collection import Collection
    from care_qdrant.vectors.verify import verify_collection

    with target.open() as client:
        is_bm25 = vector_name is not None and vector_name in Collection(client, collection).resolve().schema.sparse
        model = None if is_bm25 else load_model()
        report = verify_collection(client, collection, model, vector_name=vector_name, text_field=text_field)
    on_terminal = sys.stdout.isatty()
    for each in (report, *report.others) if on_terminal else (report,):
        show_report(replace(each, others=[]) if on_terminal else each)
    for other in report.others:
        if not other.sampled and other.covered:
            click.echo(
                f"note: no sample of vector {other.vector_name!r} was encoded, since another model made it: give that "
                f"one with --model, and --vector-name {other.vector_name}",
                err=True,
            )
    if report.problems:
        raise NotVerified(f"collection {report.collection!r}: " + "; ".join(report.problems))
    if on_terminal:
        click.echo("nothing is wrong")
