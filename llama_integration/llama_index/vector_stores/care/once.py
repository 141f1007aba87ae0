"""Warnings that would come with every query, logged for the first of them alone."""

import logging
from typing import Any

logger = logging.getLogger(__name__)


class OnceLogger:
    """Logs each warning of one store once, told apart by what it is about."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def has_warned(self, about: str) -> bool:
        """Return whether a warning about a subject was logged."""
        return about in self._told

    def is_first(self, about: str) -> bool:
        """Return whether a subject comes up for the first time, so that it is looked into once."""
        is_first = about not in self._told
        self._told.add(about)
        return is_first

    def warn(self, about: str, message: str, *values: Any) -> None:
        """Log a warning, unless one about the same subject was logged before."""
        if about not in self._told:
            self._told.add(about)
            logger.warning(message, *values)
