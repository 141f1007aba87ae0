"""Sparse vectors: BM25, the weights of its query terms, and the sparse encoders of others."""
