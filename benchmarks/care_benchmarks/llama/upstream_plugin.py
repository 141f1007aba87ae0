"""A pytest plugin that puts our classes in the place of LlamaIndex's, for tests that know nothing of it.

``MockEmbedding`` becomes a `CareEmbedding` whose two encoders give what the mock gives (0.5 in each place), and
``QdrantVectorStore`` becomes `CareVectorStore`. Everything between the test and the encoder is ours.
"""

import sys
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import llama_index.core
import llama_index.core.embeddings.mock_embed_model as mock_embed_model
import llama_index.vector_stores.qdrant as stock_store
import numpy as np
from llama_index.core.bridge.pydantic import Field
from llama_index.embeddings.care import CareEmbedding
from llama_index.vector_stores.care import CareVectorStore
from typing_extensions import override

from care_qdrant.model import CareModel
from care_qdrant.types import Vectors


class ConstantEncoder:
    """Gives every text the vector of ``MockEmbedding``."""

    prompt, max_tokens = "", 8_192

    def __init__(self, dim: int) -> None:
        """Take the number of places."""
        self.dim = dim

    def encode(self, texts: Sequence[str], *, prompt: str | None = None) -> Vectors:
        """Give 0.5 everywhere, whatever the prompt."""
        del prompt
        return np.full((len(texts), self.dim), 0.5, dtype=np.float32)

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Give the lengths in characters."""
        return [len(text) for text in texts]


class CareMock(CareEmbedding):
    """`CareEmbedding` with the constructor of ``MockEmbedding``."""

    embed_dim: int = Field(description="Places of the vector.")

    def __init__(self, embed_dim: int, **fields: Any) -> None:
        """Take the mock's one argument, and whatever a base class takes."""
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
        load_query_encoder=lambda: encoder,
        load_document_encoder=lambda: encoder,
    )


def pytest_configure() -> None:
    """Exchange the classes wherever LlamaIndex has them, before any test is imported."""
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
