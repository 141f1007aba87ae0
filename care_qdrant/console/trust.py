"""Keys of the environment, and who named the address that they would be sent to.

A ``care.toml`` or ``pyproject.toml`` is read from the current folder, which may be a stranger's. An address that
only such a file names gets no key; one of the command line or of the environment does.
"""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import click

from care_qdrant.errors import redact, remember_secret

logger = logging.getLogger(__name__)


def came_from_file(option: str) -> bool:
    """Return whether a file of the current folder gave the value of an option, and not the user."""
    context = click.get_current_context(silent=True)
    return context is not None and context.get_parameter_source(option) is click.core.ParameterSource.DEFAULT_MAP


def environment_key(variable: str, urls: Sequence[str], option: str) -> str | None:
    """Return the key of an environment variable for the servers of an option; None where only a file names them.

    Args:
        variable: Name of the variable, such as ``QDRANT_API_KEY``.
        urls: Servers that the key would be sent to.
        option: Name of the parameter that has the URLs.
    """
    key = os.environ.get(variable, "").strip()  # `export KEY=$(cat file)` and Windows leave a line break at its end
    remember_secret(key)
    if not key or not urls or not came_from_file(option):
        return key or None
    logger.warning(
        "%s is not sent to %s: only a file of this folder names that server. Give the URL on the command line or in "
        "the environment",
        variable,
        ", ".join(map(redact, urls)),
    )
    return None


def warn_of_plain_http(variable: str, urls: Sequence[str]) -> None:
    """Warn of each server on another machine that a key would reach without encryption."""
    from care_qdrant.qdrant.connection import is_loopback

    for url in urls:
        if urlsplit(url).scheme == "http" and not is_loopback(urlsplit(url).hostname):
            logger.warning("%s: %s is sent without encryption; give an https URL", redact(url), variable)


def warn_of_foreign_folder(path: Path) -> None:
    """Warn of an embedded database that belongs to another user: it is unpickled, which can run code."""
    try:
        owner = path.stat().st_uid
    except OSError:  # it does not exist yet
        return
    if hasattr(os, "geteuid") and owner != os.geteuid():
        logger.warning(
            "%s: this folder belongs to another user (uid %d), and was not named on the command line. The files of an "
            "embedded database are unpickled, and can run code: open it only if you trust that user",
            path,
            owner,
        )
