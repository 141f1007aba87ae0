"""mteb's search protocol over the path of production: ingestion into Qdrant, then a retriever.

Retrieval is a search, reranking a search among the candidates' ids, and STS encodes each sentence by the side that the
task states. With exact search the scores equal those of mteb's own encode-and-multiply path (tested to 1e-6).
"""

import hashlib
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
from datasets import Dataset
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.models.abs_encoder import AbsEncoder
from mteb.models.model_meta import ModelMeta, ScoringFunction
from mteb.types import PromptType
from qdrant_client import QdrantClient, models

from care_benchmarks.answerers import Answerer, CoreAnswerer, LlamaIndexAnswerer, Through
from care_benchmarks.contestants import Contestant
from care_benchmarks.instructed import with_instructions
from care_benchmarks.instructions import Instructions
from care_benchmarks.lexical import SMALLEST, MatrixSearch, check_against
from care_benchmarks.results import Indexing
from care_benchmarks.tasks import KINDS
from care_qdrant.encoders.bm25 import ANALYSER
from care_qdrant.errors import InputError
from care_qdrant.ingestion.report import Progress
from care_qdrant.ingestion.run import ingest
from care_qdrant.ingestion.settings import IngestSettings
from care_qdrant.model import CareModel
from care_qdrant.search.fusion import CANDIDATES
from care_qdrant.search.retriever import Retriever
from care_qdrant.store.connection import is_embedded
from care_qdrant.types import Document, Vectors

logger = logging.getLogger(__name__)

ProgressBar = Callable[[str], AbstractContextManager[Callable[[Progress], None]]]
"""As `care_qdrant.progress.progress_bar`."""

EMBEDDED_LIMIT = 100_000
"""Documents beyond which the embedded database is slow and large: it holds all vectors in memory and scans them."""


@contextmanager
def quiet(_label: str) -> Iterator[Callable[[Progress], None]]:
    """Show nothing."""
    yield lambda _progress: None


