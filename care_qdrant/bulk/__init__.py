"""Ingestion as units that any scheduler can run: plan, encode, load, verify.

Comes in: a corpus and the folder of a job, on disk or in object storage. Goes out: Parquet parts with vectors, and
the collection that direct ingestion of the corpus writes. A unit is a range of rows of one file; it is done when its
receipt is there. Who runs it, a process, an actor of Ray or a job of an array, leaves no trace in its bytes.
"""
