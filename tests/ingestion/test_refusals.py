"""Corpora, settings and collections that are refused before anything is written."""

import logging
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from qdrant_client import QdrantClient, models

from care_qdrant.bulk.job import Manifest
from care_qdrant.bulk.workers import WorkerSettings
from care_qdrant.errors import (
    CareError,
    FingerprintMismatch,
    InputError,
    SchemaMismatch,
)
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.settings import IngestSettings, Shard
from care_qdrant.model.care_model import CareModel
from care_qdrant.qdrant.connection import open_client
from care_qdrant.qdrant.create import SPARSE_VECTOR_NAME, Storage
from care_qdrant.types import Document
from care_qdrant.vectors.attach import AttachSettings, attach_vector
from care_qdrant.versions.publish import publish_collection
from tests.ingestion.conftest import WriteCorpus, short_rows
from tests.tiny import HashModel

COSINE, DOT = models.Distance.COSINE, models.Distance.DOT
ATTACH = "with the same --model and --path/--url: care attach corpus --vector-name"
"""Advice with the model: without it, the built-in model would be attached."""

OTHER_NAME = f"hash-model-{HashModel().fingerprint[:8]}"


COUNTS: list[Callable[[Any], object]] = [
    lambda count: IngestSettings(batch_tokens=count),
    lambda count: IngestSettings(limit=count),
    lambda count: AttachSettings(batch_tokens=count),
    lambda count: WorkerSettings("job", "built-in", batch_tokens=count),
    lambda count: Storage(shards=count),
    lambda count: Storage(replicas=count),
    lambda count: Storage(write_consistency=count),
    lambda count: Shard(count, 4),
    lambda count: Shard(1, count),
    lambda count: Manifest("model", "model", "f" * 64, 32, "Cosine", "model", unit_rows=count),
]
"""Everything that a program counts by in ingestion, attach and bulk jobs."""


@pytest.mark.parametrize("count", [0, -1, 2.5, float("nan"), "3"])
@pytest.mark.parametrize("make", COUNTS)
def test_a_count_is_a_whole_number_from_1_on(make: Callable[[Any], object], count: Any) -> None:
    make(1)
    with pytest.raises(InputError, match="expected a whole number from 1 on"):
        make(count)


def create(client: QdrantClient, size: int = 32, distance: models.Distance = COSINE, name: str = "hash-model") -> None:
    client.create_collection("corpus", vectors_config={name: models.VectorParams(size=size, distance=distance)})


@pytest.mark.parametrize(
    ("prepare", "error", "message"),
    [
        (lambda client: create(client), FingerprintMismatch, f"carries no fingerprint.*{ATTACH} {OTHER_NAME}$"),
        (lambda client: create(client, size=16), SchemaMismatch, f"is 16-dimensional.*{ATTACH} {OTHER_NAME}$"),
        (lambda client: create(client, distance=DOT), SchemaMismatch, "Dot distance"),
        (lambda client: create(client, name="other"), InputError, f"has no vector 'hash-model'.*{ATTACH} hash-model$"),
        (
            lambda client: ingest([Document("d", "x")], HashModel(salt="x"), client, "corpus"),
            FingerprintMismatch,
            f"was made by hash-model.*{ATTACH} {OTHER_NAME}$",
        ),
    ],
)
def test_a_collection_of_another_model(
    qdrant: QdrantClient,
    write_corpus: WriteCorpus,
    prepare: Callable[[QdrantClient], object],
    error: type[CareError],
    message: str,
) -> None:
    prepare(qdrant)
    before = qdrant.get_collection("corpus")
    with pytest.raises(error, match=message):
        ingest(write_corpus(short_rows(5)), HashModel(), qdrant, "corpus")
    assert qdrant.get_collection("corpus") == before


def test_bm25_in_a_collection_without_it(qdrant: QdrantClient, write_corpus: WriteCorpus) -> None:
    corpus = write_corpus(short_rows(5))
    ingest(corpus, HashModel(), qdrant, "corpus")
    with pytest.raises(InputError, match=f"has no sparse vector '{SPARSE_VECTOR_NAME}'"):
        ingest(corpus, HashModel(), qdrant, "corpus", settings=IngestSettings(sparse=True))


