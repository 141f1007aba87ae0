"""``care model``: look at a CARE folder, check it, make one of two encoders."""

import json
from dataclasses import asdict
from pathlib import Path

import click


@click.group(name="model")
def command() -> None:
    """Show, verify or assemble a pair of encoders."""


@command.command()
@click.argument("model", default="built-in")
@click.option("--json", "as_json", is_flag=True, help="Print the whole card as JSON.")
def info(model: str, as_json: bool) -> None:
    """Show what MODEL says of itself, without reading its weights.

    \b
    Example:
      care model info built-in
    """
    from care_qdrant.checkpoint.card import UNLIMITED, license_notice, read_card
    from care_qdrant.checkpoint.hub import find_folder

    card = read_card(find_folder(model))
    if as_json:
        click.echo(json.dumps(asdict(card), ensure_ascii=False, indent=2))
        return
    click.echo(f"{card.name}  {card.fingerprint[:12]}  {card.dim} dimensions, temperature {card.temperature}")
    if card.geometry == "cut":
        click.echo("  geometry  document vectors are cut after normalising, and scored by dot product")
    if card.license:
        click.echo(f"  license   {license_notice(card.license)}")
    for side, settings in (("query", card.query), ("document", card.document)):
        size = sum(entry.bytes for path, entry in card.files.items() if path.startswith(f"{side}/")) / 1e6
        end = f", ends with {settings.eos}" if settings.eos else ""
        prompt = f", prompt {settings.prompt!r}" if settings.prompt else ""
        limit = "any number of" if settings.max_tokens == UNLIMITED else settings.max_tokens
        for task, text in settings.tasks.items():
            click.echo(f"  task      {task}, {side} prompt {text!r}")
        click.echo(f"  {side:9} {size:8.1f} MB, {settings.pooling} pooling, {limit} tokens{end}{prompt}")
    if card.onnx is not None:
        click.echo(f"  onnx      {card.onnx.default} by default; gate: {json.dumps(dict(card.onnx.gate))}")
    for base in card.bases:
        click.echo(f"  base      {' '.join(str(value) for value in base.values())}")
    for stage in card.stages:
        click.echo(f"  stage     {stage.get('name', stage)}")
    for source in card.data:
        click.echo(f"  data      {source.get('source', '?')}: {source.get('rows', '?')} rows, {source.get('license')}")


@command.command()
@click.argument("model", default="built-in")
def verify(model: str) -> None:
    """Read every file of MODEL, check it against its card, and its ONNX encoders against the card's vectors.

    \b
    Example:
      care model verify ./care-0.3b-4b
    """
    from care_qdrant.checkpoint.folder import verify as verify_folder
    from care_qdrant.checkpoint.hub import fetch_document_side
    from care_qdrant.model import CareModel

    folder = fetch_document_side(model)
    card = verify_folder(folder)
    for precision in ("fp32", "int8"):
        if card.onnx is not None and getattr(card.onnx, precision) is not None:
            CareModel.load(folder, precision=precision).encode_query([])  # loading an encoder checks its vectors
    if card.document_onnx is not None:
        CareModel.load(folder).encode_document([])
    if (card.onnx or card.document_onnx) and not card.references_sha256:
        click.echo(
            "not checked: that the ONNX files are of these weights, since the card has no reference vectors; add them "
            f"with: care model export-onnx {model}",
            err=True,
        )
    size = sum(entry.bytes for entry in card.files.values()) / 1e6
    click.echo(f"{card.name}: {len(card.files)} files, {size:.1f} MB, whole and unaltered ({card.fingerprint[:12]})")


@command.command("export-onnx")
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
def export_onnx(folder: Path) -> None:
    """Let documents of the pair FOLDER be encoded without torch, and bind its ONNX files to its fingerprint.

    The document encoder is exported to document/model.onnx, which reads the weights beside it. The fingerprint stays,
    so existing collections stay valid. Needs torch, once: pip install 'care-qdrant[onnx]'.

    \b
    Example:
      care model export-onnx ./care-0.3b-4b
    """
    from care_qdrant.export.existing import add_onnx

    card = add_onnx(folder)
    size = card.files["document/model.onnx"].bytes / 1e6
    click.echo(f"{folder}: {card.name} encodes documents on onnxruntime ({size:.1f} MB added, {card.fingerprint[:12]})")


@command.command()
@click.argument("query", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("document", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--name", help="Of the pair.  [default: the folder's name]")
@click.option(
    "--probe",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="JSON lines with a 'text': real queries. With them the query encoder is exported for onnxruntime.",
)
def join(query: Path, document: Path, folder: Path, name: str | None, probe: Path | None) -> None:
    """Make a pair FOLDER of two saved sentence-transformers models, QUERY and DOCUMENT.

    It checks that both load, that their dimensions agree and that the document tokenizer appends its end marker. It
    cannot check that the two were trained into one space: only an evaluation on your data can (care-bench).

    \b
    Example:
      care model join ./my-bert ./my-llm ./my-pair --probe queries.jsonl
    """
    from care_qdrant.join import join_encoders, read_probe_texts

    probe_texts = read_probe_texts(probe) if probe else None
    card = join_encoders(query, document, folder, name=name or folder.name, probe_texts=probe_texts)
    click.echo(f"{folder}: {card.name}, {card.dim} dimensions ({card.fingerprint[:12]})")
    click.echo(
        "not checked: that the two encoders share one space; score the pair on your data before you use it", err=True
    )


@command.command(name="import")
@click.argument("sources", nargs=-1, required=True)
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--name", help="Name of the pair.  [default: the folder's name]")
@click.option("--revision", help="Branch, tag or commit of the sources on the hub.  [default: the newest]")
@click.option("--base", help="Folder or hub name of a document adapter's base.  [default: the one that it names]")
@click.option("--license", help="SPDX identifier of the weights' license.  [default: read from the model card]")
@click.option(
    "--probe",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="JSON lines with a 'text': real queries, on which the int8 query encoder is tested.  [default: use float32]",
)
def import_command(
    sources: tuple[str, ...],
    folder: Path,
    name: str | None,
    revision: str | None,
    base: str | None,
    license: str | None,
    probe: Path | None,
) -> None:
    """Make a pair FOLDER of published weights: one SOURCE with both encoders, or the query's and the document's.

    A source is a folder or a hub name: a published CARE pair (query_encoder/ and doc_encoder/, merged or not), or an
    asymmetric sentence-transformers model. No code from the hub is run, and the document encoder is never loaded.

    \b
    Example:
      care model import PhilipGAQ/CARE-0.3B-4B ./care-0.3b-4b --probe queries.jsonl
    """
    from care_qdrant.checkpoint.card import license_notice
    from care_qdrant.importing import import_model
    from care_qdrant.join import read_probe_texts

    card = import_model(
        sources,
        folder,
        name=name or folder.name,
        revision=revision,
        base=base,
        license=license,
        probe_texts=read_probe_texts(probe) if probe else None,
    )
    click.echo(f"{folder}: {card.name}, {card.dim} dimensions ({card.fingerprint[:12]})")
    click.echo(f"license: {license_notice(card.license) if card.license else 'not stated'}", err=True)
