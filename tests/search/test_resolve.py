"""The requests of a search, also when an alias is switched or a collection is dropped meanwhile."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import UnexpectedResponse

from care_qdrant.contracts.contract import VectorContract, contract_metadata
from care_qdrant.contracts.learned import LearnedContract, learned_metadata
from care_qdrant.errors import FingerprintMismatch, InputError
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.qdrant.collection import Collection
from care_qdrant.search.query import Query
from care_qdrant.search.resolve import CollectionResolver
from care_qdrant.search.resolved import StoreConfig, choose_layout, resolve_vectors
from care_qdrant.search.retriever import Retriever
from care_qdrant.types import Chunk, Document
from tests.search.conftest import COLLECTION, fill
from tests.standin import StandIn
from tests.tiny import HashModel, point_alias

CHUNKS = [Chunk(Document("d0", "感冒"), "感冒")]
CHANGED = [Chunk(Document("d1", "感冒"), "感冒")]
RETRAINED = HashModel(salt="retrained")
SEARCH = [("POST", "/collections/corpus/points/query/batch")]
CHECK = [("GET", "/aliases"), ("GET", "/collections/corpus")]


@pytest.mark.parametrize("name", [COLLECTION, "live"])
@pytest.mark.parametrize("mode", ["dense", "sparse", "hybrid"])
def test_a_check_is_two_requests_and_holds(
    server: StandIn, served: QdrantClient, model: HashModel, name: str, mode: str
) -> None:
    point_alias(served, "live", COLLECTION)

    def asked(retriever: Retriever) -> list[tuple[str, str]]:
        server.requests.clear()
        assert retriever.search(["EGFR"])[0]
        return [(request.method, request.path) for request in server.requests]

    patient = Retriever(served, name, model, mode=mode)  # type: ignore[arg-type]
    assert asked(patient) == CHECK + SEARCH
    assert asked(patient) == SEARCH
    careful = Retriever(served, name, model, mode=mode, check_seconds=0)  # type: ignore[arg-type]
    for _ in range(2):
        assert asked(careful) == CHECK + SEARCH


def test_a_sparse_search_encodes_with_none_of_several_models(corpus: QdrantClient, model: HashModel) -> None:
    retriever = Retriever(corpus, COLLECTION, model, mode="sparse", other_models=[RETRAINED])  # type: ignore[arg-type, list-item]
    assert retriever.search(["EGFR"]) == Retriever(corpus, COLLECTION, mode="sparse").search(["EGFR"]) != [[]]
    assert retriever.fingerprint is None


LEARNED = LearnedContract("f" * 64, model="q", dim=2, distance="Cosine", probes={}, hnsw_ef=256)


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize(
    ("recorded", "allowed", "ef_construct", "used"),
    [
        (256, None, 100, 256),
        (None, None, 100, None),
        (256, 200, 100, 200),
        (256, 64, 100, None),
        (256, None, 300, None),
    ],
)
def test_a_graph_is_searched_as_wide_as_a_learned_encoder_needs_and_the_server_allows(
    client: QdrantClient, is_known: bool, recorded: int | None, allowed: int | None, ef_construct: int, used: int | None
) -> None:
    params = models.VectorParams(
        size=2, distance=models.Distance.COSINE, hnsw_config=models.HnswConfigDiff(ef_construct=ef_construct)
    )
    client.create_collection("c", {"v": params}, metadata=learned_metadata("v", replace(LEARNED, hnsw_ef=recorded)))
    collection = Collection(client, "c")
    schema = replace(collection.schema, has_index=True)
    strict = models.StrictModeConfigOutput(enabled=True, search_max_hnsw_ef=allowed)
    schema = replace(schema, config=schema.config.model_copy(update={"strict_mode_config": strict}))

    config = StoreConfig(vector_name="v", fingerprint=LEARNED.fingerprint if is_known else None)
    resolved = resolve_vectors(collection, schema, config, checked_at=0.0)

    def asked(params: models.SearchParams | None) -> models.SearchParams | None:
        [request] = Query([1.0, 0.0], None, 5, params=params).requests(resolved)
        return request.params

    assert asked(None) == (None if used is None else models.SearchParams(hnsw_ef=used))
    for given in (models.SearchParams(hnsw_ef=16), models.SearchParams(exact=True)):
        assert asked(given) == given


@pytest.mark.parametrize("name", ["v", "attached-beside", ""])
@pytest.mark.parametrize("is_learned", [True, False])
def test_a_model_of_the_same_name_as_the_recorded_one_is_told_from_it(
    qdrant: QdrantClient, name: str, is_learned: bool
) -> None:
    """Whatever the vector is called, and whichever record names the model."""
    made = VectorContract("e" * 64, model=LEARNED.model, dim=2)
    record = learned_metadata(name, LEARNED) if is_learned else contract_metadata(name, made)
    params = models.VectorParams(size=2, distance=models.Distance.COSINE)
    qdrant.create_collection("c", {name: params, "other": params}, metadata=record)
    config = StoreConfig(contract=VectorContract("a" * 64, model=LEARNED.model, dim=2))
    both = f"{(LEARNED if is_learned else made).fingerprint[:12]}.*{'a' * 12}"
    with pytest.raises(FingerprintMismatch, match=both):
        CollectionResolver(Collection(qdrant, "c"), config).resolve()
    unknown = replace(config, contract=VectorContract("a" * 64, model="another", dim=2))
    with pytest.raises(InputError, match="has no vector 'another'"):
        CollectionResolver(Collection(qdrant, "c"), unknown).resolve()


def test_a_switched_alias_is_not_followed_before_it_is_checked(qdrant: QdrantClient, model: HashModel) -> None:
    fill(qdrant, model, CHUNKS)
    fill(qdrant, RETRAINED, CHANGED, "corpus_v2")
    point_alias(qdrant, "live", COLLECTION)
    retriever = Retriever(qdrant, "live", model, mode="dense")
    assert retriever.search(["感冒"])[0][0].document_id == "d0"
    point_alias(qdrant, "live", "corpus_v2")
    [hit] = retriever.search(["感冒"])[0]
    assert (hit.document_id, hit.score) == ("d0", pytest.approx(1))


def test_a_dropped_collection_is_resolved_again_once(qdrant: QdrantClient, model: HashModel) -> None:
    fill(qdrant, model, CHUNKS)
    fill(qdrant, model, CHANGED, "corpus_v2")
    point_alias(qdrant, "live", COLLECTION)
    retriever = Retriever(qdrant, "live", model)
    assert retriever.search(["感冒"])[0][0].document_id == "d0"
    point_alias(qdrant, "live", "corpus_v2")
    qdrant.delete_collection(COLLECTION)
    assert retriever.search(["感冒"])[0][0].document_id == "d1"
    qdrant.delete_collection("corpus_v2")
    with pytest.raises(InputError, match="no collection 'live'"):
        retriever.search(["感冒"])


def test_the_successor_of_a_dropped_collection_is_checked(qdrant: QdrantClient, model: HashModel) -> None:
    fill(qdrant, model, CHUNKS)
    fill(qdrant, RETRAINED, CHANGED, "corpus_v2")
    point_alias(qdrant, "live", COLLECTION)
    retriever = Retriever(qdrant, "live", model)
    retriever.search(["感冒"])
    point_alias(qdrant, "live", "corpus_v2")
    qdrant.delete_collection(COLLECTION)
    for _ in range(2):
        with pytest.raises(FingerprintMismatch, match="'live'"):
            retriever.search(["感冒"])


def test_a_collection_that_is_made_again_without_a_vector_is_checked_first(
    qdrant: QdrantClient, model: HashModel
) -> None:
    """Half a minute may pass until the next check; the vectors of the last one are not there any more."""
    fill(qdrant, model, CHUNKS)
    hybrid, sparse = Retriever(qdrant, COLLECTION, model), Retriever(qdrant, COLLECTION, mode="sparse")
    for retriever in (hybrid, sparse):
        assert retriever.search(["感冒"])[0][0].document_id == "d0"
    qdrant.delete_collection(COLLECTION)
    ingest([Document("d1", "感冒")], model, qdrant, COLLECTION)
    assert hybrid.search(["感冒"])[0][0].document_id == "d1"
    with pytest.raises(InputError, match=f"collection '{COLLECTION}' has no sparse vector"):
        sparse.search(["感冒"])
    qdrant.delete_collection(COLLECTION)
    qdrant.create_collection(COLLECTION, {"other": models.VectorParams(size=2, distance=models.Distance.DOT)})
    with pytest.raises(InputError, match=f"collection '{COLLECTION}' has no vector '{model.name}'"):
        hybrid.search(["感冒"])


def test_a_collection_that_is_dropped_between_the_two_requests(
    qdrant: QdrantClient, model: HashModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(qdrant, model, CHUNKS)
    fill(qdrant, model, CHANGED, "corpus_v2")
    point_alias(qdrant, "live", COLLECTION)
    get_aliases = qdrant.get_aliases

    def then_switch() -> models.CollectionsAliasesResponse:
        aliases = get_aliases()
        if qdrant.collection_exists(COLLECTION):
            point_alias(qdrant, "live", "corpus_v2")
            qdrant.delete_collection(COLLECTION)
        return aliases

    monkeypatch.setattr(qdrant, "get_aliases", then_switch)
    resolver = CollectionResolver(Collection(qdrant, "live"), StoreConfig(contract=model.contract()))
    assert resolver.resolve().name == "corpus_v2"


def test_another_error_than_a_missing_collection_is_raised_as_it_is(qdrant: QdrantClient, model: HashModel) -> None:
    fill(qdrant, model, CHUNKS)
    resolver = CollectionResolver(Collection(qdrant, COLLECTION), StoreConfig(contract=model.contract()))
    calls = []

    def work(resolved: object) -> None:
        calls.append(resolved)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        resolver.use(work)
    assert len(calls) == 1


def test_the_field_that_attach_read_is_the_text() -> None:
    payloads = [{"text": "short", "body": "the whole report"}]
    for text_field, attached, expected in ((None, None, "text"), (None, "body", "body"), ("text", "body", "text")):
        layout = choose_layout(payloads, text_field, attached)
        assert layout is not None and layout.text_field == expected
    layout = choose_layout([{"text": "another tool wrote this"}], None, "body")
    assert layout is not None and layout.text_field == "text"


def test_a_page_is_what_strict_mode_allows(served: QdrantClient, model: HashModel) -> None:
    served.update_collection(COLLECTION, strict_mode_config=models.StrictModeConfig(enabled=True, max_query_limit=10))
    config = StoreConfig(contract=model.contract(), sample_points=32)
    assert CollectionResolver(Collection(served, COLLECTION), config).resolve().is_sampled


def test_a_sample_may_come_in_several_pages(
    qdrant: QdrantClient, model: HashModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server, or gRPC, finds a page of long texts too large."""
    fill(qdrant, model, [Chunk(Document(f"d{number}", "感冒"), "感冒") for number in range(9)])

    def narrow(read: Callable[..., Any]) -> Callable[..., Any]:
        def limited(*args: Any, **kwargs: Any) -> Any:
            if kwargs["limit"] > 4:
                raise UnexpectedResponse(413, "Payload Too Large", b"", httpx.Headers())
            return read(*args, **kwargs)

        return limited

    monkeypatch.setattr(qdrant, "scroll", narrow(qdrant.scroll))
    monkeypatch.setattr(qdrant, "query_points", narrow(qdrant.query_points))
    collection = Collection(qdrant, COLLECTION)
    resolved = CollectionResolver(collection, StoreConfig(contract=model.contract(), sample_points=9)).resolve()
    assert resolved.layout is not None
    assert len({record.id for record in collection.sample(9)}) == 4
