"""Changes by others to a vector while an attach writes it: the run ends with an error, or the vector is its own."""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import Any, TypeVar

import numpy as np
import pytest
from qdrant_client import QdrantClient, models

from care_qdrant.contracts.contract import contract_metadata
from care_qdrant.errors import CareError, FingerprintMismatch, InputError
from care_qdrant.qdrant.calls import Calls
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.point_equality import vectors_of
from care_qdrant.switch import switch
from care_qdrant.switch.switch import retire_vector, switch_collection
from care_qdrant.vectors.attach import AttachSettings, attach_vector
from care_qdrant.vectors.detach import detach_vector
from care_qdrant.vectors.status import describe_all
from care_qdrant.vectors.verify import verify_collection
from care_qdrant.vectors.verify_report import VerifySettings
from tests.tiny import HashModel
from tests.vectors.collections import NAME, SCHEMAS, contents, fill

OTHER = HashModel(name="other", salt="other")
T = TypeVar("T")


def detach(client: QdrantClient) -> None:
    detach_vector(client, NAME, "v")


def replace_by_another_model(client: QdrantClient) -> None:
    detach(client)
    attach_vector(client, NAME, OTHER, vector_name="v")


def make_again_for_another_model(client: QdrantClient) -> None:
    client.delete_collection(NAME)
    fill(client, "named", "plain")
    attach_vector(client, NAME, OTHER, vector_name="v")


@pytest.mark.parametrize("event", [detach, replace_by_another_model, make_again_for_another_model])
@pytest.mark.parametrize("at", [1, 20, 39])
def test_no_run_ends_well_whose_vector_is_no_longer_its_own(
    qdrant: QdrantClient, model: HashModel, event: Callable[[QdrantClient], None], at: int
) -> None:
    fill(qdrant, "named", "plain")
    events = [event]

    def on_progress(done: int, _total: int) -> None:
        if events and done >= at:
            events.pop()(qdrant)

    settings = AttachSettings(batch_tokens=400)
    with pytest.raises(CareError):
        attach_vector(qdrant, NAME, model, vector_name="v", settings=settings, on_progress=on_progress)
    assert not events
    if event is detach:
        assert "v" not in Collection(qdrant, NAME).schema.dense
        return
    with pytest.raises(FingerprintMismatch):
        attach_vector(qdrant, NAME, model, vector_name="v")
    attach_vector(qdrant, NAME, OTHER, vector_name="v")
    quiet = VerifySettings(least_known=0)
    assert verify_collection(qdrant, NAME, OTHER, vector_name="v", settings=quiet).problems == []


def make_again_by_another_tool(client: QdrantClient) -> None:
    client.delete_collection(NAME)
    fill(client, "named", "plain")


def make_again_by_ingestion(client: QdrantClient) -> None:
    """Make a collection whose vectors of this name came with its points, as ingestion and LlamaIndex do."""
    client.delete_collection(NAME)
    contract = HashModel(name="care").contract()
    metadata = contract_metadata("care", contract)
    client.create_collection(NAME, vectors_config={"care": contract.params}, metadata=metadata)
    rows = enumerate(np.eye(contract.dim).tolist())
    client.upsert(NAME, [models.PointStruct(id=at, vector={"care": row}, payload={"text": "t"}) for at, row in rows])


def before_each_call(
    run: Callable[[QdrantClient], T], begin: Callable[[QdrantClient], object], event: Callable[[QdrantClient], object]
) -> Iterator[tuple[QdrantClient, T | None]]:
    """Run with the event before the first call to Qdrant, before the second one, …: yield results, None for errors."""
    call = Calls.call
    for at in count(1):
        client, calls, result, events = QdrantClient(":memory:"), count(1), None, [event]
        begin(client)

        def counted(calls_of: Calls, what: str, operation: Callable[[], Any]) -> Any:
            if next(calls) == at and what != "removing the vector":  # noqa: B023  # that call cannot be guarded
                events.pop()(calls_of.client)  # noqa: B023
            return call(calls_of, what, operation)

        with pytest.MonkeyPatch.context() as patch, suppress(CareError):
            patch.setattr(Calls, "call", counted)
            result = run(client)
        if next(calls) <= at:
            return
        if not events:
            yield client, result


@pytest.mark.parametrize("event", [make_again_by_another_tool, make_again_by_ingestion])
@pytest.mark.parametrize(("is_again", "has_points"), [(False, True), (True, True), (True, False)])
def test_an_attach_that_ends_well_has_attached_to_what_is_there(
    model: HashModel, event: Callable[[QdrantClient], None], is_again: bool, has_points: bool
) -> None:
    def begin(client: QdrantClient) -> None:
        fill(client, "named", "plain")
        if is_again:
            attach_vector(client, NAME, model)
        if not has_points:
            client.delete(NAME, models.Filter())

    done = 0
    for client, report in before_each_call(lambda client: attach_vector(client, NAME, model), begin, event):
        done += 1
        if report is not None:
            there = Collection(client, NAME)
            assert "care" in there.schema.contracts
            assert there.count_with_vector("care") == there.count()
    assert done > 5


