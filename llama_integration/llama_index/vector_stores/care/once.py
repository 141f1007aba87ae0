"""Warnings that every query would repeat, logged once."""

import logging
from typing import Any

logger = logging.getLogger(__name__)


class OnceLogger:
    """Logs one warning per subject."""

    def __init__(self) -> None:
        self._warned: set[str] = set()

    def has_warned(self, about: str) -> bool:
        """Return whether a warning about a subject was logged."""
        return about in self._warned

    def is_first(self, about: str) -> bool:
        """Return whether a subject comes up for the first time, so that it is examined once."""
        is_first = about not in self._warned
        self._warned.add(about)
        return is_first

    def warn(self, about: str, message: str, *values: Any) -> None:
        """Log a warning, unless one about the same subject was logged before."""
        if about not in self._warned:
            self._warned.add(about)
            logger.warning(message, *values)
