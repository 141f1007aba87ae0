"""The loss that fits a stage: its settings, around an objective."""

from sentence_transformers import SentenceTransformer
from torch import nn

from care_trainer.config import Contrastive, Stage
from care_trainer.losses import EmbeddingLoss


def embedding_loss(model: SentenceTransformer, objective: nn.Module, stage: Stage) -> EmbeddingLoss:
    """Give the loss of a stage: an objective over what the model makes of each column."""
    return EmbeddingLoss(
        model,
        objective,
        mini_batch_size=stage.mini_batch_size,
        mini_batch_tokens=stage.mini_batch_tokens,
        cached=stage.cached,
        token_dropout=stage.token_dropout if isinstance(stage, Contrastive) else 0.0,
    )
