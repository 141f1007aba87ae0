"""``care model``: show, verify, make, import and export models."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from care_qdrant.console.groups import Program
from care_qdrant.console.options import json_option
from care_qdrant.console.outputs import require_free
from care_qdrant.console.reports import show_json
from care_qdrant.console.text import echo
from care_qdrant.errors import counted

if TYPE_CHECKING:
    from care_qdrant.encoders.side import Side
    from care_qdrant.model.card import Card, OnnxFiles

_REFERENCE_VECTORS = re.compile(rb'\{\n "fingerprint": "[0-9a-f]{64}"')


@click.group(cls=Program, name="model")
def command() -> None:
    """Show, verify, import or export a model: a query encoder and a document encoder.

    \b
    Example:
      care model info built-in
      care model verify ./care-0.3b-4b
    """


@command.command()
@click.argument("model", default="built-in")
@json_option
def info(model: str, as_json: bool) -> None:
    """Show the card of MODEL (its care.json); the weights are not read.

    \b
    Example:
      care model info built-in
    """
    from care_qdrant.model.card import CARD_FILE, read_card
    from care_qdrant.model.hub import find_folder

    folder = find_folder(model)
    card = read_card(folder)
    if as_json:
        show_json(json.loads((folder / CARD_FILE).read_text(encoding="utf-8")))
    else:
        echo("\n".join(_lines(card)))


def _lines(card: "Card") -> Iterator[str]:
    """Yield the lines of a card for people."""
    from care_qdrant.model.card import license_notice
    from care_qdrant.progress import duration

    license = f", license {license_notice(card.license)}" if card.license else ""
    yield f"{card.name}: two encoders into one space of {card.dim} dimensions{license}"
    yield f"  fingerprint  {card.fingerprint}"
    if card.geometry == "cut":
        yield "  geometry     document vectors are cut after normalising, and scored by dot product"
    for side, settings, onnx in (("query", card.query, card.onnx), ("document", card.document, card.document_onnx)):
        yield f"  {side:11}  {_side_line(card, side, settings)}"
        yield f"  {'':11}  {_runtime_line(onnx)}"
        for task, text in settings.tasks.items():
            yield f"  {'':11}  task {task}: prompt {text!r}"
    if card.term_weights is not None:
        gate = card.term_weights.gate
        yield "  BM25 terms   weighted in hybrid searches"
        without, with_weights = gate["ndcg_at_10_bm25"], gate["ndcg_at_10"]
        yield f"  {'':11}  nDCG@10 of BM25 on {gate['held_out']:,} held-out pairs {without:.3f} → {with_weights:.3f}"
    bases = {
        f"{base.get('side', '')}: {base.get('name', '?')} {base.get('revision', '')}".strip() for base in card.bases
    }
    if bases:
        yield f"  made from    {'; '.join(sorted(bases))}"
    for number, stage in enumerate(card.stages):
        score = (stage.get("evaluation") or {}).get("ndcg@10")
        said = [str(stage.get("stage") or stage.get("name") or stage.get("kind") or "?")]
        said += [duration(stage["seconds"])] if "seconds" in stage else []
        said += [f"nDCG@10 {score:.4f}"] if score is not None else []
        yield f"  {'trained' if not number else '':11}  {', '.join(said)}"
    rows: Counter[str] = Counter()
    for source in card.data:
        rows[f"{source.get('source', '?')} ({source.get('license') or 'license not stated'})"] += (
            source.get("rows") or 0
        )
    for number, (name, count) in enumerate(rows.most_common()):
        yield f"  {'data' if not number else '':11}  {counted(count, 'row')} of {name}"


def _side_line(card: "Card", side: str, settings: "Side") -> str:
    from care_qdrant.encoders.side import UNLIMITED

    size = sum(entry.bytes for path, entry in card.files.items() if path.startswith(f"{side}/")) / 1e6
    end = f", ends with {settings.eos}" if settings.eos else ""
    prompt = f", prompt {settings.prompt!r}" if settings.prompt else ""
    limit = "any number of" if settings.max_tokens == UNLIMITED else settings.max_tokens
    return f"{size:.1f} MB, {settings.pooling} pooling, {limit} tokens{end}{prompt}"


def _runtime_line(onnx: "OnnxFiles | None") -> str:
    if onnx is None:
        return "runs on torch: pip install '.[ingest]' in a clone"
    gate = onnx.gate
    cosine = f"; int8 to float32: cosine {gate['min_cosine']} at least" if "min_cosine" in gate else ""
    return f"runs on onnxruntime, {onnx.default}{cosine}"


@command.command()
@click.argument("model", default="built-in")
@json_option
def verify(model: str, as_json: bool) -> None:
    """Check every file of MODEL against its card, and its ONNX encoders against the vectors of the card.

    \b
    Example:
      care model verify ./care-0.3b-4b
    """
    from care_qdrant.encoders.local.weights import check_model
    from care_qdrant.model.care_model import CareModel
    from care_qdrant.model.folder import verify_checkpoint as verify_folder
    from care_qdrant.model.hub import fetch_document_side

    folder = fetch_document_side(model)
    card = verify_folder(folder)
    for side in card.saved_sides:
        check_model(folder / side)
    for precision in ("fp32", "int8"):
        if card.onnx is not None and getattr(card.onnx, precision) is not None:
            CareModel.load(folder, precision=precision).encode_query([])  # loading an encoder checks its vectors
    if card.document_onnx is not None:
        CareModel.load(folder).encode_document([])
    if (card.onnx or card.document_onnx) and not card.references_sha256:
        echo(
            "not checked: whether the ONNX files were made from these weights. The card has no reference vectors; add "
            f"them with: care model export-onnx {model}",
            err=True,
        )
    size = sum(entry.bytes for entry in card.files.values())
    if as_json:
        show_json({"name": card.name, "files": len(card.files), "bytes": size, "fingerprint": card.fingerprint})
    else:
        echo(f"OK: {card.name}, {len(card.files)} files, {size / 1e6:.1f} MB ({card.fingerprint[:12]})")


@command.command("export-onnx")
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@json_option
def export_onnx(folder: Path, as_json: bool) -> None:
    """Export the document encoder of the CARE folder FOLDER to ONNX, so that it runs without torch.

    The file document/model.onnx reads the weights next to it. The fingerprint does not change, so existing collections
    stay valid. The export needs torch: pip install '.[onnx]' in a clone.

    \b
    Example:
      care model export-onnx ./care-0.3b-4b
    """
    from care_qdrant.errors import require_packages
    from care_qdrant.model.export.onnx import add_onnx

    require_packages("onnx", "care model export-onnx", "torch", "sentence_transformers", "onnx")
    card = add_onnx(folder)
    size = card.files["document/model.onnx"].bytes / 1e6
    if as_json:
        _show_made(folder, card)
    else:
        echo(f"{folder}: {card.name} runs on onnxruntime ({size:.1f} MB added, {card.fingerprint[:12]})")


@command.command("reference-vectors")
@click.argument("model")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="JSON file to write.")
@json_option
def reference_vectors(model: str, output: Path, as_json: bool) -> None:
    """Encode a few known texts with the document encoder of MODEL, for --endpoint on machines without it.

    After care model export-onnx, the card has these vectors, and no file is needed.

    \b
    Example:
      care model reference-vectors ./my-pair --output reference.json
      CARE_REFERENCE_VECTORS=reference.json \\
        care ingest corpus.jsonl --model ./my-pair \\
          --endpoint http://localhost:8000/v1
    """
    from care_qdrant.encoders.engine import Engine
    from care_qdrant.encoders.references import make_references, save_references
    from care_qdrant.model.care_model import CareModel

    require_free(output, _REFERENCE_VECTORS)
    pair = CareModel.load(model, engine=Engine(dtype="float32"))
    references = make_references(pair.encode_document)
    output.parent.mkdir(parents=True, exist_ok=True)
    save_references(output, pair.fingerprint, references)
    if as_json:
        show_json({"file": str(output), "vectors": len(references), "fingerprint": pair.fingerprint})
    else:
        echo(f"{output}: {len(references)} vectors of {pair.fingerprint[:12]}")


@command.command()
@click.argument("query", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("document", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--probe",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="JSON Lines with a 'text': real queries, on which the exported ONNX query encoder is tested.  [default: no "
    "export]",
)
@json_option
def join(query: Path, document: Path, folder: Path, probe: Path | None, as_json: bool) -> None:
    """Make the CARE folder FOLDER from two saved sentence-transformers models, QUERY and DOCUMENT.

    It checks that both load, that their dimensions agree and that the document tokenizer appends its end marker. It
    cannot check that both were trained into one space: evaluate the model on your data (care bench).

    \b
    Example:
      care model join ./my-bert ./my-llm ./my-pair --probe queries.jsonl
    """
    from care_qdrant.model.adopt.importing import join_encoders, read_probe_texts

    probe_texts = read_probe_texts(probe) if probe else None
    card = join_encoders(query, document, folder, name=folder.name, probe_texts=probe_texts)
    if as_json:
        _show_made(folder, card)
    else:
        echo(f"{folder}: {card.name}, {card.dim} dimensions ({card.fingerprint[:12]})")
    echo(
        "not checked: whether the two encoders share one space; evaluate the model on your data before you use it",
        err=True,
    )


def _show_made(folder: Path, card: "Card") -> None:
    show_json({"folder": str(folder), "name": card.name, "dim": card.dim, "fingerprint": card.fingerprint})


@command.command(name="import")
@click.argument("sources", nargs=-1, required=True)
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--revision", help="Branch, tag or commit of the sources on the hub.  [default: the newest]")
@click.option("--base", help="Folder or hub name of the base of a document adapter.  [default: the one in the adapter]")
@click.option(
    "--probe",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="JSON Lines with a 'text': real queries, on which the int8 query encoder is tested.  [default: use float32]",
)
@json_option
def import_command(
    sources: tuple[str, ...], folder: Path, revision: str | None, base: str | None, probe: Path | None, as_json: bool
) -> None:
    """Make the CARE folder FOLDER from published weights: one source with both encoders, or one for each.

    A source is a folder or a hub name: a published CARE model (query_encoder/ and doc_encoder/, merged or not), or an
    asymmetric sentence-transformers model. No code from the hub runs, and the document encoder is not loaded.

    \b
    Example:
      care model import PhilipGAQ/CARE-0.3B-4B ./care-0.3b-4b \\
        --probe queries.jsonl
    """
    from care_qdrant.model.adopt.importing import import_model, read_probe_texts
    from care_qdrant.model.card import license_notice

    card = import_model(
        sources,
        folder,
        name=folder.name,
        revision=revision,
        base=base,
        probe_texts=read_probe_texts(probe) if probe else None,
    )
    if as_json:
        _show_made(folder, card)
    else:
        echo(f"{folder}: {card.name}, {card.dim} dimensions ({card.fingerprint[:12]})")
    echo(f"license: {license_notice(card.license) if card.license else 'not stated'}", err=True)
