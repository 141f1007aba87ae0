"""Weights that other tools saved, checked and made a CARE folder."""
