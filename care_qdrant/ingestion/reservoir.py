"""A random sample of a stream of unknown length."""

import random
from collections.abc import Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class Reservoir(Generic[T]):
    """A sample of items, each drawn with the same probability (Vitter 1985, algorithm R)."""

    def __init__(self, size: int, seed: int | None = None) -> None:
        self.drawn: list[T] = []
        self.seen = 0
        """Number of items that could have been drawn."""
        self._size, self._chance = size, random.Random(seed)

    def draw(self, items: Iterable[T]) -> None:
        """Draw from more items."""
        for item in items:
            self.seen += 1
            if len(self.drawn) < self._size:
                self.drawn.append(item)
            elif (place := self._chance.randrange(self.seen)) < self._size:
                self.drawn[place] = item
