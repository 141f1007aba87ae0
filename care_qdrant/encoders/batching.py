"""Batches of equal cost: padding is paid for like text, so texts of one length belong together."""

from collections.abc import Iterator, Sequence


def token_batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Yield batches of indices, longest texts first, none with more than ``batch_tokens`` padded tokens.

    The longest come first so that memory runs out at once or never. A text longer than the budget is a batch of its
    own.

    Args:
        lengths: Tokens of each text.
        batch_tokens: Padded tokens of one batch: its longest text times its number of texts.
    """
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        longest = lengths[batch[0]] if batch else lengths[index]
        if batch and longest * (len(batch) + 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
