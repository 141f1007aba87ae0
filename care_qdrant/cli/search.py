"""``care search``: ask a collection."""

import json
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from care_qdrant.console.groups import CONTEXT, GroupedCommand
from care_qdrant.console.options import LoadModel, Target, fallback_option, json_option, model_options, target_options

if TYPE_CHECKING:
    from care_qdrant.qdrant.collection import Collection
    from care_qdrant.search.fallback import Fallback
    from care_qdrant.search.retriever import Mode, Retriever
    from care_qdrant.types import Hit

_EXAMPLES = 3


@click.command(
    name="search",
    cls=GroupedCommand,
    context_settings=CONTEXT,
    groups={
        "Options": ["collection", "model", "path", "url", "mode", "top_k", "conditions", "as_json"],
        "Vectors and fusion": ["vector_name", "alpha", "task", "shard_key", "fallback"],
    },
)
@click.argument("query", required=False)
@click.option("--collection", help="Collection or alias to search.  [default: the only one]")
@click.option(
    "--mode",
    type=click.Choice(["auto", "dense", "sparse", "hybrid"]),
    default="auto",
    show_default=True,
    help="Search by the vectors of the model, by BM25, or by both; auto is hybrid where the collection has BM25.",
)
@click.option("--top-k", type=click.IntRange(1), default=10, show_default=True, help="Number of documents to return.")
@click.option(
    "--filter",
    "conditions",
    multiple=True,
    help="Condition on metadata: key=value, key!=value, key>=number. Repeatable; all must hold.",
)
@click.option("--vector-name", help="Dense vector to search.  [default: the one that the model made]")
@click.option(
    "--alpha",
    type=click.FloatRange(0, 1),
    help="Weight of the dense score in a hybrid search.  [default: as `care learn` recorded it, or 0.5]",
)
@click.option("--task", help="Task whose prompt the query gets; `care model info` lists them.")
@click.option("--shard-key", help="Search the shards of this key alone, as --shard-key of care ingest.")
@fallback_option
@target_options
@model_options()
@json_option
def command(
    query: str | None,
    collection: str | None,
    mode: "Mode",
    top_k: int,
    conditions: tuple[str, ...],
    open_fallback: "Callable[[], Fallback] | None",
    target: Target,
    load_model: LoadModel,
    as_json: bool,
    **options: Any,
) -> None:
    """Print the documents that answer QUERY, best first.

    Without QUERY it asks for one after the other, or reads one a line from a pipe; the model and the collection are
    opened once. An empty line ends it.

    \b
    Example:
      care search
      care search "糖尿病人能吃西瓜吗"
      care search "HbA1c 6.5%" --mode dense --top-k 3 --filter dept=内科 --json
    """
    from care_qdrant.errors import InputError
    from care_qdrant.qdrant.collection import Collection, only_collection
    from care_qdrant.search.conditions import parse_filter, why_nothing
    from care_qdrant.search.retriever import Retriever
    from care_qdrant.search.script import script_note
    from care_qdrant.types import embedded_text

    if query is not None and not query.strip():
        raise InputError("the query is empty")
    _refuse_without_effect("hybrid" if mode == "auto" else mode)
    parse_filter(conditions)  # a slip is said before anything is opened
    with target.open() as client:
        retriever = Retriever(
            client,
            collection := collection or only_collection(client, str(target)),
            None if mode == "sparse" else load_model(),
            mode=mode,
            **options,
            fallback=None if open_fallback is None else open_fallback(),
        )
        schema = retriever.schema
        if (unfinished := schema.unfinished) is not None:
            click.echo(f"note: {unfinished}", err=True)
        conditions_filter = parse_filter(conditions, schema.payload_schema)
        least = None
        for each in _prompted(Collection(client, collection)) if query is None else [query]:
            [hits] = retriever.search([each], top_k, conditions_filter)
            _refuse_without_effect(retriever.mode)
            reason = None
            if not hits and conditions_filter is not None:
                reason = why_nothing(Collection(client, collection), conditions_filter)
            if reason is not None:
                raise InputError(f"--filter: {reason}")
            _show(each, collection, retriever.mode, hits, as_json)
            if (note := script_note(each, (embedded_text(hit.title, hit.text) for hit in hits))) is not None:
                click.echo(f"note: {note}", err=True)
            if hits and sys.stdout.isatty() and not as_json and mode != "sparse" and open_fallback is None:
                least = _floor(retriever, Collection(client, collection)) if least is None else least
                if hits[0].score < least:
                    click.echo(
                        f"note: perhaps nothing here answers this: the best score is {hits[0].score:.2f}, and most "
                        f"questions of {collection!r} reach {least:.2f}",
                        err=True,
                    )


def _floor(retriever: "Retriever", collection: "Collection") -> float:
    """Return the score that most of a collection's own questions reach; 0 where it has too few to tell."""
    from care_qdrant.search.overview import floor, overview

    return floor(retriever, overview(collection).questions) or 0.0


def _prompted(collection: "Collection") -> Iterator[str]:
    """Yield what a person types, or a pipe sends, until an empty line or the end."""
    if sys.stdin.isatty():
        from care_qdrant.search.overview import overview

        held = overview(collection)
        asks = "".join(f"\n  {question.text}" for question in held.questions[:_EXAMPLES])
        click.echo(f"{collection.name}: {held.points:,} texts; ask, for example:{asks}", err=True)
    while True:
        if sys.stdin.isatty():
            click.echo("> ", nl=False, err=True)
        query = sys.stdin.readline().strip()
        if not query:
            return
        yield query


def _show(query: str, collection: str, mode: "Mode", hits: "list[Hit]", as_json: bool) -> None:
    if as_json:
        found = {"query": query, "collection": collection, "mode": mode, "hits": [hit.as_dict() for hit in hits]}
        click.echo(json.dumps(found, ensure_ascii=False, indent=2))
        return
    show = _listing if sys.stdout.isatty() else _table
    click.echo(show(hits) if hits else "nothing found")


def _refuse_without_effect(mode: "Mode") -> None:
    """Refuse an option that the mode would ignore."""
    for option, has_effect, needs in (
        ("alpha", mode == "hybrid", "--mode hybrid"),
        ("task", mode != "sparse", "--mode dense or hybrid"),
        ("vector_name", mode != "sparse", "--mode dense or hybrid"),
    ):
        # One in care.toml is for the searches that can use it.
        given = click.get_current_context().get_parameter_source(option) is click.core.ParameterSource.COMMANDLINE
        if given and not has_effect:
            raise click.UsageError(f"--{option.replace('_', '-')} has no effect here; it needs {needs}")


def _listing(hits: "list[Hit]") -> str:
    """Return the hits with as much of their texts as lets a person judge them."""
    from care_qdrant.console.table import wrap

    width = len(str(len(hits))) + 2
    lines = []
    for rank, hit in enumerate(hits, 1):
        lines.append(f"{rank:<{width}}{hit.score:.4f}  {hit.document_id}  {hit.title}".rstrip())
        lines += [" " * width + line for line in wrap(hit.text, indent=width)]
    return "\n".join(lines)


def _table(hits: "list[Hit]") -> str:
    from care_qdrant.console.table import table
    from care_qdrant.types import embedded_text

    rows = [
        [str(rank), f"{hit.score:.4f}", hit.document_id, embedded_text(hit.title, hit.text)]
        for rank, hit in enumerate(hits, 1)
    ]
    return table(["#", "score", "document", "text"], rows)
