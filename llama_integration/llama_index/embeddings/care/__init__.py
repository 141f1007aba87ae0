"""CARE for LlamaIndex: queries by the small encoder, documents by the large one."""

from llama_index.embeddings.care.base import CareEmbedding, CareNodeText
from llama_index.embeddings.care.parser import CareNodeParser

__all__ = ["CareEmbedding", "CareNodeParser", "CareNodeText"]
