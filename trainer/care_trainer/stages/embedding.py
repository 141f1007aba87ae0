"""The loss that fits an encoder: mini-batches through a transformer, or flat bags of tokens through a table."""

from sentence_transformers import SentenceTransformer
from torch import nn

from care_trainer import towers
from care_trainer.bag import BagLoss, Parts
from care_trainer.config import Contrastive, Stage
from care_trainer.losses import EmbeddingLoss


def embedding_loss(model: SentenceTransformer, objective: nn.Module, stage: Stage) -> nn.Module:
    """Give the loss of a stage: an objective over what the model makes of each column."""
    token_dropout = stage.token_dropout if isinstance(stage, Contrastive) else 0.0
    if towers.is_static(model):
        return BagLoss(model, objective, Parts(model.tokenizer, compose=False), token_dropout)
    return EmbeddingLoss(
        model,
        objective,
        mini_batch_size=stage.mini_batch_size,
        mini_batch_tokens=stage.mini_batch_tokens,
        cached=stage.cached,
        token_dropout=token_dropout,
    )
