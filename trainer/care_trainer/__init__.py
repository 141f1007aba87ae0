"""The trainer: the paper's recipe as a chain of stages, on sentence-transformers, from base models to a CARE folder."""
