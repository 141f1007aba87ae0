"""What `care_qdrant.attach.attach` leaves in a collection's metadata for itself and for readers."""

from care_qdrant.store.contracts import read_metadata
from care_qdrant.store.retry import Collection

ATTACH_KEY = "care_attach"
"""Beside the contracts: by vector name, where its texts were read."""


def read_text_path(link: Collection, vector_name: str) -> str | None:
    """Give where an earlier run read the texts of a vector, None where there was none."""
    metadata = link.call("reading its metadata", lambda: read_metadata(link.client, link.collection))
    entry = (metadata.get(ATTACH_KEY) or {}).get(vector_name) or {}
    return entry.get("text_field")
