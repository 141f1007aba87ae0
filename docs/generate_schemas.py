"""Write docs/reference/schemas/*.json, the schemas of the reports, from their dataclasses. `--check` compares them."""

import json
import sys
from collections.abc import Sequence
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

TARGET = Path(__file__).parent / "reference" / "schemas"
REPORTS = {
    "attach": ("care_qdrant.vectors.attach", "AttachReport"),
    "attach-dry-run": ("care_qdrant.vectors.attach_plan", "AttachPlan"),
    "detach": ("care_qdrant.vectors.detach", "DetachReport"),
    "ingest": ("care_qdrant.ingestion.settings", "IngestReport"),
    "learn": ("care_trainer.learn.outcome", "LearnReport"),
    "promote": ("care_qdrant.versions.promote", "PromotionReport"),
    "publish": ("care_qdrant.versions.publish", "PublicationReport"),
    "search": ("care_qdrant.types", "Hit"),
    "status": ("care_qdrant.vectors.status", "CollectionSummary"),
    "status-collection": ("care_qdrant.vectors.status", "CollectionDetail"),
    "verify": ("care_qdrant.vectors.verify_report", "VerifyReport"),
}
"""Reports by command. ``care status --json`` and ``care detach --json`` print an array of theirs; the hits of
``care search --json`` are an array under ``hits``."""


def schema(module: str, name: str) -> str:
    """Return the schema of what a command prints: not the fields that a class keeps out of its own listing, too."""
    kind = getattr(import_module(module), name)
    content = TypeAdapter(kind).json_schema(mode="serialization")
    for hidden in [each.name for each in fields(kind) if not each.repr]:
        del content["properties"][hidden]
    for each in fields(kind):
        if "printed" in each.metadata:
            _flatten(content, each.name, each.metadata["printed"])
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **content}, indent=2) + "\n"


def _flatten(content: dict[str, Any], inner: str, printed: Sequence[str]) -> None:
    """Put those fields of an inner report that are printed in its place."""
    kind = content["$defs"].pop(content["properties"][inner]["$ref"].rpartition("/")[2])
    properties = {name: kind["properties"][name] for name in printed}
    content["properties"] = _replaced(content["properties"], inner, properties)
    required = [name for name in printed if name in kind["required"]]
    content["required"] = list(_replaced(dict.fromkeys(content["required"]), inner, dict.fromkeys(required)))
    if not content["$defs"]:
        del content["$defs"]


def _replaced(values: dict[str, Any], key: str, others: dict[str, Any]) -> dict[str, Any]:
    """Return a mapping with others in the place of one key."""
    parts = (others if name == key else {name: value} for name, value in values.items())
    return {name: value for part in parts for name, value in part.items()}


if __name__ == "__main__":
    texts = {TARGET / f"{command}.json": schema(*place) for command, place in REPORTS.items()}
    if "--check" in sys.argv:
        stale = [path.name for path, text in texts.items() if not path.is_file() or path.read_text() != text]
        sys.exit(f"docs/reference/schemas is out of date ({', '.join(stale)}): make docs" if stale else 0)
    TARGET.mkdir(exist_ok=True)
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
