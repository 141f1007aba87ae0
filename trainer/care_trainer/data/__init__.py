"""Training data: JSONL rows read, filtered, mapped from disk, drawn into batches, mined and reported."""
