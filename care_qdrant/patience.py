"""Longest times to wait for a server, an embeddings server or a Qdrant, that does not answer."""

PATIENCE_SECONDS = 600.0
"""Longest wait in the middle of a run, which then continues."""
START_PATIENCE_SECONDS = 5.0
"""Longest wait before a run begins, so that a wrong address is reported soon."""
