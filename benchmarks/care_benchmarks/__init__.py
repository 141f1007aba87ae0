"""The measuring side of care-qdrant: accuracy, latency and statistics on the path that production uses."""
