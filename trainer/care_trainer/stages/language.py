"""Stages ``retromae`` (query encoder) and ``causal`` (document encoder): language modelling on single texts."""

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import set_seed

from care_trainer.config import RetroMae
from care_trainer.data.collators import PairCollator
from care_trainer.losses.language import CausalLoss, RetroMaeLoss
from care_trainer.stages.context import Context, Trained
from care_trainer.training.loop import fit


def train_retromae(context: Context) -> Trained:
    """Pretrain the query encoder with RetroMAE [D.1]."""
    stage = context.stage
    assert isinstance(stage, RetroMae)
    query, trainable = context.load_trainable("query")
    set_seed(context.run.seed)  # its decoder starts from random weights, the same ones in every process
    loss = RetroMaeLoss(
        _without_normalisation(query),
        base=context.run.query.base,
        revision=context.run.query.revision,
        encoder_masked=stage.encoder_masked,
        decoder_masked=stage.decoder_masked,
        bf16=stage.bf16,
    )
    return Trained(query, None, {"query": trainable}, _fit(context, loss, joined=stage.joined))


def train_causal(context: Context) -> Trained:
    """Train a document encoder that starts from random weights on next tokens."""
    document, trainable = context.load_trainable("document")
    loss = CausalLoss(_without_normalisation(document), bf16=context.stage.bf16)
    return Trained(None, document, {"document": trainable}, _fit(context, loss))


def _fit(context: Context, loss: RetroMaeLoss | CausalLoss, *, joined: bool = False) -> dict[str, float]:
    rows = context.text_rows(joined=joined)
    collator = PairCollator(preprocess_fn=loss.model.preprocess, max_length=context.stage.max_tokens)
    job = context.job(rows, lengths=rows.characters, collator=collator)
    return fit(loss.model, loss, rows.columns, job)


def _without_normalisation(encoder: SentenceTransformer) -> SentenceTransformer:
    """Return an encoder up to its pooling, sharing its weights."""
    modules = list(encoder.children())
    pooling = next(number for number, module in enumerate(modules) if isinstance(module, Pooling))
    return SentenceTransformer(modules=modules[: pooling + 1])
