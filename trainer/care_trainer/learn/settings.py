"""The settings of a query encoder that is learned from stored vectors."""

from dataclasses import dataclass

FOLDER = "learn"
"""Folder inside the CARE folder with the report, the plot and the points that were read."""
NEWS = 0.05
"""Fraction of the points that an encoder has not read from which a watched collection is learned from again."""


@dataclass(frozen=True, slots=True)
class LearnSettings:
    """Settings of one training run; the defaults were chosen on held-out documents."""

    sample: int = 100_000
    """Points that are read at most, drawn at random; memory does not grow beyond them."""
    vocabulary: int = 12_000
    """Tokens of the tokenizer that is trained on the collection's texts, at most."""
    max_tokens: int = 256
    """Tokens of a text that are read; the rest is cut off."""
    width: int = 512
    """Dimensions of the token vectors at most; wider vectors are reached by a linear map (principal components)."""
    temperature: float = 0.17
    """Temperature of the contrastive loss, as a multiple of the mean squared distance of the stored vectors from their
    mean: similarities lie as much closer together as the vectors do."""
    token_dropout: float = 0.3
    """Fraction of the tokens that are left out of each text at each step, from 0 to below 1."""
    learning_rate: float = 3e-3
    """Learning rate of SparseAdam at the first step; it falls linearly to zero."""
    batch: int = 512
    """Texts of one step."""
    negatives: int = 1_024
    """Stored vectors of other texts, drawn at random, that each text is told apart from besides those of its batch."""
    epochs: int = 28
    """Passes over the texts at most; early stopping on held-out documents may end sooner."""
    max_steps: int = 4_000
    """Largest number of steps, even if the epochs would take more."""
    held_out: float = 0.05
    """Fraction of the documents that are held out, at most 1,000 of them."""
    seed: int = 0
    """Seed of the sample, the split, the start and the order of the batches."""


UPDATE = LearnSettings(learning_rate=1e-3, epochs=8)
"""Defaults of an update: the encoder is trained already, and is to follow the documents that are new."""
