"""What `care_qdrant.existing.attach` leaves in a collection's metadata for itself and for readers."""

from care_qdrant.database.collection import read_metadata
from care_qdrant.database.retry import Link

ATTACH_KEY = "care_attach"
"""Beside the contracts: by vector name, where its texts were read."""


def read_text_path(link: Link, vector_name: str) -> str | None:
    """Give where an earlier run read the texts of a vector, None where there was none."""
    metadata = link.call("reading its metadata", lambda: read_metadata(link.client, link.collection))
    entry = (metadata.get(ATTACH_KEY) or {}).get(vector_name) or {}
    return entry.get("text_path")
