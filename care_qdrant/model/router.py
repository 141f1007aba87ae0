"""The two sides of a stock asymmetric sentence-transformers model (``Router.for_query_document``), each on its own."""

import json
import shutil
from pathlib import Path
from typing import Any

from care_qdrant.errors import ModelError

_NORMALIZE = "sentence_transformers.base.modules.normalize.Normalize"


def is_router(folder: Path) -> bool:
    """Return whether a saved model has one route for queries and one for documents."""
    return (folder / "modules.json").is_file() and (folder / "router_config.json").is_file()


def write_sides(source: Path, folders: dict[str, Path]) -> None:
    """Copy the modules of each route into a complete sentence-transformers model.

    A route that does not normalise gets the module that does: the model compares by cosine, which it leaves as it is.
    """
    router, settings = _read(source / "router_config.json"), _read(source / "config_sentence_transformers.json")
    for side, folder in folders.items():
        paths = router["structure"].get(side)
        if not paths:
            raise ModelError(f"{source}: has no route {side!r} (it has: {', '.join(router['structure'])})")
        kinds = [router["types"][path] for path in paths]
        folder.mkdir(parents=True)
        entries = []
        for number, (path, kind) in enumerate(zip(paths, kinds, strict=True)):
            name = "" if number == 0 else f"{number}_{kind.rsplit('.', 1)[-1]}"
            shutil.copytree(source / path, folder / name, dirs_exist_ok=True)
            entries.append({"idx": number, "name": str(number), "path": name, "type": kind})
        if not any(kind.endswith(".Normalize") for kind in kinds):
            if settings.get("similarity_fn_name") not in (None, "cosine"):
                raise ModelError(f"{source}: compares vectors of any length by {settings['similarity_fn_name']}")
            name = f"{len(kinds)}_Normalize"
            (folder / name).mkdir()
            entries.append({"idx": len(kinds), "name": str(len(kinds)), "path": name, "type": _NORMALIZE})
        _write(folder / "modules.json", entries)
        prompts = {side: (settings.get("prompts") or {}).get(side) or ""}
        _write(folder / "config_sentence_transformers.json", {"prompts": prompts, "similarity_fn_name": "cosine"})


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
