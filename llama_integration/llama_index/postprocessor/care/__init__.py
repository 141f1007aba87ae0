"""Reranking for LlamaIndex by the document vectors that Qdrant holds, without the document encoder."""

from llama_index.postprocessor.care.base import CareRerank

__all__ = ["CareRerank"]
