"""Studies of docs/EXPERIMENTS.md, run from the root of a checkout as ``python -m benchmarks.experiments.NAME``."""
