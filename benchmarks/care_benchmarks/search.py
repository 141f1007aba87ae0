"""mteb's search protocol over the production path: ingestion into Qdrant, then a retriever.

Retrieval is a search, reranking a search among the candidates' ids, and STS encodes each sentence with the encoder that
the task states. With exact search the scores equal those of mteb's own encode-and-multiply path (tested to 1e-6).
"""

import hashlib
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, Protocol

import numpy as np
from datasets import Dataset
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.models.abs_encoder import AbsEncoder
from mteb.models.model_meta import ModelMeta, ScoringFunction
from mteb.types import PromptType
from qdrant_client import QdrantClient, models

from care_benchmarks.results import Indexing
from care_benchmarks.systems import EvaluatedSystem
from care_qdrant import CareModel, Document, IngestSettings, Progress, Retriever, ingest
from care_qdrant.encoders.terms.analyser import DEFAULT
from care_qdrant.errors import InputError, counted
from care_qdrant.qdrant.connection import is_embedded
from care_qdrant.types import Vectors, point_id

logger = logging.getLogger(__name__)

Through = Literal["llama-index", "core"]

ProgressBar = Callable[[str], AbstractContextManager[Callable[[Progress], None]]]
"""A context manager factory like `care_qdrant.progress.progress_bar`."""

EMBEDDED_LIMIT = 100_000
"""Number of documents above which the embedded database, which holds and scans all vectors, is slow and large."""


_QUERY_TASKS = {"Retrieval": "retrieval", "Reranking": "rerank", "STS": "sts"}
"""Names of a model's tasks by mteb's types of tasks."""


@contextmanager
def quiet(_label: str) -> Iterator[Callable[[Progress], None]]:
    """Show no progress."""
    yield lambda _progress: None


class QueryPath(Protocol):
    """A code path from a query to scored documents."""

    description: str
    """The classes that a query passes through."""

    def __call__(self, query: str, top_k: int, among: Sequence[str] | None = None) -> dict[str, float]:
        """Return document id → score of the best ``top_k``, restricted to ``among`` if it is set."""


class LlamaIndexPath:
    """LlamaIndex's vector retriever over `CareEmbedding` and `CareVectorStore`."""

    description = "LlamaIndex: CareEmbedding, CareVectorStore, VectorIndexRetriever"

    def __init__(
        self,
        client: QdrantClient,
        collection: str,
        system: EvaluatedSystem,
        params: models.SearchParams | None,
        query_task: str | None = None,
    ) -> None:
        """Open an ingested collection."""
        from llama_index.core import VectorStoreIndex
        from llama_index.embeddings.care import CareEmbedding
        from llama_index.vector_stores.care import CareVectorStore

        embedding = CareEmbedding(
            model=system.source,
            precision=system.precision,
            device=system.device,
            documents=False,
            query_task=query_task,
            # Repeated queries must be encoded again, or the cache would be timed.
            query_cache_size=0,
            on_truncation="ignore",
        )
        # Checking the vector of a query would encode it again, since nothing is cached.
        store = CareVectorStore(collection, client, embedding=embedding, enable_hybrid=False, check_vectors=False)
        self._index = VectorStoreIndex.from_vector_store(store, embed_model=embedding)
        self._options = {"search_params": params}

    def __call__(self, query: str, top_k: int, among: Sequence[str] | None = None) -> dict[str, float]:
        """Return document id → score."""
        from llama_index.core.retrievers import VectorIndexRetriever

        retriever = VectorIndexRetriever(
            self._index,
            similarity_top_k=top_k,
            node_ids=None if among is None else [point_id(document) for document in among],
            vector_store_kwargs=self._options,
        )
        return {str(hit.node.ref_doc_id): float(hit.score or 0.0) for hit in retriever.retrieve(query)}


class CorePath:
    """The core's `Retriever`."""

    description = "care_qdrant.Retriever"

    def __init__(self, retriever: Retriever) -> None:
        self._retriever = retriever

    def __call__(self, query: str, top_k: int, among: Sequence[str] | None = None) -> dict[str, float]:
        """Return document id → score."""
        only = None
        if among is not None:
            only = models.Filter(must=[models.HasIdCondition(has_id=[point_id(document) for document in among])])
        [hits] = self._retriever.search([query], top_k, only)
        return {hit.document_id: hit.score for hit in hits}