class QdrantSearch(AbsEncoder):
    """One contestant, as mteb sees a model."""

    mteb_model_meta: ModelMeta

    def __init__(
        self,
        contestant: Contestant,
        client: QdrantClient,
        *,
        instructions: Instructions | None = None,
        params: models.SearchParams | None = None,
        through: Through = "llama-index",
        progress: ProgressBar = quiet,
    ) -> None:
        """Set up; nothing is encoded before mteb asks.

        Args:
            contestant: The system.
            client: An open Qdrant; what earlier runs have put there is used again.
            instructions: Which sides get the paper's instruction.
            params: Of Qdrant's search; exact where None.
            through: How a dense query is answered; BM25, hybrids and borrowed indexes go through the core.
            progress: Opened for each corpus that is ingested, with a label.
        """
        self.contestant, self.client = contestant, client
        self.instructions = instructions or Instructions()
        # The embedded database always searches exactly, and warns where it is asked to.
        self.params = None if is_embedded(client) else params or models.SearchParams(exact=True)
        self.through, self.progress = through, progress
        self.indexed: dict[str, Indexing] = {}
        """By task: what building its index took."""
        self.multiplied: set[str] = set()
        """Tasks whose answers were computed by `care_benchmarks.lexical`."""
        self.mteb_model_meta = _model_meta(contestant, self.instructions)

    def index(self, corpus: Dataset, *, task_metadata: TaskMetadata, **_: Any) -> None:
        """Ingest a corpus; documents that are in Qdrant already are neither encoded nor written again."""
        if is_embedded(self.client) and len(corpus) > EMBEDDED_LIMIT:
            logger.warning(
                "%s has %d documents; the embedded database is meant for up to %d: run a server and pass --url",
                task_metadata.name,
                len(corpus),
                EMBEDDED_LIMIT,
            )
        began = time.perf_counter()
        model = self.model_for(task_metadata)
        collection = self.collection(task_metadata)
        with self.progress(f"{self.contestant.name}: {task_metadata.name}") as on_progress:
            report = ingest(
                _documents(corpus),
                model,
                self.client,
                collection,
                settings=IngestSettings(overflow="truncate", sparse=True),
                on_progress=on_progress,
            )
        if report.rejected:
            logger.warning("%s: %d documents are empty or malformed", task_metadata.name, report.rejected)
        seconds = time.perf_counter() - began
        self.indexed[task_metadata.name] = Indexing(task_metadata.name, report.documents, report.encoded, seconds)

    def search(
        self,
        queries: Dataset,
        *,
        task_metadata: TaskMetadata,
        top_k: int,
        top_ranked: Mapping[str, list[str]] | None = None,
        **_: Any,
    ) -> dict[str, dict[str, float]]:
        """Answer every query; one without an answer is there with none."""
        answer = self._answerer_of_many(task_metadata, list(queries["text"]))
        found = {}
        for query, text in zip(queries["id"], queries["text"], strict=True):
            among = None if top_ranked is None else top_ranked[query]
            found[query] = answer(text, top_k if among is None else len(among), among)
        return found

    def encode(
        self,
        inputs: Iterable[Mapping[str, Any]],
        *,
        task_metadata: TaskMetadata,
        prompt_type: PromptType | None = None,
        **_: Any,
    ) -> Vectors:
        """Encode by the side that the task states: (n, dim). mteb sends None where it has no side; queries, then."""
        if self.contestant.mode != "dense":
            raise InputError(f"{self.contestant.name}: has no vectors, so it cannot take {task_metadata.name}")
        model = self.model_for(task_metadata)
        encode = model.encode_document if prompt_type is PromptType.document else model.encode_query
        return np.concatenate([encode(batch["text"]) for batch in inputs])

    def answerer(self, task: TaskMetadata) -> Answerer:
        """Give the path of production on an indexed task."""
        if self.through == "core" or self.contestant.mode != "dense" or self.contestant.borrows_index:
            return CoreAnswerer(self._retriever(task))
        return LlamaIndexAnswerer(
            self.client,
            self.collection(task),
            self.contestant,
            query_prompt=self.instructions.prompt(KINDS[str(task.type)], "query"),
            params=self.params,
        )

    def _retriever(self, task: TaskMetadata) -> Retriever:
        model, mode = self.model_for(task), self.contestant.mode
        return Retriever(self.client, self.collection(task), model, mode=mode, params=self.params)

    def _answerer_of_many(self, task: TaskMetadata, queries: Sequence[str]) -> Answerer:
        """Give the path of production, or its equal where that would take hours (see `care_benchmarks.lexical`)."""
        slow = self.contestant.mode != "dense" and is_embedded(self.client)
        if not slow or self.indexed[task.name].documents < SMALLEST:
            return self.answerer(task)
        matrix = MatrixSearch(self.client, self.collection(task), self.model_for(task), self.contestant.mode)
        check_against(self._retriever(task), matrix, queries, CANDIDATES)
        self.multiplied.add(task.name)
        return matrix

    def model_for(self, task: TaskMetadata) -> CareModel:
        """Give the model with the instructions of a task."""
        return with_instructions(self.contestant.model, self.instructions, KINDS[str(task.type)])

    def collection(self, task: TaskMetadata) -> str:
        """Name the collection of a task: another corpus, model or document instruction has another one."""
        prompt = self.instructions.prompt(KINDS[str(task.type)], "document") or ""
        content = "\x1f".join([str(task.dataset["revision"]), self.contestant.model.fingerprint, prompt])
        return f"bench-{task.name}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"


def file_name(name: str) -> str:
    """Give a name that can be that of a file everywhere."""
    return re.sub(r"[^\w.+-]+", "-", name).strip("-")


def _documents(corpus: Dataset) -> Iterator[Document]:
    for row in corpus:
        yield Document(id=str(row["id"]), text=row["text"], title=row.get("title") or "")


def _model_meta(contestant: Contestant, instructions: Instructions) -> ModelMeta:
    """Describe the contestant to mteb, whose cache goes by name and revision and looks no further."""
    return ModelMeta.create_empty(
        overwrites={
            "name": f"care-qdrant/{file_name(contestant.name)}",
            "revision": _revision(contestant, instructions),
            "languages": ["zho-Hans"],
            "embed_dim": contestant.dim or None,
            "n_parameters": contestant.query_parameters + contestant.document_parameters or None,
            "similarity_fn_name": ScoringFunction.COSINE,
        }
    )


def _revision(contestant: Contestant, instructions: Instructions) -> str:
    """Give the fingerprint of the weights; with instructions or BM25 a hash of it and of these."""
    if contestant.mode == "dense" and instructions == Instructions():
        return contestant.fingerprint
    parts = [contestant.model.fingerprint, ANALYSER, contestant.mode, repr(instructions)]
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()
