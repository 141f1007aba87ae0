"""Makes a benchmark and a training set from a live collection and questions (arXiv 2604.10937, 3.1, 4.1, B, C).

In: a Qdrant collection, questions, language models behind OpenAI-compatible endpoints, one TOML file. Out: JSON Lines
after every step, a task directory that `care-bench run` scores, pairs that `care-train` reads. This
package must not know how a model is trained or how a system is scored.
"""
