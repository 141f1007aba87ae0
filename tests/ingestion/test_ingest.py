import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from qdrant_client import QdrantClient, models

from care_qdrant.contracts.contract import SparseContract, sparse_vector
from care_qdrant.contracts.metadata import LOAD
from care_qdrant.encoders.terms import bm25
from care_qdrant.encoders.usable import encodable
from care_qdrant.errors import EncodingError, InputError
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.settings import IngestSettings, Shard
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.connection import is_embedded, open_client
from care_qdrant.qdrant.create import SPARSE_VECTOR_NAME, Storage
from care_qdrant.types import Document, Vectors, point_id
from tests.ingestion.conftest import WriteCorpus, short_rows, stored_texts
from tests.standin import StandIn
from tests.tiny import HashEncoder, HashModel, medical_texts

NAME = "hash-model"


def vector_of(client: QdrantClient, document_id: str, name: str = NAME, chunk: int = 0) -> Vectors | None:
    [record] = client.retrieve("corpus", [point_id(document_id, chunk)], with_vectors=True)
    vectors = record.vector if isinstance(record.vector, dict) else {}
    return np.asarray(vectors[name], dtype=np.float32) if name in vectors else None


def test_documents_come_out_as_they_went_in(qdrant: QdrantClient, write_corpus: WriteCorpus) -> None:
    rows = short_rows(50)
    rows[7]["title"] = "标题"
    model = HashModel()
    report = ingest(write_corpus(rows), model, qdrant, "corpus")
    assert (report.documents, report.chunks, report.encoded, report.points) == (50, 50, 50, 50)
    assert (report.collection, report.vector_name, report.fingerprint) == ("corpus", NAME, model.fingerprint)
    assert stored_texts(qdrant) == {row["id"]: row["text"] for row in rows}
    expected = model.encode_document([f"标题 {rows[7]['text']}"])[0]
    assert np.allclose(vector_of(qdrant, "d7"), expected, atol=1e-6)
    [record] = qdrant.retrieve("corpus", [point_id("d7")])
    assert record.payload is not None
    assert (record.payload["n"], record.payload["title"]) == (7, "标题")
    assert Collection(qdrant, "corpus").schema.contracts == {NAME: model.contract()}


def test_the_second_run_writes_nothing_and_loads_no_encoder(qdrant: QdrantClient, write_corpus: WriteCorpus) -> None:
    corpus = write_corpus([{"id": f"d{n}", "text": text} for n, text in enumerate(medical_texts(80))])
    first = ingest(corpus, HashModel(), qdrant, "corpus")
    assert first.chunks > first.documents  # some are long
    again = HashModel()
    second = ingest(corpus, again, qdrant, "corpus")
    assert (second.unchanged, second.encoded, second.updated) == (first.chunks, 0, 0)
    assert again.document_encoder_reads == 0


def test_points_of_a_former_version_are_not_written_again(qdrant: QdrantClient, write_corpus: WriteCorpus) -> None:
    rows = short_rows(5)
    ingest(write_corpus(rows), HashModel(), qdrant, "corpus")
    for row in rows:  # it wrote what readers fill in by themselves
        [record] = qdrant.retrieve("corpus", [point_id(row["id"])])
        payload = dict(record.payload or {})
        payload["_care"] = {**payload["_care"], "chunks": 1}
        payload["_node_content"] = json.dumps({**json.loads(payload["_node_content"]), "embedding": None})
        qdrant.overwrite_payload("corpus", payload, [record.id])
    before = qdrant.scroll("corpus")[0]
    again = ingest(write_corpus(rows), HashModel(), qdrant, "corpus")
    assert (again.unchanged, again.encoded, again.updated) == (5, 0, 0)
    assert qdrant.scroll("corpus")[0] == before


def test_only_what_changed_is_encoded(qdrant: QdrantClient, write_corpus: WriteCorpus) -> None:
    rows = short_rows(40)
    ingest(write_corpus(rows), HashModel(), qdrant, "corpus")
    rows[3]["text"] = "新的正文"
    rows[4]["metadata"] = {"n": -1}
    rows[5]["title"] = "新标题"
    model = HashModel()
    report = ingest(write_corpus(rows), model, qdrant, "corpus")
    assert (report.encoded, report.updated, report.unchanged, report.points) == (2, 1, 37, 40)
    assert sorted(model._encoder.encoded) == sorted(["新的正文", f"新标题 {rows[5]['text']}"])
    [record] = qdrant.retrieve("corpus", [point_id("d4")])
    assert record.payload is not None
    assert record.payload["n"] == -1
    assert ingest(write_corpus(rows), HashModel(), qdrant, "corpus").unchanged == 40


