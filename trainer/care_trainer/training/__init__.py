"""The training loop of all stages: checkpoints, metrics, interruption."""
