"""Encoders behind an embeddings API."""
