"""``care switch``: change the model behind a collection in use."""

import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from care_qdrant.cli.attach import plan_lines
from care_qdrant.console.groups import CONTEXT, GroupedCommand
from care_qdrant.console.logs import bars_cleared
from care_qdrant.console.options import (
    BATCHES,
    PATIENCE,
    FiniteRange,
    Target,
    engine_options,
    json_option,
    model_option,
    precision,
    retries,
    target_options,
)
from care_qdrant.console.reports import show_json
from care_qdrant.console.text import cut, echo, one_line, table
from care_qdrant.errors import counted

if TYPE_CHECKING:
    from care_qdrant.contracts.active import SearchedVector
    from care_qdrant.encoders.engine import Engine
    from care_qdrant.measures import Estimate
    from care_qdrant.model.care_model import CareModel
    from care_qdrant.qdrant.collection import Collection
    from care_qdrant.switch.compare import Comparison
    from care_qdrant.switch.switch import Stage, SwitchState


@click.command(
    name="switch",
    cls=GroupedCommand,
    context_settings=CONTEXT,
    environment=BATCHES | PATIENCE,
    groups={
        "Options": [
            *(
                "to",
                "model",
                "vector_name",
                "questions",
                "accept",
                "picture",
                "dry_run",
                "price",
                "is_undone",
                "is_retired",
                "path",
                "url",
                "as_json",
            )
        ],
        "Engine": ["device", "engine", "endpoints"],
    },
)
@click.argument("collection")
@click.option("--to", metavar="MODEL", help="The new model: a CARE folder, as of care learn, a hub name, or built-in.")
@click.option("--vector-name", help="Vector that readers search now.  [default: the one that the model made]")
@click.option(
    "--questions",
    type=click.Path(path_type=Path, dir_okay=False),
    help="JSON lines with text, relevant (a list of document ids) and, where the old model cannot be loaded, the "
    "vector that it made of the text.  [default: titles and first sentences of the collection]",
)
@click.option("--accept", metavar="REASON", help="Switch although the comparison does not pass; REASON is recorded.")
@click.option(
    "--picture",
    type=click.Path(path_type=Path, dir_okay=False),
    help="SVG file to draw the comparison in, for those who decide on the switch.",
)
@click.option("--dry-run", is_flag=True, help="Write nothing; show what would be done, and what would be refused.")
@click.option(
    "--price",
    type=FiniteRange(0),
    metavar="PRICE",
    help="Price of a million tokens of the new model, for the cost that --dry-run shows.",
)
@click.option("--roll-back", "is_undone", is_flag=True, help="Return readers to the vector before.")
@click.option("--retire", "is_retired", is_flag=True, help="Remove the vector that readers do not search any more.")
@target_options
@model_option("The model that readers use now.")
@engine_options
@json_option
def command(
    collection: str,
    to: str | None,
    vector_name: str | None,
    questions: Path | None,
    accept: str | None,
    picture: Path | None,
    dry_run: bool,
    price: float | None,
    is_undone: bool,
    is_retired: bool,
    target: Target,
    model: str,
    device: str | None,
    engine: "Engine",
    as_json: bool,
) -> None:
    """Change the model behind COLLECTION: add its vector, compare it with the one before, and switch the readers.

    Readers that have both models follow within half a minute; the others go on with the vector before, which stays.
    Readers stay where they are if the new model is worse, or if the questions cannot tell; the exit code is then 1. Run
    the same command again after an interruption, and after a switch to add the vectors of new documents.

    \b
    Example:
      care switch articles --to ./new-model --dry-run
      care switch articles --to ./new-model --questions questions.jsonl
      care switch articles --roll-back
      care switch articles --retire
    """
    from care_qdrant.destinations import require_writable
    from care_qdrant.model.care_model import CareModel
    from care_qdrant.qdrant.collection import Collection

    if (to is not None) + is_undone + is_retired != 1:
        raise click.UsageError("give one of --to MODEL, --roll-back and --retire")
    options = {"vector_name": vector_name, "questions": questions, "accept": accept}
    if to is None and (dry_run or any(value is not None for value in (picture, *options.values()))):
        raise click.UsageError("--dry-run, --vector-name, --questions, --accept and --picture belong to --to MODEL")
    if price is not None and not dry_run:
        raise click.UsageError("--price belongs to --dry-run")
    if accept is not None and not accept.strip():
        raise click.UsageError("--accept needs a reason: it is recorded")
    if picture is not None:
        require_writable(picture)
    with target.open() as client:
        place = Collection(client, collection, retries())
        if to is None:
            _end(place, is_undone, as_json)
            return
        new = CareModel.load(to, device=device, precision=precision(), engine=engine)
        old = CareModel.load(model, precision=precision())
        if dry_run:
            _plan(place, new, old, options, price, as_json)
        else:
            _switch(place, new, old, options, picture, as_json)


