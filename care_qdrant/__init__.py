"""Asymmetric retrieval in practice: a small query encoder, a large document encoder, one space, in Qdrant.

The names below are the public API, together with the errors in `care_qdrant.errors`, the sparse encoders in
`care_qdrant.encoders.terms` and the classes in `care_qdrant.integrations`; everything else is internal and may change.
Each is imported when it is first used, so that ``import care_qdrant`` costs nothing and the query side never loads
torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from care_qdrant.errors import CareError as CareError
from care_qdrant.version import __version__ as __version__

if TYPE_CHECKING:
    from care_qdrant.corpus.files import Corpus as Corpus
    from care_qdrant.corpus.rows import Fields as Fields
    from care_qdrant.corpus.rows import Reject as Reject
    from care_qdrant.encoders.engine import Engine as Engine
    from care_qdrant.encoders.remote.old_model import open_old_model as open_old_model
    from care_qdrant.ingestion.ingest import ingest as ingest
    from care_qdrant.ingestion.settings import IngestReport as IngestReport
    from care_qdrant.ingestion.settings import IngestSettings as IngestSettings
    from care_qdrant.model.adopt.importing import join_encoders as join_encoders
    from care_qdrant.model.care_model import CareModel as CareModel
    from care_qdrant.model.care_model import Precision as Precision
    from care_qdrant.progress import Progress as Progress
    from care_qdrant.qdrant.collection import Collection as Collection
    from care_qdrant.qdrant.connection import open_client as open_client
    from care_qdrant.qdrant.create import Storage as Storage
    from care_qdrant.qdrant.retry import RetryPolicy as RetryPolicy
    from care_qdrant.search.fallback import Fallback as Fallback
    from care_qdrant.search.fusion import Fusion as Fusion
    from care_qdrant.search.retriever import Mode as Mode
    from care_qdrant.search.retriever import Retriever as Retriever
    from care_qdrant.switch.switch import SwitchReport as SwitchReport
    from care_qdrant.switch.switch import retire_vector as retire_vector
    from care_qdrant.switch.switch import switch_collection as switch_collection
    from care_qdrant.switch.switch import undo_switch as undo_switch
    from care_qdrant.types import Document as Document
    from care_qdrant.types import Hit as Hit
    from care_qdrant.vectors.attach import AttachReport as AttachReport
    from care_qdrant.vectors.attach import AttachSettings as AttachSettings
    from care_qdrant.vectors.attach import attach_vector as attach_vector
    from care_qdrant.vectors.attach_plan import AttachPlan as AttachPlan
    from care_qdrant.vectors.attach_plan import plan_attach as plan_attach
    from care_qdrant.vectors.detach import DetachReport as DetachReport
    from care_qdrant.vectors.detach import detach_vector as detach_vector
    from care_qdrant.vectors.status import CollectionDetail as CollectionDetail
    from care_qdrant.vectors.status import inspect_collection as inspect_collection
    from care_qdrant.vectors.verify import verify_collection as verify_collection
    from care_qdrant.vectors.verify_report import VerifyReport as VerifyReport
    from care_qdrant.vectors.verify_report import VerifySettings as VerifySettings
    from care_qdrant.versions.promote import PromotionReport as PromotionReport
    from care_qdrant.versions.promote import promote_collection as promote_collection
    from care_qdrant.versions.publish import PublicationReport as PublicationReport
    from care_qdrant.versions.publish import PublishSettings as PublishSettings
    from care_qdrant.versions.publish import publish_collection as publish_collection
    from care_qdrant.versions.publish import roll_back as roll_back

_HOME = {
    "Corpus": "corpus.files",
    "Fields": "corpus.rows",
    "Reject": "corpus.rows",
    "Engine": "encoders.engine",
    "open_old_model": "encoders.remote.old_model",
    "ingest": "ingestion.ingest",
    "IngestReport": "ingestion.settings",
    "IngestSettings": "ingestion.settings",
    "join_encoders": "model.adopt.importing",
    "CareModel": "model.care_model",
    "Precision": "model.care_model",
    "Progress": "progress",
    "Collection": "qdrant.collection",
    "open_client": "qdrant.connection",
    "Storage": "qdrant.create",
    "RetryPolicy": "qdrant.retry",
    "Fallback": "search.fallback",
    "Fusion": "search.fusion",
    "Mode": "search.retriever",
    "Retriever": "search.retriever",
    "SwitchReport": "switch.switch",
    "retire_vector": "switch.switch",
    "switch_collection": "switch.switch",
    "undo_switch": "switch.switch",
    "Document": "types",
    "Hit": "types",
    "AttachReport": "vectors.attach",
    "AttachSettings": "vectors.attach",
    "attach_vector": "vectors.attach",
    "AttachPlan": "vectors.attach_plan",
    "plan_attach": "vectors.attach_plan",
    "DetachReport": "vectors.detach",
    "detach_vector": "vectors.detach",
    "CollectionDetail": "vectors.status",
    "inspect_collection": "vectors.status",
    "verify_collection": "vectors.verify",
    "VerifyReport": "vectors.verify_report",
    "VerifySettings": "vectors.verify_report",
    "PromotionReport": "versions.promote",
    "promote_collection": "versions.promote",
    "PublicationReport": "versions.publish",
    "PublishSettings": "versions.publish",
    "publish_collection": "versions.publish",
    "roll_back": "versions.publish",
}
"""Public names to the modules that define them."""

__all__ = ["CareError", "__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"care_qdrant.{_HOME[name]}"), name)
