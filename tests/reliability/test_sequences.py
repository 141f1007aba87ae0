"""A few of the killed sequences, and what their check finds."""

import random
from collections.abc import Callable

import pytest
from qdrant_client import QdrantClient, models

from care_qdrant.ingestion.settings import IngestSettings
from tests.reliability.sequences import COLLECTION, ChangingCorpus, check_points, databases, run_killed, run_sequence


@pytest.mark.parametrize("kind", ["folder", "server"])
def test_killed_sequences_end_with_what_the_corpus_says(kind: str) -> None:
    for seed in (1, 2):
        with databases(kind) as open_client:
            outcome = run_sequence(seed, open_client)
        assert outcome.faults == []
        assert outcome.points > 0


def _delete(client: QdrantClient, records: list[models.Record]) -> None:
    client.delete(COLLECTION, [records[0].id])


def _duplicate(client: QdrantClient, records: list[models.Record]) -> None:
    client.upsert(COLLECTION, [models.PointStruct(id=7, vector=records[0].vector, payload=records[0].payload)])


def _foreign_vector(client: QdrantClient, records: list[models.Record]) -> None:
    client.update_vectors(COLLECTION, [models.PointVectors(id=records[0].id, vector={"hash-model": [1.0] * 32})])


def _stale_text(client: QdrantClient, records: list[models.Record]) -> None:
    client.set_payload(COLLECTION, {"text": "旧的"}, [records[0].id])


def _extra(client: QdrantClient, records: list[models.Record]) -> None:
    payload = {**(records[0].payload or {}), "doc_id": "gone"}
    client.upsert(COLLECTION, [models.PointStruct(id=7, vector=records[0].vector, payload=payload)])


@pytest.mark.parametrize("spoil", [_delete, _duplicate, _foreign_vector, _stale_text, _extra])
def test_the_check_finds_each_fault(spoil: Callable[[QdrantClient, list[models.Record]], None]) -> None:
    corpus = ChangingCorpus(3)
    corpus.edit(random.Random(3))
    with databases("folder") as open_client:
        run_killed(open_client, corpus.rows, IngestSettings(), 64, None)
        client = open_client()
        assert check_points(client, corpus.rows, "split", 64)[1] == []
        records, _ = client.scroll(COLLECTION, limit=1_000, with_vectors=True)
        spoil(client, records)
        assert check_points(client, corpus.rows, "split", 64)[1]
        client.close()
