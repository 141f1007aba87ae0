"""Sparse vectors: BM25, the weights of its query terms, and third-party sparse encoders."""
