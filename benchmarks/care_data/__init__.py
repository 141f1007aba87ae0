"""Makes a benchmark and a training set of a live collection and a list of questions (arXiv 2604.10937, 3.1, 4.1, B, C).

In: a Qdrant collection, questions, language models behind OpenAI-compatible endpoints, one TOML file. Out: JSON Lines
after every step, a task directory that `care-bench run` scores, pairs that `care-train` reads. It must not know how a
model is trained or how a system is scored.
"""
