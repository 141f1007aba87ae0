"""What is made sure of before a pair is served: its fingerprint, and its vectors alone and in a batch."""

import base64
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest

from care_qdrant.errors import AlteredModel, InputError
from care_qdrant.model.pair import CareModel
from care_qdrant.serve.selfcheck import check_allowed
from tests.serve.conftest import pair
from tests.serve.test_workers import start  # noqa: F401
from tests.tiny import HashEncoder, care_folder

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
    with pytest.raises(AlteredModel, match=f"{side}: the vector of a text depends on the texts beside it"):
        await service.load()
    assert (await connect(service).get("/ready")).status_code == 503


@pytest.mark.parametrize("side", ["query", "document"])
async def test_an_encoder_that_gives_other_vectors_than_the_references_is_not_served(make_service, side: str) -> None:
    model = CareModel.load()
    model._loaders[side] = lambda: HashEncoder(dim=model.dim)
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


def test_a_fingerprint_that_is_not_listed_is_refused(tmp_path: Path) -> None:
    file, model = tmp_path / "allowed", pair()
    check_allowed([model], None)
    for line, error in (("", AlteredModel), ("f" * 64, AlteredModel), ("70", InputError), ("no", InputError)):
        file.write_text(f"# pairs\n{line}\n")
        with pytest.raises(error):
            check_allowed([model], file)
    file.write_text(f"{'f' * 12}\n{model.fingerprint[:12]}\n")
    check_allowed([model], file)
    with pytest.raises(AlteredModel, match="other@"):
        check_allowed([model, pair("other")], file)


def test_a_reload_takes_only_a_listed_pair(start, pair_folder: Path, tmp_path: Path) -> None:  # noqa: F811
    folder, allowed = tmp_path / "pair", tmp_path / "allowed"
    shutil.copytree(pair_folder, folder)
    old, other = CareModel.load(pair_folder), care_folder(tmp_path / "other" / "tiny-pair", seed=7, onnx=True)
    new = CareModel.load(other)
    allowed.write_text(f"{old.fingerprint}\n")
    service = start("--model", str(folder), "--fingerprints", str(allowed))
    shutil.rmtree(folder)
    shutil.copytree(other, folder)
    service.process.send_signal(signal.SIGHUP)
    service.wait_for(f"not reloaded.*{new.fingerprint[:12]} is not among the fingerprints")

    def served() -> str:
        [model] = httpx.get(f"{service.url}/ready").json()["models"]
        return str(model["fingerprint"])

    assert served() == old.fingerprint
    allowed.write_text(f"{old.fingerprint}\n{new.fingerprint}\n")
    service.process.send_signal(signal.SIGHUP)
    # Workers of the generation before may take a last connection while they end.
    until = time.monotonic() + 30
    while served() != new.fingerprint and time.monotonic() < until:
        time.sleep(0.05)
    assert served() == new.fingerprint
