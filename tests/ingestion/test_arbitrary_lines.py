"""Whatever a file holds: each line is stored, repeated or rejected, and what is stored is what was written."""

import json
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qdrant_client import QdrantClient

from care_qdrant.bulk.job import Job, Manifest
from care_qdrant.bulk.units import PlanReport, plan
from care_qdrant.corpus.files import Corpus
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.types import Document
from tests.databases import REAL, open_database
from tests.tiny import HashModel

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
ROWS = st.fixed_dictionaries(
    {"id": st.sampled_from(["1", "2", "3"]) | st.text(max_size=4), "text": st.text(max_size=150)},
    optional={"title": st.text(max_size=5), "metadata": st.dictionaries(st.text(max_size=4), VALUES, max_size=3)},
)
LINES = st.lists(
    ROWS.map(lambda row: json.dumps(row).encode())
    | VALUES.map(lambda value: json.dumps(value).encode())
    | st.sampled_from(["id", "text", "other"]).map(lambda key: f'{{"{key}\\ud800": "\\ud800"}}'.encode())
    | st.sampled_from(["id", "text", "title"]).map(
        lambda key: json.dumps({"id": "1", "text": "x", key: "\ud800"}).encode()
    )
    | st.binary(max_size=30),
    max_size=12,
)
NUMBERS = count()


@pytest.fixture(scope="module", params=["embedded", "server", *REAL])
def client(request: pytest.FixtureRequest) -> Iterator[QdrantClient]:
    with open_database(request) as client:
        yield client


@settings(max_examples=15)
@given(lines=LINES)
def test_every_line_is_accounted_for(client: QdrantClient, lines: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "corpus.jsonl"
        path.write_bytes(b"\n".join([b'{"id": "0", "text": "\\u54ee\\u5598"}', *lines]))
        with Corpus(path) as corpus:
            rows = list(corpus)
        first = {row.id: row for row in reversed(rows) if isinstance(row, Document)}
        collection = f"c{next(NUMBERS)}"
        report = ingest(path, HashModel(max_tokens=1_000), client, collection)
        assert report.documents + report.duplicates + report.rejected == len(rows)
        model = HashModel(max_tokens=1_000)
        draft = Manifest("hash", model.name, model.fingerprint, model.dim, "Cosine", model.name)
        job = Job(str(Path(folder) / "job"))
        planned = PlanReport.of(plan([str(path)], job, draft, model.document_tokenizer, sparse=True), job)
        assert (planned.documents, planned.rejected) == (report.documents, report.rejected)
        assert report.points == report.documents == len(first)
        for record in client.scroll(collection, limit=100)[0]:
            payload = record.payload or {}
            document = first[payload["doc_id"]]
            assert payload["text"] == document.text
            assert {key: payload[key] for key in document.metadata} == dict(document.metadata)
        assert ingest(path, HashModel(max_tokens=1_000), client, collection).unchanged == len(first)
