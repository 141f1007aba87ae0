"""The settings of a query encoder that is learned from stored vectors."""

import math
from dataclasses import dataclass, replace

FOLDER = "learn"
"""Folder inside the CARE folder with the report, the plot and the points that were read."""
NEWS = 0.05
"""Fraction of unread points from which the encoder of a watched collection is updated."""


@dataclass(frozen=True, slots=True)
class LearnSettings:
    """Settings of one training run; the defaults were chosen on held-out documents."""

    sample: int = 100_000
    """Highest number of points to read, drawn at random; memory does not grow beyond them."""
    vocabulary: int = 12_000
    """Highest number of tokens of the tokenizer that is trained on the collection's texts."""
    max_tokens: int = 256
    """Highest number of tokens of a text to read; the rest is cut off."""
    width: int = 512
    """Highest number of dimensions of the token vectors; a linear map (principal components) leads to wider
    vectors."""
    temperature: float = 0.17
    """Temperature of the contrastive loss, as a multiple of the mean squared distance of the stored vectors from their
    mean: similarities lie as much closer together as the vectors do."""
    softness: float = 0.0
    """Temperature of the targets, as a multiple of the loss's: a text has to be as near to each candidate as its vector
    is. 0: a text has to find its own vector alone."""
    token_dropout: float = 0.3
    """Fraction of the tokens that are left out of each text at each step, from 0 to below 1."""
    learning_rate: float = 3e-3
    """Learning rate of SparseAdam at the first step; it falls linearly to zero."""
    batch: int = 512
    """Texts of one step."""
    negatives: int = 1_024
    """Stored vectors of other texts, drawn at random in each step, that serve as negatives in addition to the batch."""
    epochs: int = 28
    """Highest number of passes over the texts; early stopping on held-out documents may end sooner."""
    max_steps: int = 4_000
    """Largest number of steps, even if the epochs would take more."""
    held_out: float = 0.05
    """Fraction of the documents that are held out, at most 1,000 of them."""
    seed: int = 0
    """Seed of the sample, the split, the start and the order of the batches."""

    @property
    def continued(self) -> "LearnSettings":
        """Settings with which training goes on from an earlier encoder, which only adapts to new documents."""
        return replace(self, learning_rate=self.learning_rate / 3, epochs=math.ceil(self.epochs * 2 / 7))
