"""The collection contract: equal dimension is not equal space."""

import pytest
from qdrant_client import QdrantClient, models

from care_qdrant.errors import ContractError, FingerprintMismatch, InputError, SchemaMismatch
from care_qdrant.store.contracts import (
    SparseContract,
    VectorContract,
    check_contract,
    read_contracts,
    write_contract,
)

OURS = VectorContract(fingerprint="a" * 64, model="pair-a", dim=4)


@pytest.fixture
def collection(client: QdrantClient) -> str:
    params = models.VectorParams(size=4, distance=models.Distance.COSINE)
    client.create_collection("docs", vectors_config={"pair-a": params, "foreign": params}, metadata={"owner": "team"})
    write_contract(client, "docs", "pair-a", OURS)
    return "docs"


def test_the_right_model_passes(client: QdrantClient, collection: str) -> None:
    check_contract(client, collection, "pair-a", OURS)


def test_another_model_of_the_same_dimension_is_refused(client: QdrantClient, collection: str) -> None:
    other = VectorContract(fingerprint="b" * 64, model="pair-b", dim=4)
    with pytest.raises(FingerprintMismatch, match="made by pair-a") as refusal:
        check_contract(client, collection, "pair-a", other)
    assert "care attach docs" in str(refusal.value)


def test_a_vector_that_nobody_vouches_for_is_refused(client: QdrantClient, collection: str) -> None:
    with pytest.raises(FingerprintMismatch, match="no fingerprint"):
        check_contract(client, collection, "foreign", OURS)


def test_another_dimension_is_refused(client: QdrantClient, collection: str) -> None:
    with pytest.raises(SchemaMismatch, match=r"4-dimensional .* needs 8"):
        check_contract(client, collection, "pair-a", VectorContract("a" * 64, "pair-a", 8))


def test_another_distance_is_refused(client: QdrantClient) -> None:
    client.create_collection("dots", {"pair-a": models.VectorParams(size=4, distance=models.Distance.DOT)})
    with pytest.raises(SchemaMismatch, match="Dot"):
        check_contract(client, "dots", "pair-a", OURS)


def test_a_missing_vector_is_named_with_what_is_there(client: QdrantClient, collection: str) -> None:
    with pytest.raises(InputError, match=r"no vector 'pair-z' .*foreign, pair-a"):
        check_contract(client, collection, "pair-z", OURS)


def test_a_sparse_contract_does_not_pass_for_a_dense_one(client: QdrantClient, collection: str) -> None:
    write_contract(client, collection, "foreign", SparseContract("zh", k1=1.2, b=0.75, average_length=80.0))
    with pytest.raises(ContractError, match="sparse"):
        check_contract(client, collection, "foreign", OURS)


def test_contracts_stand_beside_each_other_and_beside_the_users_metadata(client: QdrantClient, collection: str) -> None:
    sparse = SparseContract("zh", k1=1.2, b=0.75, average_length=80.0)
    write_contract(client, collection, "bm25", sparse)
    assert read_contracts(client, collection) == {"pair-a": OURS, "bm25": sparse}
    assert (client.get_collection(collection).config.metadata or {})["owner"] == "team"
