"""Qdrant for LlamaIndex that searches the vector it was asked for, and only with the model that made it."""

from llama_index.vector_stores.care.base import CareVectorStore

__all__ = ["CareVectorStore"]
