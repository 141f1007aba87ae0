"""Two writers and two models in any order, stopped in between: what ``verify`` says is what a plain client counts."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from llama_index.core.schema import MetadataMode, NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.vector_stores.care import CareVectorStore
from qdrant_client import QdrantClient, models

from care_qdrant.errors import CareError
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.settings import IngestSettings
from care_qdrant.types import Document, point_id
from care_qdrant.vectors.attach import AttachSettings, attach_vector
from care_qdrant.vectors.detach import detach_vector
from care_qdrant.vectors.verify import verify_collection
from care_qdrant.vectors.verify_report import VerifyReport
from care_qdrant.versions.publish import publish_collection, roll_back
from tests.tiny import TEXTS, HashEncoder, HashModel, Killed, MortalModel

SOURCE, ALIAS = "corpus", "live"
LEAST_COSINE = 0.999
TOOLS = ("care", "llama-index", "plain")
"""Tools that write the points, in the order in which they are taken when they wrote equally many."""
COUNTS = (
    "points",
    "with_text",
    "covered",
    "without_vector",
    "without_hash",
    "outdated",
    "text_gone",
    "written_by_others",
    "in_other_field",
    "sampled",
)
NOT_OF_POINTS = ("found by their own opening", "has not ended")
"""Words of what verify says that the payloads and vectors of the points do not tell."""
DOCUMENTS = [f"d{number}" for number in range(6)]
MODELS = {name: HashModel(name=name, salt=name) for name in ("a", "b")}

Payload = Mapping[str, Any]

texts = st.sampled_from(TEXTS)
names = st.sampled_from(sorted(MODELS))
documents = st.sampled_from(DOCUMENTS)
places = st.integers(0, 19)
corpora = st.dictionaries(documents, st.tuples(st.sampled_from(["", "标题"]), texts), min_size=1)


def text_field_of(payloads: Sequence[Payload], recorded: str | None) -> str | None:
    """Return who wrote most of these payloads, as whose all are read; None for nobody."""
    votes: Counter[str] = Counter()
    for payload in payloads:
        if "chunk" in payload.get("_care", {}) and recorded in (None, "text"):
            votes["care"] += 1
        elif "_node_content" in payload and recorded in (None, "_node_content.text"):
            votes["llama-index"] += 1
        elif payload.get("text") and recorded in (None, "text"):
            votes["plain"] += 1
    return max(TOOLS, key=lambda tool: votes[tool]) if votes else None


def right_text(payload: Payload, name: str, tool: str) -> str | None:
    """Return the one text of which a vector of a point is rightly made; None without one."""
    node = json.loads(payload["_node_content"]) if "_node_content" in payload else {}
    texts = {"text": payload.get("text") or "", "node": node.get("text") or ""}
    is_chunk = "chunk" in payload.get("_care", {})
    if is_chunk or tool == "care":
        text = texts["text"] or texts["node"]
    else:
        text = texts["text"] if tool == "plain" else texts["node"] or texts["text"]
    if not text:
        return None
    is_shown = "n" in node.get("metadata", {}) and not node["excluded_embed_metadata_keys"]
    if is_shown and text == texts["node"] and hash_of(payload, name) is None:
        return f"n: {node['metadata']['n']}\n\n{text}"
    return f"{payload['title']} {text}" if is_chunk and payload.get("title") else text


def hash_of(payload: Payload, name: str) -> str | None:
    digest: str | None = payload.get("_care", {}).get("vectors", {}).get(name)
    return digest


def expected_hash(model: HashModel, text: str) -> str:
    """Return the hash that ingestion and attach keep of the text of a vector, built from its definition."""
    entry = json.dumps([model.fingerprint, text], ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(entry.encode()).hexdigest()[:32]


@dataclass(slots=True)
class Facts:
    """Counts of one vector of a collection by a plain client; the names are those of `VerifyReport`."""

    points: int = 0
    with_text: int = 0
    covered: int = 0
    without_vector: int = 0
    without_hash: int = 0
    outdated: int = 0
    text_gone: int = 0
    written_by_others: int = 0
    in_other_field: int = 0
    sampled: int = 0
    wrong: list[Any] = field(default_factory=list)
    """Ids of the points without the vector of their text, or with a vector and no text."""
    wrong_sampled: int = 0
    """Points whose vector claims to be right, or claims nothing, and is not right."""


def count_facts(records: Sequence[models.Record], name: str, model: HashModel, recorded: str | None) -> Facts | None:
    """Return what is so, point by point; None where no point has a text."""
    tool = text_field_of([record.payload or {} for record in records], recorded)
    if tool is None:
        return None
    facts, is_attached = Facts(points=len(records)), recorded is not None
    for record in records:
        payload, vector = record.payload or {}, vectors_of(record).get(name)
        text, digest = right_text(payload, name, tool), hash_of(payload, name)
        facts.covered += vector is not None
        if text is None:
            facts.text_gone += digest is not None and vector is not None
            facts.written_by_others += digest is None and vector is not None
            facts.in_other_field += bool(payload.get("text") or "_node_content" in payload)
            facts.wrong += [record.id] if vector is not None else []
            continue
        facts.with_text += 1
        is_unhashed = digest is None and vector is not None
        is_stale = digest is not None and digest != expected_hash(model, text)
        facts.without_hash += is_unhashed
        facts.without_vector += vector is None or (digest is None and is_attached)
        facts.outdated += is_stale and vector is not None
        is_sampled = vector is not None and not is_stale and not (is_unhashed and is_attached)
        is_right = vector is not None and is_vector_of(vector, model, text)
        facts.sampled += is_sampled
        facts.wrong += [] if is_right else [record.id]
        facts.wrong_sampled += is_sampled and not is_right
    return facts


def is_vector_of(vector: Sequence[float], model: HashModel, text: str) -> bool:
    made, stored = model.encode_document([text])[0], np.asarray(vector)
    return bool(made @ stored / np.linalg.norm(stored) >= LEAST_COSINE)


class Mixture(RuleBasedStateMachine):
    """A collection that others wrote or that was ingested, and all who work on it."""

    def __init__(self) -> None:
        super().__init__()
        self.client = QdrantClient(":memory:")
        self.whole: tuple[str, str] | None = None
        """Collection and model that the last step made whole."""
        self.altered = False
        """Somebody has put a vector of something else on a point that says what its vector was made of."""

    def teardown(self) -> None:
        self.client.close()

    @initialize(is_foreign=st.booleans(), name=names, rows=corpora)
    def make(self, is_foreign: bool, name: str, rows: dict[str, tuple[str, str]]) -> None:
        if is_foreign:
            self.client.create_collection(SOURCE, {"old": models.VectorParams(size=4, distance=models.Distance.COSINE)})
            self.client.upsert(
                SOURCE,
                [
                    models.PointStruct(id=number, vector={"old": [1.0, number, 0, 1]}, payload={"text": text})
                    for number, (_, text) in enumerate(rows.values())
                ],
            )
        else:
            self._do(lambda: self._ingest(MODELS[name], rows, sync=False), whole=(SOURCE, name))

    # Writers

    @rule(name=names, rows=corpora, sync=st.booleans())
    def ingest(self, name: str, rows: dict[str, tuple[str, str]], sync: bool) -> None:
        self._do(lambda: self._ingest(MODELS[name], rows, sync))

    @rule(name=names, rows=corpora, sync=st.booleans(), batches=st.integers(0, 2))
    def ingest_stopped(self, name: str, rows: dict[str, tuple[str, str]], sync: bool, batches: int) -> None:
        self._do(lambda: self._ingest(MortalModel(batches, name, name), rows, sync))

    @rule(name=names, document=documents, text=texts, is_shown=st.booleans(), is_chunk=st.booleans())
    def insert(self, name: str, document: str, text: str, is_shown: bool, is_chunk: bool) -> None:
        """Add a node: a new one, an earlier one, or one under the id of a chunk of ingestion."""
        node = TextNode(id_=point_id(document, 0 if is_chunk else 99), text=text, metadata={"n": 1} if is_shown else {})
        node.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id=document)
        node.embedding = MODELS[name].encode_document([node.get_content(MetadataMode.EMBED)])[0].tolist()
        self._do(lambda: CareVectorStore(SOURCE, self.client, embedding=MODELS[name]).add([node]))

    @rule(name=names)
    def attach(self, name: str) -> None:
        self._do(lambda: attach_vector(self.client, SOURCE, MODELS[name], settings=EAGER), whole=(SOURCE, name))

    @rule(name=names, batches=st.integers(0, 3))
    def attach_stopped(self, name: str, batches: int) -> None:
        self._do(lambda: attach_vector(self.client, SOURCE, MortalModel(batches, name, name), settings=EAGER))

    @rule(name=names)
    def detach(self, name: str) -> None:
        self._do(lambda: detach_vector(self.client, SOURCE, name))

    @rule()
    def publish(self) -> None:
        self._do(lambda: publish_collection(self.client, SOURCE, ALIAS))

    @rule()
    def roll_back(self) -> None:
        self._do(lambda: roll_back(self.client, ALIAS))

    # What other programs do with a plain client

    @rule(place=places, text=st.one_of(texts, st.just("")))
    def edit(self, place: int, text: str) -> None:
        for point in self._point(place):
            self._do(lambda: self.client.set_payload(SOURCE, {"text": text}, points=[point]))  # noqa: B023  # now

    @rule(place=places, name=names, is_point=st.booleans())
    def lose(self, place: int, name: str, is_point: bool) -> None:
        """Take a vector or a point away."""
        for point in self._point(place):
            if is_point:
                self._do(lambda: self.client.delete(SOURCE, [point]))  # noqa: B023
            elif name in self._vectors():
                self._do(lambda: self.client.delete_vectors(SOURCE, [name], points=[point]))  # noqa: B023

    @rule(place=places, name=names, text=texts)
    def alter(self, place: int, name: str, text: str) -> None:
        """Write a vector of another model that says nothing of itself."""
        for point in self._point(place) if name in self._vectors() else []:
            row = models.PointVectors(id=point, vector={name: HashEncoder(salt="another").encode([text])[0].tolist()})
            self._do(lambda: self.client.update_vectors(SOURCE, [row]))  # noqa: B023
            self.altered = True

    # What verify says

    @invariant()
    def verify_claims_what_is_so(self) -> None:
        there = {each.name for each in self.client.get_collections().collections}
        for collection in there:
            for name, model in MODELS.items():
                self._compare(collection, name, model)

    def _compare(self, collection: str, name: str, model: HashModel) -> None:
        try:
            report = verify_collection(self.client, collection, model, vector_name=name)
        except CareError:
            assert self.whole != (collection, name), "a vector that was made whole is verified"
            return
        self._compare_others(collection, model, report)
        said = [problem for problem in report.problems if not any(words in problem for words in NOT_OF_POINTS)]
        if not self._records(collection):
            assert report.points == 0
            assert said == ["the collection has no points, so nothing was checked"]
            return
        facts = count_facts(self._records(collection), name, model, self._recorded(collection, name))
        assert facts is not None, f"verify reads texts of {collection!r} where there is none"
        where = f"{name!r} of {collection!r}: {facts}, and verify says {report}"
        for counted in COUNTS:
            assert getattr(report, counted) == getattr(facts, counted), f"{counted}, {where}"
        if report.lowest_cosine is not None:
            assert (report.lowest_cosine < LEAST_COSINE) == bool(facts.wrong_sampled), where
        is_elsewhere = facts.in_other_field >= max(1, 0.05 * facts.points)
        assert bool(said) == bool(facts.wrong or facts.without_vector or is_elsewhere), where
        if self.whole == (collection, name) and not self.altered:
            assert not facts.wrong, f"the last step left {where}"
            assert bool(said) == is_elsewhere, where

    def _compare_others(self, collection: str, model: HashModel, report: VerifyReport) -> None:
        """A verify without a name says the same of the model's vector, and counts each other one as truly."""
        everything = verify_collection(self.client, collection, model)
        assert set(report.problems) <= set(everything.problems)
        for other in everything.others:
            facts = count_facts(
                self._records(collection),
                other.vector_name,
                MODELS[other.vector_name],
                self._recorded(collection, other.vector_name),
            )
            if facts is not None and self._records(collection):
                where = f"{other.vector_name!r} of {collection!r}: {facts}, and verify says {other}"
                for counted in COUNTS:
                    if counted != "sampled":  # no vector of another model is encoded again
                        assert getattr(other, counted) == getattr(facts, counted), f"{counted}, {where}"

    # Steps

    def _do(self, step: Callable[[], object], whole: tuple[str, str] | None = None) -> None:
        """Take a step that may be refused or stopped; only one that ends makes something whole."""
        self.whole = None
        try:
            step()
        except (CareError, Killed):
            return
        self.whole = whole

    def _ingest(self, model: HashModel, rows: dict[str, tuple[str, str]], sync: bool) -> object:
        corpus = [Document(name, text, title) for name, (title, text) in rows.items()]
        how = IngestSettings(sync=sync, max_delete_fraction=1.0, batch_tokens=60)
        return ingest(corpus, model, self.client, SOURCE, settings=how)

    def _records(self, collection: str) -> list[models.Record]:
        if not self.client.collection_exists(collection):
            return []
        return self.client.scroll(collection, limit=1_000, with_payload=True, with_vectors=True)[0]

    def _recorded(self, collection: str, name: str) -> str | None:
        """Return the text field that the collection's metadata name for an attached vector."""
        contract: Any = (self.client.get_collection(collection).config.metadata or {}).get(f"care:{name}", {})
        found: str | None = contract.get("text_field")
        return found

    def _vectors(self) -> Any:
        return self.client.get_collection(SOURCE).config.params.vectors

    def _point(self, place: int) -> list[Any]:
        """Return the id of one point, or nothing where there is none."""
        ids = sorted((record.id for record in self._records(SOURCE)), key=str)
        return [ids[place % len(ids)]] if ids else []


