"""Ingestion as units that any scheduler can run: plan, encode, load, verify.

Input: a corpus and the folder of a job, on disk or in object storage. Output: Parquet parts with vectors, and the
collection that direct ingestion of the corpus would write. A unit is a range of rows of one file; it is done when its
receipt exists. Its bytes do not depend on what runs it: a process, an actor of Ray or a job of an array.
"""
