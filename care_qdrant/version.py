"""The version of this package, as `pyproject.toml` names it."""

__version__ = "0.1.0"
