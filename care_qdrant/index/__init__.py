"""Texts into a collection: what is missing, encoding it, writing it; attach, verify and publishing are its uses."""
