"""Stages ``retromae`` (query side) and ``causal`` (document side): language modelling on single texts."""

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator
from sentence_transformers.sentence_transformer.modules import Pooling

from care_trainer import towers
from care_trainer.config import RetroMae
from care_trainer.fitting import fit
from care_trainer.language import CausalLoss, RetroMaeLoss
from care_trainer.stages.context import Context, Trained


def train_retromae(context: Context) -> Trained:
    """Pretrain the query encoder with RetroMAE [D.1]."""
    stage = context.stage
    assert isinstance(stage, RetroMae)
    query = towers.load(context.query)
    trainable = towers.make_trainable(query, side="query", lora=context.run.query.lora is not None)
    loss = RetroMaeLoss(
        _without_normalisation(query),
        base=context.run.query.base,
        encoder_masked=stage.encoder_masked,
        decoder_masked=stage.decoder_masked,
    )
    return Trained(query, None, {"query": trainable}, _fit(context, loss.model, loss))


def train_causal(context: Context) -> Trained:
    """Warm a document encoder up that starts from random weights."""
    document = towers.load(context.document)
    trainable = towers.make_trainable(document, side="document", lora=context.run.document.lora is not None)
    loss = CausalLoss(_without_normalisation(document))
    return Trained(None, document, {"document": trainable}, _fit(context, loss.model, loss))


def _fit(context: Context, model: SentenceTransformer, loss: RetroMaeLoss | CausalLoss) -> dict[str, float]:
    rows = context.text_rows()
    job = context.job(
        weights=rows.weights,
        lengths=rows.characters,
        collator=SentenceTransformerDataCollator(preprocess_fn=model.preprocess, max_length=context.stage.max_tokens),
    )
    return fit(model, loss, rows.text_columns(), job)


def _without_normalisation(encoder: SentenceTransformer) -> SentenceTransformer:
    """Give an encoder up to its pooling, sharing its weights."""
    modules = list(encoder.children())
    pooling = next(number for number, module in enumerate(modules) if isinstance(module, Pooling))
    return SentenceTransformer(modules=modules[: pooling + 1])