@pytest.mark.parametrize("event", [make_again_by_another_tool, make_again_by_ingestion])
def test_a_detach_removes_no_vector_that_came_with_the_points(
    model: HashModel, event: Callable[[QdrantClient], None]
) -> None:
    def begin(client: QdrantClient) -> None:
        fill(client, "named", "plain")
        attach_vector(client, NAME, model)

    done = 0
    for client, _ in before_each_call(lambda client: detach_vector(client, NAME), begin, event):
        done += 1
        own = "old" if event is make_again_by_another_tool else "care"
        there = Collection(client, NAME)
        assert there.count_with_vector(own) == there.count() > 0
    assert done > 5


@pytest.mark.parametrize("is_switched", [False, True])
def test_no_point_loses_its_only_vector_that_is_written_meanwhile(
    model: HashModel, is_switched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer may not know of the end of the vector, which takes minutes in a large collection."""
    monkeypatch.setattr(switch, "_SETTLE_SECONDS", 0.0)

    def begin(client: QdrantClient) -> None:
        fill(client, "named", "plain")
        attach_vector(client, NAME, model)
        attach_vector(client, NAME, None)
        if is_switched:
            switch_collection(client, NAME, OTHER, model, accept="a test")  # type: ignore[arg-type]

    def write(client: QdrantClient) -> None:
        vectors: Any = {"care": [0.5] * model.dim}
        if is_switched:  # which finds the point only by its words
            vectors["bm25"] = models.SparseVector(indices=[1], values=[1.0])
        with suppress(ValueError):  # there is no such vector any more
            client.upsert(NAME, [models.PointStruct(id=999, vector=vectors, payload={"text": "新的"})], wait=True)

    def run(client: QdrantClient) -> object:
        return retire_vector(client, NAME, grace_seconds=-1) if is_switched else detach_vector(client, NAME, "care")

    done = 0
    for client, _ in before_each_call(run, begin, write):
        done += 1
        assert all("care" in vectors_of(record) for record in client.retrieve(NAME, [999], with_vectors=True))
    assert done > 5


def test_the_state_of_all_collections_leaves_out_one_that_is_deleted_meanwhile() -> None:
    def begin(client: QdrantClient) -> None:
        fill(client, "named", "plain")
        client.create_collection("zeta", **SCHEMAS["sparse"])

    done = 0
    for _, summaries in before_each_call(describe_all, begin, lambda client: client.delete_collection(NAME)):
        done += 1
        assert summaries is not None
        assert {"zeta"} <= {summary.name for summary in summaries} <= {NAME, "zeta"}
    assert done > 5


def test_a_deletion_at_any_moment_is_said_in_words(model: HashModel) -> None:
    def attach(client: QdrantClient) -> str:
        try:
            return attach_vector(client, NAME, model).collection
        except CareError as error:
            return str(error)

    def begin(client: QdrantClient) -> None:
        fill(client, "named", "plain")

    said = [text for _, text in before_each_call(attach, begin, lambda client: client.delete_collection(NAME))]
    assert len(said) > 5
    assert all(text and re.search(f"there is no (such collection any more|collection '{NAME}')", text) for text in said)


@pytest.mark.parametrize("name", [".", "..", "a/b", "", "x" * 201])
def test_a_name_that_no_server_takes_is_refused_before_anything_is_written(qdrant: QdrantClient, name: str) -> None:
    fill(qdrant, "named", "plain")
    before = contents(qdrant), Collection(qdrant, NAME).schema.metadata
    with pytest.raises(InputError, match="name"):
        attach_vector(qdrant, NAME, HashModel(), vector_name=name)
    assert (contents(qdrant), Collection(qdrant, NAME).schema.metadata) == before


@pytest.mark.parametrize("name", ["_care", "vectors", "a.b", "a[0]", "é 漢", "it's", "-", "care%20x", "text"])
def test_any_other_name_is_attached_and_detached(qdrant: QdrantClient, model: HashModel, name: str) -> None:
    fill(qdrant, "named", "plain")
    before = contents(qdrant), Collection(qdrant, NAME).schema.metadata
    assert attach_vector(qdrant, NAME, model, vector_name=name).covered == 40
    assert attach_vector(qdrant, NAME, model, vector_name=name).unchanged == 40
    where = models.Filter(must_not=[models.IsEmptyCondition(is_empty=models.PayloadField(key="_care"))])
    assert qdrant.count(NAME, where).count == 40
    detach_vector(qdrant, NAME, name)
    assert (contents(qdrant), Collection(qdrant, NAME).schema.metadata) == before
