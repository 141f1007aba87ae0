"""An attach never changes what an existing reader reads: of this package, with every name that a vector may have."""

from collections.abc import Callable
from typing import Any

import pytest
from llama_index.core.vector_stores.types import VectorStoreQuery
from llama_index.vector_stores.care import CareVectorStore
from qdrant_client import QdrantClient, models

from care_qdrant.contracts.contract import contract_metadata
from care_qdrant.contracts.learned import LearnedContract, learned_metadata, signs
from care_qdrant.errors import FingerprintMismatch, InputError
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.qdrant.collection import Collection
from care_qdrant.search.retriever import Retriever
from care_qdrant.types import Document
from care_qdrant.vectors.attach import AttachSettings, attach_vector
from tests.tiny import HashModel, medical_texts
from tests.vectors.collections import NAME, contents

TEXTS = medical_texts(24)
FOREIGN = HashModel(name="foreign", salt="foreign")
OTHERS = [HashModel(name="aaa", salt="a"), HashModel(name="zzz", salt="z")]
"""Models of the same width as the vector that is there, with names before and behind it."""

Answers = Callable[[], Any]


def _fill(client: QdrantClient, vector_name: str, **metadata: Any) -> None:
    """Create a collection whose only vector another program wrote, by a model that care does not know."""
    params = models.VectorParams(size=32, distance=models.Distance.COSINE)
    client.create_collection(NAME, {vector_name: params} if vector_name else params, metadata=metadata or None)
    rows = FOREIGN.encode_document(TEXTS).tolist()
    points = [
        models.PointStruct(
            id=n, vector={vector_name: row} if vector_name else row, payload={"text": text, "summary": text[::-1]}
        )
        for n, (text, row) in enumerate(zip(TEXTS, rows, strict=True))
    ]
    client.upsert(NAME, points, wait=True)


def _by_store(store: CareVectorStore, model: HashModel = FOREIGN) -> Any:
    """Ask a store for each text, as an index does: with the words of the question beside its vector."""
    found = []
    for text, row in zip(TEXTS, model.encode_query(TEXTS).tolist(), strict=True):
        answer = store.query(VectorStoreQuery(query_embedding=row, query_str=text, similarity_top_k=3))
        found.append([(i, round(s, 5)) for i, s in zip(answer.ids or [], answer.similarities or [], strict=True)])
    return found


def _by_retriever(retriever: Retriever) -> Any:
    return [[(hit.point_id, round(hit.score, 5)) for hit in hits] for hits in retriever.search(TEXTS, top_k=3)]


@pytest.mark.parametrize("vector_name", ["", "old"])
def test_a_reader_of_another_model_reads_what_it_read(qdrant: QdrantClient, vector_name: str) -> None:
    """A store without ``embedding=``: the one that runs, one that names the vector, and one that names nothing."""
    _fill(qdrant, vector_name)
    running = CareVectorStore(NAME, qdrant, check_seconds=0)
    before = _by_store(running)
    assert [hits[0][0] for hits in before] == [str(n) for n in range(len(TEXTS))]
    for model in (*OTHERS, None):
        attach_vector(qdrant, NAME, model)
        assert _by_store(running) == before
        for word in ("vector_name", "dense_vector_name"):
            named = CareVectorStore(NAME, qdrant, **{word: vector_name})
            assert named.dense_vector_name == vector_name
            assert _by_store(named) == before
        with pytest.raises(InputError, match=r"'aaa' \(by aaa\).*vector_name=.*'' is the unnamed") as refused:
            CareVectorStore(NAME, qdrant)
        assert f"{vector_name!r} (by another tool)" in str(refused.value)
    settings = {key: value for key, value in running.to_dict().items() if key != "class_name"}
    reopened = CareVectorStore(**settings, client=qdrant)
    assert _by_store(reopened) == before


def test_a_new_collection_may_have_an_unnamed_vector(qdrant: QdrantClient) -> None:
    from llama_index.core.schema import TextNode

    store = CareVectorStore(NAME, qdrant, vector_name="")
    rows = FOREIGN.encode_document(TEXTS).tolist()
    ids = store.add([TextNode(text=text, embedding=row) for text, row in zip(TEXTS, rows, strict=True)])
    assert isinstance(qdrant.get_collection(NAME).config.params.vectors, models.VectorParams)
    assert [hits[0][0] for hits in _by_store(store)] == ids


def test_a_vector_is_never_named_by_default_where_its_name_is_empty(qdrant: QdrantClient) -> None:
    """An empty name is one, and no way to ask for the default."""
    _fill(qdrant, "old")
    for added in (OTHERS[0], None):
        with pytest.raises(InputError, match="needs a name: give --vector-name"):
            attach_vector(qdrant, NAME, added, vector_name="")
    with pytest.raises(InputError, match="needs a name: give --vector-name"):
        ingest([Document("d", "高血压")], OTHERS[0], qdrant, "new", vector_name="")
    assert not qdrant.collection_exists("new")


