"""Texts into a collection: compare what is stored with the corpus, encode what is missing, write it, count it."""
