"""Keys of a collection's metadata: each is in one table, which says how long its entries stay."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from qdrant_client import QdrantClient

from care_qdrant.contracts import metadata
from care_qdrant.contracts.active import Active, SearchedVector, active_metadata
from care_qdrant.contracts.learned import LearnedContract
from care_qdrant.contracts.metadata import GOOD_MATCH, KEYS, QUANTIZATION, RUN, SHARE, VERSION
from care_qdrant.contracts.stand_in import stand_in_metadata
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.settings import IngestSettings
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.create import Storage, finish_load
from care_qdrant.qdrant.measurements import Measurement
from care_qdrant.search.good_match import fixed_questions, measure_good_match
from care_qdrant.search.retriever import Retriever
from care_qdrant.types import Document
from care_qdrant.vectors.attach import attach_vector
from care_qdrant.vectors.detach import detach_vector
from care_qdrant.vectors.status import describe
from care_qdrant.versions.publish import publish_collection
from tests.tiny import HashModel, medical_texts
from tests.vectors.collections import NAME, fill

PACKAGE = Path(metadata.__file__).parents[1]
NAMES = {key.name for key in KEYS}
TEXTS = [Document(f"d{n}", text, title=f"第 {n} 问怎么办") for n, text in enumerate(medical_texts(60))]


def written(client: QdrantClient, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return the metadata keys, without subjects, that are written from now on."""
    keys = set[str]()
    for method in ("create_collection", "update_collection"):
        call = getattr(client, method)

        def recorded(*args: Any, _call: Any = call, **options: Any) -> Any:
            keys.update(key.partition(":")[0] for key, entry in (options.get("metadata") or {}).items() if entry)
            return _call(*args, **options)

        monkeypatch.setattr(client, method, recorded)
    return keys


def test_every_key_that_is_written_is_in_the_table(qdrant: QdrantClient, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, model, share = written(qdrant, monkeypatch), HashModel(), HashModel()
    share.alpha = None  # type: ignore[assignment]
    settings = IngestSettings(sparse=True, indexes={"title": "tenant"})
    ingest(TEXTS, model, qdrant, "c", settings=settings, storage=Storage(quantization="int8"))
    Collection(qdrant, "c").update("as a killed run leaves it", metadata=RUN.change({"shard": "1/1"}, "killed"))
    ingest([Document("new", "子丑寅卯")], model, qdrant, "c", settings=IngestSettings(sparse=True, limit=1))
    every = IngestSettings(sparse=True, sync=True, sync_other_files=True, max_delete_fraction=1)
    ingest(TEXTS, model, qdrant, "c", settings=every)
    attach_vector(qdrant, "c", HashModel(name="other", salt="x"), vector_name="other")
    retriever = Retriever(qdrant, "c", share)  # type: ignore[arg-type]
    measure_good_match(retriever, fixed_questions(retriever))
    Collection(qdrant, "c").write_learned("other", LearnedContract("f" * 64, "m", 32, "Cosine", {}))
    Collection(qdrant, "c").update("as an encoder that stands in", metadata=stand_in_metadata("other", {"f": "m"}))
    active = Active(SearchedVector(model.name, model.name, model.fingerprint), since="2026-01-01T00:00:00Z")
    Collection(qdrant, "c").update("as a switch leaves it", metadata=active_metadata(active))
    publish_collection(qdrant, "c", "live")
    assert keys <= {key.name for key in KEYS}
    only_embedded, only_server = {"care_tenants"}, {"care_bulk_load", "care_quantization"}
    absent = only_server if Collection(qdrant, "c").is_embedded else only_embedded
    assert {key.name for key in KEYS} - keys == absent

    left = Collection(qdrant, "c").schema.metadata
    assert not [kind.name for _, _, kind, _ in metadata.known(left) if kind.lifetime == "work"]
    detach_vector(qdrant, "c", "other")
    gone = left.keys() - Collection(qdrant, "c").schema.metadata.keys()
    assert gone == {key for key in left if key.endswith(":other")} >= {"care:other", "care_learned:other"}


def test_no_other_module_spells_a_key() -> None:
    spelled = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}: {node.value}"
        for path in PACKAGE.rglob("*.py")
        if path.name != "metadata.py"
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if node.value != "care" and re.fullmatch(f"({'|'.join(NAMES)})(:\\S*)?", node.value)
    ]
    assert spelled == []


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["kind", "done", "started", "source", "first", "encoders", "probes"]), inner)
    ),
    max_leaves=5,
)


@given(key=st.sampled_from(KEYS), subject=st.sampled_from([None, "", "old", "a:b"]), entry=VALUES)
def test_an_entry_of_another_program_stops_nothing(key: metadata.Key, subject: str | None, entry: Any) -> None:
    client = QdrantClient(":memory:")
    fill(client, "named", "plain", count=1)
    client.update_collection(NAME, metadata={key.of(subject): entry})
    collection = Collection(client, NAME)
    assert [vector.name for vector in describe(collection).vectors] == ["old"]
    schema = collection.schema
    assert (schema.attached, schema.learned, schema.is_beside("old")) == ([], {}, False)
    assert schema.version_record is None or key is VERSION
    assert all(isinstance(tenant, str) for tenant in schema.tenant_keys)
    finish_load(collection)


def test_a_copy_gets_what_is_of_the_points_and_of_other_programs() -> None:
    all_keys = {key.of("x"): {"vector": "x"} for key in KEYS} | {"owner": "team", "care_ideas": 1}
    copied = metadata.portable(all_keys)
    assert {"owner", "care_ideas"} <= copied.keys()
    assert {key.name for key in KEYS if key.of("x") in copied} == {
        *("care", "care_learned", "care_stand_in", "care_good_match", "care_share", "care_quantization"),
        *("care_inputs", "care_tenants", "care_bulk_load", "care_active"),
    }


@pytest.mark.parametrize("key", [GOOD_MATCH, SHARE, QUANTIZATION], ids=lambda key: key.name)
@given(then=st.integers(0, 10_000), now=st.integers(0, 10_000))
def test_a_measurement_holds_until_a_quarter_has_come_or_gone(key: metadata.Key, then: int, now: int) -> None:
    measurement = Measurement(key, "s", {"vector": "v", "scale": "1"})
    kept = measurement.change({"value": "7"}, then)

    def found(points: int | None, **made_with: str) -> Any:
        other = Measurement(key, "s", {"vector": "v", "scale": "1"} | made_with)
        return other.find(kept, points, lambda entry: entry["value"])

    few, many = sorted((then, now))
    assert (found(now) == "7") is (many <= 1.25 * max(few, 1))
    assert found(then) == found(None) == found(then, later="a setting that the entry does not name") == "7"
    assert found(then, vector="w") is found(None, scale="2") is None


@pytest.mark.parametrize("entry", ["theirs", 7, [], {}, {"points": "many", "value": "7"}, {"points": 1}, {"value": 7}])
def test_what_another_program_wrote_is_no_measurement(entry: object) -> None:
    measurement = Measurement(SHARE, "s", {})
    assert measurement.find({SHARE.of("s"): entry}, 1, lambda entry: float(entry["value"])) is None


def test_runs_are_told_from_what_begins_like_them() -> None:
    assert RUN.all({"care_run:a": {}, "care_run_met:b": True, "care_run:c": None, "care_run": 1}) == {"a": {}}
