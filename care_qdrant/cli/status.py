"""``care status``: what a Qdrant holds, or one of its collections in detail."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from care_qdrant.console.groups import CONTEXT, Command
from care_qdrant.console.options import Target, json_option, target_options
from care_qdrant.console.reports import show_json
from care_qdrant.console.text import echo, table
from care_qdrant.errors import counted

if TYPE_CHECKING:
    from care_qdrant.contracts.active import Active
    from care_qdrant.vectors.status import CollectionDetail, CollectionSummary, VectorSummary

_SHOWN_FINGERPRINT = 12


@click.command(cls=Command, name="status", context_settings=CONTEXT)
@click.argument("collection", required=False)
@target_options
@json_option
def command(collection: str | None, target: Target, as_json: bool) -> None:
    """Show all collections, their vectors and the models that made them; or COLLECTION in detail.

    Of a named collection it also shows the tool that wrote the payloads, a few texts and the versions. It writes
    nothing.

    \b
    Example:
      care status
      care status articles --url http://localhost:6333
      care status articles --json
    """
    from care_qdrant.errors import next_command
    from care_qdrant.vectors.status import describe_all, inspect_collection

    with target.open() as client:
        if collection is not None:
            detail = inspect_collection(client, collection)
            if as_json:
                show_json(asdict(detail))
            else:
                echo("\n".join(_detail_lines(detail)))
                _show_unfinished(detail.summary)
            return
        summaries = describe_all(client)
    if as_json:
        show_json([asdict(summary) for summary in summaries])
    elif summaries:
        echo(_table(summaries))
        for summary in summaries:
            _show_unfinished(summary)
    else:
        echo(f"{target}: no collections yet; make one, " + next_command("care ingest corpus.jsonl"))


def _table(summaries: "list[CollectionSummary]") -> str:
    rows = []
    for summary in summaries:
        aliases = f"aliases: {', '.join(summary.aliases)}" if summary.aliases else ""
        rows.append([summary.name, "", f"{summary.points:,}", aliases])
        for vector in summary.vectors:
            made_by = f"{_shape(vector)}, {_maker(vector)}"
            rows.append(["", vector.name or "(unnamed)", f"{vector.points:,}", made_by])
    return table(["collection", "vector", "points", "made by"], rows)


def _detail_lines(detail: "CollectionDetail") -> Iterator[str]:
    summary = detail.summary
    server = "embedded database" if detail.server_version == "embedded" else f"server {detail.server_version}"
    yield f"{summary.name}: {counted(summary.points, 'point')}, {server}"
    if summary.aliases:
        yield f"  aliases: {', '.join(summary.aliases)}"
    if detail.version_of is not None:
        yield f"  a copy of: {detail.version_of}"
    if detail.versions:
        yield f"  versions: {', '.join(detail.versions)}"
    for vector in summary.vectors:
        held = f"{counted(vector.points, 'point')}, {_maker(vector)}"
        yield f"  vector {vector.name or '(unnamed)'}: {_shape(vector)}, {held}"
    if summary.active is not None:
        yield from _active_lines(summary.active)
    for name, value in detail.strict_mode.items():
        yield f"  strict mode: {name} = {value}"
    yield from _text_lines(detail)


def _active_lines(active: "Active") -> Iterator[str]:
    how = "rolled back" if active.is_rolled_back else "switched"
    found = "; ".join(f"{key.replace('_', ' ')} {value}" for key, value in active.evidence.items())
    yield f"  readers search {active.now.vector or '(unnamed)'} by {active.now.model}, {how} at {active.since}"
    if found:
        yield f"    {'the switch: ' if active.is_rolled_back else ''}{found}"
    if active.before is not None:
        yield f"    before: {active.before.vector or '(unnamed)'} by {active.before.model}; --roll-back or --retire"


def _text_lines(detail: "CollectionDetail") -> Iterator[str]:
    if detail.tool is not None:
        yield f"  payloads of {detail.tool}: {detail.evidence}"
    elif detail.evidence is not None:
        yield f"  no texts: {detail.evidence}"
    for text in detail.texts:
        yield f"    {' '.join(text.split())}…"
    if detail.sampled_without_text:
        yield f"  {counted(detail.sampled_without_text, 'sampled point', 'have', of=detail.sampled)} no text"
    if detail.unread_by_included:
        with_text = detail.sampled - detail.sampled_without_text
        texts = counted(detail.unread_by_included, "sampled text", of=with_text)
        yield f"  the included model does not read {texts}: its vectors of them mean nothing"


def _shape(vector: "VectorSummary") -> str:
    return f"{vector.kind} {vector.dim} {vector.distance}" if vector.dim else vector.kind


def _maker(vector: "VectorSummary") -> str:
    known = [_named(vector.made_by, vector.fingerprint) if vector.made_by else "by another tool"]
    if vector.learned is not None:
        known.append(f"queries {_named(vector.learned, vector.learned_fingerprint)}, learned from it")
    if vector.stand_in_models:
        count = "some" if vector.stand_ins is None else f"{vector.stand_ins:,}"
        known.append(f"{count} of them by the learned {', '.join(vector.stand_in_models)}, which stands in")
    return "; ".join(known)


def _named(maker: str, fingerprint: str | None) -> str:
    # BM25 has no weights: its analyser is its fingerprint.
    return f"by {maker}" if fingerprint in (None, maker) else f"by {maker} ({fingerprint[:_SHOWN_FINGERPRINT]})"


def _show_unfinished(summary: "CollectionSummary") -> None:
    if summary.unfinished is not None:
        echo(f"note: {summary.unfinished}", err=True)
