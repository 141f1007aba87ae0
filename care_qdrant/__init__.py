"""Asymmetric retrieval in practice: a small query encoder, a large document encoder, one space, in Qdrant.

The names below are the public API; what is not among them is internal and may change. All but the errors are imported
when they are first used, so that ``import care_qdrant`` costs nothing and the query side never loads torch. BM25 as a
sparse vector is public as a module, `care_qdrant.encoders.terms.bm25`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from care_qdrant.errors import (
    AlteredModel,
    CareError,
    ContractError,
    EncodingError,
    FingerprintMismatch,
    FolderLocked,
    IncompleteModel,
    InputError,
    MissingExtra,
    ModelError,
    NewerFormat,
    NoCollection,
    NotVerified,
    QdrantError,
    Rejected,
    SchemaMismatch,
    ServerTooOld,
    TooFewDocuments,
    TrainingError,
    Unreachable,
    needs_extra,
    redact,
    remember_secret,
)
from care_qdrant.version import __version__

if TYPE_CHECKING:
    from care_qdrant.contracts.contract import SparseContract, VectorContract
    from care_qdrant.contracts.layouts import read_hit
    from care_qdrant.corpus.files import Corpus
    from care_qdrant.corpus.rows import Fields, Reject
    from care_qdrant.encoders import Encoder, TokenCounter
    from care_qdrant.encoders.batching import token_batches
    from care_qdrant.encoders.engine import Engine
    from care_qdrant.encoders.local.architecture import native_folder
    from care_qdrant.encoders.local.torch import load_sentence_transformer
    from care_qdrant.encoders.local.weights import readable_model
    from care_qdrant.encoders.microbatch import MicroBatcher
    from care_qdrant.encoders.remote.old_model import OldModel, open_old_model
    from care_qdrant.encoders.terms.sparse import FastEmbedSparse, native_bm25
    from care_qdrant.ingestion.ingest import ingest
    from care_qdrant.ingestion.rows import Reading
    from care_qdrant.ingestion.settings import IngestReport, IngestSettings
    from care_qdrant.model.adopt.importing import join_encoders
    from care_qdrant.model.card import CARD_FILE, Card, OnnxFiles
    from care_qdrant.model.care_model import CareModel, Precision
    from care_qdrant.model.export.onnx import export_query_encoder
    from care_qdrant.model.folder import verify_checkpoint, write_checkpoint
    from care_qdrant.model.hub import BUILT_IN, fetch_document_side, find_folder
    from care_qdrant.model.rewrite import rewrite_weights
    from care_qdrant.progress import Progress, progress_bar
    from care_qdrant.qdrant.collection import Collection
    from care_qdrant.qdrant.connection import is_embedded, open_client
    from care_qdrant.qdrant.create import SPARSE_VECTOR_NAME, Storage
    from care_qdrant.qdrant.retry import RetryPolicy
    from care_qdrant.search.fallback import Fallback
    from care_qdrant.search.fusion import CANDIDATES, DEFAULT_ALPHA, Fusion, bm25_weight
    from care_qdrant.search.retriever import Mode, Retriever
    from care_qdrant.types import Chunk, Document, Hit, Vectors, embedded_text, point_id
    from care_qdrant.vectors.attach import AttachReport, AttachSettings, attach_vector
    from care_qdrant.vectors.attach_plan import AttachPlan, plan_attach
    from care_qdrant.vectors.detach import DetachReport, detach_vector
    from care_qdrant.vectors.status import CollectionDetail, inspect_collection
    from care_qdrant.vectors.verify import verify_collection
    from care_qdrant.vectors.verify_report import VerifyReport, VerifySettings
    from care_qdrant.versions.promote import PromotionReport, promote_collection
    from care_qdrant.versions.publish import PublicationReport, PublishSettings, publish_collection, roll_back

_NAMES = {
    "vectors.attach": ("AttachReport", "AttachSettings", "attach_vector"),
    "vectors.detach": ("DetachReport", "detach_vector"),
    "vectors.attach_plan": ("AttachPlan", "plan_attach"),
    "vectors.status": ("CollectionDetail", "inspect_collection"),
    "vectors.verify": ("verify_collection",),
    "vectors.verify_report": ("VerifyReport", "VerifySettings"),
    "encoders.local.architecture": ("native_folder",),
    "model.card": ("CARD_FILE", "Card", "OnnxFiles"),
    "model.folder": ("verify_checkpoint", "write_checkpoint"),
    "model.hub": ("BUILT_IN", "fetch_document_side", "find_folder"),
    "corpus.files": ("Corpus",),
    "corpus.rows": ("Fields", "Reject"),
    "encoders": ("Encoder", "TokenCounter"),
    "encoders.batching": ("token_batches",),
    "encoders.engine": ("Engine",),
    "encoders.microbatch": ("MicroBatcher",),
    "encoders.remote.old_model": ("OldModel", "open_old_model"),
    "encoders.terms.sparse": ("FastEmbedSparse", "native_bm25"),
    "encoders.local.torch": ("load_sentence_transformer",),
    "encoders.local.weights": ("readable_model",),
    "model.export.onnx": ("export_query_encoder",),
    "ingestion.ingest": ("ingest",),
    "ingestion.settings": ("IngestReport", "IngestSettings"),
    "ingestion.rows": ("Reading",),
    "model.adopt.importing": ("join_encoders",),
    "model.care_model": ("CareModel", "Precision"),
    "model.rewrite": ("rewrite_weights",),
    "progress": ("Progress", "progress_bar"),
    "versions.promote": ("PromotionReport", "promote_collection"),
    "versions.publish": ("PublicationReport", "PublishSettings", "publish_collection", "roll_back"),
    "search.fallback": ("Fallback",),
    "search.fusion": ("CANDIDATES", "DEFAULT_ALPHA", "Fusion", "bm25_weight"),
    "contracts.layouts": ("read_hit",),
    "search.retriever": ("Mode", "Retriever"),
    "qdrant.collection": ("Collection",),
    "qdrant.connection": ("is_embedded", "open_client"),
    "contracts.contract": ("SparseContract", "VectorContract"),
    "qdrant.create": ("SPARSE_VECTOR_NAME", "Storage"),
    "qdrant.retry": ("RetryPolicy",),
    "types": ("Chunk", "Document", "Hit", "Vectors", "embedded_text", "point_id"),
}
"""Module to the public names that it defines."""

_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "BUILT_IN",
    "CANDIDATES",
    "CARD_FILE",
    "DEFAULT_ALPHA",
    "SPARSE_VECTOR_NAME",
    "AlteredModel",
    "AttachPlan",
    "AttachReport",
    "AttachSettings",
    "Card",
    "CareError",
    "CareModel",
    "Chunk",
    "Collection",
    "CollectionDetail",
    "ContractError",
    "Corpus",
    "DetachReport",
    "Document",
    "Encoder",
    "EncodingError",
    "Engine",
    "Fallback",
    "FastEmbedSparse",
    "Fields",
    "FingerprintMismatch",
    "FolderLocked",
    "Fusion",
    "Hit",
    "IncompleteModel",
    "IngestReport",
    "IngestSettings",
    "InputError",
    "MicroBatcher",
    "MissingExtra",
    "Mode",
    "ModelError",
    "NewerFormat",
    "NoCollection",
    "NotVerified",
    "OldModel",
    "OnnxFiles",
    "Precision",
    "Progress",
    "PromotionReport",
    "PublicationReport",
    "PublishSettings",
    "QdrantError",
    "Reading",
    "Reject",
    "Rejected",
    "Retriever",
    "RetryPolicy",
    "SchemaMismatch",
    "ServerTooOld",
    "SparseContract",
    "Storage",
    "TokenCounter",
    "TooFewDocuments",
    "TrainingError",
    "Unreachable",
    "VectorContract",
    "Vectors",
    "VerifyReport",
    "VerifySettings",
    "__version__",
    "attach_vector",
    "bm25_weight",
    "detach_vector",
    "embedded_text",
    "export_query_encoder",
    "fetch_document_side",
    "find_folder",
    "ingest",
    "inspect_collection",
    "is_embedded",
    "join_encoders",
    "load_sentence_transformer",
    "native_bm25",
    "native_folder",
    "needs_extra",
    "open_client",
    "open_old_model",
    "plan_attach",
    "point_id",
    "progress_bar",
    "promote_collection",
    "publish_collection",
    "read_hit",
    "readable_model",
    "redact",
    "remember_secret",
    "rewrite_weights",
    "roll_back",
    "token_batches",
    "verify_checkpoint",
    "verify_collection",
    "write_checkpoint",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"care_qdrant.{_HOME[name]}"), name)
