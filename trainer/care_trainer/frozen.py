"""Stage II against documents that stay as they are: their vectors are read, not computed again in every step."""

import torch
from torch import Tensor, nn

from care_trainer.losses import hash_tokens
from care_trainer.objectives import Batch, InfoNce


class FrozenDocuments(nn.Module):
    """Equation (1) with the queries' embeddings as the only column, and the documents' vectors as labels.

    ``batch.labels`` are (rows, dim), or with hard negatives (rows, 1 + negatives, dim), the positive first.
    """

    def __init__(self, contrastive: InfoNce) -> None:
        super().__init__()
        self.contrastive = contrastive

    def forward(self, batch: Batch) -> Tensor:
        """Give the mean loss of the batch's rows."""
        assert batch.labels is not None
        labels = batch.labels.to(batch.embeddings[0].device)
        documents = [labels] if labels.ndim == 2 else list(labels.unbind(dim=1))
        keys = [vector_keys(column) for column in documents]
        loss: Tensor = self.contrastive(Batch([batch.embeddings[0], *documents], [batch.keys[0], *keys]))
        return loss


def vector_keys(vectors: Tensor) -> Tensor:
    """Hash the bits of float16 vectors, (rows,) int64: one encoder gives equal texts equal vectors, so equal keys."""
    bits = vectors.contiguous().view(torch.int16)
    return hash_tokens(bits, torch.arange(1, bits.shape[1] + 1, device=bits.device)).sum(dim=1)
