"""Make a CARE folder of weights: published CARE models, asymmetric sentence-transformers models, two encoders."""

import logging
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from care_qdrant.corpus.json_lines import read_rows
from care_qdrant.encoders.local.weights import (
    inside,
    kinds_of,
    read_json,
    read_modules,
    read_settings,
    settings_of,
    write_json,
)
from care_qdrant.encoders.references import REFERENCE_TEXTS
from care_qdrant.encoders.side import geometry_by
from care_qdrant.errors import InputError, ModelError, require_packages
from care_qdrant.model.adopt import published
from care_qdrant.model.card import Card
from care_qdrant.model.folder import (
    pooling_modes,
    require_destination,
    require_whole_vectors,
    write_checkpoint,
)
from care_qdrant.model.hub import fetch_document_side

logger = logging.getLogger(__name__)

_FOLDERS = (published.QUERY_FOLDER, published.DOCUMENT_FOLDER)
_NORMALIZE = "sentence_transformers.base.modules.normalize.Normalize"


def write_sides(source: Path, folders: dict[str, Path]) -> None:
    """Copy the modules of each route, and those behind the router, into a complete sentence-transformers model.

    A route that does not normalise gets the module that does: the model compares by cosine, which it leaves as it is.
    """
    router, settings = read_json(source / "router_config.json"), read_settings(source)
    similarity = settings.get("similarity_fn_name")
    require_whole_vectors(source, settings)
    behind = [(module["path"], module["type"]) for module in read_modules(source)[1:]]
    for side, folder in folders.items():
        route = _route(router, side)
        if not router["structure"].get(route):
            raise ModelError(f"{source}: has no route {route!r} (it has: {', '.join(router['structure'])})")
        modules = [*((path, router["types"][path]) for path in router["structure"][route]), *behind]
        kinds = [kind.rsplit(".", 1)[-1] for _, kind in modules]
        folder.mkdir(parents=True)
        entries = []
        for number, (path, kind) in enumerate(modules):
            name = "" if number == 0 else f"{number}_{kinds[number]}"
            shutil.copytree(inside(source, path), folder / name, dirs_exist_ok=True)
            entries.append({"idx": number, "name": str(number), "path": name, "type": kind})
        is_cut = geometry_by(kinds, similarity) == "cut"
        if kinds[-1] != "Normalize" and not is_cut:
            if similarity not in (None, "cosine"):
                raise ModelError(f"{source}: compares vectors of any length by {similarity}")
            name = f"{len(kinds)}_Normalize"
            (folder / name).mkdir()
            entries.append({"idx": len(kinds), "name": str(len(kinds)), "path": name, "type": _NORMALIZE})
        write_json(folder / "modules.json", entries)
        prompts = {side: settings["prompts"].get(side, "")}
        compared = {"prompts": prompts, "similarity_fn_name": "dot" if is_cut else "cosine"}
        write_json(folder / "config_sentence_transformers.json", compared)


def _route(router: dict[str, Any], side: str) -> str:
    """Return the name of the route that the router gives a text of one side."""
    mapped = router["parameters"].get("route_mappings") or {}
    asked = ((side, "text"), (side, None), (None, "text"), (None, None))
    return str(next((mapped[str(key)] for key in asked if str(key) in mapped), side))


def import_model(
    sources: Sequence[str],
    folder: Path,
    *,
    name: str,
    revision: str | None = None,
    base: str | None = None,
    probe_texts: Sequence[str] | None = None,
) -> Card:
    """Write the CARE folder of published weights, with the ONNX query encoder.

    Only the query encoder is loaded. The files of the document encoder are copied, or merged with their adapter, one by
    one.
    """
    from care_qdrant.model.export.onnx import export_query_encoder

    require_packages("ingest", "the import of a model", "torch", "sentence_transformers")
    if len(sources) not in (1, 2):
        raise InputError(f"{len(sources)} sources; expected one with both encoders, or the query's and the document's")
    require_destination(folder, stages=())
    folders = [fetch_document_side(source, revision=revision) for source in sources]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".care-import-") as scratch:
        query, document = Path(scratch) / "query", Path(scratch) / "document"
        is_stock = len(folders) == 1 and all(
            (folders[0] / file).is_file() for file in ("modules.json", "router_config.json")
        )
        if is_stock:
            with settings_of(folders[0]):
                write_sides(folders[0], {"query": query, "document": document})
        else:
            query_source, document_source = _published_sides(folders)
            _require_published(query_source, "query", "cls")
            _require_published(document_source, "document", "lasttoken")
            dim = published.write_query_side(query_source, query)
            with settings_of(document_source):
                published.write_document_side(document_source, document, dim, base)
        onnx = export_query_encoder(query, probe_texts or REFERENCE_TEXTS)
        if probe_texts is None:
            onnx = replace(onnx, default="fp32")
        fallback = "" if is_stock else published.LICENSE
        license = next(filter(None, map(_license, folders)), fallback)
        sides = ("query", "document") if len(folders) == 2 else ("both",)
        # The folder of a hub snapshot is named after its commit.
        commits = [place.name if re.fullmatch(r"[0-9a-f]{40}", place.name) else revision or "" for place in folders]
        return write_checkpoint(
            folder,
            name=name,
            query=query,
            document=document,
            onnx=onnx,
            query_tasks=None if is_stock else published.QUERY_TASKS,
            document_tasks=None if is_stock else published.DOCUMENT_TASKS,
            license=license,
            bases=[
                {"side": side, "name": str(source), "revision": commit, "license": license}
                for side, source, commit in zip(sides, sources, commits, strict=True)
            ],
            model_card=f"---\nlicense: {license.lower()}\n---\n# {name}\n\nImported from {', '.join(sources)}.\n",
        )


