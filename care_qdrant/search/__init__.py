"""Queries to hits: which vectors of a collection may be searched, the request of a query, its hits.

Comes in: a collection name, texts or query vectors, filters. Goes out: points and hits. `Retriever` and the LlamaIndex
store both go this way; it knows nothing of LlamaIndex, and never loads the document encoder.
"""
