"""``care search``: search a collection."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import click

from care_qdrant.console.groups import CONTEXT, GroupedCommand
from care_qdrant.console.options import (
    FiniteRange,
    LoadModel,
    Target,
    fallback_option,
    json_option,
    model_options,
    target_options,
)
from care_qdrant.console.reports import show_json
from care_qdrant.console.text import echo
from care_qdrant.errors import counted

if TYPE_CHECKING:
    from qdrant_client import QdrantClient, models

    from care_qdrant.qdrant.collection import Collection
    from care_qdrant.search.conditions import Keys
    from care_qdrant.search.fallback import Fallback
    from care_qdrant.search.good_match import GoodMatch, Match
    from care_qdrant.search.retriever import Mode, Retriever
    from care_qdrant.types import Hit

_EXAMPLES = 3
_GOOD_MATCH_SECONDS = 10.0
"""Longest time, once per collection, that a user waits to learn whether the hits are a good match."""


@click.command(
    name="search",
    cls=GroupedCommand,
    context_settings=CONTEXT,
    groups={
        "Options": ["collection", "model", "path", "url", "mode", "top_k", "conditions", "as_json"],
        "Groups and scores": ["score_threshold", "group_by", "group_size"],
        "Vectors and fusion": ["vector_name", "alpha", "task", "shard_key", "fallback"],
    },
)
@click.argument("query", required=False)
@click.option(
    "--collection",
    help="Collection or alias to search.  [default: the only one; if there are several, a terminal asks]",
)
@click.option(
    "--mode",
    type=click.Choice(["auto", "dense", "sparse", "hybrid"]),
    default="auto",
    show_default=True,
    help="Search by the vectors of the model, by BM25, or by both; auto is hybrid where the collection has BM25.",
)
@click.option(
    "--top-k", type=click.IntRange(1), default=10, show_default=True, help="Number of documents, or groups, to return."
)
@click.option(
    "--filter",
    "conditions",
    multiple=True,
    metavar="CONDITION",
    help="Condition on metadata: key=value, key!=value, key>=number or date. Put it in quotes. Repeatable; all must "
    "hold.",
)
@click.option(
    "--score-threshold",
    type=float,
    help="Leave out hits with a lower score, as the hits show it: in a hybrid search the fused one.",
)
@click.option("--group-by", metavar="KEY", help="Metadata key whose values make the groups, in place of documents.")
@click.option("--group-size", type=click.IntRange(1), default=1, show_default=True, help="Most hits of a group.")
@click.option("--vector-name", help="Dense vector to search.  [default: the one that the model made]")
@click.option(
    "--alpha",
    type=FiniteRange(0, 1),
    help="Weight of the dense score in a hybrid search.  [default: the one that care learn recorded, or 0.5]",
)
@click.option("--task", help="Task whose prompt the query gets; care model info lists the tasks.")
@click.option("--shard-key", help="Search only the shards of this key.")
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
    score_threshold: float | None,
    group_by: str | None,
    group_size: int,
    open_fallback: "Callable[[], Fallback] | None",
    target: Target,
    load_model: LoadModel,
    as_json: bool,
    **options: Any,
) -> None:
    """Print the documents that answer QUERY, best first.

    Without QUERY it asks for queries until an empty line, or reads one query a line from a pipe. With --json, each
    query prints one line.

    \b
    Example:
      care search
      care search "糖尿病人能吃西瓜吗"
      care search "HbA1c 6.5%" --mode dense --top-k 3 --filter dept=内科 --json
      care search "头痛三天" --group-by dept --group-size 2 --score-threshold 0.3
    """
    from care_qdrant.errors import InputError
    from care_qdrant.qdrant.collection import Collection
    from care_qdrant.search.good_match import judge
    from care_qdrant.search.retriever import Retriever
    from care_qdrant.search.script import script_note
    from care_qdrant.types import is_blank

    if query is not None and is_blank(query):
        raise InputError("the query is empty")
    _refuse_without_effect("hybrid" if mode == "auto" else mode)
    if group_size > 1 and group_by is None:
        raise click.UsageError("--group-size has no effect here; it needs --group-by")
    _parsed(conditions)  # report a typing error before opening anything
    with target.open() as client:
        model = None if mode == "sparse" else load_model()
        retriever = Retriever(
            client,
            collection := collection or _asked_collection(client, str(target)),
            model,
            mode=mode,
            **options,
            fallback=None if open_fallback is None else open_fallback(),
        )
        _tell(retriever.unfinished)
        keys = retriever.keys if conditions else None
        conditions_filter = _parsed(conditions, keys)
        good_match = cache(lambda: _good_match(retriever))
        is_for_people = not as_json and open_fallback is None
        is_piped = query is None and not sys.stdin.isatty()
        for text in _prompted(Collection(client, collection)) if query is None else [query]:
            [hits] = retriever.search(
                [text],
                top_k,
                conditions_filter,
                score_threshold=score_threshold,
                group_by=group_by,
                group_size=group_size,
            )
            _refuse_without_effect(retriever.mode)
            if keys is not None:
                _show_notice(Collection(client, collection), conditions, keys, is_found=bool(hits))
            if is_piped and not as_json:
                echo(f"{text}:")
            _show(text, collection, retriever.mode, hits, group_by, as_json)
            _tell(script_note(text, hits))
            if hits and is_for_people and model is not None:
                _tell(_note(judge(hits, good_match(), model.unread(text)), hits[0]))


def _asked_collection(client: "QdrantClient", where: str) -> str:
    """Return the only collection; of several, ask on a terminal which one."""
    from care_qdrant.qdrant.collection import Collection, only_name

    names = Collection(client, "").names()
    if len(names) < 2 or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return only_name(names, where)
    for number, name in enumerate(names, 1):
        echo(f"{number:>3}  {name}", err=True)
    number = click.prompt("Number of the collection", type=click.IntRange(1, len(names)), err=True)
    return names[number - 1]


def _tell(note: str | None) -> None:
    if note is not None:
        echo(f"note: {note}", err=True)


def _show_notice(collection: "Collection", conditions: Sequence[str], keys: "Keys", *, is_found: bool) -> None:
    """Refuse a condition that no point meets, and note one that rules nothing out."""
    from care_qdrant.errors import InputError
    from care_qdrant.search.conditions import notice

    reason = notice(collection, conditions, keys, found=is_found)
    if reason is not None and not is_found:
        raise InputError(f"--filter: {reason}")
    _tell(None if reason is None else f"--filter: {reason}")


def _parsed(conditions: Sequence[str], keys: "Keys | None" = None) -> "models.Filter | None":
    """Return the filter of --filter; an error mentions how shells treat < and >."""
    from care_qdrant.errors import InputError
    from care_qdrant.search.conditions import parse_filter

    try:
        return parse_filter(conditions, keys)
    except InputError as error:
        is_cut = not all(set(condition) & set("<=>") for condition in conditions)
        hint = "; a shell takes < and > for itself, so write the condition in quotes" if is_cut else ""
        raise InputError(f"--filter: {error}{hint}") from error


def _good_match(retriever: "Retriever") -> "GoodMatch | None":
    """Return the lowest score of a good match; None if it is not available in time: the hits are shown already."""
    from care_qdrant.errors import QdrantError
    from care_qdrant.search.good_match import fixed_questions, known_good_match, measure_good_match

    try:
        return known_good_match(retriever) or measure_good_match(
            retriever, fixed_questions(retriever), seconds=_GOOD_MATCH_SECONDS
        )
    except QdrantError:
        return None


def _note(match: "Match", best: "Hit") -> str | None:
    """Return the note for hits that are not a good match; None for a good match."""
    from care_qdrant.encoders.unread import some_of

    if match.unread:
        return (
            f"the model does not read {some_of(match.unread)}, so its scores mean nothing; use a model that reads "
            "this language, or --mode sparse"
        )
    if match.is_good is not False:
        return None
    return f"No good match (best {best.score:.2f}, typical {match.good_match_score:.2f})"


def _prompted(collection: "Collection") -> Iterator[str]:
    """Yield the lines that a person types, until an empty one, or those that a pipe sends, without empty ones."""
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        from care_qdrant.search.overview import overview

        held = overview(collection)
        asks = "".join(f"\n  {question.text}" for question in held.questions[:_EXAMPLES])
        echo(f"{collection.name}: {counted(held.points, 'text')}; ask, for example:{asks}", err=True)
    while True:
        if is_terminal:
            echo("> ", nl=False, err=True)
        line = sys.stdin.readline()
        if query := line.strip():
            yield query
        elif is_terminal or not line:
            return


def _show(query: str, collection: str, mode: "Mode", hits: "list[Hit]", group_by: str | None, as_json: bool) -> None:
    if as_json:
        report = {"query": query, "collection": collection, "mode": mode, "hits": [hit.as_dict() for hit in hits]}
        show_json(report)
        return
    echo(_listing(hits, group_by) if hits else "nothing found")


def _refuse_without_effect(mode: "Mode") -> None:
    """Refuse an option that the mode would ignore."""
    for option, has_effect, needs in (
        ("alpha", mode == "hybrid", "--mode hybrid"),
        ("task", mode != "sparse", "--mode dense or hybrid"),
        ("vector_name", mode != "sparse", "--mode dense or hybrid"),
    ):
        # An option in care.toml applies only to searches that can use it.
        given = click.get_current_context().get_parameter_source(option) is click.core.ParameterSource.COMMANDLINE
        if given and not has_effect:
            raise click.UsageError(f"--{option.replace('_', '-')} has no effect here; it needs {needs}")


def _listing(hits: "list[Hit]", group_by: str | None) -> str:
    """Return the hits as lines, each with enough of its text to judge it."""
    from care_qdrant.console.text import beginning

    width = len(str(len(hits))) + 2
    lines: list[str] = []
    group: object = None
    for rank, hit in enumerate(hits, 1):
        if group_by is not None and (not lines or (type(hit.group), hit.group) != group):
            group = type(hit.group), hit.group
            lines.append(f"{group_by}={hit.group if isinstance(hit.group, str) else json.dumps(hit.group)}")
        title = " ".join(hit.title.split())
        lines.append(f"{rank:<{width}}{hit.score:.4f}  {hit.document_id}  {title}".rstrip())
        lines += [" " * width + line for line in beginning(hit.text, indent=width)]
    return "\n".join(lines)
