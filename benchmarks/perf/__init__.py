"""Microbenchmarks, run from the root of a checkout as ``python -m benchmarks.perf.NAME``; each writes one JSON file."""