def test_a_document_that_became_shorter_leaves_no_old_chunk(qdrant: QdrantClient, write_corpus: WriteCorpus) -> None:
    long = "".join(f"这是第{n}句比较长的话。" for n in range(30))
    first = ingest(write_corpus([{"id": "a", "text": long}, {"id": "b", "text": "短"}]), HashModel(), qdrant, "corpus")
    assert first.chunks > 3
    rows = [{"id": "a", "text": long[:60]}, {"id": "b", "text": "短"}]
    second = ingest(write_corpus(rows), HashModel(), qdrant, "corpus")
    assert second.points == second.chunks < first.chunks
    assert second.deleted == first.chunks - second.chunks


def test_other_vectors_of_a_point_stay(qdrant: QdrantClient, write_corpus: WriteCorpus) -> None:
    rows = short_rows(20)
    ingest(write_corpus(rows), HashModel(), qdrant, "corpus")
    before = vector_of(qdrant, "d1")
    other = HashModel(dim=16, name="other")
    config = models.DenseVectorNameConfig(dense=models.DenseVectorConfig(size=16, distance=models.Distance.COSINE))
    qdrant.create_vector_name("corpus", "other", config)
    Collection(qdrant, "corpus").write_contract("other", other.contract())
    report = ingest(write_corpus(rows), other, qdrant, "corpus")
    assert (report.encoded, report.points) == (20, 20)
    assert np.allclose(vector_of(qdrant, "d1"), before)
    assert vector_of(qdrant, "d1", "other") is not None
    assert ingest(write_corpus(rows), HashModel(), qdrant, "corpus").unchanged == 20
    rows[1]["text"] = "新的正文"
    ingest(write_corpus(rows), other, qdrant, "corpus")
    assert np.allclose(vector_of(qdrant, "d1"), before)
    # The first model's vector was made of the old text, and its next run notices.
    assert ingest(write_corpus(rows), HashModel(), qdrant, "corpus").encoded == 1


def test_a_vector_that_somebody_deleted_is_made_again(qdrant: QdrantClient, write_corpus: WriteCorpus) -> None:
    corpus = write_corpus(short_rows(30))
    ingest(corpus, HashModel(), qdrant, "corpus")
    qdrant.delete_vectors("corpus", [NAME], [point_id("d1"), point_id("d2")])
    report = ingest(corpus, HashModel(), qdrant, "corpus")
    assert (report.encoded, report.unchanged, report.points) == (2, 28, 30)
    assert vector_of(qdrant, "d1") is not None


def test_rejected_rows_are_listed_and_the_rest_is_stored(qdrant: QdrantClient, write_corpus: WriteCorpus) -> None:
    rows = [
        {"id": "1", "text": "一"},
        "not json",
        {"id": "2"},
        {"id": "1", "text": "另一"},
        {"id": "1", "text": "一"},
        {"id": "3", "text": "三"},
        {"id": "4", "text": "四", "metadata": {"_care": 1}},
    ]
    corpus = write_corpus(rows)
    report = ingest(corpus, HashModel(), qdrant, "corpus")
    assert (report.documents, report.rejected, report.duplicates, report.points) == (2, 4, 1, 2)
    assert report.rejects_file == "corpus.rejects.jsonl"
    rejects = [json.loads(line) for line in Path(report.rejects_file).read_text().splitlines()]
    assert [reject["line"] for reject in rejects] == [2, 3, 4, 7]
    assert rejects[2] == {"line": 4, "id": "1", "reason": "an earlier row has this id and other content"}
    assert stored_texts(qdrant) == {"1": "一", "3": "三"}


def test_every_rejected_row_names_its_file(qdrant: QdrantClient, tmp_path: Path) -> None:
    """Also one that is found after reading: its id twice, or no token."""
    (tmp_path / "corpus").mkdir()
    first, second = ({"id": "1", "text": "一"}, {"id": "1", "text": "另一"})
    (tmp_path / "corpus" / "a.jsonl").write_text(json.dumps(first) + "\n", encoding="utf-8")
    (tmp_path / "corpus" / "b.jsonl").write_text("broken\n" + json.dumps(second) + "\n", encoding="utf-8")
    report = ingest(tmp_path / "corpus", HashModel(), qdrant, "corpus")
    assert report.rejects_file is not None
    rejects = [json.loads(line) for line in Path(report.rejects_file).read_text().splitlines()]
    assert [(reject["file"], reject["line"]) for reject in rejects] == [("b.jsonl", 1), ("b.jsonl", 2)]
    assert all("b.jsonl" in reason for reason in report.first_rejects)