def test_a_corpus_without_a_document_makes_no_collection(qdrant: QdrantClient, tmp_path: Path) -> None:
    """Its mean length would stay in the contract of BM25, and spoil the weights of every later run."""
    empty = tmp_path / "corpus.jsonl"
    empty.write_text("")
    for settings in (IngestSettings(), IngestSettings(sparse=True), IngestSettings(dry_run=True)):
        with pytest.raises(InputError, match="no document is in the corpus, so collection 'corpus' was not made"):
            ingest(empty, HashModel(), qdrant, "corpus", settings=settings)
    assert not qdrant.collection_exists("corpus")
    ingest([Document("d", "高血压")], HashModel(), qdrant, "corpus")
    assert ingest(empty, HashModel(), qdrant, "corpus").points == 1


def test_documents_of_a_program_are_refused_by_their_reason_or_it_is_said(
    qdrant: QdrantClient, caplog: pytest.LogCaptureFixture
) -> None:
    """They have no file of rejected rows, and a program may not read the report."""
    with pytest.raises(InputError, match=r"none of 1 document can be ingested: 'text' is a NoneType"):
        ingest([Document("a", None)], HashModel(), qdrant, "corpus")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"none of 2 documents can be ingested: 'id' is a int; expected a string"):
        ingest([Document(5, "发烧"), Document(None, "发烧")], HashModel(), qdrant, "corpus")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"document 2 is a dict; expected care_qdrant.Document"):
        ingest([Document("a", "高血压"), {"id": "b", "text": "发烧"}], HashModel(), qdrant, "corpus")  # type: ignore[list-item]
    with pytest.raises(InputError, match=r"one document \('a'\) is given .*write \[document\]"):
        ingest(Document("a", "高血压"), HashModel(), qdrant, "corpus")  # type: ignore[arg-type]
    dated = Document("b", "发烧", metadata={"day": datetime(2024, 3, 1)})
    with caplog.at_level(logging.WARNING):
        report = ingest([Document("a", "高血压"), dated], HashModel(), qdrant, "corpus")
    assert (report.points, report.rejected) == (1, 1)
    [said] = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "'corpus': 1 document was rejected" in said and "'day'" in said


def test_documents_are_not_cut_anew_for_an_attached_vector(qdrant: QdrantClient) -> None:
    documents = [Document("d", "高血压" * 40)]
    ingest(documents, HashModel(), qdrant, "corpus")
    second = HashModel(name="second", salt="second")
    attach_vector(qdrant, "corpus", second)
    with pytest.raises(InputError, match=r"cut for vector 'hash-model'.*care attach corpus --vector-name second$"):
        ingest(documents, second, qdrant, "corpus")
    assert ingest(documents, HashModel(), qdrant, "corpus").encoded == 0


def test_a_version_is_not_written_to_while_its_source_is_there(qdrant: QdrantClient) -> None:
    documents = [Document(f"d{number}", f"高血压 {number}") for number in range(20)]
    ingest(documents, HashModel(), qdrant, "corpus")
    publish_collection(qdrant, "corpus", "live")
    for name in ("live", "live_v1"):
        with pytest.raises(InputError, match=r"'live_v1' is a version .* of 'corpus', .*: ingest into 'corpus'"):
            ingest([Document("new", "新的")], HashModel(), qdrant, name)
    qdrant.delete_collection("corpus")
    assert ingest([Document("new", "新的")], HashModel(), qdrant, "live").points == 21


def test_a_device_that_is_not_here_leaves_no_database(tmp_path: Path) -> None:
    model = CareModel.load(device="cuda:99")
    with (
        pytest.raises(InputError, match="device 'cuda:99': torch cannot use it here"),
        open_client(path=tmp_path / "results" / "qdrant") as client,
    ):
        ingest([Document("d", "高血压")], model, client, "corpus")
    assert list(tmp_path.iterdir()) == []