class QdrantSearch(AbsEncoder):
    """One system behind mteb's model protocol."""

    mteb_model_meta: ModelMeta

    def __init__(
        self,
        system: EvaluatedSystem,
        client: QdrantClient,
        *,
        params: models.SearchParams | None = None,
        through: Through = "llama-index",
        progress: ProgressBar = quiet,
    ) -> None:
        """Store the settings; nothing is encoded before mteb asks."""
        self.system, self.client = system, client
        # The embedded database always searches exactly, and warns if it is asked to.
        self.params = None if is_embedded(client) else params or models.SearchParams(exact=True)
        self.through, self.progress = through, progress
        self.indexed: dict[str, Indexing] = {}
        """Indexing cost by task."""
        self.query_tasks: dict[str, str | None] = {}
        """Task of the model, such as ``rerank``, whose prompt the queries of a benchmark task get; None is its own."""
        self.mteb_model_meta = _model_meta(system)

    def index(self, corpus: Dataset, *, task_metadata: TaskMetadata, **_: Any) -> None:
        """Ingest a corpus; documents that are stored already are neither encoded nor written again."""
        name = task_metadata.name
        if is_embedded(self.client) and len(corpus) > EMBEDDED_LIMIT:
            logger.warning(
                "%s has %d documents; the embedded database is meant for up to %d: run a server and pass --url",
                name,
                len(corpus),
                EMBEDDED_LIMIT,
            )
        collection = self.collection(name, str(task_metadata.dataset["revision"]))
        began = time.perf_counter()
        with self.progress(f"{self.system.name}: {name}") as on_progress:
            report = ingest(
                list(_documents(corpus)),  # a list has a length, from which the remaining time follows
                self.system.model,
                self.client,
                collection,
                settings=IngestSettings(overflow="truncate", sparse=True, any_language=True),
                on_progress=on_progress,
            )
        if report.rejected:
            logger.warning("%s: %s empty or malformed", name, counted(report.rejected, "document", "are"))
        seconds = time.perf_counter() - began
        self.indexed[name] = Indexing(name, report.documents, report.encoded, seconds)

    def search(
        self,
        queries: Dataset,
        *,
        task_metadata: TaskMetadata,
        top_k: int,
        top_ranked: Mapping[str, list[str]] | None = None,
        **_: Any,
    ) -> dict[str, dict[str, float]]:
        """Answer every query; a query without hits has an empty entry."""
        revision = str(task_metadata.dataset["revision"])
        self.query_tasks[task_metadata.name] = query_task(self.system.model, task_metadata)
        answer = self.query_path(task_metadata.name, revision)
        answers = {}
        for query, text in zip(queries["id"], queries["text"], strict=True):
            among = None if top_ranked is None else top_ranked[query]
            answers[query] = answer(text, top_k if among is None else len(among), among)
        return answers

    def encode(
        self,
        inputs: Iterable[Mapping[str, Any]],
        *,
        task_metadata: TaskMetadata,
        prompt_type: PromptType | None = None,
        **_: Any,
    ) -> Vectors:
        """Encode with the encoder that the task states, and the prompt of its kind; mteb's None counts as query."""
        if self.system.mode != "dense":
            raise InputError(f"{self.system.name}: has no vectors, so it cannot take {task_metadata.name}")
        model = self.system.model
        task = query_task(model, task_metadata)
        if prompt_type is PromptType.document:
            prompt = model.card.document.tasks.get(task) if model.card and task else None
            return np.concatenate([model.encode_document(batch["text"], prompt=prompt) for batch in inputs])
        prompt = model.query_prompt(task)
        return np.concatenate([model.encode_query(batch["text"], prompt=prompt) for batch in inputs])

    def query_path(self, task: str, revision: str) -> QueryPath:
        """Return the production path of queries on an indexed task."""
        collection = self.collection(task, revision)
        if self.through == "core" or self.system.mode != "dense" or self.system.borrows_index:
            own = None if self.system.mode == "sparse" else self.query_tasks.get(task)
            return CorePath(
                Retriever(
                    self.client, collection, self.system.model, mode=self.system.mode, params=self.params, task=own
                )
            )
        return LlamaIndexPath(self.client, collection, self.system, self.params, self.query_tasks.get(task))

    def collection(self, task: str, revision: str) -> str:
        """Return the collection name of a task, which differs for each corpus and each model."""
        content = "\x1f".join([revision, self.system.model.fingerprint])
        return f"bench-{task}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"


def query_task(model: CareModel, task_metadata: TaskMetadata) -> str | None:
    """Return the task of a model whose prompt fits a benchmark task, or None where the model has none of that name."""
    kind = _QUERY_TASKS.get(task_metadata.type)
    return kind if model.card is not None and kind in model.card.query.tasks else None


def file_name(name: str) -> str:
    """Return a name that is valid as a file name on every system."""
    return re.sub(r"[^\w.+-]+", "-", name).strip("-")


def _documents(corpus: Dataset) -> Iterator[Document]:
    for row in corpus:
        yield Document(id=str(row["id"]), text=row["text"], title=row.get("title") or "")


def _model_meta(system: EvaluatedSystem) -> ModelMeta:
    """Describe the system to mteb, whose result cache is keyed by name and revision."""
    revision, geometry = system.model.fingerprint, system.model.geometry
    if system.mode != "dense":
        revision = hashlib.sha256("\x1f".join([revision, DEFAULT.name, system.mode]).encode()).hexdigest()
    return ModelMeta.create_empty(
        overwrites={
            "name": f"care-qdrant/{file_name(system.name)}",
            "revision": revision,
            "languages": ["zho-Hans"],
            "embed_dim": system.dim or None,
            "n_parameters": system.query_parameters + system.document_parameters or None,
            # Documents that are cut after normalising have no unit length.
            "similarity_fn_name": ScoringFunction.DOT_PRODUCT if geometry == "cut" else ScoringFunction.COSINE,
        }
    )
