"""The only way to Qdrant: opening it, `Collection` with retries, its schema and contracts, payloads, writing points.

Comes in: an open client and a collection name. Goes out: schemas, records, counts, acknowledged writes. It knows
neither models nor corpora, only what their vectors and payloads look like in a collection.
"""