def test_documents_can_come_from_python(qdrant: QdrantClient) -> None:
    documents = (Document(f"d{n}", f"文本{n}") for n in range(10))
    assert ingest(documents, HashModel(), qdrant, "corpus").points == 10
    assert ingest([Document("x", " ")], HashModel(), qdrant, "corpus").rejected == 1


def test_shards_are_disjoint_and_complete(qdrant: QdrantClient, write_corpus: WriteCorpus) -> None:
    corpus = write_corpus(short_rows(100))
    reports = [
        ingest(corpus, HashModel(), qdrant, "corpus", settings=IngestSettings(shard=Shard(number, 3)))
        for number in (1, 2, 3)
    ]
    assert sum(report.encoded for report in reports) == 100
    assert all(20 < report.encoded < 50 for report in reports)
    assert ingest(corpus, HashModel(), qdrant, "corpus").unchanged == 100


@pytest.mark.parametrize("sparse", [False, True])
def test_a_dry_run_counts_points_that_have_lost_a_vector(qdrant: QdrantClient, sparse: bool) -> None:
    documents = [Document(f"d{number}", f"第{number}条。") for number in range(30)]
    settings = IngestSettings(sparse=True)
    ingest(documents, HashModel(), qdrant, "corpus", settings=settings)
    lost = [point_id(f"d{number}") for number in range(7)]
    qdrant.delete_vectors("corpus", ["bm25" if sparse else "hash-model"], points=lost)
    runs = [
        ingest(documents, HashModel(), qdrant, "corpus", settings=replace(settings, dry_run=is_dry))
        for is_dry in (True, False)
    ]
    counts = [(run.encoded, run.updated, run.unchanged) for run in runs]
    assert counts == [(0, 7, 23) if sparse else (7, 0, 23)] * 2


def test_a_dry_run_counts_and_writes_nothing(qdrant: QdrantClient, write_corpus: WriteCorpus) -> None:
    rows = short_rows(50)
    dry = IngestSettings(dry_run=True)
    report = ingest(write_corpus(rows), HashModel(), qdrant, "corpus", settings=dry)
    assert not qdrant.collection_exists("corpus")
    assert (report.documents, report.encoded, report.points) == (50, 50, 0)
    assert report.estimate is not None
    assert report.estimate.points == 50
    assert report.estimate.bytes > 50 * 32 * 4
    assert report.estimate.seconds is not None
    assert report.estimate.tokens_per_second is not None
    assert report.estimate.seconds == pytest.approx(
        report.estimate.tokens / report.estimate.tokens_per_second, rel=0.02
    )
    assert report.estimate.documents_per_second is not None
    assert report.estimate.padding is not None
    assert 1 <= report.estimate.padding < 1.5
    ingest(write_corpus(rows[:40]), HashModel(), qdrant, "corpus")
    report = ingest(
        write_corpus(rows[20:]),
        HashModel(),
        qdrant,
        "corpus",
        settings=IngestSettings(sync=True, max_delete_fraction=1, dry_run=True),
    )
    assert (report.encoded, report.unchanged, report.deleted, report.points) == (10, 20, 20, 40)
    assert qdrant.count("corpus").count == 40


