import math
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from care_trainer import recipe
from care_trainer.losses.retromae import (
    IGNORED,
    RetroMaeLoss,
    chunk_rows,
    chunked_cross_entropy,
    decoder_visibility,
    mask_tokens,
    output_scale,
)
from care_trainer.models import towers
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize

from tests.forks import FORKS
from tests.trainer.tiny_run import pairs, stage, tiny_run


def _texts() -> list[str]:
    return [row["positive"] for row in pairs()[:8]]


def _encoder(folder: Path) -> SentenceTransformer:
    """Load an encoder up to its pooling."""
    modules = list(towers.load(folder).children())
    return SentenceTransformer(modules=[module for module in modules if not isinstance(module, Normalize)]).eval()


def test_masking_touches_the_given_share_of_ordinary_tokens() -> None:
    torch.manual_seed(0)
    ids = torch.randint(10, 100, (50, 200))
    special = torch.zeros_like(ids, dtype=torch.bool)
    special[:, 0] = True
    masked, targets = mask_tokens(ids, special, 0.3, mask_id=4, vocabulary=100)
    chosen = targets != IGNORED
    assert chosen.float().mean().item() == pytest.approx(0.3, abs=0.02)
    assert not chosen[:, 0].any()
    assert torch.equal(targets[chosen], ids[chosen])
    assert torch.equal(masked[~chosen], ids[~chosen])
    assert (masked[chosen] == 4).float().mean().item() == pytest.approx(0.8, abs=0.03)


def test_a_decoder_position_sees_the_sentence_vector_but_never_itself_or_padding() -> None:
    torch.manual_seed(0)
    attention = torch.ones(3, 40, dtype=torch.bool)
    attention[1, 20:] = False
    visible = decoder_visibility(attention, 0.5)
    assert visible[:, :, 0].all()
    assert not visible[:, torch.arange(1, 40), torch.arange(1, 40)].any()
    assert not visible[1, :, 20:].any()
    assert visible[0, :, 1:].float().mean().item() == pytest.approx(0.5, abs=0.05)
    assert not torch.equal(visible[0, 5], visible[0, 6]), "each position has its own view"


def test_the_decoder_leans_on_the_sentence_vector(query_folder: Path) -> None:
    loss = RetroMaeLoss(_encoder(query_folder))
    parts = loss([loss.model.preprocess(_texts())])
    assert parts.keys() == {"encoder", "decoder"}
    parts["decoder"].backward()
    layer = loss.model[0].model.encoder.layer[0]
    assert layer.output.dense.weight.grad.abs().sum() > 0, "the decoder reaches the encoder through its sentence vector"


def test_the_head_shares_the_encoders_embeddings(query_folder: Path) -> None:
    loss = RetroMaeLoss(_encoder(query_folder))
    words = loss.model[0].model.get_input_embeddings().weight
    assert loss.head.predictions.decoder.weight is words
    names = [name for name, parameter in loss.named_parameters() if parameter is words]
    assert len(names) == 1, "one optimiser entry"


def test_after_a_bag_the_first_loss_is_that_of_a_guess(tmp_path: Path) -> None:
    """A static table's token vectors are long: as output weights they would give logits as large as the hidden size."""
    run = tiny_run(tmp_path, stage("static", max_steps=20), document_pooling="mean")
    recipe.run_stages(run)
    query, document = (_encoder(recipe.newest(run, side)) for side in recipe.SIDES)
    assert output_scale(document) < 0.05
    guess = math.log(len(query.tokenizer))
    parts = RetroMaeLoss(query)([query.preprocess(_texts())])
    for found in parts.values():
        assert found.item() == pytest.approx(guess, rel=0.25)


def _head(hidden: int, vocabulary: int) -> tuple[torch.nn.Linear, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    head = torch.nn.Linear(hidden, vocabulary)
    return head, torch.randn(50, hidden, requires_grad=True), torch.randint(vocabulary, (50,))


def test_a_cross_entropy_in_chunks_is_that_of_all_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("care_trainer.losses.retromae.CHUNK_LOGITS", 7 * 90)
    head, hidden, targets = _head(16, 90)
    found = []
    for loss in (
        torch.nn.functional.cross_entropy(0.5 * head(hidden), targets),
        chunked_cross_entropy(head, hidden, targets, 90, scale=0.5),
    ):
        head.weight.grad = hidden.grad = None
        loss.backward()
        found.append((loss.detach(), head.weight.grad, hidden.grad))
    for whole, chunked in zip(*found, strict=True):
        torch.testing.assert_close(chunked, whole, rtol=1e-5, atol=1e-7)


def test_a_batch_without_a_masked_token_has_no_loss_and_no_gradient() -> None:
    head, hidden, targets = _head(16, 90)
    loss = chunked_cross_entropy(head, hidden[:0], targets[:0], 90)
    loss.backward()
    assert loss.item() == 0
    assert not head.weight.grad.any() and not hidden.grad.any()


def test_a_chunk_keeps_a_gpu_busy_and_takes_a_sixteenth_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=80 * 2**30))
    assert chunk_rows(250_048, torch.device("cpu")) == 134
    rows = chunk_rows(250_048, torch.device("cuda"))
    assert rows > 1024 and rows * 250_048 * 12 <= 5 * 2**30


PEAK = """
import sys, torch
from care_trainer.losses.retromae import chunked_cross_entropy

# Not getrusage: its peak begins with that of the process that started this one.
def kib(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field))

head, tokens = torch.nn.Linear(32, 250_048), 600
hidden, targets = torch.randn(tokens, 32, requires_grad=True), torch.randint(250_048, (tokens,))
before = kib("VmRSS:")
if sys.argv[1] == "chunked":
    loss = chunked_cross_entropy(head, hidden, targets, 250_048)
else:
    loss = torch.nn.functional.cross_entropy(head(hidden).float(), targets)
loss.backward()
print((kib("VmHWM:") - before) // 1024)
"""


def _peak_mib(how: str) -> int:
    command = [FORKS.python, "-c", PEAK, how]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_full_vocabulary_in_chunks_takes_a_fraction_of_the_memory() -> None:
    chunked, whole = (_peak_mib(how) for how in ("chunked", "whole"))
    logits = 600 * 250_048 * 4 / 2**20
    assert whole > 1.9 * logits, "logits, and their gradient"
    assert chunked < 0.4 * whole, f"{chunked} MiB against {whole} MiB"


def test_autocast_covers_the_head(query_folder: Path) -> None:
    dtypes = []
    for bf16 in (False, True):
        loss = RetroMaeLoss(_encoder(query_folder), bf16=bf16)
        loss.head.register_forward_hook(lambda _module, _inputs, output: dtypes.append(output.dtype))
        parts = loss([loss.model.preprocess(_texts())])
        assert {part.dtype for part in parts.values()} == {torch.float32}
    assert set(dtypes[: len(dtypes) // 2]) == {torch.float32} and set(dtypes[len(dtypes) // 2 :]) == {torch.bfloat16}
