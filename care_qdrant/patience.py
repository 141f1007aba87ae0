"""Longest times to wait for a server, an embeddings server or a Qdrant, that does not answer."""

PATIENCE_SECONDS = 600.0
"""In the middle of a run: it waits that long and goes on."""
START_PATIENCE_SECONDS = 5.0
"""Before a run begins, so that a wrong address is said soon."""
