"""Queries to hits: the dense side, BM25 beside it, and the mix of both."""
