"""Ingests texts into a collection: compares them with the stored points, encodes missing ones, writes and counts."""
