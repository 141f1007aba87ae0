"""Add what newer versions export to a CARE folder that exists: an ONNX document encoder, and reference vectors."""

from dataclasses import replace
from pathlib import Path

from care_qdrant.model.card import DOCUMENT_ONNX, FORMAT, Card, FileEntry, bind_references, read_card
from care_qdrant.model.export_onnx import export_document_encoder, make_side_references
from care_qdrant.model.folder import verify_checkpoint
from care_qdrant.model.integrity import sha256


def add_onnx(folder: Path) -> Card:
    """Export the document encoder of a CARE folder to ONNX, and bind the ONNX files of both sides to its fingerprint.

    The fingerprint stays, and with it every collection that the model made. The folder is usable at any moment but one
    between writing the graph and writing the card, when it is refused; calling this again mends that.
    """
    path = f"document/{DOCUMENT_ONNX}"
    if path not in read_card(folder).files:
        (folder / path).unlink(missing_ok=True)
    card = verify_checkpoint(folder)
    query = card.onnx and replace(card.onnx, references=make_side_references(folder / "query"))
    document = export_document_encoder(folder / "document")
    card = replace(
        card,
        files={**card.files, path: FileEntry(sha256(folder / path), (folder / path).stat().st_size)},
        onnx=query,
        document_onnx=document,
        references_sha256=bind_references(card.fingerprint, query, document),
        format=FORMAT,
    )
    card.save(folder)
    return card