@pytest.mark.parametrize("beside", ["aaa", "zzz"])
def test_a_second_vector_of_the_same_model_is_read_by_its_name_alone(qdrant: QdrantClient, beside: str) -> None:
    """It holds another field: a reader that names no vector goes on reading the one that was there first."""
    ingest(
        [Document(f"d{n}", text, metadata={"summary": text[::-1]}) for n, text in enumerate(TEXTS)],
        OTHERS[0],
        qdrant,
        NAME,
        vector_name="m",
    )
    readers: list[tuple[Callable[[], Any], Callable[[Any], Any]]] = [
        (lambda: Retriever(qdrant, NAME, OTHERS[0], mode="dense"), _by_retriever),  # type: ignore[arg-type]
        (lambda: CareVectorStore(NAME, qdrant, embedding=OTHERS[0]), lambda store: _by_store(store, OTHERS[0])),
        (
            lambda: CareVectorStore(NAME, qdrant, fingerprint=OTHERS[0].fingerprint),
            lambda store: _by_store(store, OTHERS[0]),
        ),
    ]
    before = [ask(opened()) for opened, ask in readers]
    attach_vector(qdrant, NAME, OTHERS[0], vector_name=beside, settings=AttachSettings(text_field="summary"))
    attach_vector(qdrant, NAME, OTHERS[0], vector_name=beside)  # again: what it is beside stays known
    assert [ask(opened()) for opened, ask in readers] == before
    named = Retriever(qdrant, NAME, OTHERS[0], mode="dense", vector_name=beside)  # type: ignore[arg-type]
    [hits] = named.search([TEXTS[5][::-1]], top_k=1)
    assert hits[0].score == pytest.approx(1, abs=1e-4)


def test_two_vectors_of_one_model_of_which_none_is_the_first_are_not_guessed(qdrant: QdrantClient) -> None:
    params = models.VectorParams(size=32, distance=models.Distance.COSINE)
    contract = OTHERS[0].contract()
    metadata = contract_metadata("m", contract) | contract_metadata("n", contract)
    qdrant.create_collection(NAME, {"m": params, "n": params}, metadata=metadata)
    with pytest.raises(InputError, match=r"'m' \(by aaa\), 'n' \(by aaa\).*--vector-name"):
        Retriever(qdrant, NAME, OTHERS[0]).search(["x"])  # type: ignore[arg-type]


def test_a_second_bm25_is_read_by_its_name_alone(qdrant: QdrantClient) -> None:
    _fill(qdrant, "old")
    attach_vector(qdrant, NAME, None, vector_name="terms")
    retriever = Retriever(qdrant, NAME, mode="sparse")
    before = _by_retriever(retriever)
    attach_vector(qdrant, NAME, None, vector_name="a", settings=AttachSettings(text_field="summary"))
    assert _by_retriever(Retriever(qdrant, NAME, mode="sparse")) == before
    [hits] = Retriever(qdrant, NAME, mode="sparse", sparse_vector_name="a").search([TEXTS[5][::-1]], top_k=1)
    assert hits[0].point_id == "5"


@pytest.mark.parametrize("vector_name", ["", "old"])
def test_a_learned_encoder_searches_the_vector_that_it_was_learned_from(qdrant: QdrantClient, vector_name: str) -> None:
    probes = {str(n): signs(row) for n, row in enumerate(FOREIGN.encode_document(TEXTS[:4]))}
    learned = LearnedContract(FOREIGN.fingerprint, model="foreign", dim=32, distance="Cosine", probes=probes)
    _fill(qdrant, vector_name, **learned_metadata(vector_name, learned))

    def asked() -> Any:
        return _by_retriever(Retriever(qdrant, NAME, FOREIGN, mode="dense"))  # type: ignore[arg-type]

    before = asked()
    for model in OTHERS:
        attach_vector(qdrant, NAME, model)
        assert asked() == before


@pytest.mark.parametrize("is_foreign", [True, False])
def test_a_learned_encoder_is_not_attached_to_the_vector_that_it_was_learned_from(
    qdrant: QdrantClient, is_foreign: bool
) -> None:
    """It would take the vector and its record from the model that made it."""
    encoder = HashModel(name="foreign", salt="learned")
    probes = {str(n): signs(row) for n, row in enumerate(FOREIGN.encode_document(TEXTS[:4]))}
    made = None if is_foreign else FOREIGN.fingerprint
    learned = LearnedContract(encoder.fingerprint, "foreign", 32, "Cosine", probes=probes, documents=made)
    records = {} if is_foreign else contract_metadata("old", FOREIGN.contract())
    _fill(qdrant, "old", **learned_metadata("old", learned), **records)
    before = contents(qdrant), Collection(qdrant, NAME).schema.metadata
    with pytest.raises(FingerprintMismatch, match="was learned from vector"):
        attach_vector(qdrant, NAME, encoder, vector_name="old")
    assert (contents(qdrant), Collection(qdrant, NAME).refresh().metadata) == before


def test_an_attach_of_bm25_leaves_a_dense_reader_of_another_model_dense(qdrant: QdrantClient) -> None:
    _fill(qdrant, "old")
    before = _by_store(CareVectorStore(NAME, qdrant))
    attach_vector(qdrant, NAME, None)
    assert _by_store(CareVectorStore(NAME, qdrant)) == before


def test_functions_of_the_user_search_the_vector_that_they_wrote(qdrant: QdrantClient) -> None:
    def terms(texts: list[str]) -> tuple[list[list[int]], list[list[float]]]:
        return [[TEXTS.index(text)] for text in texts], [[1.0] for _ in texts]

    params = models.VectorParams(size=32, distance=models.Distance.COSINE)
    sparse = {"terms": models.SparseVectorParams()}
    qdrant.create_collection(NAME, {"old": params}, sparse_vectors_config=sparse)
    rows = FOREIGN.encode_document(TEXTS).tolist()
    for n, (text, row) in enumerate(zip(TEXTS, rows, strict=True)):
        vectors: dict[str, Any] = {"old": row, "terms": models.SparseVector(indices=[n], values=[1.0])}
        qdrant.upsert(NAME, [models.PointStruct(id=n, vector=vectors, payload={"text": text})], wait=True)
    attach_vector(qdrant, NAME, None, vector_name="bm25")
    store = CareVectorStore(
        NAME, qdrant, vector_name="old", enable_hybrid=True, sparse_doc_fn=terms, sparse_query_fn=terms
    )
    assert store.sparse_vector_name == "terms"
