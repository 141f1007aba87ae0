"""Writes of other programs, and the payloads that they keep, survive attach and detach."""

from collections.abc import Callable
from typing import Any

import pytest
from qdrant_client import QdrantClient, models

from care_qdrant.errors import ContractError, InputError
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.qdrant.collection import Collection
from care_qdrant.types import Document
from care_qdrant.vectors.attach import AttachSettings, attach_vector
from care_qdrant.vectors.attach_plan import plan_attach
from care_qdrant.vectors.detach import detach_vector
from care_qdrant.vectors.verify import verify_collection
from tests.tiny import HashModel
from tests.vectors.collections import DIM, NAME, contents, fill


def _at_metadata_write(client: QdrantClient, number: int, work: Callable[[], object]) -> None:
    """Let others work right before a write of metadata, when the writer has read what it needs."""
    update, seen = client.update_collection, 0

    def interrupted(*args: Any, **config: Any) -> bool:
        nonlocal seen
        seen += 1
        if seen == number:
            work()
        return update(*args, **config)

    client.update_collection = interrupted  # type: ignore[method-assign]


def _contracts(client: QdrantClient) -> dict[str, str]:
    return {name: each.fingerprint for name, each in Collection(client, NAME).schema.contracts.items()}


def test_two_first_attaches_at_once_keep_both_contracts(client: QdrantClient) -> None:
    fill(client, "named", "plain")
    first, second = HashModel(name="a", salt="a"), HashModel(name="b", salt="b")
    _at_metadata_write(client, 1, lambda: attach_vector(client, NAME, second))
    attach_vector(client, NAME, first)
    assert _contracts(client) == {"a": first.fingerprint, "b": second.fingerprint}
    for model in (first, second):
        assert verify_collection(client, NAME, model).problems == []


def test_an_attach_beside_a_detach_keeps_its_contract(client: QdrantClient) -> None:
    fill(client, "named", "plain")
    old, new = HashModel(name="a", salt="a"), HashModel(name="b", salt="b")
    attach_vector(client, NAME, old)
    _at_metadata_write(client, 1, lambda: attach_vector(client, NAME, new))
    detach_vector(client, NAME, "a")
    assert _contracts(client) == {"b": new.fingerprint}
    assert verify_collection(client, NAME, new).problems == []


def test_a_detach_beside_an_attach_leaves_no_contract(client: QdrantClient) -> None:
    fill(client, "named", "plain")
    old, new = HashModel(name="a", salt="a"), HashModel(name="b", salt="b")
    attach_vector(client, NAME, old)
    _at_metadata_write(client, 1, lambda: detach_vector(client, NAME, "a"))
    attach_vector(client, NAME, new)
    assert _contracts(client) == {"b": new.fingerprint}


@pytest.mark.parametrize("tool", ["plain", "llama-index"])
def test_a_vector_that_lost_its_contract_is_adopted_by_its_hashes(
    qdrant: QdrantClient, model: HashModel, tool: str
) -> None:
    fill(qdrant, "named", tool)
    attach_vector(qdrant, NAME, model)
    before = contents(qdrant)
    Collection(qdrant, NAME).write_contract("care", None)
    with pytest.raises(ContractError, match="carries no fingerprint"):
        verify_collection(qdrant, NAME, model, vector_name="care")
    other = HashModel(name="care", salt="other")
    with pytest.raises(ContractError, match="carries no fingerprint"):
        attach_vector(qdrant, NAME, other)
    assert plan_attach(qdrant, NAME, model).refusals == []
    report = attach_vector(qdrant, NAME, model)
    assert (report.encoded, report.unchanged, report.covered) == (0, 40, 40)
    assert contents(qdrant) == before
    assert verify_collection(qdrant, NAME, model).problems == []
    if tool == "plain":
        detach_vector(qdrant, NAME)
        assert not any("_care" in payload for payload, _ in contents(qdrant).values())


def test_a_vector_of_an_ingestion_that_lost_its_contract_is_not_taken_for_an_attached_one(
    qdrant: QdrantClient, model: HashModel
) -> None:
    rows = [Document(f"d{n}", f"第{n}段", "标题") for n in range(9)]
    ingest(rows, model, qdrant, NAME)
    Collection(qdrant, NAME).write_contract(model.name, None)
    assert attach_vector(qdrant, NAME, model).encoded == 0
    assert Collection(qdrant, NAME).schema.attached == []
    assert ingest(rows, model, qdrant, NAME).unchanged == 9


def test_a_vector_with_few_hashes_is_not_adopted(attached: QdrantClient, model: HashModel) -> None:
    """Those of the others could be of anything."""
    collection = Collection(attached, NAME)
    collection.write_contract("care", None)
    collection.delete_payload_key([each for each in contents(attached) if each not in (1, 3, 5)], "_care")
    before = contents(attached)
    with pytest.raises(ContractError, match="carries no fingerprint"):
        attach_vector(attached, NAME, model)
    assert contents(attached) == before