def test_a_collection_keeps_the_constants_of_its_bm25(
    qdrant: QdrantClient, write_corpus: WriteCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = short_rows(10)
    with monkeypatch.context() as former:
        former.setattr(bm25, "DEFAULT_LEAD", None)
        former.setattr(bm25, "DEFAULT_K1", 1.2)
        ingest(write_corpus(rows), HashModel(), qdrant, "corpus", settings=IngestSettings(sparse=True))
    rows.append({"id": "new", "text": "二甲双胍缓释片与阿卡波糖"})
    report = ingest(write_corpus(rows), HashModel(), qdrant, "corpus", settings=IngestSettings(sparse=True))
    assert (report.encoded, report.unchanged) == (1, 10)
    contract = Collection(qdrant, "corpus").schema.contracts[SPARSE_VECTOR_NAME]
    assert isinstance(contract, SparseContract) and (contract.lead, contract.k1) == (None, 1.2)
    [record] = qdrant.retrieve("corpus", [point_id("new", 0)], with_vectors=[SPARSE_VECTOR_NAME])
    stored = record.vector[SPARSE_VECTOR_NAME]  # type: ignore[index,call-overload]
    expected = bm25.document_vector(
        rows[-1]["text"], average_length=contract.average_length, k1=1.2, b=contract.b, lead=None
    )
    assert dict(zip(stored.indices, stored.values, strict=True)) == pytest.approx(
        dict(zip(expected.indices, expected.values, strict=True)), rel=1e-6
    )


def test_bm25_vectors_are_written_and_kept_up(qdrant: QdrantClient, write_corpus: WriteCorpus) -> None:
    rows = short_rows(30)
    ingest(write_corpus(rows), HashModel(), qdrant, "corpus", settings=IngestSettings(sparse=True))
    contract = Collection(qdrant, "corpus").schema.contracts[SPARSE_VECTOR_NAME]
    assert isinstance(contract, SparseContract)
    assert contract.average_length == pytest.approx(bm25.average_length(row["text"] for row in rows))
    rows.append({"id": "new", "text": "二甲双胍缓释片"})
    rows.append({"id": "signs", "text": "！？"})
    report = ingest(write_corpus(rows), HashModel(), qdrant, "corpus")  # without the flag: the collection has them
    assert (report.encoded, report.unchanged) == (2, 30)
    hits = qdrant.query_points(
        "corpus", query=sparse_vector(bm25.query_vector("缓释片")), using=SPARSE_VECTOR_NAME, limit=1
    ).points
    assert hits[0].payload is not None
    assert hits[0].payload["doc_id"] == "new"
    assert ingest(write_corpus(rows), HashModel(), qdrant, "corpus").unchanged == 32
    rows[30]["text"] = "……"
    ingest(write_corpus(rows), HashModel(), qdrant, "corpus")
    hits = qdrant.query_points(
        "corpus", query=sparse_vector(bm25.query_vector("缓释片")), using=SPARSE_VECTOR_NAME, limit=50
    ).points
    assert "new" not in [(hit.payload or {})["doc_id"] for hit in hits if hit.score > 0]


class BadEncoder(HashEncoder):
    """Gives one vector that is of no use."""

    bad: Vectors = np.zeros(32, dtype=np.float32)

    def encode(self, texts: Sequence[str], *, prompt: str | None = None) -> Vectors:
        vectors = super().encode(texts, prompt=prompt)
        vectors[[text == "坏" for text in texts]] = self.bad
        return vectors


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf, -np.inf])
def test_useless_vectors_never_reach_qdrant(qdrant: QdrantClient, value: float) -> None:
    model = HashModel()
    model._encoder = BadEncoder()
    model._encoder.bad = np.full(32, value, dtype=np.float32)
    documents = [Document("good", "好"), Document("bad", "坏")]
    with np.errstate(invalid="ignore"):
        alone = ingest(documents[1:], model, qdrant, "corpus")
        assert (alone.rejected, alone.points) == (1, 0)
        for settings in (IngestSettings(dry_run=True), IngestSettings()):
            report = ingest(documents, model, qdrant, "corpus", settings=settings)
        again = ingest(documents, model, qdrant, "corpus")
        assert (again.rejected, again.unchanged) == (1, 1)
        model._encoder.encode = lambda texts, **_: np.full((len(texts), 32), value, dtype=np.float32)  # type: ignore[method-assign]
        with pytest.raises(EncodingError, match="for document 'new'"):
            ingest([Document("new", "新")], model, qdrant, "corpus")
    assert (report.rejected, report.documents, report.chunks, report.points) == (1, 1, 1, 1)
    assert "for document 'bad'" in report.first_rejects[0]
    assert stored_texts(qdrant) == {"good": "好"}


