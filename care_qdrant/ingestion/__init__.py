"""A corpus into a collection: what a chunk needs, encoding it, writing it, deleting what is gone, the report."""
