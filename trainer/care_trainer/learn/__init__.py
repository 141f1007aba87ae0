"""A query encoder learned from the vectors that a collection already holds.

In: one collection and one of its dense vectors, written by any program. Out: a CARE folder whose query side is a table
of token vectors in the space of those vectors, a report of its quality, and a contract on the collection. Must not
know: the model that made the vectors, the command line, and the stages of the trainer, with which it shares tokens and
loss.
"""
