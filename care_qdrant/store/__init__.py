"""Qdrant: opening it, retrying, the contract of a collection, what points hold, writing them."""
