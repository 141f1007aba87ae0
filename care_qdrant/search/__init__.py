"""Queries to hits: which vectors of a collection may be searched, the plan of a query, its requests, its hits.

Comes in: a collection name, texts or query vectors, filters. Goes out: points and hits. `Retriever` and the LlamaIndex
store both go this way; it knows nothing of LlamaIndex, and never loads the document encoder.
"""
