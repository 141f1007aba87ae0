"""Queries to hits: the dense search, the sparse one beside it, and the mix of both."""
