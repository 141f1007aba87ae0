"""Texts of which a model makes no vector: each attach leaves them out by name, and does everything else."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qdrant_client import QdrantClient, models

from care_qdrant.encoders.usable import require_tokens
from care_qdrant.errors import EncodingError
from care_qdrant.qdrant.collection import Collection
from care_qdrant.qdrant.point_equality import vectors_of
from care_qdrant.types import Vectors
from care_qdrant.vectors.attach import AttachSettings, attach_vector
from tests.tiny import BusyEncoder, HashEncoder, HashModel
from tests.vectors.collections import NAME, contents, fill

ZERO, REFUSED, SOUND, OTHER = "\ue000 零", "\ue000 拒", "高血压患者", "另一段文本"
ALL = AttachSettings(max_delete_fraction=1.0)


class Odd(HashEncoder):
    """Makes vectors of length 0 of some texts, and refuses others."""

    def encode(self, texts: Sequence[str], *, prompt: str | None = None) -> Vectors:
        require_tokens(texts, [place for place, text in enumerate(texts) if text == REFUSED])
        zero = np.array([[text == ZERO] for text in texts])
        return np.where(zero, np.float32(0), super().encode(texts))


def odd(name: str = "care") -> HashModel:
    model = HashModel(name=name)
    model._encoder = Odd()
    return model


def vectors(client: QdrantClient, name: str = "care") -> dict[Any, list[float]]:
    records, _ = client.scroll(NAME, limit=100, with_vectors=True)
    return {record.id: vectors_of(record)[name] for record in records if name in vectors_of(record)}


texts = st.sampled_from([ZERO, REFUSED, SOUND, OTHER, "", None])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(texts, min_size=5, max_size=5), min_size=1, max_size=4))
def test_the_points_that_have_a_vector_are_those_with_a_usable_text(states: list[list[str | None]]) -> None:
    """After each of several passes, as of ``--watch``, whatever the texts were before; a None keeps the text."""
    client, model = QdrantClient(":memory:"), odd()
    client.create_collection(NAME, {"old": models.VectorParams(size=2, distance=models.Distance.DOT)})
    now: list[str] = [SOUND] * 6
    client.upsert(NAME, [models.PointStruct(id=n, vector={"old": [1, n]}, payload={"text": SOUND}) for n in range(6)])
    before = contents(client)
    for state in states:
        for number, text in enumerate(state):
            if text is not None:
                now[number] = text
                client.set_payload(NAME, {"text": text}, points=[number])
        report = attach_vector(client, NAME, model, settings=ALL)
        usable = {number: text for number, text in enumerate(now) if text in (SOUND, OTHER)}
        found = vectors(client)
        assert found.keys() == usable.keys()
        expected = HashEncoder().encode(list(usable.values()))
        np.testing.assert_allclose(list(found.values()), expected, atol=1e-6)
        assert (report.without_text, report.covered) == (6 - len(usable), len(usable))
        assert sorted(report.unreadable) == [n for n, text in enumerate(now) if text in (ZERO, REFUSED)]
        again = attach_vector(client, NAME, model, settings=ALL)
        assert (again.encoded, again.removed, again.unreadable) == (0, 0, report.unreadable)
        assert Collection(client, NAME).schema.unfinished is None
    assert {key: old for key, (_, old) in contents(client, without="care").items()} == {
        key: old for key, (_, old) in before.items()
    }


def test_an_encoder_that_makes_no_vector_at_all_ends_the_run_and_removes_nothing(client: QdrantClient) -> None:
    fill(client, "named", "plain", count=10)
    attach_vector(client, NAME, HashModel(name="care"))
    before = vectors(client)
    client.set_payload(NAME, {"text": OTHER}, points=[1, 3])
    broken = HashModel(name="care")
    broken._encoder._row = lambda _text: np.zeros(32, np.float32)  # type: ignore[method-assign]
    with pytest.raises(EncodingError, match="length 0"):
        attach_vector(client, NAME, broken)
    assert vectors(client) == before
    assert Collection(client, NAME).schema.unfinished is not None


@pytest.mark.parametrize("gone", ["", ZERO])
def test_a_text_that_comes_back_while_a_pass_runs_keeps_its_new_vector(client: QdrantClient, gone: str) -> None:
    fill(client, "named", "plain", count=20)
    attach_vector(client, NAME, odd())
    client.set_payload(NAME, {"text": gone}, points=[1])
    client.set_payload(NAME, {"text": SOUND}, points=[3])

    class Slow(Odd, BusyEncoder):
        pass

    def bring_back(batch: int) -> None:
        if batch == 3:  # after the whole batch and the odd text alone
            client.set_payload(NAME, {"text": OTHER}, points=[1])
            attach_vector(client, NAME, odd())

    slow = odd()
    slow._encoder = Slow(bring_back if gone else lambda batch: bring_back(batch + 2))
    assert attach_vector(client, NAME, slow).removed == 0
    np.testing.assert_allclose(vectors(client)[1], HashEncoder().encode([OTHER])[0], atol=1e-6)
