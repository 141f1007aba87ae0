"""The model as embedding classes of other frameworks, a few lines each; LlamaIndex has its own packages.

Comes in: texts. Goes out: vectors, of the query encoder for queries and of the document encoder for documents. Each
module imports its framework, so it is imported by name and belongs to the extra of that name.
"""
