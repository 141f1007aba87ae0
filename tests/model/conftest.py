"""Encoders as the tests of encoding have them."""

from tests.encoders.conftest import exported

__all__ = ["exported"]
