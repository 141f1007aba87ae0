"""``care verify``: check that the vectors of a collection are what its contract says."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import click

from care_qdrant.console.groups import CONTEXT, GroupedCommand
from care_qdrant.console.options import Target, model_options, sparse_option, target_options
from care_qdrant.console.reports import show_report

if TYPE_CHECKING:
    from care_qdrant.model.pair import CareModel


@click.command(
    name="verify",
    cls=GroupedCommand,
    context_settings=CONTEXT,
    groups={
        "Options": ["model", "engine_words", "path", "url", "sparse", "vector_name", "text_field"],
    },
)
@click.argument("collection")
@sparse_option
@click.option("--vector-name", help="Vector to check.  [default: the one that the model made]")
@click.option("--text-field", help="Payload field with the text.  [default: where attach read it, or guessed]")
@target_options
@model_options(documents=True)
def command(
    collection: str,
    sparse: str | None,
    vector_name: str | None,
    text_field: str | None,
    target: Target,
    load_model: "Callable[[], CareModel]",
) -> None:
    """Check the vectors that the model made in COLLECTION, and write nothing.

    It counts the points that have the vector, compares the hash of each text, encodes a sample again, and searches
    for each sampled document by its own opening. The report is JSON in a pipe; anything wrong gives exit code 5, and so
    does a collection without points, of which nothing can be checked.

    \b
    Example:
      care verify articles --url http://localhost:6333
      care verify articles --url http://localhost:6333 --sparse bm25
    """
    from care_qdrant.errors import NotVerified
    from care_qdrant.index.verify import verify_bm25, verify_collection

    verify = verify_bm25 if sparse is not None else partial(verify_collection, model=load_model())
    with target.open() as client:
        report = verify(client, collection, vector_name=vector_name, text_field=text_field)
    show_report(report)
    if report.problems:
        raise NotVerified(f"collection {report.collection!r}: " + "; ".join(report.problems))
