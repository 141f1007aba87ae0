"""Make a pair of two encoders that exist: what can be checked is checked, and what cannot is said."""

import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from care_qdrant.errors import InputError
from care_qdrant.model.card import Card
from care_qdrant.model.folder import write_checkpoint


def join_encoders(
    query: Path, document: Path, folder: Path, *, name: str, probe_texts: Sequence[str] | None = None
) -> Card:
    """Write the CARE folder of two saved sentence-transformers models of one dimension.

    That the two were trained into one space cannot be seen from their files: score the pair before you use it.

    Args:
        query: Folder of the query encoder; it stays as it is.
        document: Folder of the document encoder; it may be the same.
        folder: Destination.
        name: Of the pair.
        probe_texts: Real queries. With them the query encoder is exported for onnxruntime, and its int8 form has to
            pass its gate on them; without them the query side needs torch.

    Raises:
        ModelError: The two do not fit together, or one is no complete model.
        MissingExtra: An export was asked for, and torch or onnx are not installed.
    """
    if probe_texts is None:
        return write_checkpoint(folder, name=name, query=query, document=document)
    from care_qdrant.model.export_onnx import export_query_encoder

    with tempfile.TemporaryDirectory(prefix="care-join-") as scratch:
        copy = Path(scratch) / "query"
        shutil.copytree(query, copy, ignore=shutil.ignore_patterns("onnx"))
        onnx = export_query_encoder(copy, probe_texts)
        return write_checkpoint(folder, name=name, query=copy, document=document, onnx=onnx)


def read_probe_texts(path: Path) -> list[str]:
    """Read the ``text`` of each JSON line."""
    texts = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            texts.append(str(json.loads(line)["text"]))
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f'{path}:{number}: expected {{"text": …}}, found {line[:60]!r}') from error
    return texts
