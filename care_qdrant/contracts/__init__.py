"""Contracts of vectors and layouts of payloads, kept in a collection: data and rules, without a call to Qdrant."""
