"""The loss of stage ``static``: columns are flat, and a token's vector is a sum over its parts."""

from collections.abc import Iterable
from typing import Any

from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from care_trainer.losses.embedding import drop_tokens
from care_trainer.losses.keys import Features, text_keys, without_keys
from care_trainer.losses.objectives import Batch
from care_trainer.models.static import Parts


class StaticLoss(nn.Module):
    """An objective over the texts of a static encoder, in place of `EmbeddingLoss`."""

    def __init__(self, model: SentenceTransformer, objective: nn.Module, parts: Parts, token_dropout: float) -> None:
        super().__init__()
        self.model: Any = model
        self.objective, self.parts, self.token_dropout = objective, parts, token_dropout

    def forward(self, sentence_features: Iterable[Features], labels: Tensor | None = None) -> Tensor:
        """Return the loss of a batch, a scalar, from one flat feature dictionary for each column."""
        columns = list(sentence_features)
        vectors = [self.model(self._parts_of(without_keys(column)))["sentence_embedding"] for column in columns]
        loss: Tensor = self.objective(Batch(vectors, [text_keys(column) for column in columns], labels))
        return loss

    def _parts_of(self, column: Features) -> Features:
        ids, offsets = drop_tokens(column["input_ids"], column["offsets"], self.token_dropout)
        ids, offsets = self.parts.expand(ids, offsets)
        return {**column, "input_ids": ids, "offsets": offsets}