def _end(place: "Collection", is_undone: bool, as_json: bool) -> None:
    """Return readers to the vector before, or remove it."""
    from care_qdrant.switch.switch import retire_vector, undo_switch

    report: Any
    if is_undone:
        report = undo_switch(place)
        line = f"readers return to {_named(report.now)}"
    else:
        report = retire_vector(place)
        line = "there was no vector to remove" if report is None else f"vector {report.vector_name!r} was removed"
    if as_json:
        show_json(None if report is None else asdict(report))
    else:
        echo(line)


def _plan(
    place: "Collection",
    new: "CareModel",
    old: "CareModel",
    options: dict[str, Any],
    price: float | None,
    as_json: bool,
) -> None:
    """Show what a switch would do, and end with the exit code of a refusal."""
    from care_qdrant.errors import InputError, NotSwitched
    from care_qdrant.switch.switch import plan_switch

    plan = plan_switch(place, new, old, **options)
    if as_json:
        tokens = None if plan.attach is None else plan.attach.new_tokens
        show_json(asdict(plan) | ({} if price is None or tokens is None else {"cost": price * tokens / 1e6}))
    else:
        echo("\n".join([_state_line(plan.state), *([] if plan.attach is None else plan_lines(plan.attach, price))]))
        if plan.refusal is not None:
            echo(f"refused: {plan.refusal}")
    if plan.attach is not None and plan.attach.refusals:
        sys.exit(InputError.exit_code)
    if plan.refusal is not None:
        sys.exit(NotSwitched.exit_code)


def _switch(
    place: "Collection",
    new: "CareModel",
    old: "CareModel",
    options: dict[str, Any],
    picture: Path | None,
    as_json: bool,
) -> None:
    from care_qdrant.cli.switch_picture import draw
    from care_qdrant.errors import NotSwitched
    from care_qdrant.progress import points_bar
    from care_qdrant.switch.switch import switch_collection

    compared: list[Comparison] = []

    def on_stage(stage: "Stage", state: "SwitchState") -> None:
        with bars_cleared():
            echo(_state_line(replace(state, stage=stage)), err=True)

    def on_compared(comparison: "Comparison") -> None:
        compared.append(comparison)
        if picture is not None:
            picture.parent.mkdir(parents=True, exist_ok=True)
            picture.write_text(draw(comparison, place.name, old.name, new.name), encoding="utf-8")
        if not as_json:
            with bars_cleared():
                echo("\n".join(_lines(comparison)))

    try:
        with points_bar(place.name, "done") as on_progress:
            report = switch_collection(
                place,
                new,
                old,
                **options,
                on_stage=on_stage,
                on_compared=on_compared,
                on_progress=on_progress,
            )
    except NotSwitched:
        if as_json and compared:
            show_json({"collection": place.name, "comparison": asdict(compared[0])})
        raise
    if as_json:
        show_json(asdict(report))
        return
    echo(f"readers search {_named(report.state.to)}")
    if report.lacking:
        echo(f"{counted(report.lacking, 'point', 'lack')} it: run the same command again", err=True)
    if report.state.before is not None:
        echo(f"next: care switch {place.name} --roll-back, or in a minute --retire")


def _state_line(state: "SwitchState") -> str:
    before = "a vector that was retired" if state.before is None else _named(state.before)
    return f"from {before} to {_named(state.to)}: {state.stage}"


def _named(searched: "SearchedVector") -> str:
    return f"{repr(searched.vector) if searched.vector else 'the unnamed vector'} by {searched.model}"


def _lines(comparison: "Comparison") -> Iterator[str]:
    """Return the report of a comparison, with what speaks against its questions."""
    rows = [
        ["before", _estimate(comparison.before)],
        ["after", _estimate(comparison.after)],
        ["difference", _estimate(comparison.difference, "+")],
    ]
    about = f"{counted(comparison.questions, 'question')} about {counted(comparison.documents, 'document')}"
    yield f"{about}, {comparison.kind}; exact search"
    yield table(["", "nDCG@10 (95 % interval)"], rows)
    yield (
        f"better for {counted(comparison.better, 'document')}, worse for {comparison.worse:,}; the first ten of both "
        f"have {comparison.overlap_at_10:.0%} in common"
    )
    if comparison.kind != "judged":
        yield (
            "made questions are the texts' own words, which every model finds more easily than real ones: judged "
            "questions (--questions) say more"
        )
    if comparison.losses:
        yield "largest losses, nDCG@10 before and after:"
    for loss in comparison.losses:
        found = "finds nothing" if loss.first is None else f"finds {one_line(loss.first)} first"
        asked, relevant = cut(one_line(loss.question), 40), one_line(loss.relevant[0])
        yield f"  {loss.before:.2f}  {loss.after:.2f}  {asked}  {found}, not {relevant}"
    yield f"verdict: {comparison.verdict}"


def _estimate(estimate: "Estimate", sign: str = "") -> str:
    return f"{estimate.mean:{sign}.3f} ({estimate.low:{sign}.3f} to {estimate.high:{sign}.3f})"
