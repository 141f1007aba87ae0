"""Studies of docs/evidence/experiments.md, run in a checkout by ``python -m benchmarks.experiments.NAME``."""
