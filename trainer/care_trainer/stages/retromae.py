"""Stage ``retromae``: the query encoder is pretrained on single texts."""

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import set_seed

from care_trainer.config import RetroMae
from care_trainer.data.collators import PairCollator
from care_trainer.losses.retromae import RetroMaeLoss
from care_trainer.stages.context import Context, Trained
from care_trainer.training.loop import fit


def train_retromae(context: Context) -> Trained:
    """Pretrain the query encoder with RetroMAE [D.1]."""
    stage = context.stage
    assert isinstance(stage, RetroMae)
    query, trainable = context.load_trainable("query")
    modules = list(query.children())
    pooling = next(number for number, module in enumerate(modules) if isinstance(module, Pooling))
    set_seed(context.run.seed)  # its decoder starts from random weights, the same ones in every process
    loss = RetroMaeLoss(
        SentenceTransformer(modules=modules[: pooling + 1]),  # shares the weights, without the normalisation
        base=context.run.query.base,
        revision=context.run.query.revision,
        encoder_masked=stage.encoder_masked,
        decoder_masked=stage.decoder_masked,
        bf16=stage.bf16,
    )
    rows = context.rows()
    collator = PairCollator(preprocess_fn=loss.model.preprocess, max_length=stage.max_tokens)
    metrics = fit(context, loss.model, loss, rows, collator, by_length=True)
    return Trained(query, None, {"query": trainable}, metrics)
