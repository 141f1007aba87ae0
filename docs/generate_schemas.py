"""Write docs/reference/schemas/*.json, the schemas of the reports, from their dataclasses. `--check` compares them."""

import json
import sys
from dataclasses import fields
from importlib import import_module
from pathlib import Path

from pydantic import TypeAdapter

TARGET = Path(__file__).parent / "reference" / "schemas"
REPORTS = {
    "attach": ("care_qdrant.vectors.attach", "AttachReport"),
    "collections": ("care_qdrant.vectors.doctor", "CollectionSummary"),
    "detach": ("care_qdrant.vectors.detach", "DetachReport"),
    "doctor": ("care_qdrant.vectors.doctor", "Diagnosis"),
    "ingest": ("care_qdrant.ingestion.settings", "IngestReport"),
    "learn": ("care_trainer.learn.outcome", "LearnReport"),
    "promote": ("care_qdrant.versions.promote", "PromotionReport"),
    "publish": ("care_qdrant.versions.publish", "PublicationReport"),
    "search": ("care_qdrant.types", "Hit"),
    "verify": ("care_qdrant.vectors.verify", "VerifyReport"),
}
"""By command. ``care collections --json`` prints an array of its objects; ``care search --json`` one in ``hits``."""


def schema(module: str, name: str) -> str:
    """Return the schema of what a command prints: not the fields that a class keeps out of its own listing, too."""
    kind = getattr(import_module(module), name)
    content = TypeAdapter(kind).json_schema(mode="serialization")
    for hidden in [each.name for each in fields(kind) if not each.repr]:
        del content["properties"][hidden]
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **content}, indent=2) + "\n"


if __name__ == "__main__":
    texts = {TARGET / f"{command}.json": schema(*place) for command, place in REPORTS.items()}
    if "--check" in sys.argv:
        stale = [path.name for path, text in texts.items() if not path.is_file() or path.read_text() != text]
        sys.exit(f"docs/reference/schemas is out of date ({', '.join(stale)}): make docs" if stale else 0)
    TARGET.mkdir(exist_ok=True)
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
