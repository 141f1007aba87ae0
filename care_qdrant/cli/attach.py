"""``care attach``: a model's vector beside those that a collection has."""

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from care_qdrant.cli.options import Target, model_options, target_options

if TYPE_CHECKING:
    from care_qdrant.existing.preflight import Preflight
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
    target: Target,
    load_model: "Callable[[], CareModel]",
) -> None:
    """Give every point of COLLECTION a vector of the model, made of the text in its payload.

    The collection stays in use. Its other vectors and its payloads are not touched, but for one key _care with the hash
    of each text. Run it again after an interruption, or from cron: it encodes what is new or has changed, and nothing
    else. care detach takes everything away again. The report is one line of JSON on stdout.

    \b
    Example:
      care doctor articles --url http://localhost:6333
      care attach articles --url http://localhost:6333
      care search "糖尿病人能吃西瓜吗" --collection articles --url http://localhost:6333
    """
    from care_qdrant.existing.attach import AttachSettings, attach
    from care_qdrant.progress import points_bar

    settings = AttachSettings(
        text_path=text_field,
        quantization=None if quantization == "none" else quantization,
        on_disk=on_disk,
        points_per_second=points_per_second,
        batch_tokens=batch_tokens,
    )
    model = load_model()
    with target.open() as client, points_bar(collection) as show:
        report = attach(
            client,
            collection,
            model,
            vector_name=vector_name,
            settings=settings,
            on_preflight=_tell,
            on_progress=show,
        )
    click.echo(json.dumps(asdict(report), ensure_ascii=False))
    if report.covered + report.without_text < report.points:
        click.echo("points were added or changed meanwhile: run the same command again", err=True)


def _tell(preflight: "Preflight") -> None:
    if preflight.layout is not None:
        click.echo(f"{preflight.layout.tool} payloads: {preflight.layout.evidence}", err=True)
    for notice in preflight.notices:
        click.echo(f"note: {notice}", err=True)