EAGER = AttachSettings(batch_tokens=60, max_delete_fraction=1.0)


def vectors_of(record: models.Record) -> dict[str, Any]:
    return record.vector if isinstance(record.vector, dict) else {}


def _run(examples: int, steps: int, *, derandomize: bool) -> None:
    run_state_machine_as_test(
        Mixture,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=derandomize,
            database=None,
            suppress_health_check=list(HealthCheck),
            # Not Phase.explain, which traces every line and takes minutes to say no more than the steps do.
            phases=[Phase.generate, Phase.shrink],
        ),
    )


def test_verify_never_claims_what_is_not_so() -> None:
    _run(20, 12, derandomize=True)


def test_verify_reads_a_chunk_that_keeps_its_text_in_a_node_alone() -> None:
    text, state = TEXTS[0], Mixture()
    state.make(is_foreign=False, name="a", rows={"d0": ("", text)})
    state.insert(name="a", document="d0", text=text, is_shown=False, is_chunk=False)
    state.attach("b")
    state.insert(name="a", document="d1", text=text, is_shown=False, is_chunk=False)
    state.insert(name="a", document="d0", text=text, is_shown=False, is_chunk=True)
    state.attach("b")
    assert "text" not in state.client.retrieve(SOURCE, [point_id("d0", 0)])[0].payload
    state.verify_claims_what_is_so()
    state.teardown()


def test_verify_counts_a_vector_that_was_never_of_a_text() -> None:
    state = Mixture()
    state.make(is_foreign=True, name="a", rows={name: ("", text) for name, text in zip("xy", TEXTS, strict=False)})
    state.edit(place=0, text="")
    state.attach("a")
    state.alter(name="a", place=0, text=TEXTS[0])
    assert verify_collection(state.client, SOURCE, MODELS["a"]).written_by_others == 1
    state.verify_claims_what_is_so()
    state.teardown()


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_verify_never_claims_what_is_not_so_in_many_mixtures() -> None:
    _run(50, 20, derandomize=False)
