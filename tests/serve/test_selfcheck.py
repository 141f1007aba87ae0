"""Checks before a pair is served: its vectors alone and in a batch."""

import base64
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from care_qdrant.errors import AlteredModel
from care_qdrant.model.care_model import CareModel
from tests.serve.conftest import pair
from tests.serve.test_workers import start  # noqa: F401
from tests.tiny import GivenEncoder, HashEncoder

pytestmark = pytest.mark.timeout(400)


class Leaky(HashEncoder):
    """Lets the texts of a batch change each other's vectors."""

    def encode(self, texts, *, prompt=None):
        vectors = super().encode(texts, prompt=prompt)
        mixed = vectors + 0.5 * vectors.mean(axis=0)
        return (mixed / np.linalg.norm(mixed, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("side", ["query", "document"])
async def test_vectors_that_depend_on_their_batch_are_not_served(make_service, connect, side: str) -> None:
    service = make_service(pair(**{side: Leaky()}), documents=True)
    with pytest.raises(AlteredModel, match=f"{side}: the vector of a text depends on the other texts of its batch"):
        await service.load()
    assert (await connect(service).get("/ready")).status_code == 503


@pytest.mark.parametrize("side", ["query", "document"])
async def test_an_encoder_that_gives_other_vectors_than_the_references_is_not_served(make_service, side: str) -> None:
    model = CareModel.load()
    setattr(model, side, GivenEncoder(HashEncoder(dim=model.dim)))
    with pytest.raises(AlteredModel, match=f"/{side}: gives other vectors"):
        await make_service(model).load()


async def test_the_references_of_the_folder_are_compared(make_service, pair_folder: Path) -> None:
    model = CareModel.load(pair_folder)
    await make_service(model).load()
    assert model.card is not None and model.card.onnx is not None
    first, *rest = model.card.onnx.references
    other = -np.frombuffer(base64.b64decode(first.vector), "<f4")
    vectors = [replace(first, vector=base64.b64encode(other.tobytes()).decode()), *rest]
    model.card = replace(model.card, onnx=replace(model.card.onnx, references=tuple(vectors)))
    with pytest.raises(AlteredModel, match="/query: gives other vectors"):
        await make_service(model).load()
