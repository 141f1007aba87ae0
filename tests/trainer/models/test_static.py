from pathlib import Path

import numpy as np
import pytest
import torch
from care_trainer import recipe
from care_trainer.config import Run, Scratch, Tower
from care_trainer.export.checkpoint import export
from care_trainer.losses.embedding import drop_tokens
from care_trainer.models import towers
from care_trainer.models.scratch import write_base
from care_trainer.models.static import Expansion, random_static, start_from_static
from care_trainer.models.tokens import Parts
from sentence_transformers import SentenceTransformer

from care_qdrant.errors import InputError
from care_qdrant.model.care_model import CareModel
from tests.trainer.tiny_run import pairs, stage, tiny_run

TEXTS = [row["positive"] for row in pairs()[:12]] + [row["query"] for row in pairs()[:12]]


@pytest.fixture(scope="module")
def mean_base(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = tiny_run(tmp_path_factory.mktemp("mean"), document_pooling="mean")
    recipe.run_stages(run)
    return run


def _static(encoder: SentenceTransformer) -> SentenceTransformer:
    torch.manual_seed(0)
    return random_static(encoder.tokenizer.backend_tokenizer, 32, TEXTS, 48)


@pytest.mark.parametrize(("side", "tolerance"), [("document", 1e-3), ("query", 0.3)])
def test_an_encoder_starts_as_the_table_and_stays_it_when_reloaded(
    mean_base: Run, tmp_path: Path, side: str, tolerance: float
) -> None:
    encoder = towers.load(Path(mean_base.output) / "base" / side)
    static = _static(encoder)
    start_from_static(encoder, static[0].embedding.weight.detach()).save_pretrained(
        str(tmp_path / side), create_model_card=False
    )
    reloaded = SentenceTransformer(str(tmp_path / side))
    encode = reloaded.encode_document if side == "document" else reloaded.encode_query
    expected = static.encode(TEXTS, normalize_embeddings=True)
    # BERT's LayerNorm also takes the mean out, one of 32 directions here; Qwen3's RMSNorm takes nothing.
    np.testing.assert_allclose(encode(TEXTS) @ encode(TEXTS).T, expected @ expected.T, atol=tolerance)


def test_a_document_that_counts_from_its_beginning_starts_as_the_table_does(mean_base: Run, tmp_path: Path) -> None:
    shape = Scratch(architecture="bert", layers=2, hidden=48, heads=2, intermediate=96)
    static = _static(towers.load(Path(mean_base.output) / "base" / "document"))
    table = static[0].embedding.weight.detach()
    table -= table.mean(dim=1, keepdim=True)  # which a BERT takes out
    tower = Tower(scratch=shape, pooling="mean", max_tokens=48)
    write_base(tower, "document", static.tokenizer, tmp_path)
    encoder = start_from_static(towers.build_document(str(tmp_path), tower, 32), table, lead_tokens=3)
    for text, vector in zip(TEXTS, encoder.encode_document(TEXTS), strict=True):
        ids = static.tokenizer.encode(text, add_special_tokens=False).ids
        weights = 1 / (1 + torch.arange(1, len(ids) + 1) / 3)  # [CLS] has the first position
        expected = torch.nn.functional.normalize(weights @ table[ids], dim=0)
        np.testing.assert_allclose(vector, expected, atol=1e-4)


def test_every_layer_of_a_started_encoder_learns(mean_base: Run) -> None:
    encoder = towers.load(Path(mean_base.output) / "base" / "document")
    model = start_from_static(encoder, _static(encoder)[0].embedding.weight.detach())
    towers.make_trainable(model, side="document", lora=False)
    before = {
        name: parameter.detach().clone() for name, parameter in model.named_parameters() if parameter.requires_grad
    }
    optimizer = torch.optim.Adam([parameter for parameter in model.parameters() if parameter.requires_grad], lr=1e-3)
    for _ in range(2):
        optimizer.zero_grad()
        model(model.preprocess(TEXTS))["sentence_embedding"].square()[:, :4].sum().backward()
        optimizer.step()
    still = [
        name for name, parameter in model.named_parameters() if name in before and torch.equal(parameter, before[name])
    ]
    assert still == []


def test_dropping_tokens_keeps_each_text_its_own(mean_base: Run) -> None:
    static = _static(towers.load(Path(mean_base.output) / "base" / "document"))
    column = static.preprocess(["高血压吃什么好", "哮喘", "痛风的检查"])
    torch.manual_seed(0)
    ids, offsets = drop_tokens(column["input_ids"], column["offsets"], 0.5)
    whole = [part.tolist() for part in torch.tensor_split(column["input_ids"], column["offsets"][1:])]
    kept = [part.tolist() for part in torch.tensor_split(ids, offsets[1:])]
    assert all(set(short) <= set(long) for short, long in zip(kept, whole, strict=True))
    assert 0 < sum(map(len, kept)) < sum(map(len, whole))


def test_a_token_is_itself_and_its_characters(mean_base: Run) -> None:
    static = _static(towers.load(Path(mean_base.output) / "base" / "document"))
    vocabulary = static.tokenizer.get_vocab()
    word = next(token for token in vocabulary if len(token) == 3 and all(mark in vocabulary for mark in token))
    ids, offsets = torch.tensor([vocabulary[word[0]], vocabulary[word]]), torch.tensor([0, 1])
    found, starts = Expansion(Parts.of(static.tokenizer))(ids, offsets)
    assert found.tolist() == [vocabulary[word[0]], vocabulary[word], *(vocabulary[mark] for mark in word)]
    assert starts.tolist() == [0, 1]
    alone, _ = Expansion(Parts.of(static.tokenizer, compose=False))(ids, offsets)
    assert alone.tolist() == ids.tolist()


def test_a_folded_table_is_the_composed_one(mean_base: Run) -> None:
    static = _static(towers.load(Path(mean_base.output) / "base" / "document"))
    parts, column = Parts.of(static.tokenizer, compose=True), static.preprocess(TEXTS)
    table = static[0].embedding.weight.detach()
    ids, offsets = Expansion(parts)(column["input_ids"], column["offsets"])
    sums = torch.nn.functional.embedding_bag(ids, table, offsets, mode="sum")
    folded_table = torch.from_numpy(parts.fold(table.numpy()))
    folded = torch.nn.functional.embedding_bag(column["input_ids"], folded_table, column["offsets"], mode="sum")
    torch.testing.assert_close(sums, folded)


def test_a_static_start_needs_mean_pooling(document_folder: Path) -> None:
    encoder = towers.load(document_folder)
    with pytest.raises(InputError, match="pooling = 'mean'"):
        start_from_static(encoder, _static(encoder)[0].embedding.weight.detach())


def test_the_stage_trains_both_sides_at_once(tmp_path: Path) -> None:
    static = stage("static", batch_size=16, max_steps=40, learning_rate=1e-2, temperature=0.05, evaluate=True, crop=0.2)
    run = tiny_run(tmp_path, static, document_pooling="mean")
    (record,) = recipe.run_stages(run)
    assert record["evaluation"]["ndcg@10"] > 0.8
    assert recipe.newest(run, "query").parent.name == recipe.newest(run, "document").parent.name == "static"

    export(run, "")
    trained = towers.load(recipe.newest(run, "query")).encode_query(TEXTS)
    exported = CareModel.load(str(Path(run.output) / run.name), precision="fp32").encode_query(TEXTS)
    np.testing.assert_allclose(exported, trained, atol=1e-5)
