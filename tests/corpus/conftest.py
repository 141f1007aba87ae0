"""Corpora on disk as the tests of ingestion write them."""

from tests.ingestion.conftest import write_corpus

__all__ = ["write_corpus"]
