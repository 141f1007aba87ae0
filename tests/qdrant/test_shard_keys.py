"""Collections with shards by key, as one node of a cluster has them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from qdrant_client import QdrantClient, models

from care_qdrant import Document, IngestSettings, Retriever, ingest
from care_qdrant.bulk.encode import encode_unit
from care_qdrant.bulk.job import Job, Manifest
from care_qdrant.bulk.load import load
from care_qdrant.bulk.units import plan
from care_qdrant.contracts.metadata import RUN
from care_qdrant.errors import InputError, QdrantError
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import open_client
from care_qdrant.qdrant.create import Storage
from care_qdrant.vectors.attach import attach_vector
from care_qdrant.vectors.detach import detach_vector
from care_qdrant.vectors.verify import verify_collection
from tests.databases import REAL
from tests.reliability.processes import BINARY, QdrantServer
from tests.tiny import HashModel, medical_texts

TEXTS = medical_texts(40)
NORTH = [Document(f"n{number}", text) for number, text in enumerate(TEXTS[:20])]
SOUTH = [Document(f"s{number}", text) for number, text in enumerate(TEXTS[20:])]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QdrantServer]:
    if BINARY is None:
        pytest.skip("QDRANT_BINARY names no qdrant server program")
    with QdrantServer(BINARY, tmp_path_factory.mktemp("node"), {"QDRANT__CLUSTER__ENABLED": "true"}) as server:
        yield server


@pytest.fixture(params=REAL)
def client(node: QdrantServer, request: pytest.FixtureRequest) -> Iterator[QdrantClient]:
    """An empty cluster of one node, over HTTP and over gRPC."""
    with open_client(url=node.url, grpc=request.param == "real-grpc") as client:
        for found in client.get_collections().collections:
            client.delete_collection(found.name)
        yield client


def put(client: QdrantClient, documents: list[Document], key: str, **settings: bool) -> int:
    """Ingest into the shards of a key; return the number of encoded documents."""
    place = Collection(client, "corpus", shard_key=key)
    return ingest(documents, HashModel(max_tokens=512), place, settings=IngestSettings(sparse=True, **settings)).encoded


def found(client: QdrantClient, text: str, key: str | None = None) -> list[str]:
    [hits] = Retriever(client, "corpus", HashModel(), shard_key=key).search([text], top_k=50)  # type: ignore[arg-type]
    return [hit.document_id for hit in hits]


def test_each_key_holds_and_finds_its_own_documents(client: QdrantClient) -> None:
    assert (put(client, NORTH, "north"), put(client, SOUTH, "south")) == (20, 20)
    assert (put(client, NORTH, "north"), put(client, SOUTH, "south")) == (0, 0)
    assert Collection(client, "corpus").shard_keys() == ["north", "south"]
    assert [Collection(client, "corpus", shard_key=key).count() for key in ("north", "south", None)] == [20, 20, 40]
    assert set(found(client, SOUTH[3].text, "north")) == {document.id for document in NORTH}
    assert found(client, SOUTH[3].text, "south")[0] == found(client, SOUTH[3].text)[0] == "s3"
    assert len(found(client, SOUTH[3].text)) == 40
    [hits] = Retriever(client, "corpus", mode="sparse", shard_key="south").search([SOUTH[5].text], top_k=1)
    assert [hit.document_id for hit in hits] == ["s5"]
    report = verify_collection(client, "corpus", HashModel())  # type: ignore[arg-type]
    assert (report.points, report.without_vector, report.outdated) == (40, 0, 0)


def test_two_keys_may_hold_documents_of_the_same_ids(client: QdrantClient) -> None:
    """As the corpora of two tenants do."""
    twins = [Document(document.id, f"另一个{document.text}") for document in NORTH]
    assert (put(client, NORTH, "north"), put(client, twins, "south")) == (20, 20)
    report = verify_collection(client, "corpus", HashModel())  # type: ignore[arg-type]
    assert (report.points, report.problems) == (40, [])
    model = HashModel(name="second")
    attach_vector(client, "corpus", model)  # type: ignore[arg-type]
    report = verify_collection(client, "corpus", model)  # type: ignore[arg-type]
    assert (report.points, report.without_vector, report.problems) == (40, 0, [])


def test_a_bulk_job_goes_to_the_shards_of_a_key(client: QdrantClient, tmp_path: Path) -> None:
    model, job, corpus = HashModel(max_tokens=512), Job(f"{tmp_path}/job"), tmp_path / "corpus.jsonl"
    lines = [json.dumps({"id": document.id, "text": document.text}) for document in NORTH]
    corpus.write_text("\n".join(lines), encoding="utf-8")
    draft = Manifest("", model.name, model.fingerprint, model.dim, "Cosine", model.name)
    manifest = plan([str(corpus)], job, draft, model.document_tokenizer, sparse=True)
    for unit in manifest.units:
        encode_unit(job, manifest, unit, model, 1_000)
    load(job, Collection(client, "corpus", shard_key="north"))
    assert (put(client, NORTH, "north"), put(client, SOUTH, "south")) == (0, 20)
    assert [Collection(client, "corpus", shard_key=key).count() for key in ("north", "south", None)] == [20, 20, 40]


def test_a_sync_deletes_and_a_change_writes_under_its_own_key_alone(client: QdrantClient) -> None:
    put(client, NORTH, "north")
    put(client, SOUTH, "south")
    changed = [*SOUTH[:17], Document("s17", "换了内容的一篇")]
    assert put(client, changed, "south", sync=True) == 1
    assert [Collection(client, "corpus", shard_key=key).count() for key in ("north", "south")] == [20, 18]
    assert found(client, "换了内容的一篇", "south")[0] == "s17"


def test_a_dry_run_makes_no_key(client: QdrantClient) -> None:
    put(client, NORTH, "north")
    put(client, SOUTH, "south", dry_run=True)
    assert Collection(client, "corpus").shard_keys() == ["north"]


def test_a_run_settles_what_was_begun_under_its_own_key_alone(client: QdrantClient) -> None:
    put(client, NORTH, "north")
    begun = {RUN.of(key): {"started": "now", "shard": "1/1", "shard_key": key} for key in ("north", "south")}
    Collection(client, "corpus").update("leaving traces", metadata=begun)
    put(client, [*NORTH, Document("n-new", "新的一篇")], "north", sync=True)
    left = [key for key in Collection(client, "corpus").schema.metadata if key.startswith(RUN.of(""))]
    assert left == [RUN.of("south")]


def test_a_missing_key_and_a_superfluous_one_are_refused(client: QdrantClient) -> None:
    put(client, NORTH, "north")
    with pytest.raises(InputError, match=r"has shards by key \(there: north\): give one with --shard-key"):
        ingest(NORTH, HashModel(), client, "corpus")
    ingest(NORTH, HashModel(), client, "plain")
    with pytest.raises(InputError, match="'plain' has no shards by key"):
        ingest(NORTH, HashModel(), Collection(client, "plain", shard_key="north"))


def test_attach_writes_each_key_and_detach_leaves_what_was_there(client: QdrantClient) -> None:
    """The same id under two keys are two points, each with a text of its own."""
    old = models.VectorParams(size=2, distance=models.Distance.DOT)
    client.create_collection(
        "corpus",
        vectors_config={"old": old},
        sparse_vectors_config={},
        sharding_method=models.ShardingMethod.CUSTOM,
    )
    for key, texts in (("north", TEXTS[:20]), ("south", TEXTS[20:])):
        client.create_shard_key("corpus", key)
        points = [
            models.PointStruct(id=number, vector={"old": [1.0, number]}, payload={"text": text})
            for number, text in enumerate(texts)
        ]
        client.upsert("corpus", points, shard_key_selector=key, wait=True)
    before = contents(client)
    model = HashModel()
    report = attach_vector(client, "corpus", model)
    assert (report.encoded, report.covered) == (40, 40)
    assert attach_vector(client, "corpus", model).encoded == 0
    for payload, vectors in contents(client).values():
        expected = model.encode_document([payload["text"]])[0].tolist()
        assert vectors[model.name] == pytest.approx(expected, abs=1e-6)
    client.set_payload("corpus", {"text": "改过的"}, points=[3], shard_key_selector="south", wait=True)
    assert attach_vector(client, "corpus", model).encoded == 1
    client.set_payload("corpus", {"text": TEXTS[23]}, points=[3], shard_key_selector="south", wait=True)
    detach_vector(client, "corpus")
    assert contents(client) == before


@pytest.mark.server
def test_a_server_without_a_cluster_is_told_and_left_as_it_was(own_url: str) -> None:
    with open_client(url=own_url) as client:
        with pytest.raises((InputError, QdrantError), match="cluster"):
            ingest(NORTH, HashModel(), Collection(client, "keyed", shard_key="north"))
        assert not client.collection_exists("keyed")


def test_the_embedded_database_has_no_shards(tmp_path: Path) -> None:
    with open_client(path=tmp_path / "qdrant") as client, pytest.raises(InputError, match="--shard-key needs a server"):
        ingest(NORTH, HashModel(), Collection(client, "corpus", shard_key="north"))


@pytest.mark.server
def test_replicas_and_acknowledgements_are_those_asked_for(own_url: str) -> None:
    with open_client(url=own_url) as client:
        ingest(NORTH, HashModel(), client, "factors", storage=Storage(replicas=2, write_consistency=2))
        params = client.get_collection("factors").config.params
        client.delete_collection("factors")
    assert (params.replication_factor, params.write_consistency_factor) == (2, 2)


def contents(client: QdrantClient) -> dict[tuple[object, object], tuple[dict[str, object], dict[str, object]]]:
    """Return payload and vectors of each point of each key."""
    return {
        (part.shard_key, record.id): (record.payload or {}, record.vector)  # type: ignore[misc]
        for part in Collection(client, "corpus").parts()
        for page in part.scroll(vectors=True)
        for record in page
    }