def _published_sides(folders: Sequence[Path]) -> tuple[Path, Path]:
    if len(folders) == 2:
        query, document = (folder / inner for folder, inner in zip(folders, _FOLDERS, strict=True))
        return query if query.is_dir() else folders[0], document if document.is_dir() else folders[1]
    sides = tuple(folders[0] / inner for inner in _FOLDERS)
    if not all(side.is_dir() for side in sides):
        raise InputError(
            f"{folders[0]}: holds neither {_FOLDERS[0]}/ and {_FOLDERS[1]}/ nor a Router of sentence-transformers; "
            "give the folder of the query encoder and that of the document encoder"
        )
    return sides[0], sides[1]


def _require_published(source: Path, side: str, pooling: str) -> None:
    """Refuse another model of sentence-transformers, whose pooling and prompt the import would replace.

    Raises:
        ModelError: It pools otherwise than the published encoder of this side, or has a prompt of its own.
    """
    if not (source / "modules.json").is_file():
        return
    with settings_of(source):
        modules = read_modules(source)
        pools = [
            read_json(source / module["path"] / "config.json")
            for module in modules
            if kinds_of([module]) == ["Pooling"]
        ]
        own = [mode for settings in pools for mode in pooling_modes(settings)]
    prompt = read_settings(source)["prompts"].get(side, "")
    if own != [pooling] or prompt not in ("", published.QUERY_TASKS[published.DEFAULT_TASK]):
        raise ModelError(
            f"{source}: is no published CARE encoder, but a sentence-transformers model of its own (pooling "
            f"{', '.join(own) or 'none'}, prompt {prompt!r}); make a pair of two such models with: care model join"
        )


def _license(folder: Path) -> str | None:
    """Return the license that the head of a model card names."""
    card = folder / "README.md"
    head = re.match(r"---\n(.*?)\n---", card.read_text(encoding="utf-8"), re.DOTALL) if card.is_file() else None
    line = re.search(r"^license:\s*(\S+)", head[1], re.MULTILINE) if head else None
    return line[1].strip("\"'") if line else None


def join_encoders(
    query: str | Path,
    document: str | Path,
    folder: str | Path,
    *,
    name: str,
    probe_texts: Sequence[str] | None = None,
) -> Card:
    """Write the CARE folder of two saved sentence-transformers models of one dimension.

    That the two were trained into one space cannot be seen from their files: score the model before you use it.

    Args:
        query: Folder of the query encoder; it stays as it is.
        document: Folder of the document encoder; it may be the same.
        folder: Destination.
        name: Name of the model.
        probe_texts: Real queries. With them the query encoder is exported for onnxruntime, and its int8 form has to
            pass its gate on them; without them the query side needs torch.

    Raises:
        ModelError: The two do not fit together, or one of them is not a complete model.
        MissingExtra: An export was asked for, and torch or onnx are not installed.
    """
    query, document, folder = Path(query), Path(document), Path(folder)
    require_destination(folder, stages=())
    if probe_texts is None:
        return write_checkpoint(folder, name=name, query=query, document=document)
    from care_qdrant.model.export.onnx import export_query_encoder

    with tempfile.TemporaryDirectory(prefix="care-join-") as scratch:
        copy = Path(scratch) / "query"
        shutil.copytree(query, copy, ignore=shutil.ignore_patterns("onnx"))
        onnx = export_query_encoder(copy, probe_texts)
        return write_checkpoint(folder, name=name, query=copy, document=document, onnx=onnx)


def read_probe_texts(path: Path) -> list[str]:
    """Read the ``text`` of each JSON line."""
    texts = []
    for row, where in read_rows(path):
        if not isinstance(row.get("text"), str):
            raise InputError(f'{where}: expected {{"text": …}}, found {str(row)[:60]}')
        texts.append(row["text"])
    return texts
