"""A file to rows, rows to documents, documents to chunks."""