def test_a_document_is_stored_whole_or_not_at_all(qdrant: QdrantClient) -> None:
    """A chunk without a vector takes the others along, also those that an earlier run stored."""
    model, text = HashModel(max_tokens=12), "甲乙丙丁戊己庚。" * 6
    ingest([Document("good", "好"), Document("long", text), Document("short", text)], model, qdrant, "corpus")
    encode = model._encoder.encode
    model._encoder.encode = lambda texts, **_: encode(texts) * [[0.0 if "坏" in each else 1.0] for each in texts]  # type: ignore[method-assign]
    for good in ("好好", "好好好"):
        damaged = {"long": f"{text}坏。", "new": f"坏。{text}", "short": "坏。"}
        documents = [*(Document(*each) for each in damaged.items()), Document("good", good)]
        report = ingest(documents, model, qdrant, "corpus")
        assert (report.rejected, report.documents, report.chunks, report.points) == (3, 1, 1, 1)
        assert stored_texts(qdrant) == {"good": good}
    mended = ingest([Document("long", text)], model, qdrant, "corpus")
    assert mended.points == mended.chunks + 1


def test_a_page_of_symbols_alone_ends_no_run(qdrant: QdrantClient) -> None:
    """PDF files have bullets of a private font: tokens that show nothing, of which no encoder makes a vector."""
    model = HashModel()
    encode = model._encoder.encode
    model._encoder.encode = lambda texts, **_: encode(encodable(texts))  # type: ignore[method-assign]
    ingest([Document("page", "发烧")], model, qdrant, "corpus")
    report = ingest([Document("page", "\uf0b7 \uf0b7")], model, qdrant, "corpus")
    assert (report.rejected, report.points, stored_texts(qdrant)) == (1, 1, {"page": "发烧"})


def test_vectors_of_another_shape_are_refused(qdrant: QdrantClient) -> None:
    model = HashModel(dim=32)
    model._encoder = HashEncoder(dim=16)
    with pytest.raises(EncodingError, match=r"shape \(1, 16\); expected \(1, 32\)"):
        ingest([Document("a", "好")], model, qdrant, "corpus")


def test_a_new_collection_is_loaded_without_a_graph_which_is_built_at_the_end(
    write_corpus: WriteCorpus, client: QdrantClient
) -> None:
    corpus = write_corpus(short_rows(10))
    storage = Storage(quantization="int8", on_disk=True, datatype="float16", shards=3, replicas=2)
    model = HashModel()
    model._encoder.encode = lambda texts, **_: np.zeros((len(texts), 32), dtype=np.float32)  # type: ignore[method-assign]
    with pytest.raises(EncodingError):  # interrupted
        ingest([Document("a", "好")], model, client, "corpus", storage=storage)
    loading = client.get_collection("corpus").config
    ingest(corpus, HashModel(), client, "corpus")
    loaded = client.get_collection("corpus")
    config = loaded.config
    assert "doc_id" in loaded.payload_schema
    assert isinstance(loading.params.vectors, dict)
    assert isinstance(config.params.vectors, dict)
    graph = loading.params.vectors[NAME].hnsw_config
    assert graph is not None
    assert graph.m == 0
    params = config.params.vectors[NAME]
    assert params.hnsw_config is not None
    assert params.hnsw_config.m == config.hnsw_config.m == 16
    assert params.memory is models.Memory.COLD or params.on_disk
    assert params.datatype is models.Datatype.FLOAT16
    assert (config.params.shard_number, config.params.replication_factor) == (3, 2)
    assert isinstance(config.quantization_config, models.ScalarQuantization)
    assert config.metadata is not None
    assert config.metadata[LOAD.name]["done"] is True


def test_a_live_collection_keeps_its_graph(write_corpus: WriteCorpus, server: StandIn, client: QdrantClient) -> None:
    ingest(write_corpus(short_rows(5)), HashModel(), client, "corpus")
    server.requests.clear()
    ingest(write_corpus(short_rows(10)), HashModel(), client, "corpus")
    # The trace of the run comes and goes, and touches nothing but the metadata.
    patches = [request for request in server.requests if request.method == "PATCH"]
    assert len(patches) == 2 and all(request.size_bytes < 500 for request in patches)
    server.requests.clear()
    ingest(write_corpus(short_rows(10)), HashModel(), client, "corpus")
    assert server.count("PATCH", "/collections/corpus") == 0


def test_an_embedded_collection_writes_ahead(tmp_path: Path) -> None:
    with open_client(path=tmp_path / "q") as client:
        assert is_embedded(client)
        ingest([Document("a", "好")], HashModel(), client, "corpus")
        assert list((tmp_path / "q").rglob("*-wal"))


@pytest.mark.parametrize("settings", [{"sync": True, "limit": 1}, {"max_delete_fraction": 1.5}, {"batch_tokens": 0}])
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(InputError):
        IngestSettings(**settings)  # type: ignore[arg-type]
