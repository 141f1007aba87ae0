"""Asymmetric retrieval in practice: a small query encoder, a large document encoder, one space, in Qdrant.

The names below are the public API. They are imported when they are first used, so that ``import care_qdrant`` costs
nothing and the query side never loads torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from care_qdrant.errors import CareError
    from care_qdrant.ingestion.report import IngestReport
    from care_qdrant.ingestion.run import ingest
    from care_qdrant.ingestion.settings import IngestSettings
    from care_qdrant.model import CareModel
    from care_qdrant.search.retriever import Retriever
    from care_qdrant.store.connection import open_client
    from care_qdrant.types import Document, Hit

_HOME = {
    "CareError": "errors",
    "CareModel": "model",
    "Document": "types",
    "Hit": "types",
    "IngestReport": "ingestion.report",
    "IngestSettings": "ingestion.settings",
    "Retriever": "search.retriever",
    "ingest": "ingestion.run",
    "open_client": "store.connection",
}

__all__ = [
    "CareError",
    "CareModel",
    "Document",
    "Hit",
    "IngestReport",
    "IngestSettings",
    "Retriever",
    "__version__",
    "ingest",
    "open_client",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"care_qdrant.{_HOME[name]}"), name)
