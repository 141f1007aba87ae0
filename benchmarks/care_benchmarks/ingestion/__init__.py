"""Ingestion measured and attacked: throughput, memory, how long the encoder waits, and what ``kill -9`` loses."""
