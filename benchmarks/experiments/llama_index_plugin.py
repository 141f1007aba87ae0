"""A pytest plugin that puts our classes in the place of LlamaIndex's, for tests that know nothing of it.

``MockEmbedding`` becomes a `CareEmbedding` whose two encoders give what the mock gives (0.5 in each place), and
``QdrantVectorStore`` becomes `CareVectorStore`. Everything between the test and the encoder is ours.
"""

import sys
from collections.abc import Sequence
from typing import Any, Self
from unittest.mock import patch

import llama_index.core
import llama_index.core.embeddings.mock_embed_model as mock_embed_model
import llama_index.vector_stores.qdrant as stock_store
import numpy as np
from llama_index.core.bridge.pydantic import Field
from llama_index.embeddings.care import CareEmbedding
from llama_index.vector_stores.care import CareVectorStore
from typing_extensions import override

from care_qdrant.model.care_model import CareModel
from care_qdrant.types import Vectors


class ConstantEncoder:
    """Encoder that returns the vector of ``MockEmbedding`` for every text."""

    prompt, max_tokens = "", 8_192

    def __init__(self, dim: int) -> None:
        """Set the length of the vectors."""
        self.dim = dim

    def encode(self, texts: Sequence[str], *, prompt: str | None = None) -> Vectors:
        """Return 0.5 in every coordinate, for any prompt."""
        del prompt
        return np.full((len(texts), self.dim), 0.5, dtype=np.float32)

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return the length of each text in characters."""
        return [len(text) for text in texts]

    def open(self) -> Self:
        """Return this encoder: as a side of a model it is loaded already."""
        return self

    def tokenizer(self) -> Self:
        """Return this encoder, which counts its tokens."""
        return self

    def require(self) -> None:
        """Refuse nothing."""


class CareMock(CareEmbedding):
    """`CareEmbedding` with the constructor of ``MockEmbedding``."""

    embed_dim: int = Field(description="Length of the vector.")

    def __init__(self, embed_dim: int, **fields: Any) -> None:
        """Accept the argument of the mock, and those of the base classes."""
        super().__init__(**{**fields, "embed_dim": embed_dim, "model": f"constant-{embed_dim}"})

    @classmethod
    @override
    def class_name(cls) -> str:
        return "MockEmbedding"


def constant_model(source: str, **_: object) -> CareModel:
    """Stand in for `CareModel.load`: ``constant-8`` has eight dimensions."""
    dim = int(source.rpartition("-")[2])
    encoder = ConstantEncoder(dim)
    return CareModel(
        name=source,
        dim=dim,
        fingerprint=source,
        temperature=0.02,
        query=encoder,
        document=encoder,
    )


def pytest_configure() -> None:
    """Replace the classes in all modules of LlamaIndex before any test is imported."""
    patch.object(CareModel, "load", constant_model).start()
    _exchange(mock_embed_model.MockEmbedding, CareMock)
    _exchange(stock_store.QdrantVectorStore, CareVectorStore)


def _exchange(stock: type, ours: type) -> None:
    modules = [
        module for name, module in sys.modules.items() if name.startswith("llama_index.") and ".care" not in name
    ]
    for module in [llama_index.core, *modules]:
        for name, value in list(vars(module).items()):
            if value is stock:
                setattr(module, name, ours)