@pytest.mark.parametrize("theirs", ["intensive", {"level": 3}, ["a"], {"vectors": "x"}, None], ids=str)
def test_a_key_of_their_own_beyond_the_sample_is_neither_replaced_nor_removed(
    qdrant: QdrantClient, model: HashModel, theirs: Any
) -> None:
    fill(qdrant, "named", "plain", count=12)
    attach_vector(qdrant, NAME, model)
    rows = [
        models.PointStruct(id=1_001 + n, vector={"old": [0.5] * DIM}, payload={"text": f"第{n}段"})
        for n in range(2_400)
    ]
    rows[-1].payload["_care"] = theirs  # type: ignore[index]
    qdrant.upsert(NAME, rows, wait=True)
    before = contents(qdrant)[3_400]
    with pytest.raises(InputError, match=r"a key '_care' of their own.*3400"):
        attach_vector(qdrant, NAME, model, settings=AttachSettings(batch_tokens=1_000_000))
    assert contents(qdrant)[3_400] == before
    detach_vector(qdrant, NAME)
    assert contents(qdrant)[3_400] == before
    assert [each for each in contents(qdrant).values() if "_care" in each[0]] == [before]


def _two_fields(client: QdrantClient, count: int, minority: int) -> None:
    """Fill a collection whose first points have their text in another field than all others."""
    fill(client, "named", "plain", count=0)
    texts = [{"text": f"摘要{n}"} if n < minority else {"body": f"第{n}段正文"} for n in range(count)]
    rows = [models.PointStruct(id=n, vector={"old": [0.5] * DIM}, payload=each) for n, each in enumerate(texts)]
    client.upsert(NAME, rows, wait=True)


def test_the_field_of_most_points_wins_and_the_others_are_reported(qdrant: QdrantClient, model: HashModel) -> None:
    _two_fields(qdrant, 1_000, minority=200)
    [notice] = plan_attach(qdrant, NAME, model).notices
    assert "have no text under 'body' and one under 'text'" in notice
    report = attach_vector(qdrant, NAME, model)
    assert (report.text_field, report.covered, report.without_text, report.in_other_field) == ("body", 800, 200, 200)
    checked = verify_collection(qdrant, NAME, model)
    [problem] = checked.problems
    assert checked.in_other_field == 200
    assert problem.startswith("200 of 1,000 points have no text under 'body' and one in another field")


def test_a_few_points_with_another_field_are_counted_and_no_problem(qdrant: QdrantClient, model: HashModel) -> None:
    _two_fields(qdrant, 200, minority=4)
    assert attach_vector(qdrant, NAME, model).in_other_field == 4
    assert verify_collection(qdrant, NAME, model).problems == []


class TestTextField:
    """Another field than before removes vectors: only on purpose, and never most of them by mistake."""

    @pytest.fixture
    def attached(self, qdrant: QdrantClient, model: HashModel) -> QdrantClient:
        fill(qdrant, "named", "plain")
        qdrant.set_payload(NAME, {"summary": "短"}, points=[1], wait=True)
        attach_vector(qdrant, NAME, model)
        return qdrant

    def test_another_field_is_refused(self, attached: QdrantClient, model: HashModel) -> None:
        before = contents(attached)
        with pytest.raises(InputError, match=r"of field 'text'.*'summary'.*care detach"):
            attach_vector(attached, NAME, model, settings=AttachSettings(text_field="summary"))
        assert contents(attached) == before
        assert attach_vector(attached, NAME, model, settings=AttachSettings(text_field="text")).unchanged == 40

    def test_texts_that_are_gone_do_not_take_most_vectors_away(self, attached: QdrantClient, model: HashModel) -> None:
        others = [record.id for record in attached.scroll(NAME, limit=100)[0] if record.id != 1]
        attached.delete_payload(NAME, ["text"], points=others, wait=True)
        with pytest.raises(InputError, match=r"39 of 40 points.*0\.2.*nothing was removed"):
            attach_vector(attached, NAME, model)
        assert Collection(attached, NAME).count_with_vector("care") == 40
        report = attach_vector(attached, NAME, model, settings=AttachSettings(max_delete_fraction=1.0))
        assert (report.removed, report.covered) == (39, 1)

    def test_the_vector_of_an_ingestion_is_not_made_of_metadata(self, client: QdrantClient, model: HashModel) -> None:
        documents = [Document(f"d{n}", f"第{n}段", metadata={"body": f"正文{n}"}) for n in range(5)]
        ingest(documents, model, client, NAME)
        with pytest.raises(InputError, match="made by care-ingest or LlamaIndex"):
            attach_vector(client, NAME, model, settings=AttachSettings(text_field="body"))
