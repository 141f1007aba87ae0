"""The collection contract: equal dimension is not equal space."""

from dataclasses import replace

import pytest
from qdrant_client import QdrantClient, models

from care_qdrant.contracts.contract import (
    SparseContract,
    UnreadableContract,
    VectorContract,
    contract_metadata,
    parse_contracts,
    sparse_vector,
)
from care_qdrant.contracts.learned import LearnedContract, learned_metadata, parse_learned
from care_qdrant.encoders.terms import bm25
from care_qdrant.encoders.terms.analyser import DEFAULT
from care_qdrant.errors import ContractError, FingerprintMismatch, InputError, SchemaMismatch
from care_qdrant.qdrant.checks import check_contract
from care_qdrant.qdrant.collection import Collection
from care_qdrant.types import TermCounts
from care_qdrant.vectors.status import describe_all

OURS = VectorContract(fingerprint="a" * 64, model="pair-a", dim=4)


@pytest.fixture
def collection(client: QdrantClient) -> Collection:
    params = models.VectorParams(size=4, distance=models.Distance.COSINE)
    vectors = dict.fromkeys(("pair-a", "foreign", "sparse"), params)
    client.create_collection("docs", vectors_config=vectors, metadata={"owner": "team"})
    collection = Collection(client, "docs")
    collection.write_contract("pair-a", OURS)
    return collection


@pytest.mark.parametrize(
    ("vector", "contract", "error", "message"),
    [
        ("pair-a", replace(OURS, fingerprint="b" * 64), FingerprintMismatch, "made by pair-a.*care attach docs"),
        ("foreign", OURS, FingerprintMismatch, "no fingerprint"),
        ("sparse", OURS, ContractError, "sparse"),
        ("pair-a", replace(OURS, dim=8), SchemaMismatch, "4-dimensional .* needs 8"),
        ("pair-z", OURS, InputError, "no vector 'pair-z' .*foreign, pair-a, sparse"),
    ],
)
def test_all_but_the_right_model_is_refused(
    collection: Collection, vector: str, contract: VectorContract, error: type[Exception], message: str
) -> None:
    check_contract(collection.schema, "pair-a", OURS)
    collection.write_contract("sparse", SparseContract(DEFAULT.name, k1=1.2, b=0.75, average_length=80.0))
    with pytest.raises(error, match=message):
        check_contract(collection.schema, vector, contract)


def test_another_distance_is_refused(client: QdrantClient) -> None:
    client.create_collection("dots", {"pair-a": models.VectorParams(size=4, distance=models.Distance.DOT)})
    with pytest.raises(SchemaMismatch, match="Dot"):
        check_contract(Collection(client, "dots").schema, "pair-a", OURS)


def test_contracts_stand_beside_each_other_and_beside_the_users_metadata(
    client: QdrantClient, collection: Collection
) -> None:
    sparse = SparseContract(DEFAULT.name, k1=1.2, b=0.75, average_length=80.0)
    collection.write_contract("bm25", sparse)
    assert collection.schema.contracts == {"pair-a": OURS, "bm25": sparse}
    assert (client.get_collection("docs").config.metadata or {})["owner"] == "team"


def test_two_writers_of_different_vectors_keep_both_entries(client: QdrantClient, collection: Collection) -> None:
    mine, theirs = collection, Collection(client, "docs")
    assert mine.schema.contracts == theirs.schema.contracts
    theirs.write_contract("foreign", VectorContract("b" * 64, "pair-b", 4))
    mine.write_contract("pair-a", None)
    assert set(Collection(client, "docs").schema.contracts) == {"foreign"}


@pytest.mark.parametrize(
    "entry", ["text", ["list"], {"kind": "later"}, {"kind": "dense"}, {"kind": "sparse", "b": "x"}]
)
def test_an_entry_that_cannot_be_read_is_refused_and_hides_no_other(
    client: QdrantClient, collection: Collection, entry: object
) -> None:
    client.update_collection("docs", metadata={"care:foreign": entry, "care": entry})
    schema = collection.refresh()
    assert schema.contracts == {"pair-a": OURS, "foreign": UnreadableContract()}
    with pytest.raises(FingerprintMismatch, match="this version cannot read"):
        check_contract(schema, "foreign", OURS)
    [summary] = describe_all(client)
    made_by = {each.name: each.made_by for each in summary.vectors if each.name != "sparse"}
    assert made_by == {"foreign": "unreadable", "pair-a": "pair-a"}


def test_a_query_encoders_entry_that_cannot_be_read_is_left_out() -> None:
    right = LearnedContract("f", model="m", dim=2, distance="Cosine", probes={"1": "80"}, alpha=0.7, hnsw_ef=256)
    entry = learned_metadata("later", right)["care_learned:later"]
    signs = ("", "8", "8g", "80 ")
    for broken in (
        *(entry | odd for odd in ({"alpha": "automatic"}, {"hnsw_ef": "wide"})),
        *(entry | {"probes": {"1": odd}} for odd in signs),
    ):
        assert parse_learned(learned_metadata("v", right) | {"care_learned:later": broken}) == {"v": right}


def test_a_query_encoders_entry_of_an_earlier_version_names_no_width() -> None:
    right = LearnedContract("f", model="m", dim=2, distance="Cosine", probes={"1": "80"}, alpha=0.7, hnsw_ef=256)
    entry = learned_metadata("v", right)["care_learned:v"]
    del entry["hnsw_ef"]
    assert parse_learned({"care_learned:v": entry}) == {"v": replace(right, hnsw_ef=None)}


def test_bm25_of_an_earlier_version_counts_all_positions_alike(collection: Collection) -> None:
    sparse = SparseContract(DEFAULT.name, k1=1.2, b=0.75, average_length=12.0, lead=40.0)
    entry = contract_metadata("bm25", sparse)["care:bm25"]
    assert parse_contracts({"care:bm25": entry})["bm25"].lead == 40.0  # type: ignore[union-attr]
    del entry["lead"]
    earlier = parse_contracts({"care:bm25": entry})["bm25"]
    assert isinstance(earlier, SparseContract) and earlier.constants == f"{DEFAULT.name}/1.2/0.75/12.0"
    text = "高血压的饮食。糖尿病的用药。高血压"
    assert earlier.vector(text) == sparse_vector(
        bm25.document_vector(text, average_length=12.0, k1=1.2, b=0.75, lead=None)
    )
    counted = TermCounts(bm25.term_counts(text, lead=40.0), 40.0, DEFAULT.name)
    assert earlier.vector(text, counted) == earlier.vector(text)


@pytest.mark.parametrize("length", [200.02333333333334, 0.1 + 0.2, 1 / 3, 187.35000000000002])
def test_floats_survive_a_server_that_rounds_numbers(
    client: QdrantClient, collection: Collection, length: float
) -> None:
    collection.write_contract("bm25", SparseContract(DEFAULT.name, k1=1.2, b=0.75, average_length=length))
    stored = (client.get_collection("docs").config.metadata or {})["care:bm25"]
    assert not any(isinstance(value, float) for value in stored.values())
    contract = collection.schema.contracts["bm25"]
    assert isinstance(contract, SparseContract) and contract.average_length == length
