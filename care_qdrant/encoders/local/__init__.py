"""Encoders on torch in this process or its children, and the check of saved weights (extra ``ingest``)."""
