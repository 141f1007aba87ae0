"""Generated vectors in clusters, for measurements that need many of them and no text."""

from collections.abc import Sequence

import numpy as np

from care_qdrant.types import Vectors

DIM = 256
CLUSTERS = 1_000


class CloudEncoder:
    """Draws a vector near one of `CLUSTERS` centres for each text; equal texts get other vectors."""

    def __init__(self) -> None:
        self.dim, self.max_tokens, self.prompt = DIM, 512, ""
        self._rng = np.random.default_rng(0)
        self._centres = self._rng.normal(size=(CLUSTERS, DIM)).astype(np.float32)

    def encode(self, texts: Sequence[str], *, prompt: str | None = None) -> Vectors:  # noqa: ARG002
        """Return one unit vector per text: (len(texts), dim)."""
        return self.draw(len(texts))

    def draw(self, count: int) -> Vectors:
        """Return unit vectors: (count, dim)."""
        noise = self._rng.standard_normal((count, DIM), dtype=np.float32)
        rows = self._centres[self._rng.integers(0, CLUSTERS, count)] + noise
        unit: Vectors = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return unit

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return the length of each text in words."""
        return [len(text.split()) for text in texts]
