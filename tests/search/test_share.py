"""The share of the dense score: measured where no card says it, by how far both kinds of scores spread."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from qdrant_client import QdrantClient
from qdrant_client.http.exceptions import UnexpectedResponse

from care_qdrant.contracts.metadata import SHARE
from care_qdrant.ingestion.ingest import ingest
from care_qdrant.ingestion.settings import IngestSettings
from care_qdrant.search.good_match import fixed_questions, known_good_match, measure_good_match
from care_qdrant.search.retriever import Retriever
from care_qdrant.search.share import balanced_alpha
from care_qdrant.types import Document, Vectors
from care_qdrant.vectors.attach import attach_vector
from care_qdrant.vectors.detach import detach_vector
from tests.tiny import HashEncoder, HashModel, medical_texts

DOCUMENTS = [Document(f"d{n}", text, title=f"第 {n} 问怎么办") for n, text in enumerate(medical_texts(300))]
SETTINGS = IngestSettings(sparse=True)


class CloseEncoder(HashEncoder):
    """Gives vectors whose cosines all lie near 0.98, closer still than those of E5."""

    def encode(self, texts: Sequence[str], *, prompt: str | None = None) -> Vectors:
        vectors = super().encode(texts, prompt=prompt) + np.eye(1, self.dim, dtype=np.float32) * 8
        return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), dtype=np.float32)


class CloseModel(HashModel):
    """A model of which nobody knows what suits its scores."""

    alpha: float | None = None  # type: ignore[assignment]

    def __init__(self, encoder: HashEncoder | None = None) -> None:
        super().__init__(name="close")
        self._encoder = encoder or CloseEncoder()


def test_scores_that_spread_less_count_more() -> None:
    generator = np.random.default_rng(0)
    dense, lexical = generator.normal(size=(2, 20, 500))
    same = balanced_alpha(dense, lexical)
    assert same == pytest.approx(0.7, abs=0.01)
    assert balanced_alpha(dense + 5, lexical) == pytest.approx(same), "what all have in common says nothing"
    assert balanced_alpha(dense * 0.1, lexical) == pytest.approx(7 / (7 + 0.3), abs=0.01)
    assert balanced_alpha(dense, lexical * 0) == 0.0


def test_it_is_measured_at_the_first_hybrid_search_and_kept(client: QdrantClient) -> None:
    model = CloseModel()
    ingest(DOCUMENTS, model, client, "c", settings=SETTINGS)
    model.query_encoder.encoded.clear()
    retriever = Retriever(client, "c", model)  # type: ignore[arg-type]
    assert retriever.resolved.sparse_vector_name is not None
    assert model.query_encoder.encoded == [], "a program that only opens a collection encodes nothing"

    by_both = retriever.search(["头痛怎么办"], 5)
    asked = len(model.query_encoder.encoded)
    assert 17 <= asked <= 65
    alpha = retriever.resolved.alpha
    assert 0.7 < alpha <= 0.99
    retriever.search(["头痛怎么办"], 5)
    assert len(model.query_encoder.encoded) == asked + 1
    [same] = Retriever(client, "c", model, alpha=alpha).search(["头痛怎么办"], 5)  # type: ignore[arg-type]
    assert [(hit.document_id, hit.score) for hit in by_both[0]] == [(hit.document_id, hit.score) for hit in same]
    another = CloseModel()
    assert Retriever(client, "c", another).resolved.alpha == alpha  # type: ignore[arg-type]
    assert another.query_encoder.encoded == [], "every program takes what the first one has measured"


def test_a_card_gives_any_share(client: QdrantClient) -> None:
    model: Any = CloseModel()
    model.alpha = 0.7
    ingest(DOCUMENTS, model, client, "c", settings=SETTINGS)
    model.query_encoder.encoded.clear()
    retriever = Retriever(client, "c", model)
    assert retriever.resolved.alpha == 0.7
    retriever.search(["头痛怎么办"], 5)
    assert model.query_encoder.encoded == ["头痛怎么办"]


@pytest.mark.parametrize(
    ("documents", "model", "mode"),
    [(300, HashModel(name="close"), "auto"), (10, CloseModel(), "auto"), (300, CloseModel(), "dense")],
)
def test_what_a_card_says_is_taken_and_too_few_points_tell_nothing(
    client: QdrantClient, documents: int, model: Any, mode: Any
) -> None:
    ingest(DOCUMENTS[:documents], model, client, "c", settings=SETTINGS)
    assert Retriever(client, "c", model, mode=mode).resolved.alpha == 0.5


def test_a_collection_that_grows_is_measured_as_soon_as_it_tells_something(client: QdrantClient) -> None:
    model = CloseModel()
    ingest(DOCUMENTS[:10], model, client, "c", settings=SETTINGS)
    retriever = Retriever(client, "c", model, check_seconds=0)  # type: ignore[arg-type]
    assert retriever.resolved.alpha == 0.5
    ingest(DOCUMENTS[:100], model, client, "c", settings=SETTINGS)
    assert retriever.resolved.alpha > 0.7
    ingest(DOCUMENTS, model, client, "c", settings=SETTINGS)
    model.query_encoder.encoded.clear()
    assert Retriever(client, "c", model).resolved.alpha > 0.7  # type: ignore[arg-type]
    assert model.query_encoder.encoded, "it has more than doubled since"


def test_detach_takes_the_share_of_a_vector_away(client: QdrantClient) -> None:
    model: Any = CloseModel()
    ingest(DOCUMENTS, HashModel(), client, "c", settings=SETTINGS)
    attach_vector(client, "c", model)
    assert Retriever(client, "c", model).resolved.alpha > 0.7
    kept = [key for key in client.get_collection("c").config.metadata if key.startswith(SHARE.of(""))]
    assert len(kept) == 1
    detach_vector(client, "c", model.name)
    assert not client.get_collection("c").config.metadata.get(kept[0])


def test_who_may_only_read_measures_it_all_the_same(client: QdrantClient, monkeypatch: pytest.MonkeyPatch) -> None:
    model = CloseModel()
    ingest(DOCUMENTS, model, client, "c", settings=SETTINGS)

    def refuse(*_: Any, **__: Any) -> None:
        raise UnexpectedResponse(403, "Forbidden", b"{}", None)  # type: ignore[arg-type]

    monkeypatch.setattr(client, "update_collection", refuse)
    assert Retriever(client, "c", model).resolved.alpha > 0.7  # type: ignore[arg-type]


def test_a_good_match_score_is_that_of_the_measured_share(client: QdrantClient) -> None:
    model: Any = CloseModel()
    ingest(DOCUMENTS, model, client, "c", settings=SETTINGS)
    retriever = Retriever(client, "c", model)
    found = measure_good_match(retriever, fixed_questions(retriever))
    assert known_good_match(Retriever(client, "c", model)) == found
    model.alpha = 0.5
    assert known_good_match(Retriever(client, "c", model)) is None, "measured with another share"
