"""The model as embedding classes of LangChain and Haystack; LlamaIndex has its own packages.

In: texts. Out: vectors, by the query encoder for queries and by the document encoder for documents. Each
module imports its framework, so it is imported by name and belongs to the extra of that name.
"""
